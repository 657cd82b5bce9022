"""Runs of a plan as tasks that end with the command: what Ray (decision 0042) and SSH (decision 0045) have in common.

A subclass starts a task on some machine and says when it is over. What a task needs and how it ended stands in the
files of :mod:`sepal.study.clusters.records`, as with Slurm, and a run continues from its directory after the loss of a
machine.
"""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from sepal.errors import SepalError, StateError, one_line
from sepal.runs.claims import newest_number, read_claim
from sepal.runs.stored_run import stored_summary
from sepal.study.clusters.ray_task import CORES, TASK
from sepal.study.clusters.records import (
    Submission,
    drop_end,
    keys_for_job,
    last_line,
    log_file,
    newest_checkpoint,
    note_look,
    read_end,
    watched_jobs,
    write_submission,
)
from sepal.study.plans.execute import Display
from sepal.study.plans.model import PlannedRun

POLL = 2.0  # seconds between looks
GRACE = 90.0  # seconds until a task that has ended has failed, for files that come late to this machine
IDLE = 1  # tasks again without a newer checkpoint
# Variables of the command's that a run on another machine has, too. Not all of Sepal's: one is a passphrase, and
# whoever shares the machine, or the cluster, could read it.
PASSED = (
    "SEPAL_CACHE",
    "SEPAL_DATA",
    "SEPAL_DOWNLOAD",
    "SEPAL_FOLLOW_LINKS",
    "SEPAL_HOME",
    "SEPAL_LOG",
    "SEPAL_USER_PATH",
)


@dataclass
class RunTask:
    """A run that is going.

    Attributes:
        run: The run.
        submission: What was submitted, and what became of it.
        handle: How its task is known to the subclass; None: it waits for a machine.
        lost: Why there is no exit code of the task; empty if there is one, or the task goes on.
        over: Since when the task has ended, by the monotonic clock; 0: it goes on.
        trouble: Why the run has failed; empty if it has not.
    """

    run: PlannedRun
    submission: Submission
    handle: Any = None
    lost: str = ""
    over: float = 0.0
    trouble: str = ""


class Tasks(ABC):
    """A task for each run of a plan: workers of :func:`sepal.study.runner.run_needed`.

    Args:
        out: Directory of run directories, which all machines see.
        one_processor: Whether all runs must be on one kind of processor.
        workers: Worker processes of each run; 0: one for each core of its task.
        display: Shows the progress.

    Raises:
        StateError: Another process watches jobs of this directory.
    """

    kind: ClassVar[str]  # of tasks, in claims: ``ray 12``

    def __init__(self, out: Path, one_processor: bool, workers: int, display: Display) -> None:
        self._out, self._one_processor, self._workers, self._display = out, one_processor, workers, display
        self._directory, self._lock = watched_jobs(out)
        self._going: list[RunTask] = []

    @abstractmethod
    def _launch(self, going: RunTask, environment: Mapping[str, str]) -> Any:
        """Start a task with these variables, and return its handle; None if it has to wait for a machine."""

    @abstractmethod
    def _wait(self, going: list[RunTask]) -> None:
        """Wait until one of these tasks, which have handles, has ended, or for :data:`POLL` seconds."""

    @abstractmethod
    def _has_ended(self, going: RunTask) -> bool:
        """Return whether a task has ended; note in ``lost`` why there is no exit code of it."""

    @abstractmethod
    def _cancel(self, going: RunTask) -> None:
        """End a task."""

    def _cores(self, run: PlannedRun) -> int:
        """Return the cores of a run's task; 0: all of its machine's."""
        return 0

    def start(self, run: PlannedRun, at_a_time: int) -> RunTask:
        """Hand a run over.

        Raises:
            ConfigError: A key names a function of this session.
        """
        keys = keys_for_job(run, self._out)
        going = RunTask(run, Submission(run.name, keys, str(Path.cwd()), self._workers, self._one_processor))
        self._submit(going)
        self._going.append(going)
        return going

    def _submit(self, going: RunTask) -> None:
        name = going.run.name
        number = str(secrets.randbelow(10**12))
        going.submission = replace(
            going.submission,
            name=f"{name[:80]}.{number}",
            job=number,
            submitted=round(time.time(), 3),
            checkpoint=newest_checkpoint(self._out / name),
            state="PENDING",
            reason="",
            node="",
            seen=time.time(),
        )
        drop_end(self._out, name)
        write_submission(self._out, going.submission)
        going.over, going.lost, going.handle = 0.0, "", None
        self._try_to_launch(going)

    def _try_to_launch(self, going: RunTask) -> None:
        environment = {key: os.environ[key] for key in PASSED if key in os.environ}
        environment |= {TASK: f"{self.kind} {going.submission.job}", "NO_COLOR": "1"}
        if cores := self._cores(going.run):
            environment[CORES] = str(cores)
        going.handle = self._launch(going, environment)

    def ended(self, going: Iterable[RunTask]) -> list[RunTask]:
        """Wait for a moment, and return the tasks whose runs have ended or failed."""
        going = list(going)
        if waiting := [task for task in going if task.handle is not None and not task.over]:
            self._wait(waiting)
        else:
            time.sleep(POLL)
        note_look(self._directory)
        over = [task for task in going if self._is_over(task)]
        for task in over:
            self._going.remove(task)
        self._display.look()
        return over

    def _is_over(self, going: RunTask) -> bool:
        """Return whether a run has ended or failed; submit it again if its task was cut short."""
        name = going.run.name
        if going.handle is None:
            self._try_to_launch(going)
            return False
        if not going.over:
            self._see(going)
            if not self._has_ended(going):
                return False
            going.over = time.monotonic()
        if stored_summary(self._out / name) is not None:
            return True
        end, submission = None, going.submission
        with suppress(StateError):
            end = read_end(self._out, name)
        failure = end if end and end.is_failure_of(submission) else None
        if not failure and not going.lost and time.monotonic() - going.over < GRACE:
            return False
        printed = last_line(self._out, name)
        words = (
            failure.line
            if failure
            else going.lost or f"it ended without a result; it printed: {one_line(printed, 200)}"
        )
        idle = 0 if newest_checkpoint(self._out / name) > submission.checkpoint else submission.idle + 1
        if not failure and idle <= IDLE:
            self._display.say(f"{name}: its task has ended ({words}); it is submitted again")
            going.submission = replace(submission, idle=idle)
            self._submit(going)
            return False
        going.submission = replace(submission, state="FAILED", reason=words, seen=time.time())
        write_submission(self._out, going.submission)
        going.trouble = f"{words} ({log_file(self._out, name)})"
        return True

    def _see(self, going: RunTask) -> None:
        """Note where a task runs, once it has claimed its run."""
        submission, run = going.submission, self._out / going.run.name
        if submission.state == "RUNNING":
            return
        claim = None
        with suppress(SepalError, OSError):
            claim = read_claim(run, newest_number(run))
        if claim and claim.job.startswith(f"{self.kind} {submission.job},"):
            going.submission = replace(submission, state="RUNNING", node=claim.host, seen=time.time())
            write_submission(self._out, going.submission)
            self._display.begin(going.run)

    def trouble(self, going: RunTask) -> str:
        """Return why a run has failed; empty if it has not."""
        return going.trouble

    def close(self) -> None:
        """End what is still going: the runs' tasks end with this process."""
        for task in self._going:
            if task.handle is not None:
                self._cancel(task)
        self._lock.release()
