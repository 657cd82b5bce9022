"""A server and its clients for tests of what time brings: each may be stopped, paused, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from sepal.engines.flower.processes import free_port
from sepal.engines.in_process import run_in_process
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import assemble

ROOT = Path(__file__).parents[2]
SHIMS = ROOT / "tests" / "shims"
RUN = "timely"


PARTS = {f"join{number}": ("--partition", str(number), "--of", "2") for number in range(2)}


class Machines:
    """``serve``, ``join0``, ``join1``, … in one directory.

    Args:
        directory: For their logs, the run and ``SEPAL_HOME``.
        keys: Run-config keys.
        options: What ``serve`` and each client have beside their addresses; without it, two clients with their parts.
        patience: Seconds to wait for what is awaited.
    """

    def __init__(
        self,
        directory: Path,
        keys: Mapping[str, object],
        options: Mapping[str, Sequence[str]] = PARTS,
        patience: float = 150.0,
    ) -> None:
        self.directory, self.keys, self.patience = directory, keys, patience
        self._options = options
        self.ports = [str(free_port()), str(free_port())]
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, shim: str = "", *options: str, **environment: str) -> None:
        """Start a process, or stop it and start it again; ``shim`` is a directory of tests/shims."""
        self.stop(name)
        arguments = ["join", f"127.0.0.1:{self.ports[0]}", "--poll", "1"]
        if name == "serve":
            sets = [part for key, value in self.keys.items() for part in ("--set", f"{key}={value}")]
            arguments = ["serve", *sets, "--name", RUN, "--port", self.ports[0], "--control", self.ports[1]]
        path = os.pathsep.join([*([str(SHIMS / shim)] if shim else []), str(ROOT)])
        with open(self.directory / f"{name}.log", "ab") as output:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "sepal.cli", *arguments, *self._options.get(name, ()), *options],
                cwd=self.directory,
                env={**os.environ, "SEPAL_HOME": str(self.directory / "home"), **environment, "PYTHONPATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self, name: str) -> None:
        """End a process, if it runs, as its operator does; with all that it has started, if it does not end by that.

        A test may have failed while it was paused: a paused process takes no signal, and its children would go on.
        """
        if not (process := self.running.get(name)):
            return
        descendants = self._tree(name)
        self.signal(name, signal.SIGCONT)
        del self.running[name]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            for descendant in descendants:
                with suppress(psutil.NoSuchProcess):
                    descendant.kill()
            raise

    def stop_all(self) -> None:
        """End all processes, the server last."""
        for name in sorted(self.running):
            self.stop(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and all its descendants."""
        for process in self._tree(name):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _tree(self, name: str) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self.running[name].pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:  # it has ended by itself
            return []

    def log(self, name: str) -> str:
        """Return what a process has printed; with ``run``, the server's log of the run, which leaves nothing out."""
        run = self.directory / "home" / "server" / RUN / "run.log"
        return (run if name == "run" else self.directory / f"{name}.log").read_text()

    def rounds(self) -> list[int]:
        """Return the numbers of the run's rounds."""
        path = self.directory / "runs" / RUN / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line)["round"] for line in lines if line.endswith("\n")]  # one may be half written

    def await_rounds(self, count: int) -> None:
        """Wait until so many rounds are over, for each of them as long as ``patience`` says."""
        while (done := len(self.rounds())) < count:
            self.until(lambda done=done: len(self.rounds()) > done)

    def await_line(self, name: str, words: str) -> None:
        """Wait until a process has printed ``words``."""
        self.until(lambda: words in self.log(name))

    def until(self, seen: Callable[[], bool]) -> None:
        """Wait until ``seen`` returns true; once the server has ended, for a minute."""
        end = time.monotonic() + self.patience
        while not seen():
            if "serve" not in self.running or self.running["serve"].poll() is not None:
                end = min(end, time.monotonic() + 60.0)
            assert time.monotonic() < end, self.log("serve")[-2000:]
            time.sleep(0.05)

    def await_end(self, patience: float = 240.0) -> None:
        """Wait for the server's end, and check that the run has all rounds."""
        assert self.running["serve"].wait(patience) == 0, self.log("serve")[-2000:]
        assert self.rounds() == list(range(1, int(str(self.keys["rounds"])) + 2))

    def check_finished(self) -> None:
        """Wait for the server's end, and check that the run has all rounds, and the bits of an undisturbed one."""
        self.await_end()
        whole = run_in_process(assemble({**self.keys, "clients": 2}))
        summary = json.loads((self.directory / "runs" / RUN / "summary.json").read_text())
        assert summary["weights_sha256"] == digest_arrays(whole.algorithm.model(whole.progress.server))
