"""``python -m referee.calibrate``: find the default rates, and write their table and its page.

Every finished trial is stored at once in ``referee/results/calibration.ndjson``; a killed calibration continues where
it was. ``strategies/calibrated.toml`` (which a run reads) and ``referee/results/calibration.md`` are made from that
file, for the methods whose trials have all ended. A trial is one run in a worker process that lives on: `sepal
tune` starts a process for each run, which would take as long again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from referee.calibrate.pages import write_pages
from referee.calibrate.rows import Evidence, Row, commit_now
from referee.calibrate.search import Result, Trial, Trials
from referee.calibrate.settings import SETTINGS
from referee.calibrate.trial import quiet, run_trial
from sepal.config.run import GRADIENT_NORM


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing trials, then write the table and the page."""
    parser = argparse.ArgumentParser(prog="python -m referee.calibrate", description=__doc__.partition("\n")[0])
    parser.add_argument("--datasets", nargs="*", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--methods", nargs="*", default=[], help="by default all that the data set lists")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one a core")
    parser.add_argument("--hours", type=float, default=24.0, help="start no trial after so many hours")
    parser.add_argument("--pages", action="store_true", help="run nothing; write the table and the page")
    given = parser.parse_args(arguments)
    evidence = Evidence.read()
    if not given.pages:
        searches = [
            _search(evidence, dataset, method)
            for dataset in given.datasets
            for method in given.methods or methods_of(dataset)
        ]
        run_all(searches, evidence, given.jobs or len(os.sched_getaffinity(0)), given.hours)
    write_pages(evidence)


def _search(evidence: Evidence, dataset: str, method: str) -> Trials:
    setting = SETTINGS[dataset]
    clip = GRADIENT_NORM if setting.has_margin(method) else 0.0
    return evidence.trials(dataset, method, setting.grid, setting.own_keys(method), setting.growth, clip)


def methods_of(dataset: str) -> tuple[str, ...]:
    """Return the methods that are calibrated on a data set."""
    from sepal.strategies import registry

    return SETTINGS[dataset].methods or tuple(registry.METHODS)


def run_all(searches: Sequence[Trials], evidence: Evidence, jobs: int, hours: float) -> None:
    """Run what the searches need, ``jobs`` at a time, in their order."""
    begun, commit = time.monotonic(), commit_now()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=quiet) as pool:
        going: dict[Future[Result], Trial] = {}
        while True:
            late = time.monotonic() - begun > hours * 3600
            for trial in _next(searches, set(going.values())):
                if late or len(going) >= jobs:
                    break
                going[pool.submit(run_trial, trial)] = trial
            if not going:
                return
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                trial = going.pop(future)
                result = future.result()
                evidence.add(Row.of(trial, result, commit), searches)
                words = ", ".join(f"{key} {value:g}" for key, value in trial.keys)
                figures = f"{100 * result.validation:.1f}" + f", {result.diverged} diverged" * bool(result.diverged)
                print(f"{trial.dataset} {trial.method} {words} seed {trial.seed}: {figures}", flush=True)


def _next(searches: Sequence[Trials], going: set[Trial]) -> Iterator[Trial]:
    for search in searches:
        yield from (trial for trial in search.needed() if trial not in going)


if __name__ == "__main__":
    main()
