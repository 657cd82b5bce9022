"""A federation whose clients live in network namespaces: runs, interface counters, a cut cable."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sepal.engines.flower.engine import CONNECTION, AppRun, Flower
from tools.hosts.network import NamespaceNetwork

IDLE = 5.0  # seconds for which clients only wait before a run, to see what they send meanwhile


class Hosts(Flower):
    """A SuperLink on the bridge's address and a SuperNode in each namespace.

    Args:
        network: The namespaces.
        home: FLWR_HOME.
        environment: For all processes.
    """

    def __init__(self, network: NamespaceNetwork, home: Path, environment: Mapping[str, str]) -> None:
        super().__init__(home, environment)
        self.network = network
        self._inside: list[str] = []

    def start(self) -> None:
        """Start the SuperLink and a node in each namespace."""
        self.start_superlink("0.0.0.0")
        for number in range(self.network.clients):
            self._inside = ["ip", "netns", "exec", self.network.namespace(number)]
            keys: Mapping[str, int | str] = {
                "partition-id": number,
                "num-partitions": self.network.clients,
                "allow": "megabyte:build",
            }
            self.start_node(f"node{number}", keys, f"{self.network.address}:{self.ports.fleet}")
            self._inside = []

    def spawn(self, *command: str, log: str | None = None) -> subprocess.Popen[bytes]:
        """Start a process, that of a node in its namespace; see :meth:`Processes.spawn`."""
        return super().spawn(*self._inside, *command, log=log)

    def bytes(self) -> tuple[int, int]:
        """Return the bytes that all clients' interfaces have sent and received."""
        pairs = [self.network.counters(number) for number in range(self.network.clients)]
        return sum(sent for sent, _ in pairs), sum(received for _, received in pairs)

    def busy(self, number: int) -> bool:
        """Return whether client ``number`` is answering a message right now."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.nodes[f"node{number}"].pid).children():
                if child.children():
                    return True
        return False

    def account(self, run: AppRun) -> Mapping[str, int]:
        """Return Flower's own count of a run's bytes."""
        command = ["flwr", "list", CONNECTION, "--run-id", run.run_id, "--format", "json"]
        answer, _ = self.ask(*command)
        traffic: Mapping[str, int] = json.loads(answer)["runs"][0]["network-traffic"]
        return traffic


@dataclass(frozen=True)
class Count:
    """Bytes of a run: of the ledger's payloads, of Flower's account, and at the interfaces.

    Attributes:
        messages: Number of messages each way.
        payload: Up and down.
        answered: The same of the messages whose reply came. An order counts when the SuperLink has it; where a node
            was away just then, it never crosses the wire and the order is sent again.
        flower: Flower's own ``network-traffic``.
        interface: Up and down, all that passed from the run's submission to its end.
        idle: Up and down, what waiting clients would have sent and received in that time: heartbeats and looks for
            messages.
    """

    messages: int
    payload: tuple[int, int]
    answered: tuple[int, int]
    flower: Mapping[str, int]
    interface: tuple[int, int]
    idle: tuple[int, int]


def payload_sums(entries: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the payload bytes up and down of a ledger's entries: of all, and of the messages that were answered."""
    sums = {"up": 0, "down": 0}
    exchanges: dict[tuple[int, str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for entry in entries:
        sums[entry["direction"]] += entry["payload"]
        exchange = exchanges.setdefault((entry["round"], entry["client"], entry["purpose"]), {"up": [], "down": []})
        exchange[entry["direction"]].append(entry)
    answered = 0
    for exchange in exchanges.values():
        replies = sum(entry["status"] != "missing" for entry in exchange["up"])
        # Which of several orders was answered, the ledger does not say: the smallest are a lower bound.
        answered += sum(sorted(entry["payload"] for entry in exchange["down"])[:replies])
    return (sums["up"], sums["down"]), (sums["up"], answered)


def counted(hosts: Hosts, app: Path, config: Mapping[str, Any], timeout: float = 600.0) -> tuple[AppRun, Count]:
    """Run the app and count its bytes."""
    waiting = hosts.bytes()
    time.sleep(IDLE)
    before, begun = hosts.bytes(), time.monotonic()
    run = hosts.run_app(app, config, timeout=timeout)
    after, ended = hosts.bytes(), time.monotonic()
    path = Path(config["out"]) / config["name"] / "ledger.jsonl"
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    payload, answered = payload_sums(entries)
    interface = after[0] - before[0], after[1] - before[1]
    factor = (ended - begun) / IDLE
    idle = round((before[0] - waiting[0]) * factor), round((before[1] - waiting[1]) * factor)
    messages = sum(entry["direction"] == "up" for entry in entries)
    return run, Count(messages, payload, answered, hosts.account(run), interface, idle)


def cut_after(hosts: Hosts, number: int, path: Path, round: int, seconds: float) -> Callable[[], bool]:
    """Cut client ``number``'s cable for ``seconds`` while it answers a message after ``round``.

    The moment matters: if Flower 1.39's answer to a SuperNode's poll is lost, the message in it is lost for good, and
    the server asks a second time only after a minute or more.

    Returns:
        A function that says whether the cable was cut and is back.
    """
    cable_is_back, network = threading.Event(), hosts.network

    def watch() -> None:
        end = time.monotonic() + 600
        file = path / "metrics.jsonl"
        while time.monotonic() < end:
            if file.exists() and len(file.read_text(encoding="utf-8").splitlines()) >= round and hosts.busy(number):
                network.cut(number)
                time.sleep(seconds)
                network.reconnect(number)
                cable_is_back.set()
                return
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    return cable_is_back.is_set
