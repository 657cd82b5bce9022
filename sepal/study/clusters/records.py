"""The files of ``OUT/jobs``: what was submitted for each run, and how its job ended (``docs/clusters.md``).

They are JSON, and readers take nothing in them for more than text and numbers: whoever looks at a study of somebody
else's executes and fetches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sepal.errors import ConfigError, StateError, printable
from sepal.server.run_store.disk import checkpoints_of
from sepal.storage.files import check_owner, private_directory, separate, write_atomically
from sepal.storage.json_record import LATEST, read_record
from sepal.storage.regular import check_inside, check_lock, check_regular, read_text
from sepal.study.plans.model import PlannedRun
from sepal.user_modules import DEFINED

JOBS = "jobs"
FORMAT = 1
LOCK = ".lock"
_SUBMISSION, _END, _LOG, _LOOKED = "submission.json", "end.json", "log.txt", "looked"


@dataclass(frozen=True)
class Submission:
    """A run that was handed to a cluster.

    Attributes:
        run: The run's name.
        keys: Its flat keys, ``out`` among them.
        directory: The directory in which it starts.
        workers: Its worker processes; 0: one for each core of its job.
        one_processor: Whether it is refused on another kind of processor than the first run's.
        name: The job's name, with a random part, by which it is found if the submission was interrupted.
        job: The job's number; empty until it is known.
        submitted: When, in seconds since 1970.
        idle: Submissions since the run last had a newer checkpoint.
        checkpoint: Round of the newest checkpoint at the submission.
        state: What the cluster said of it, such as ``RUNNING``.
        reason: Why it waits or has ended, as the cluster said.
        node: Where it runs.
        seen: When the cluster said so, in seconds since 1970.
    """

    run: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    directory: str = ""
    workers: int = 0
    one_processor: bool = False
    name: str = ""
    job: str = ""
    submitted: float = 0.0
    idle: int = 0
    checkpoint: int = 0
    state: str = ""
    reason: str = ""
    node: str = ""
    seen: float = 0.0


@dataclass(frozen=True)
class JobEnd:
    """How a job has ended by itself.

    Attributes:
        job: Its number.
        code: Its exit code.
        line: Why, if it is not 0.
        seconds: Of the job, its start included.
        megabytes: Memory, at most: the largest process times the number of processes.
        cores: Of the job.
        host: The machine's name.
        processor: The kind of processor.
    """

    job: str = ""
    code: int = 0
    line: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0
    cores: int = 0
    host: str = ""
    processor: str = ""

    def is_failure_of(self, submission: Submission) -> bool:
        """Return whether the submission's own job has ended with an error that it has named itself."""
        return self.job == submission.job and self.code != 0


def keys_for_job(run: PlannedRun, out: Path) -> dict[str, Any]:
    """Return the keys of a run of a plan with its directory, for another process to read.

    Raises:
        ConfigError: A key names a function of this session.
    """
    keys = {**run.keys, "out": str(out)}
    for key, value in keys.items():
        if isinstance(value, str) and value.startswith(f"{DEFINED}:"):
            raise ConfigError(f"{run.name}: {key}", "package.module:function, which a job can import", value)
    return keys


def job_directory(out: Path) -> Path:
    """Return ``OUT/jobs`` after making it, for this user alone.

    Raises:
        StateError: It cannot be made, somebody else may write to it, or what is there leads out of ``out``.
    """
    directory = out / JOBS
    for path in (directory, directory / LOCK, directory / _LOOKED):
        check_inside(path, out)
    try:
        private_directory(directory)
    except OSError as reason:
        raise StateError(str(directory), "a directory that can be made", reason.strerror or str(reason)) from None
    check_owner(directory)
    return directory


def watched_jobs(out: Path) -> tuple[Path, FileLock]:
    """Return ``OUT/jobs``, and its lock, which whoever watches the jobs holds.

    Raises:
        StateError: The directory or its lock cannot be made, or another process watches its jobs.
    """
    directory = job_directory(out)
    lock = FileLock(directory / LOCK)
    check_lock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        expected = "no other `sepal compare` that watches its jobs"
        raise StateError(str(directory), expected, "one; `--status` shows what it sees") from None
    except OSError as reason:
        raise StateError(str(directory / LOCK), "a file that can be written", reason.strerror or str(reason)) from None
    return directory, lock


