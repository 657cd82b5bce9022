"""One run of a plan as a job of a cluster: ``python -m sepal.study.clusters.job OUT/jobs/NAME/submission.json``.

It needs no signal and handles none: a run continues from its directory after any kill. A job that has ended by itself
says how, in ``end.json``; one that was killed does not.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from threading import Thread

from sepal import user_modules
from sepal.errors import ConfigError, SepalError, StateError, SupersededError, one_line
from sepal.runs.claims import newest_number, read_claim
from sepal.runs.processors import processor
from sepal.runs.stored_run import stored_summary
from sepal.storage.files import check_owner, write_once
from sepal.study.clusters.ray_task import CORES, TASK
from sepal.study.clusters.records import JOBS, JobEnd, Submission, drop_end, read_submission, write_end

BAD_INPUT, FAULT, SUPERSEDED = 2, 1, 75  # 75: sysexits' EX_TEMPFAIL
PROCESSOR = "processor"  # the file of the first run's kind


def main() -> None:
    """Execute the run that the file in the first argument describes."""
    begun, file = time.monotonic(), Path(sys.argv[1])
    out, name, cores = file.parents[2], file.parent.name, cores_of_job()
    code, line, job = 0, "", number_of_job()
    if TASK in os.environ:
        Thread(target=_end_with_task, daemon=True).start()
    try:
        check_owner(out / JOBS)
        submission = read_submission(out, name)
        if submission is None:
            raise StateError(str(file), "what Sepal has submitted for a run", "no file")
        if submission.job in ("", job):
            drop_end(out, name)
        if stored_summary(out / name) is None:  # else the job before had ended it
            run(submission, out, cores)
    except SupersededError as error:
        code, line = SUPERSEDED, f"sepal: {error}"
        print(line, file=sys.stderr)
        if read_claim(out / name, newest_number(out / name)).job.startswith(f"{number_in_words()},"):
            sys.exit(code)  # by a later start of the same job, which says how it ends
    except SepalError as error:
        code, line = BAD_INPUT, f"sepal: {error}"
        print(line, file=sys.stderr)
    except Exception as error:
        code, line = FAULT, one_line(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kibibytes += cores * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the largest of them
    seconds = round(time.monotonic() - begun, 1)
    end = JobEnd(job, code, line, seconds, round(kibibytes / 1024, 1), cores, socket.gethostname(), processor())
    with suppress(SepalError):  # the directory may be what failed
        if _has_last_word(out, name, job):
            write_end(out, name, end)
    sys.exit(code)


def _has_last_word(out: Path, run: str, job: str) -> bool:
    """Return whether ``job`` is the run's job, as far as is noted; another one says itself how it ends."""
    with suppress(StateError):  # damaged: the end says so
        submission = read_submission(out, run)
        return submission is None or submission.job in ("", job)
    return True


def run(submission: Submission, out: Path, cores: int) -> None:
    """Execute a run, or continue it.

    Raises:
        SepalError: It cannot be started or completed.
        SupersededError: A newer job continues it.
    """
    os.chdir(submission.directory)
    user_modules.enable(Path(submission.directory))
    kind = processor()
    if submission.one_processor and (first := write_once(out / JOBS / PROCESSOR, kind.encode())) != kind.encode():
        words = one_line(first.decode(errors="replace"), 80)
        way = "name its nodes with [resources] constraint, nodelist or partition"
        raise ConfigError("one-processor", f"{words}, that of the first run; {way}", kind)
    logging.basicConfig(level=logging.WARNING, format="sepal: %(message)s", stream=sys.stderr)
    from sepal.study.plans.execute import as_begun
    from sepal.study.plans.model import PlannedRun
    from sepal.study.run import execute, prepare

    planned = as_begun(PlannedRun("", "", "", 0, {**submission.keys, "name": submission.run}), out)
    prepared = prepare(dict(planned.keys), Path(submission.directory))
    execute(prepared, submission.workers or cores, job=described())


def _end_with_task() -> None:
    """End this process with the task that started it: then its standard input closes, to which nobody writes."""
    sys.stdin.buffer.read()
    os._exit(FAULT)


def described() -> str:
    """Return this job in words: ``slurm 12, start 2``."""
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    start = int(restarts) + 1 if restarts.isdecimal() else 1
    return f"{number_in_words()}, start {start}"


def number_of_job() -> str:
    """Return this job's number; empty if it has none."""
    return os.environ.get(TASK, "").rpartition(" ")[2] or os.environ.get("SLURM_JOB_ID", "")


def number_in_words() -> str:
    """Return this job without its start: ``slurm 12``, or ``ray 34``."""
    return os.environ.get(TASK) or f"slurm {os.environ.get('SLURM_JOB_ID', '?')}"


def cores_of_job() -> int:
    """Return the number of cores that the job has."""
    for variable in (CORES, "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if (text := os.environ.get(variable, "")).isdecimal() and int(text):
            return int(text)
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
