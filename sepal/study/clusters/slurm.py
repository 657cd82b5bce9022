"""Runs of a plan as jobs of Slurm, through ``sbatch`` and ``squeue`` alone (decision 0037).

``sacct`` is not asked: a run has ended when its summary is there, and a job that is gone without one is found by its
absence. What a job needs is in files of ours (:mod:`sepal.study.clusters.records`).
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sepal.errors import ConfigError, StateError, one_line
from sepal.runs.stored_run import stored_summary
from sepal.storage.files import write_atomically
from sepal.study.clusters.commands import QueuedJob, Slurm, SlurmError
from sepal.study.clusters.records import (
    JobEnd,
    Submission,
    drop_end,
    keys_for_job,
    last_line,
    log_file,
    newest_checkpoint,
    note_look,
    read_end,
    read_submission,
    submission_file,
    watched_jobs,
    write_submission,
)
from sepal.study.clusters.refusals import Refusals
from sepal.study.plans.execute import Display
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.resources import Resources

POLL = 5.0  # seconds between questions to Slurm's controller
# Seconds until a job is given up that Slurm no longer lists, for files that come late to this machine: above the minute
# for which an NFS client may take a directory for what it was (acdirmax in nfs(5)).
GRACE = 90.0
TRIES = 3  # of submissions that Slurm refuses, before they have failed
IDLE = 1  # submissions again without a newer checkpoint
SCRIPT = """#!/bin/sh
# Written by Sepal, the same for all runs: the first argument is Python, the second the file that describes the run.
exec "$1" -P -m sepal.study.clusters.job "$2"
"""
UNSAFE = re.compile(r"[%\\\x00-\x1f\x7f]")  # in the path of a log, Slurm replaces these, or ends it there
OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
TURN = frozenset(("", "None", "Priority", "Resources"))  # why a job waits that only has to wait for its turn
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


@dataclass
class SlurmJob:
    """A run that is going.

    Attributes:
        run: The run.
        submission: What was submitted, and what became of it.
        gone: Since when Slurm does not list the job, or says that it is over, by the monotonic clock; 0: it goes on.
        shown: Whether it was shown as begun.
        waits: Why it waits, if it has to wait for more than its turn.
        trouble: Why it has failed; empty if it has not.
    """

    run: PlannedRun
    submission: Submission
    gone: float = 0.0
    shown: bool = False
    waits: str = ""
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
        ConfigError: This machine has no commands of Slurm or they ask another cluster, or the directory's name has
            signs that Slurm replaces.
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
        self._directory, self._lock = watched_jobs(out)
        self._script = self._directory / "job.sh"
        write_atomically(self._script, SCRIPT.encode())
        self._listed = self._slurm.jobs()
        self._looked, self._silent = time.monotonic(), False
        note_look(self._directory)
        self._measured, self._said = set[str](), set[tuple[str, str]]()
        self._refusals = Refusals()

    def start(self, run: PlannedRun, at_a_time: int) -> SlurmJob:
        """Submit a run, unless its job is queued or running already.

        Raises:
            ConfigError: Its job is queued or running with other keys, or a key names a function of this session.
        """
        keys = keys_for_job(run, self._out)
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
        refused = "" if submission.job else submission.reason
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
            going.submission = replace(submission, reason=error.got)
            if self._refusals.add(error.got):
                self._display.say(f"{name}: Slurm does not take its job ({error.got}); it is tried again")
        else:
            self._refusals.end(refused)
            going.submission = replace(submission, job=number, state="PENDING", seen=time.time())
        write_submission(self._out, going.submission)

    def ended(self, going: Iterable[SlurmJob]) -> list[SlurmJob]:
        """Wait for a moment, ask Slurm, and return the jobs whose runs have ended or failed."""
        going = list(going)
        time.sleep(max(0.0, self._looked + POLL - time.monotonic()))
        self._looked = time.monotonic()
        self._refusals.look()
        try:
            self._listed, self._silent = self._slurm.jobs(), False
            note_look(self._directory)
        except SlurmError as error:
            if not self._silent:
                self._display.say(f"Slurm does not answer ({error.got}); its jobs go on")
            self._silent = True
        none_goes_on = not any(job.submission.job for job in going)
        over = [job for job in going if self._is_over(job, none_goes_on)]
        if any(job.submission.job for job in over):
            self._refusals.hasten()
        for job in over:
            if not job.shown:
                self._display.begin(job.run)
        self._display.look()
        return over

    def _is_over(self, going: SlurmJob, none_goes_on: bool) -> bool:
        """Return whether a run has ended or failed; submit it again if it has to be.

        Args:
            going: The run.
            none_goes_on: Whether no run of the plan has a job. Then a refusal is not for want of room among them.
        """
        _list(self._out / going.run.name)
        if stored_summary(self._out / going.run.name) is not None:
            self._measure(going)
            return True
        if self._silent:
            return False
        if not going.submission.job:
            return self._is_refused(going, none_goes_on)
        listed = self._listed.get(going.submission.job)
        if listed and listed.name != going.submission.name:  # numbers begin again where a controller lost its state
            listed = None
        if listed and listed.state not in OVER:
            going.gone = 0.0
            self._see(going, listed)
            return False
        return self._has_failed(going, listed)

    def _is_refused(self, going: SlurmJob, none_goes_on: bool) -> bool:
        """Return whether a run has failed whose submission was refused or had no answer; try it again in time."""
        words = going.submission.reason
        if accepted := self._of(going.submission):  # Slurm has taken it all the same
            self._refusals.end(words)
            going.submission = replace(going.submission, job=accepted.job)
            self._see(going, accepted)
            return False
        if none_goes_on and self._refusals.tries(words) >= TRIES:
            going.trouble = f"Slurm does not take its job: {words}"
            return True
        if self._refusals.is_due(words):
            self._submit(going)
        return False

    def _has_failed(self, going: SlurmJob, listed: QueuedJob | None) -> bool:
        """Return whether a run whose job is over has failed; submit it again if the job was cut short."""
        name, submission = going.run.name, going.submission
        going.gone = going.gone or time.monotonic()
        end = self._end_of(going)
        failure = end if end and end.is_failure_of(submission) else None
        if not failure and time.monotonic() - going.gone < GRACE:  # its files may come late to this machine
            return False
        state = listed.state if listed else LOST
        going.trouble = verdict(state, listed.reason if listed else "", failure, last_line(self._out, name))
        newer = newest_checkpoint(self._out / name) > submission.checkpoint
        idle = 0 if newer else submission.idle + 1
        if not failure and state in AGAIN and idle <= IDLE:
            self._display.say(f"{name}: job {submission.job} has ended ({going.trouble}); it is submitted again")
            going.trouble, going.submission = "", replace(submission, idle=idle)
            self._submit(going)
            return False
        going.submission = replace(submission, state=state, reason=going.trouble, seen=time.time())
        write_submission(self._out, going.submission)
        going.trouble += f" (job {submission.job}, {log_file(self._out, name)})"
        return True

    def _end_of(self, going: SlurmJob) -> JobEnd | None:
        """Return how the run's last job has ended by itself; None if it has not, or its record is damaged."""
        _list(log_file(self._out, going.run.name).parent)
        try:
            return read_end(self._out, going.run.name)
        except StateError as error:
            if (going.run.name, str(error)) not in self._said:
                self._said.add((going.run.name, str(error)))
                self._display.say(str(error))
            return None

    def _see(self, going: SlurmJob, listed: QueuedJob) -> None:
        """Note what Slurm says of a job, if that has changed, and say why it waits."""
        submission = going.submission
        seen = replace(submission, state=listed.state, reason=listed.reason, node=listed.node)
        if listed.state == "RUNNING" and not going.shown:
            self._display.begin(going.run)
            going.shown = True
        self._say_why(going, listed)
        if seen != submission:
            going.submission = replace(seen, seen=time.time())
            write_submission(self._out, going.submission)

    def _say_why(self, going: SlurmJob, listed: QueuedJob) -> None:
        """Say once why a job waits for more than its turn; of a method's jobs, of one for each reason."""
        name, reason = going.run.name, listed.reason if listed.state == "PENDING" else ""
        before, going.waits = going.waits, "" if reason in TURN else reason
        kind = (going.run.variant, reason.partition(",")[0])  # after a comma, nodes that change
        if going.waits and "held" in reason.lower():
            if going.waits != before:
                way = f"`scontrol release {listed.job}` lets it go on"
                self._display.say(f"{name}: job {listed.job} is held ({reason}): {way}")
        elif listed.state == "PENDING" and going.submission.state == "RUNNING":
            self._said.add(kind)
            self._display.say(f"{name} waits again, as job {listed.job}: {reason}")
        elif going.waits and kind not in self._said:
            self._said.add(kind)
            way = f"`scancel {listed.job}` ends it if it cannot start"
            self._display.say(f"{name}: job {listed.job} waits ({reason}), others of its kind may, too; {way}")

    def _measure(self, going: SlurmJob) -> None:
        """Say what the first run of a variant has taken."""
        end = self._end_of(going)
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


def _list(directory: Path) -> None:
    """List a directory, so that an NFS client asks its server what is in it before a file is opened by its name."""
    with suppress(OSError):
        os.listdir(directory)


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


def cancelling(out: Path, runs: Iterable[str]) -> str:
    """Return the command that ends the jobs of runs that have not ended; empty if there are none."""
    submissions = [read_submission(out, run) for run in runs if stored_summary(out / run) is None]
    return shlex.join(["scancel", *numbers]) if (numbers := [s.job for s in submissions if s and s.job]) else ""
