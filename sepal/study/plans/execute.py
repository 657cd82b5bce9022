"""Executes the runs of a plan, one or several at a time.

Each has its own process on this machine (:mod:`sepal.study.plans.child`), or is a job of a cluster
(:mod:`sepal.study.clusters`).
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from sepal.config import method_name, parse
from sepal.config.base import flatten
from sepal.data.locations import data_directory
from sepal.data.own import OWN
from sepal.data.sources import HUB, check
from sepal.engines import processes
from sepal.errors import ConfigError
from sepal.runs.stored_run import begun, stored_config, stored_summary
from sepal.storage.files import private_directory
from sepal.storage.regular import check_inside
from sepal.strategies import registry
from sepal.study.plans import child
from sepal.study.plans.model import PlannedRun
from sepal.study.runner import G, Workers, run_needed

POLL = 0.1  # seconds between checks of the processes


class Display(Protocol):
    """Shows the progress of runs; a context manager."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *reason: object) -> None: ...

    def start(self, planned: int, missing: int, out: Path) -> None:
        """Begin, with ``missing`` of ``planned`` runs left to run; they write to ``out``."""

    def begin(self, run: PlannedRun) -> None:
        """Show a run that has been started."""

    def end(self, name: str, trouble: str) -> None:
        """Show that a run has ended or, with ``trouble``, failed."""

    def look(self) -> None:
        """Show the runs' newest rounds."""

    def say(self, text: str) -> None:
        """Show a line."""


class PlanWorkers(Workers[PlannedRun, G], Protocol[G]):
    """Execute the runs of a plan."""

    def trouble(self, going: G) -> str:
        """Return why a run that has ended has failed; empty if it has not."""


# From the directory of run directories, the worker processes of each run and the display, workers.
Place = Callable[[Path, int, Display], PlanWorkers[Any]]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def execute(
    runs: Sequence[PlannedRun],
    out: Path,
    display: Display,
    *,
    jobs: int = 0,
    workers: int = 0,
    hours: float,
    place: Place | None = None,
) -> dict[str, str]:
    """Execute the runs that have not ended yet; return the names of those that failed, in order, each with its cause.

    A run's result depends neither on the number of runs at a time nor on its number of workers.

    Args:
        runs: The runs, in order.
        out: Directory of run directories; complete runs in it are left alone, others are continued.
        display: Shows the progress.
        jobs: Runs at a time; 0: one per core of this machine, or fewer if fewer are left.
        workers: Worker processes of each run; 0: the cores are divided among the runs at a time.
        hours: No run is started after this many hours.
        place: Makes the workers elsewhere; None for processes on this machine.

    Raises:
        ConfigError: ``out`` has a run of the same name that was started with other keys.
        DataError: A run that has not ended names a data set that is unknown, or whose files are missing.
        StateError: The directory of a run is a link that leads out of ``out``.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a kill leaves no run behind
    failed: dict[str, str] = {}
    for run in runs:
        check_inside(out / run.name, out)
    missing_runs = [run for run in runs if not has_ended(run, out)]
    if hours > 0:
        _check_data(missing_runs)
    private_directory(out)  # tables and reports are written next to the runs
    jobs = max(1, min(jobs or cores(), len(missing_runs)))
    try:
        with tempfile.TemporaryDirectory() as scratch, display:
            display.start(len(runs), len(missing_runs), out)
            run_workers: PlanWorkers[Any] = (
                place(out, workers, display) if place else RunProcesses(out, Path(scratch), workers, display)
            )
            for run, going in run_needed(lambda: missing_runs, run_workers, jobs, hours, name=lambda run: run.name):
                trouble = run_workers.trouble(going)
                failed |= {run.name: trouble} if trouble else {}
                display.end(run.name, trouble)
    finally:
        signal.signal(signal.SIGTERM, before)
    return {run.name: failed[run.name] for run in runs if run.name in failed}


class RunProcesses:
    """A process for each run of a plan: workers of :func:`sepal.study.runner.run_needed`.

    Args:
        out: Directory of run directories.
        scratch: Takes what runs print.
        workers: Worker processes of each run; 0: the cores are divided among the runs at a time.
        display: Shows the progress.
    """

    def __init__(self, out: Path, scratch: Path, workers: int, display: Display) -> None:
        self._out, self._scratch, self._workers, self._display = out, scratch, workers, display
        self._going: list[_RunProcess] = []

    def start(self, run: PlannedRun, at_a_time: int) -> _RunProcess:
        """Start a run."""
        share = self._workers or max(1, cores() // at_a_time)
        going = _start(as_begun(run, self._out), self._out, self._scratch, share)
        self._going.append(going)
        self._display.begin(run)
        return going

    def ended(self, going: Iterable[_RunProcess]) -> list[_RunProcess]:
        """Return those that have ended, or wait for a moment, and show the runs' newest rounds."""
        if ended_tasks := [task for task in going if not task.process.is_alive()]:
            return ended_tasks
        self._display.look()
        time.sleep(POLL)
        return []

    def trouble(self, going: _RunProcess) -> str:
        """Return the last line that a run's process has printed, if it has failed."""
        going.process.join()
        return _last_line(self._scratch / going.name) if going.process.exitcode else ""

    def close(self) -> None:
        """Interrupt what is still going."""
        alive = [task.process for task in self._going if task.process.is_alive()]
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGINT)
        for process in alive:
            process.join()


