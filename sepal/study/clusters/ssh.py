"""Runs of a plan on machines that share a directory and are reached over SSH (decision 0045).

OpenSSH's client starts a run's process on a machine; how hosts are reached stands in the user's ``~/.ssh/config``. The
process reads its standard input, which is this connection: it ends when the connection ends.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sepal import __version__
from sepal.errors import ConfigError, StateError, one_line
from sepal.storage.files import write_atomically
from sepal.study.clusters import tasks
from sepal.study.clusters.records import last_line, log_file, submission_file
from sepal.study.clusters.tasks import RunTask, Tasks
from sepal.study.plans.execute import Display
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.resources import Resources

HOSTS = "SEPAL_HOSTS"
NO_CONNECTION = 255  # ssh's own exit code; a job has none like it
PATIENCE = 90  # seconds in which all hosts have to show what they see
AWAY = 60.0  # seconds until a host that could not be reached is tried again
OPTIONS = (
    "-oBatchMode=yes",  # no question at this terminal
    "-oConnectTimeout=20",
    "-oServerAliveInterval=15",  # a host that has answered nothing for 45 s is lost
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",  # else one connection that ends would end the runs of all
    "-oControlPath=none",
    "-T",
)
_HOST = re.compile(r"([A-Za-z0-9_][\w.@:-]*)(?:\*([1-9]\d?))?\Z", re.ASCII)
# Shows the version of Sepal and what stands in a file of the shared directory.
_SHOW = "import sys, sepal; print(sepal.__version__, open(sys.argv[1]).read())"


def hosts() -> dict[str, int]:
    """Return the hosts that ``$SEPAL_HOSTS`` names, each with the number of runs that it has at a time.

    Raises:
        ConfigError: It names none, or something that is no host.
    """
    text = os.environ.get(HOSTS, "")
    expected = f"hosts as ssh knows them, with blanks between, HOST*N for N runs at a time ({HOSTS}='gpu1 gpu2*4')"
    matches = [_HOST.match(word) for word in text.split()]
    if not matches or not all(matches):
        raise ConfigError(HOSTS, expected, text)
    slots = dict[str, int]()
    for match in matches:
        if match is not None:
            slots[match[1]] = slots.get(match[1], 0) + int(match[2] or 1)
    return slots


class SshTasks(Tasks):
    """A process on one of several machines for each run of a plan.

    Args:
        out: Directory of run directories, which all machines see under the same path.
        resources: What runs ask for, by variant; under an empty name for all others.
        one_processor: Whether all runs must be on one kind of processor.
        workers: Worker processes of each run; 0: one for each core that it asks for.
        display: Shows the progress.

    Raises:
        ConfigError: No host is named, one does not answer or sees something else, or a run asks for what a machine does
            not have.
        StateError: Another process watches jobs of this directory.
    """

    kind = "ssh"

    def __init__(
        self,
        out: Path,
        resources: Mapping[str, Resources],
        one_processor: bool,
        workers: int,
        display: Display,
    ) -> None:
        self._asked = {variant: _cores_of(asked) for variant, asked in resources.items()}
        self._slots = hosts()
        if not shutil.which("ssh"):
            raise ConfigError("--on", "ssh on a machine with OpenSSH's client", "no ssh on PATH")
        super().__init__(out, one_processor, workers, display)
        self._hosts = dict[str, str]()  # of each task that goes on, by its number
        self._away = dict[str, float]()  # until when no task is given to a host, by the monotonic clock
        try:
            self._check_hosts()
        except BaseException:
            self._lock.release()
            raise

    def _check_hosts(self) -> None:
        """Let each host read a file of the shared directory.

        Raises:
            ConfigError: One cannot be reached, sees another directory, or has another version of Sepal.
        """
        mark = self._directory / "mark"
        text = secrets.token_hex(16)
        write_atomically(mark, text.encode())
        command = [sys.executable, "-P", "-c", _SHOW, str(mark)]
        asked = {host: self._started(host, command, subprocess.PIPE) for host in self._slots}
        until = time.monotonic() + PATIENCE
        try:
            for host, process in asked.items():
                try:
                    printed, errors = process.communicate(timeout=max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise ConfigError(f"{HOSTS}: {host}", f"an answer within {PATIENCE} s", "none") from None
                answer = printed.decode(errors="replace").split()
                expected = f"Sepal {__version__} under {sys.executable}, and {self._out} as it is here"
                if process.returncode == NO_CONNECTION:
                    expected = "a host that `ssh` reaches without a question"
                if process.returncode or answer[-2:] != [__version__, text]:
                    got = one_line((errors or printed).decode(errors="replace").strip(), 300)
                    raise ConfigError(f"{HOSTS}: {host}", expected, got or f"exit code {process.returncode}")
        finally:
            for process in asked.values():
                process.kill()
                process.wait()
            mark.unlink(missing_ok=True)

    def _started(self, host: str, command: list[str], output: Any) -> subprocess.Popen[bytes]:
        """Start a command on a host, with a pipe to its standard input."""
        words = ["ssh", *OPTIONS, "--", host, f"exec {shlex.join(command)}"]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=output)

    def _cores(self, run: PlannedRun) -> int:
        return self._asked.get(run.variant, self._asked.get("", 0))

    def _launch(self, going: RunTask, environment: Mapping[str, str]) -> Any:
        now, busy = time.monotonic(), list(self._hosts.values())
        free = {
            host: slots - busy.count(host) for host, slots in self._slots.items() if self._away.get(host, 0.0) <= now
        }
        host = max(free, key=lambda name: free[name], default="")
        if not host or free[host] <= 0:
            return None
        name = going.run.name
        variables = [f"{key}={value}" for key, value in environment.items()]
        file = submission_file(self._out, name)
        command = ["env", *variables, sys.executable, "-P", "-m", "sepal.study.clusters.job", str(file)]
        try:
            with log_file(self._out, name).open("ab") as log:
                process = self._started(host, command, log)
        except OSError as reason:
            text = reason.strerror or str(reason)
            raise StateError(str(log_file(self._out, name)), "a file that can be written", text) from None
        self._hosts[going.submission.job] = host
        return process

    def _wait(self, going: list[RunTask]) -> None:
        until = time.monotonic() + tasks.POLL
        while time.monotonic() < until and all(task.handle.poll() is None for task in going):
            time.sleep(min(0.1, tasks.POLL))

    def _has_ended(self, going: RunTask) -> bool:
        if (code := going.handle.poll()) is None:
            return False
        host = self._hosts.pop(going.submission.job, "")
        going.handle.stdin.close()
        if code == NO_CONNECTION:
            self._away[host] = time.monotonic() + AWAY
            going.lost = f"no connection to {host}: {one_line(last_line(self._out, going.run.name), 200)}"
        return True

    def _cancel(self, going: RunTask) -> None:
        """Close the run's standard input, with which it ends, and the connection."""
        with suppress(OSError):
            going.handle.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            going.handle.wait(5)
        going.handle.kill()
        going.handle.wait()


def _cores_of(asked: Resources) -> int:
    """Return the cores that a run asks for; 0: it has all of its machine's.

    Raises:
        ConfigError: It asks for what a machine without a scheduler does not have.
    """
    for key, value in asked:
        if value and key != "cores":
            raise ConfigError(
                f"[resources] {key}", f"cores alone, with --on ssh ({HOSTS} says who has how many)", value
            )
    return asked.cores or 0