def newest_checkpoint(run: Path) -> int:
    """Return the round of a run's newest checkpoint; 0 if there is none."""
    return max((int(path.stem.removeprefix("round-")) for path in checkpoints_of(run)), default=0)


def note_look(directory: Path) -> None:
    """Note in ``OUT/jobs`` that the cluster has just said how all jobs are: the time is that of an empty file."""
    with suppress(StateError):  # without it, a state is only said to be an old one
        write_atomically(directory / _LOOKED, b"", sync=False)


def last_look(out: Path) -> float:
    """Return when the cluster last said how the jobs are, in seconds since 1970; 0 if that is not known."""
    with suppress(OSError):
        if 0 <= (when := (out / JOBS / _LOOKED).stat().st_mtime) <= LATEST:
            return when
    return 0.0


def log_file(out: Path, run: str) -> Path:
    """Return the file that takes what a run's jobs print."""
    return out / JOBS / run / _LOG


def submission_file(out: Path, run: str) -> Path:
    """Return the file that describes a run to its job."""
    return out / JOBS / run / _SUBMISSION


def write_submission(out: Path, submission: Submission) -> None:
    """Write what was submitted for a run.

    Raises:
        StateError: It cannot be written, or what is there leads out of ``out`` or is no file.
    """
    file = submission_file(out, submission.run)
    log = log_file(out, submission.run)
    for path in (file.parent, log):  # the cluster writes the log
        check_inside(path, out)
    try:
        private_directory(file.parent)
        check_regular(log)  # whoever opens a pipe waits for a reader
        if submission.state in ("", "PENDING"):  # later, a job has it open
            separate(log)
    except OSError as reason:
        raise StateError(str(file.parent), "a directory that can be made", reason.strerror or str(reason)) from None
    except ValueError:
        raise StateError(str(log), "nothing, or a regular file", "a directory, pipe or device") from None
    content = {"format": FORMAT, **asdict(submission), "keys": dict(submission.keys)}
    write_atomically(file, f"{json.dumps(content, indent=1)}\n".encode())


def read_submission(out: Path, run: str) -> Submission | None:
    """Return what was submitted for a run; None if nothing was.

    Raises:
        StateError: The file is damaged, or of another format.
    """
    what = "what Sepal has submitted for a run"
    try:
        stored = read_record(
            submission_file(out, run), out, Submission(run), what, version=FORMAT, verbatim=("directory",)
        )
    except FileNotFoundError:
        return None
    if stored.job and not (stored.job.isascii() and stored.job.isdecimal()):  # it becomes a word of a command
        raise StateError(f"{submission_file(out, run)}: job", "the number of a job", stored.job)
    return replace(stored, run=run)


def write_end(out: Path, run: str, end: JobEnd) -> None:
    """Write how a run's job has ended."""
    write_atomically(out / JOBS / run / _END, f"{json.dumps(asdict(end))}\n".encode())


def read_end(out: Path, run: str) -> JobEnd | None:
    """Return how the run's last job has ended by itself; None if it has not.

    Raises:
        StateError: The file is damaged.
    """
    try:
        return read_record(out / JOBS / run / _END, out, JobEnd(), "how a job has ended")
    except FileNotFoundError:
        return None


def drop_end(out: Path, run: str) -> None:
    """Delete how an earlier job of the run has ended.

    Raises:
        StateError: Its directory leads out of ``out``, or it is no file.
    """
    check_inside(out / JOBS / run, out)
    try:
        (out / JOBS / run / _END).unlink(missing_ok=True)
    except OSError as reason:
        raise StateError(str(out / JOBS / run / _END), "nothing, or a file", reason.strerror or str(reason)) from None


def last_line(out: Path, run: str) -> str:
    """Return the last line that the run's jobs have printed; empty if there is none."""
    with suppress(OSError, StateError, ValueError):
        lines = [line for line in read_text(log_file(out, run), within=out).splitlines() if line.strip()]
        return printable(lines[-1]) if lines else ""
    return ""
