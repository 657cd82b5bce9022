"""Network namespaces on a bridge, each behind a link of limited rate that can be cut. Needs root, ``ip`` and ``tc``.

A client's interface is called ``eth0``. What it sends is limited inside its namespace, what it receives at the other
end of the cable. Offloads are off at both ends, so that the counters count every packet as it would be on a wire,
including Ethernet headers (14 bytes).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

# SIOCETHTOOL with ETHTOOL_STXCSUM, SSG, STSO, SGSO, SGRO set to 0; ethtool(8) is not installed everywhere.
OFFLOADS = """
import array, fcntl, socket, struct, sys
with socket.socket() as s:
    for command in (0x17, 0x19, 0x1F, 0x24, 0x2C):
        value = array.array("B", struct.pack("II", command, 0))
        try:
            fcntl.ioctl(s, 0x8946, struct.pack("16sP", sys.argv[1].encode(), value.buffer_info()[0]) + bytes(16))
        except OSError:
            pass
"""


def unavailable() -> str:
    """Return why this machine cannot make namespaces; empty if it can."""
    if os.geteuid():
        return "needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)}"
    try:
        with NamespaceNetwork(1):
            return ""
    except RuntimeError as reason:
        return str(reason)


@dataclass
class NamespaceNetwork:
    """A bridge, which is the server's host, and one namespace for each client.

    Attributes:
        clients: Number of clients.
        up: Rate of what a client sends, as tc writes it.
        down: Rate of what it receives.
        namespaces: Their names.
        address: The server's address on the bridge.
    """

    clients: int
    up: str = "10mbit"
    down: str = "50mbit"
    _id: str = field(default_factory=lambda: uuid.uuid4().hex[:6])

    @property
    def address(self) -> str:
        """The server's address."""
        return f"10.{200 + int(self._id[:2], 16) % 50}.{int(self._id[2:4], 16)}.1"

    def namespace(self, number: int) -> str:
        """Return the namespace of client ``number``."""
        return f"sepal-{self._id}-{number}"

    def outer(self, number: int) -> str:
        """Return the name of the bridge's end of client ``number``'s cable."""
        return f"sv{self._id}{number}"

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        bridge, network = f"sb{self._id}", self.address.rpartition(".")[0]
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.address}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for number in range(self.clients):
            name, outer = self.namespace(number), self.outer(number)
            run("ip", "netns", "add", name)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", outer, "master", bridge, "up")
            inside = ["ip", "netns", "exec", name]
            run(*inside, "ip", "addr", "add", f"{network}.{number + 2}/24", "dev", "eth0")
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "ip", "link", "set", "eth0", "up")
            run(sys.executable, "-c", OFFLOADS, outer)
            run(*inside, sys.executable, "-c", OFFLOADS, "eth0")
            limit = ["burst", "64kb", "latency", "400ms"]
            run(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", self.up, *limit)
            run("tc", "qdisc", "add", "dev", outer, "root", "tbf", "rate", self.down, *limit)

    def _remove(self) -> None:
        for number in range(self.clients):
            subprocess.run(["ip", "netns", "del", self.namespace(number)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", self.outer(number)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"sb{self._id}"], capture_output=True, check=False)

    def cut(self, number: int) -> None:
        """Pull client ``number``'s cable."""
        run("ip", "link", "set", self.outer(number), "down")

    def reconnect(self, number: int) -> None:
        """Plug it back in."""
        run("ip", "link", "set", self.outer(number), "up")

    def counters(self, number: int) -> tuple[int, int]:
        """Return the bytes that client ``number`` has sent and received."""
        folder = "/sys/class/net/eth0/statistics"
        inside = ["ip", "netns", "exec", self.namespace(number)]
        words = run(*inside, "cat", f"{folder}/tx_bytes", f"{folder}/rx_bytes").split()
        return int(words[0]), int(words[1])


def run(*command: str) -> str:
    """Run a command and return what it printed; raise an error if it fails."""
    completed = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    if completed.returncode:
        raise RuntimeError(f"{' '.join(command)}: {completed.stderr.strip()}")
    return completed.stdout
