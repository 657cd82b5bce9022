"""A Ray cluster of two nodes on this machine, in a network namespace, because Ray listens on every address.

Each node has a home of its own, as two machines have.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

HEAD = "127.0.0.2"
ADDRESSES = {"n1": HEAD, "n2": "127.0.0.3"}
PORT = 16379
PORTS = (
    "node-manager",
    "object-manager",
    "dashboard-agent-grpc",
    "dashboard-agent-listen",
    "runtime-env-agent",
    "metrics-export",
)
NODE = "SEPAL_TEST_NODE"  # in the environment of all processes of a node
STARTS = 3  # Ray gives its own processes 30 s, which are not always enough


def missing() -> str:
    """Return why there can be no cluster on this machine; empty if there can."""
    if os.geteuid():
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed (Debian: iproute2)"
    return ""


class RayCluster:
    """Two nodes with two cores each.

    Args:
        directory: For all their files; a short path, because of the sockets' names.
        namespace: A name that is free.
    """

    def __init__(self, directory: Path, namespace: str) -> None:
        self.directory, self.namespace = directory, namespace
        token = directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "RAY_TMPDIR": str(directory / "t"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        (directory / "t").mkdir()

    def start(self) -> None:
        """Make the namespace and start both nodes."""
        subprocess.run(["ip", "netns", "add", self.namespace], check=True)
        subprocess.run(self.inside("ip", "link", "set", "lo", "up"), check=True)
        for node in ADDRESSES:
            self.start_node(node)

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs in the namespace."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def command_environment(self) -> dict[str, str]:
        """Return the variables of a command that uses the cluster."""
        return {**self.environment, "RAY_ADDRESS": f"{HEAD}:{PORT}"}

    def start_node(self, node: str) -> None:
        """Start a node; the first is the head."""
        first = 16380 if node == "n1" else 16480
        names = (
            "node-manager",
            "object-manager",
            "dashboard-agent-grpc",
            "dashboard-agent-listen",
            "runtime-env-agent",
        )
        ports = [f"--{name}-port={first + number}" for number, name in enumerate((*names, "metrics-export"))]
        workers = 20000 if node == "n1" else 20100
        ports += [f"--min-worker-port={workers}", f"--max-worker-port={workers + 99}"]
        role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        if node != "n1":
            role = [f"--address={HEAD}:{PORT}"]
        home = self.directory / node
        home.mkdir(exist_ok=True)
        environment = {**self.environment, "SEPAL_HOME": str(home), NODE: f"{self.namespace}.{node}"}
        command = [str(Path(sys.executable).with_name("ray")), "start", *role, *ports]
        command += [f"--node-ip-address={ADDRESSES[node]}", "--num-cpus=2", "--object-store-memory=200000000"]
        for _ in range(STARTS):
            done = subprocess.run(
                self.inside(*command), env=environment, capture_output=True, text=True, check=False, timeout=120
            )
            if not done.returncode:
                return
            self.kill_node(node)
        raise AssertionError(done.stdout + done.stderr)

    def processes(self, node: str = "") -> list[psutil.Process]:
        """Return the processes of a node, or of both: Ray's own, its workers and what these have started."""
        names = {f"{self.namespace}.{name}" for name in ([node] if node else ADDRESSES)}
        matching = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(NODE) in names:
                    matching.append(process)
        return matching

    def kill_node(self, node: str) -> None:
        """Kill a node with all that runs on it at once, as a machine that fails does."""
        for process in self.processes(node):
            with suppress(psutil.Error):
                process.kill()

    def stop(self) -> None:
        """End both nodes and remove the namespace."""
        until = time.monotonic() + 30
        while (left := self.processes()) and time.monotonic() < until:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.2)
        subprocess.run(["ip", "netns", "delete", self.namespace], check=False)
