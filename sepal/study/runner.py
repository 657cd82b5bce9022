"""Runs what a study needs, several runs at a time and within hours: the one loop of trials, leaderboards and plans.

Whenever a run has ended, the list of needed runs is made again, since its result may decide what comes next. A run is
started once; one that fails is left to the next command. The workers decide where runs are executed: in a pool of
processes that live on (:class:`WorkerPool`), which suits many short runs, or in a process for each run
(:mod:`sepal.study.plans.execute`).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Generic, Protocol, TypeVar

from sepal.study.record import RunRecord

log = logging.getLogger("sepal")
R = TypeVar("R")  # what describes a run
R_contra = TypeVar("R_contra", contravariant=True)
G = TypeVar("G")  # a run that is going


class Workers(Protocol[R_contra, G]):
    """Executes runs."""

    def start(self, run: R_contra, at_a_time: int) -> G:
        """Start a run, with at most ``at_a_time`` at a time, itself among them."""

    def ended(self, going: Iterable[G]) -> Iterable[G]:
        """Return those that have ended; it may wait until one has, or for a moment."""

    def close(self) -> None:
        """End what is still going, and release the workers."""


def run_needed(
    needed: Callable[[], Iterable[R]],
    workers: Workers[R, G],
    jobs: int,
    hours: float,
    most: int = 0,
    name: Callable[[R], Hashable] = lambda run: run,
) -> Iterator[tuple[R, G]]:
    """Start the runs that are needed, in their order, and yield each that has ended.

    Args:
        needed: Returns the runs that can be started now; those that were are left out.
        workers: Execute them; closed at the end.
        jobs: Runs at a time.
        hours: No run is started after so many hours.
        most: No more runs than these are started; 0: no limit.
        name: What tells runs apart.
    """
    begun, started, going = time.monotonic(), set[Hashable](), list[tuple[R, G]]()
    try:
        while True:
            late = time.monotonic() - begun > hours * 3600
            missing_runs = [] if late else [run for run in needed() if name(run) not in started]
            for index, run in enumerate(missing_runs):
                if len(going) >= jobs or (most and len(started) >= most):
                    break
                if name(run) not in started:
                    started.add(name(run))
                    going.append((run, workers.start(run, min(jobs, len(missing_runs) - index + len(going)))))
            if not going:
                return
            while not (ended_tasks := list(workers.ended([task for _, task in going]))):
                pass
            for pair in [pair for pair in going if any(pair[1] is task for task in ended_tasks)]:
                going.remove(pair)
                yield pair
    finally:
        workers.close()


class WorkerPool(Generic[R]):
    """Processes that live on; a worker that is killed costs the runs that were going.

    Args:
        function: Makes a run's record, in a worker process; a function of a module.
        jobs: Number of processes.
        environment: Environment variables besides those of this process, which set them until the pool is closed.
    """

    def __init__(
        self, function: Callable[[R], RunRecord], jobs: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._function, self._jobs, self._environment = function, jobs, environment or {}
        self._before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)  # libraries read it when they are imported, which each worker does
        self._pool = processes(jobs)

    def start(self, run: R, at_a_time: int) -> Future[RunRecord]:
        """Start a run; in new processes if one was killed."""
        try:
            return self._pool.submit(self._function, run)
        except BrokenProcessPool:
            self._pool.shutdown()
            self._pool = processes(self._jobs)
            return self._pool.submit(self._function, run)

    def ended(self, going: Iterable[Future[RunRecord]]) -> Iterable[Future[RunRecord]]:
        """Wait for the first that ends."""
        return wait(list(going), return_when=FIRST_COMPLETED).done

    def close(self) -> None:
        """Release the processes."""
        self._pool.shutdown(cancel_futures=True)
        for variable, value in self._before.items():
            os.environ.pop(variable, None)
            os.environ |= {} if value is None else {variable: value}


def processes(jobs: int) -> Executor:
    """Return a pool of new processes."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_quiet)


def _quiet() -> None:
    """Keep a worker process from logging each run, and end it with its parent, also if that is killed."""
    Thread(target=_end_with_parent, daemon=True).start()
    logging.getLogger("sepal").setLevel(logging.ERROR)


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def records(
    needed: Callable[[], Iterable[R]],
    function: Callable[[R], RunRecord],
    jobs: int = 0,
    hours: float = 24.0,
    most: int = 0,
    name: Callable[[R], Hashable] = lambda run: run,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunRecord]:
    """Execute the runs that are needed in a pool, and yield their records (:func:`run_needed`, :class:`WorkerPool`).

    A run that ends with an error other than Sepal's own has no record, and is named. So are all runs that were going
    when a worker was killed, because it is not known which of them took too much memory.

    Args:
        needed: As for :func:`run_needed`.
        function: Makes a run's record, in a worker process; a function of a module.
        jobs: Runs at a time; 0: one a core.
        hours: No run is started after so many hours.
        most: No more runs than these are started; 0: no limit.
        name: What tells runs apart.
        environment: Environment variables of the worker processes.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    for run, future in run_needed(needed, WorkerPool(function, jobs, environment), jobs, hours, most, name):
        problem = future.exception()
        if isinstance(problem, BrokenProcessPool):
            log.error("a worker was killed, perhaps because memory ran out; these runs are set aside: %s", run)
        elif problem is not None:  # a bug, or a machine without room
            log.error("no record of %s", run, exc_info=problem)
        else:
            yield future.result()
