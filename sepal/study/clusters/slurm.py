"""Runs of a plan as jobs of Slurm, through ``sbatch`` and ``squeue`` alone (decision 0037).

``sacct`` is not asked: a run has ended when its summary is there, and a job that is gone without one is found by its
absence. What a job needs is in files of ours (:mod:`sepal.study.clusters.records`).
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from sepal.errors import ConfigError, SepalError, StateError, one_line
from sepal.runs.stored_run import stored_summary
from sepal.server.run_store.disk import checkpoints_of
from sepal.storage.files import write_atomically
from sepal.study.clusters.records import (
    JobEnd,
    Submission,
    drop_end,
    job_directory,
    last_line,
    log_file,
    read_end,
    read_submission,
    submission_file,
    write_submission,
)
from sepal.study.plans.execute import Display
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.resources import Resources
from sepal.user_modules import DEFINED

POLL = 5.0  # seconds between questions to Slurm's controller
GRACE = 30.0  # seconds until a job is given up that Slurm no longer lists, for files that come late to this machine
PATIENCE = 120  # seconds for a command of Slurm
AT_A_TIME = 100  # jobs, queued or running, if nothing else is said
TRIES = 3  # of a submission that Slurm refuses
IDLE = 1  # submissions again without a newer checkpoint
SCRIPT = """#!/bin/sh
# Written by Sepal, the same for all runs: the first argument is Python, the second the file that describes the run.
exec "$1" -P -m sepal.study.clusters.job "$2"
"""
UNSAFE = re.compile(r"[%\\\x00-\x1f\x7f]")  # in the path of a log, Slurm replaces these, or ends it there
OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
LOST = "LOST"  # our word for a job that Slurm no longer lists
# FAILED without a word of the job itself: its process was killed, or Slurm could not start it on a node that came back.
AGAIN = frozenset(("BOOT_FAIL", "FAILED", "NODE_FAIL", "PREEMPTED", "TIMEOUT", LOST))
REASONS = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "its deadline had passed",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "memory ran out: ask for more with [resources] memory",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "its time limit was reached: ask for more with [resources] time",
    LOST: "Slurm does not know it any more, and it has left no result",
}


class QueuedJob(NamedTuple):
    """A job as ``squeue`` lists it."""

    job: str
    name: str
    state: str
    reason: str
    node: str


class Slurm:
    """Slurm's commands.

    Raises:
        ConfigError: They are not on this machine.
    """

    def __init__(self) -> None:
        if missing := [name for name in ("sbatch", "squeue") if not shutil.which(name)]:
            raise ConfigError("--on", "slurm on a machine with Slurm's commands", f"no {missing[0]} on PATH")

    def submit(self, options: Sequence[str], arguments: Sequence[str]) -> str:
        """Submit a job, and return its number.

        Raises:
            SlurmError: Slurm does not take it.
        """
        text = self._answer(["sbatch", "--parsable", *options, *arguments]).strip()
        number = text.partition(";")[0]
        if not number.isdecimal():
            raise SlurmError("sbatch", "the number of a job", text)
        return number

    def jobs(self) -> dict[str, QueuedJob]:
        """Return this user's jobs by number, also those that have ended in the last minutes.

        Raises:
            SlurmError: The controller does not answer.
        """
        form = "%i|%T|%N|%j|%r"
        text = self._answer(["squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", f"--format={form}"])
        rows = [line.split("|", 4) for line in text.splitlines()]
        return {row[0]: QueuedJob(row[0], row[3], row[1], row[4], row[2]) for row in rows if len(row) == 5}

    def _answer(self, command: list[str]) -> str:
        # Of a Slurm job in which this process may be, its own size is no wish for others.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        environment |= {key: os.environ[key] for key in ("SLURM_CONF", "SLURM_CONF_SERVER") if key in os.environ}
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise SlurmError(command[0], "an answer", str(reason)) from None
        if done.returncode:
            raise SlurmError(command[0], "an answer", one_line(done.stderr) or f"exit code {done.returncode}")
        return done.stdout


class SlurmError(SepalError):
    """A command of Slurm's failed."""


@dataclass
class SlurmJob:
    """A run that is going.

    Attributes:
        run: The run.
        submission: What was submitted, and what became of it.
        tries: Submissions that Slurm has refused in a row.
        gone: Since when Slurm does not list the job, or says that it is over, by the monotonic clock; 0: it goes on.
        shown: Whether it was shown as begun.
        trouble: Why it has failed; empty if it has not.
    """

    run: PlannedRun
    submission: Submission
    tries: int = 0
    gone: float = 0.0
    shown: bool = False
    trouble: str = ""