def has_ended(run: PlannedRun, out: Path) -> bool:
    """Return whether the run exists and has ended.

    Raises:
        ConfigError: The existing run's keys differ from the plan's.
    """
    stored = stored_config(out / run.name)
    if stored is None or not begun(out / run.name):
        return False
    stored = registry.as_begun(stored)
    others = set(registry.table()) - {
        method_name(str(run.keys.get("method")))
    }  # a run does not store other methods' keys
    keys = {key: value for key, value in run.keys.items() if key.partition(".")[0] not in others}
    if keys.get("data-dir"):  # stored as an absolute path
        keys["data-dir"] = str(data_directory(str(keys["data-dir"])))
    config, hypers = parse(keys, registry.Hypers())
    meant = {**config.flat(), **flatten(hypers, f"{method_name(config.method)}.")}  # 32 is stored as "32", 1 as 1.0
    for key, value in keys.items():  # 0, "" and "auto" are stored as the defaults that they stand for
        if value not in (0, "", "auto") and stored.get(key) != meant[key]:
            way = f"give another --out (in Python out=), or delete {out / run.name}"
            raise ConfigError(f"{run.name}: {key}", f"{value!r}, as in the plan", f"{stored.get(key)!r}; {way}")
    return stored_summary(out / run.name) is not None


def as_begun(run: PlannedRun, out: Path) -> PlannedRun:
    """Return the run with the keys with which it goes on.

    A key whose default has changed since the run began keeps the value with which it began, unless the plan names it. A
    run that has not begun has the new defaults.
    """
    stored = stored_config(out / run.name)
    if stored is None or not begun(out / run.name):
        return run
    first = registry.as_begun(stored)
    renewed = registry.former(str(run.keys.get("method", "")))
    return replace(run, keys={**{key: first[key] for key in renewed if key in first}, **run.keys})


def _check_data(runs: Sequence[PlannedRun]) -> None:
    """Check for missing data, and download it, once before any run instead of in each run."""
    for name, directory in dict.fromkeys(
        (str(r.keys.get("dataset", "")), str(r.keys.get("data-dir", ""))) for r in runs
    ):
        if name and name not in (OWN, HUB):  # the first run downloads a data set of the hub
            check(name, directory)


@dataclass(frozen=True)
class _RunProcess:
    """A run's process, and the end of the pipe whose closing would end it."""

    name: str
    process: BaseProcess
    lifeline: Connection


def _start(run: PlannedRun, out: Path, scratch: Path, workers: int) -> _RunProcess:
    lifeline, child_end = Pipe()
    keys = {**run.keys, "out": str(out)}
    log = scratch / run.name
    process = processes.start(child.run, child_end, log, keys, workers, environment={"NO_COLOR": "1"})
    child_end.close()
    return _RunProcess(run.name, process, lifeline)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return ([line for line in lines if line.strip()] or ["nothing was printed"])[-1]
