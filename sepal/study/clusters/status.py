"""How far a plan's runs are, from Sepal's own records alone: for `sepal compare PLAN --status` on any machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sepal.errors import SepalError, StateError, one_line
from sepal.runs.claims import read_claims
from sepal.runs.stored_run import begun, stored_config, stored_summary
from sepal.storage.json_record import MOST
from sepal.study.clusters.records import Submission, last_look, log_file, read_end, read_submission
from sepal.study.clusters.slurm import LOST, OVER
from sepal.study.plans.model import PlannedRun

OLD = " when last seen"  # of a state, where nobody has looked at the jobs since
STATES = ("done", "running", f"running{OLD}", "waiting", f"waiting{OLD}", "failed", "not started")
FRESH = 120.0  # seconds after a look, in which `sepal compare` would have looked again


class RunStatus(NamedTuple):
    """How far a run is.

    Attributes:
        name: The run's name.
        state: One of :data:`STATES`.
        rounds: Rounds that are recorded, of how many; empty before the first.
        where: Its job and machine; empty without one.
        since: When that was noted, or last seen, in seconds since 1970; 0 if it was not.
        words: Why it waits or has failed, with the file of its log.
        starts: How often a job has begun or continued it.
    """

    name: str
    state: str
    rounds: str = ""
    where: str = ""
    since: float = 0.0
    words: str = ""
    starts: int = 0


def statuses(out: Path, runs: Sequence[PlannedRun], failed: Mapping[str, str]) -> Iterator[RunStatus]:
    """Yield how far each run is.

    Args:
        out: Directory of run directories.
        runs: The plan's runs.
        failed: The runs that failed when they were last tried, each with its cause.
    """
    for run in runs:
        try:
            yield _status(out, run, failed.get(run.name, ""))
        except SepalError as error:  # a record that is damaged
            yield RunStatus(run.name, "failed", words=str(error))


def _status(out: Path, run: PlannedRun, cause: str) -> RunStatus:
    path, submission = out / run.name, read_submission(out, run.name)
    claims = read_claims(path)
    shown = RunStatus(run.name, "done", _rounds(path), starts=len(claims))
    if stored_summary(path) is not None:
        return shown._replace(where=claims[-1].host if claims else "")
    if submission is None:
        state = "failed" if cause else "not started"
        words = cause or ("begun, and continued by the next command" if begun(path) else "")
        return shown._replace(state=state, words=words if run.ready else "waits for its trials")
    where = " on ".join(filter(None, (f"job {submission.job}" if submission.job else "", submission.node)))
    state, words = _of_job(out, submission)
    looked, since = last_look(out), submission.seen
    if state in ("running", "waiting") and abs(time.time() - looked) > FRESH:  # either clock may be ahead
        state, since = state + OLD, max(looked, since)
    return shown._replace(state=state, words=words, where=where, since=since)


def _of_job(out: Path, submission: Submission) -> tuple[str, str]:
    """Return the state of a run that was submitted, and why."""
    log = str(log_file(out, submission.run))
    end = read_end(out, submission.run)
    if submission.state in (*OVER, LOST):
        return "failed", f"{submission.reason} ({log})"
    if end and end.job == submission.job and end.code:  # and nobody has watched
        return "failed", f"{end.line} ({log})"
    if submission.state in ("", "PENDING"):
        return "waiting", submission.reason
    return "running", ""


def _rounds(path: Path) -> str:
    """Return the rounds whose records are there, and of how many, as text; empty before the first.

    Raises:
        StateError: The run's keys are damaged.
    """
    numbers = list[int]()
    with suppress(OSError):
        numbers = [int(name) for name in os.listdir(path / "checkpoints" / "records") if name.isdecimal()]
    config = stored_config(path)
    if not numbers or config is None:
        return ""
    rounds = config.get("rounds")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or not 0 < rounds <= MOST:
        raise StateError(f"{path / 'config.toml'}: rounds", f"a whole number from 1 to {MOST}", rounds)
    return f"{min(max(numbers), rounds)} of {rounds}"


def counts(found: Sequence[RunStatus]) -> str:
    """Return how many runs are in each state, in words."""
    numbers = {state: sum(status.state == state for status in found) for state in STATES}
    return one_line(", ".join(f"{number} {state}" for state, number in numbers.items() if number)) or "no runs"