class SlurmJobs:
    """A job for each run of a plan: workers of :func:`sepal.study.runner.run_needed`.

    Args:
        out: Directory of run directories, which all nodes see.
        resources: What runs ask for, by variant; under an empty name for all others.
        one_processor: Whether all runs must be on one kind of processor.
        workers: Worker processes of each run; 0: one for each core of its job.
        display: Shows the progress.

    Raises:
        ConfigError: This machine has no commands of Slurm, or the directory's name has signs that Slurm replaces.
        StateError: Another process watches jobs of this directory.
    """

    def __init__(
        self,
        out: Path,
        resources: Mapping[str, Resources],
        one_processor: bool,
        workers: int,
        display: Display,
    ) -> None:
        if UNSAFE.search(str(out)):
            raise ConfigError("--out", "a path without %, backslashes and control characters, for Slurm", str(out))
        self._slurm, self._out, self._resources, self._one_processor = Slurm(), out, resources, one_processor
        self._workers, self._display = workers, display
        self._directory = job_directory(out)
        self._script = self._directory / "job.sh"
        write_atomically(self._script, SCRIPT.encode())
        self._lock = FileLock(self._directory / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            expected = "no other `sepal compare` that watches its jobs"
            raise StateError(str(self._directory), expected, "one; `--status` shows what it sees") from None
        self._listed = self._slurm.jobs()
        self._looked, self._silent = time.monotonic(), False
        self._measured = set[str]()

    def start(self, run: PlannedRun, at_a_time: int) -> SlurmJob:
        """Submit a run, unless its job is queued or running already.

        Raises:
            ConfigError: Its job is queued or running with other keys, or a key names a function of this session.
        """
        keys = {**run.keys, "out": str(self._out)}
        for key, value in keys.items():
            if isinstance(value, str) and value.startswith(f"{DEFINED}:"):
                raise ConfigError(f"{run.name}: {key}", "package.module:function, which a job can import", value)
        if (before := read_submission(self._out, run.name)) and (listed := self._of(before)):
            if dict(before.keys) != keys:
                way = f"`scancel {listed.job}` ends it"
                raise ConfigError(run.name, "the plan's keys", f"job {listed.job}, which goes on with others; {way}")
            self._display.say(f"{run.name} goes on as job {listed.job}")
            going = SlurmJob(run, replace(before, job=listed.job))
            self._see(going, listed)
            return going
        going = SlurmJob(run, Submission(run.name, keys, str(Path.cwd()), self._workers, self._one_processor))
        self._submit(going)
        return going

    def _of(self, submission: Submission) -> QueuedJob | None:
        """Return a submission's job if Slurm lists it as one that goes on, also if its number was never noted."""
        named = [job for job in self._listed.values() if job.name == submission.name and job.state not in OVER]
        return next((job for job in named if submission.job in ("", job.job)), None)

    def _submit(self, going: SlurmJob) -> None:
        submission, name = going.submission, going.run.name
        submission = replace(
            submission,
            name=f"{name[:80]}.{secrets.token_hex(4)}",
            job="",
            submitted=round(time.time(), 3),
            checkpoint=newest_checkpoint(self._out / name),
            state="",
            reason="",
            node="",
        )
        drop_end(self._out, name)
        write_submission(self._out, submission)  # first: a job whose number was not noted is found by its name
        going.gone = 0.0
        asked = self._resources.get(going.run.variant, self._resources.get("", Resources()))
        options = [
            *options_of(asked),
            f"--job-name={submission.name}",
            f"--chdir={submission.directory}",
            f"--output={log_file(self._out, name)}",
            "--open-mode=append",
            "--requeue",
            "--nodes=1",
            "--ntasks=1",
        ]
        try:
            number = self._slurm.submit(
                options, [str(self._script), sys.executable, str(submission_file(self._out, name))]
            )
        except SlurmError as error:
            going.tries += 1
            going.submission = replace(submission, reason=error.got)
        else:
            going.tries, going.submission = 0, replace(submission, job=number, state="PENDING", seen=time.time())
        write_submission(self._out, going.submission)

    def ended(self, going: Iterable[SlurmJob]) -> list[SlurmJob]:
        """Wait for a moment, ask Slurm, and return the jobs whose runs have ended or failed."""
        going = list(going)
        time.sleep(max(0.0, self._looked + POLL - time.monotonic()))
        self._looked = time.monotonic()
        try:
            self._listed, self._silent = self._slurm.jobs(), False
        except SlurmError as error:
            if not self._silent:
                self._display.say(f"Slurm does not answer ({error.got}); its jobs go on")
            self._silent = True
        refused = not any(job.submission.job for job in going)
        over = [job for job in going if self._is_over(job, refused)]
        for job in over:
            if not job.shown:
                self._display.begin(job.run)
        self._display.look()
        return over

    def _is_over(self, going: SlurmJob, refused: bool) -> bool:
        """Return whether a run has ended or failed; submit it again if it has to be.

        Args:
            going: The run.
            refused: Whether Slurm has refused all submissions that go on, and not because so many are queued already.
        """
        if stored_summary(self._out / going.run.name) is not None:
            self._measure(going)
            return True
        if self._silent:
            return False
        if not going.submission.job:
            return self._is_refused(going, refused)
        listed = self._listed.get(going.submission.job)
        if listed and listed.name != going.submission.name:  # numbers begin again where a controller lost its state
            listed = None
        if listed and listed.state not in OVER:
            going.gone = 0.0
            self._see(going, listed)
            return False
        return self._has_failed(going, listed)

    def _is_refused(self, going: SlurmJob, refused: bool) -> bool:
        """Submit a run again whose submission had no answer, unless Slurm has taken it all the same."""
        if accepted := self._of(going.submission):
            going.tries, going.submission = 0, replace(going.submission, job=accepted.job)
            self._see(going, accepted)
            return False
        if going.tries >= TRIES and refused:
            going.trouble = f"Slurm does not take its job: {going.submission.reason}"
            return True
        self._submit(going)
        return False

    def _has_failed(self, going: SlurmJob, listed: QueuedJob | None) -> bool:
        """Return whether a run whose job is over has failed; submit it again if the job was cut short."""
        name, submission = going.run.name, going.submission
        going.gone = going.gone or time.monotonic()
        end = read_end(self._out, name)
        own = end if end and end.job == submission.job and end.code else None
        if not own and time.monotonic() - going.gone < GRACE:  # its files may come late to this machine
            return False
        state = listed.state if listed else LOST
        going.trouble = verdict(state, listed.reason if listed else "", own, last_line(self._out, name))
        newer = newest_checkpoint(self._out / name) > submission.checkpoint
        idle = 0 if newer else submission.idle + 1
        if not own and state in AGAIN and idle <= IDLE:
            self._display.say(f"{name}: job {submission.job} has ended ({going.trouble}); it is submitted again")
            going.trouble, going.submission = "", replace(submission, idle=idle)
            self._submit(going)
            return False
        going.submission = replace(submission, state=state, reason=going.trouble, seen=time.time())
        write_submission(self._out, going.submission)
        going.trouble += f" (job {submission.job}, {log_file(self._out, name)})"
        return True

    def _see(self, going: SlurmJob, listed: QueuedJob) -> None:
        """Note what Slurm says of a job, if that has changed."""
        submission = going.submission
        seen = replace(submission, state=listed.state, reason=listed.reason, node=listed.node)
        if listed.state == "RUNNING" and not going.shown:
            self._display.begin(going.run)
            going.shown = True
        if seen != submission:
            if listed.state == "PENDING" and "held" in listed.reason.lower() and listed.reason != submission.reason:
                way = f"`scontrol release {listed.job}` lets it go on"
                self._display.say(f"{going.run.name}: job {listed.job} is held ({listed.reason}): {way}")
            elif listed.state == "PENDING" and submission.state == "RUNNING":
                self._display.say(f"{going.run.name} waits again, as job {listed.job}: {listed.reason}")
            going.submission = replace(seen, seen=time.time())
            write_submission(self._out, going.submission)

    def _measure(self, going: SlurmJob) -> None:
        """Say what the first run of a variant has taken."""
        end = read_end(self._out, going.run.name)
        if end and end.seconds and going.run.variant not in self._measured:
            self._measured.add(going.run.variant)
            cores = f"{end.cores} core{'s' * (end.cores != 1)}"
            took = f"{end.seconds:.0f} s on {cores} of {end.host}, and at most {end.megabytes:.0f} MB of memory"
            self._display.say(f"{going.run.name}: its last job took {took}: the others of {going.run.variant} may, too")

    def trouble(self, going: SlurmJob) -> str:
        """Return why a run has failed; empty if it has not."""
        return going.trouble

    def close(self) -> None:
        """Leave the jobs alone: they go on."""
        self._lock.release()


def options_of(asked: Resources) -> list[str]:
    """Return the options of ``sbatch`` for what a run asks for."""
    pairs = {
        "cpus-per-task": asked.cores,
        "gres": f"gpu:{asked.gpus}" if asked.gpus else None,
        "mem": asked.memory,
        "time": asked.time,
        **{key: getattr(asked, key) for key in ("partition", "account", "qos", "constraint", "reservation")},
        **{key: getattr(asked, key) for key in ("nodelist", "exclude")},
    }
    return [f"--{key}={value}" for key, value in pairs.items() if value is not None]


def verdict(state: str, reason: str, end: JobEnd | None, printed: str) -> str:
    """Return in words why a job has left no result.

    Args:
        state: What Slurm says of it, or ``LOST``.
        reason: Slurm's reason; empty or ``None`` for none.
        end: How it ended by itself; None if it did not.
        printed: The last line that it has printed.
    """
    if end and end.line:
        return end.line
    words = REASONS.get(state, f"it ended without a result, in state {state}")
    if state in ("FAILED", "COMPLETED"):
        words += f", {reason}" if reason not in ("", "None") else ""
        words += f"; it printed: {one_line(printed, 200)}" if printed else ", and printed nothing"
    return words


def newest_checkpoint(run: Path) -> int:
    """Return the round of a run's newest checkpoint; 0 if there is none."""
    return max((int(path.stem.removeprefix("round-")) for path in checkpoints_of(run)), default=0)


def cancelling(out: Path, runs: Iterable[str]) -> str:
    """Return the command that ends the jobs of runs that have not ended; empty if there are none."""
    submissions = [read_submission(out, run) for run in runs if stored_summary(out / run) is None]
    return shlex.join(["scancel", *numbers]) if (numbers := [s.job for s in submissions if s and s.job]) else ""
