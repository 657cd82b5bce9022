"""A federation on this machine whose every process can be killed with -9, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from sepal.engines.flower.commands import superlink_command
from sepal.engines.flower.credentials import ServerCredentials
from sepal.engines.flower.engine import CONNECTION, Flower
from sepal.engines.flower.node import ENDED, RESTARTABLE

BY_ERROR = "client restarted after an error"  # begins such an event
CLOCK = """
import os, sys, time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder

FILE, plain = {file!r}, time.time


def offset():
    try:
        with open(FILE) as file:
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0


class Wrapped(Loader):
    def __init__(self, spec):
        self.inner = spec.loader

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        from datetime import timedelta
        self.inner.exec_module(module)
        flowers = module.now
        module.now = lambda: flowers() + timedelta(seconds=offset())


class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "flwr.supercore.date":
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Wrapped(spec)
        return spec


time.time = lambda: plain() + offset()
sys.meta_path.insert(0, Finder())
"""


class Federation(Flower):
    """A SuperLink with process isolation, so that runs survive its end, and client nodes with warm processes.

    Args:
        directory: For homes, client states and run directories.
        app: The app's directory.
        clients: Number of nodes.
        config: The run's flat keys.
    """

    def __init__(self, directory: Path, app: Path, clients: int, config: Mapping[str, Any]) -> None:
        self.base, self._app, self._clients, self._config = directory, app, clients, config
        self.clock = directory / "clock"
        site = directory / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(CLOCK.format(file=str(self.clock)), encoding="utf-8")
        environment = {"SEPAL_HOME": str(directory / "home"), "OMP_NUM_THREADS": "1"}
        super().__init__(directory / "flower", environment)
        self.environment["PYTHONPATH"] = os.pathsep.join([str(site), self.environment["PYTHONPATH"]])
        self.superlink: subprocess.Popen[bytes] | None = None
        self.runs: list[str] = []
        self._executors = 0

    def start(self) -> None:
        """Start everything and submit the run."""
        self.start_superlink()
        self.start_executor()
        for number in range(self._clients):
            self.start_client(number)
        self.submit()

    def start_executor(self) -> None:
        """Start the process that starts ServerApps."""
        executor = ["flower-superexec", "--insecure", "--runtime-api-address", f"127.0.0.1:{self.ports.control}"]
        self.executor = self.spawn(*executor, log="superexec.log")
        self._executors += 1

    def start_superlink(
        self, host: str = "127.0.0.1", timeout: float = 60.0, credentials: ServerCredentials | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the SuperLink, or start it again with the same ports and database."""
        command = [*superlink_command(self.ports, host, self.home, credentials), "--isolation", "process"]
        self.superlink = self._start_superlink(command, [self.ports.fleet], timeout)
        return self.superlink

    def start_client(self, number: int) -> None:
        """Start node ``number``, or start it again."""
        self.start_node(f"node{number}", {"partition-id": number, "num-partitions": self._clients})

    def submit(self) -> None:
        """Submit the run; under the same name, it is continued."""
        keys = self.home / "run-config.toml"
        keys.write_text(tomli_w.dumps(dict(self._config)), encoding="utf-8")
        command = ["flwr", "run", str(self._app), CONNECTION, "--run-config", str(keys)]
        deadline = time.monotonic() + 120
        while True:  # a SuperLink that was just killed takes a while to return
            answer, errors = self.ask(*command)
            started = [line.split()[-1] for line in answer.splitlines() if "Successfully started run" in line]
            if started:
                self.runs.append(started[0])
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"expected a run to be started, got {answer}{errors}")
            time.sleep(1)

    def revive(self) -> list[str]:
        """Start again what has ended by itself, as `sepal join` or systemd would; return what it was.

        Flower's processes end if a call is not authenticated, as when a clock jumps between a call and its check; a
        SuperNode also ends if its loop or a thread of it ends by an error, such as a call that Flower does not retry.

        Raises:
            RuntimeError: A SuperNode or the executor has ended in another way.
        """
        restarts = []
        for number in range(self._clients):
            name = f"node{number}"
            code = self.nodes[name].poll()
            if code is None:
                continue
            if code not in RESTARTABLE:
                raise RuntimeError(f"expected {name} to run or to end with one of {RESTARTABLE}, got {code}")
            restarts.append(f"{BY_ERROR} ({self.reason(name)})" if code else "client restarted")
            self.start_client(number)
        if self.executor.poll():
            raise RuntimeError(f"expected the executor to run or to end with code 0, got {self.executor.poll()}")
        if self.executor.poll() == 0:
            self.start_executor()
            restarts.append("executor restarted")
        return restarts

    def reason(self, name: str) -> str:
        """Return why a SuperNode has ended by an error, as its log says."""
        lines = (self.home / f"{name}.log").read_text(errors="replace", encoding="utf-8").splitlines()
        return next((line.partition(ENDED)[2] for line in reversed(lines) if ENDED in line), "no reason in its log")

    def server(self) -> list[psutil.Process]:
        """Return the ServerApp's processes."""
        processes = below(self.executor.pid, "flwr-serverapp")
        if processes or self._executors == 1:
            return processes
        with contextlib.suppress(psutil.Error):  # one that an earlier executor has left behind
            return [process for process in self.left() if "flwr-serverapp" in " ".join(process.cmdline())]
        return []

    def parents(self, number: int) -> list[psutil.Process]:
        """Return the resident client process of node ``number``."""
        return below(self.nodes[f"node{number}"].pid, "sepal.engines.flower.warm")

    def children(self, number: int) -> list[psutil.Process]:
        """Return the forks that answer a message for node ``number``, and cold processes."""
        return [child for parent in self.parents(number) for child in parent.children()]

    def kill_node(self, number: int) -> None:
        """Kill a SuperNode and its client process with -9, like a machine that loses power."""
        process = self.nodes[f"node{number}"]
        family = psutil.Process(process.pid).children(recursive=True)
        for member in [*family, process]:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        process.wait()


def below(parent: int, word: str) -> list[psutil.Process]:
    """Return the running children of a process whose command lines contain ``word``."""
    processes = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent).children():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                    processes.append(process)
    return processes


def fill(directory: Path) -> Path:
    """Write a file that takes all the room of the disk that ``directory`` is on, and return it."""
    filler = directory / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    return filler


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path | None]:
    """Yield a directory on a small disk of its own; None if this user cannot mount one."""
    with tempfile.TemporaryDirectory(prefix="sepal-disk-") as text:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", text]
        try:
            mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            mounted = False
        try:
            yield Path(text) if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", "-l", text], check=False)
