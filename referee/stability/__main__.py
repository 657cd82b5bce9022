"""``python -m referee.stability``: every method with its defaults, 20 seeds on digits and five on HAR, each arithmetic.

Rows that are stored are not run again, so the command continues where it was. The exit status is 1 if a run collapsed,
or if a difference between kinds of arithmetic is established (:mod:`referee.stability.verdicts`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from referee.calibrate.rows import commit_now
from referee.calibrate.trial import quiet
from referee.defaults.__main__ import HERE
from referee.stability.pages import PAGE, markdown, read_rows, write_rows
from referee.stability.runs import KINDS, Row, defaults_of, kinds_here, run
from referee.stability.verdicts import cells, established
from sepal.storage.files import write_atomically
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.plans.plan import read_table

SEEDS: Mapping[str, int] = {"digits": 20, "har": 5}
LEFT_OUT: Mapping[str, tuple[str, ...]] = {"har": ("avx2",)}  # hours; the other two are farthest apart


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, write rows and page, and say what fails."""
    parser = argparse.ArgumentParser(prog="referee.stability", description="every method under each kind of arithmetic")
    parser.add_argument("--datasets", nargs="*", default=list(SEEDS), choices=list(SEEDS))
    parser.add_argument("--methods", nargs="*", default=list(registry.METHODS), choices=registry.METHODS)
    parser.add_argument("--kinds", nargs="*", default=kinds_here(), choices=list(KINDS))
    parser.add_argument("--seeds", type=int, default=0, help="how many, from 0; by default 20 on digits and 5 on HAR")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one a core")
    parser.add_argument("--hours", type=float, default=24.0, help="start no run after so many hours")
    parser.add_argument("--pages", action="store_true", help="run nothing; write the page")
    options = parser.parse_args(arguments)
    if not options.pages:
        deadline = time.monotonic() + 3600 * options.hours
        for dataset in options.datasets:
            for kind in options.kinds:
                if kind not in LEFT_OUT.get(dataset, ()):
                    seeds = range(options.seeds or SEEDS[dataset])
                    _run_kind(dataset, kind, options.methods, seeds, options.jobs, deadline)
    rows = read_rows()
    write_atomically(PAGE, markdown(rows).encode())
    found = cells(rows)
    bad = [f"{row.method} on {row.dataset}, {row.kind}, seed {row.seed}" for cell in found for row in cell.collapsed()]
    bad += [
        f"{method} on {dataset}: {d.kinds}" for (dataset, method), listed in established(found).items() for d in listed
    ]
    if bad:
        sys.exit(f"stability: expected no collapse and no difference between kinds, got {'; '.join(bad)}")


def _run_kind(
    dataset: str, kind: str, methods: Sequence[str], seeds: Sequence[int], jobs: int, deadline: float
) -> None:
    """Run what is missing of one data set and kind; seed by seed, so that what has run is even over methods."""
    settings, commit = read_table(HERE / f"{dataset}.toml")["settings"], commit_now()
    stored = {row.name: row for row in read_rows()}
    for method in methods:  # rows with other defaults than today's are of no use
        lr, defaults = defaults_of(assemble({**settings, "dataset": dataset, "method": method}).task)
        for row in [row for row in stored.values() if (row.dataset, row.method, row.kind) == (dataset, method, kind)]:
            if (row.lr, row.defaults) != (lr, defaults):
                del stored[row.name]
    missing = [(m, s) for s in seeds for m in methods if (dataset, m, kind, s) not in stored]
    if not missing:
        return
    os.environ.update(KINDS[kind])  # read when torch is imported, which each worker does
    context, workers = multiprocessing.get_context("spawn"), jobs or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, context, initializer=quiet) as pool:
        going: set[Future[Row]] = set()
        while missing or going:
            while missing and len(going) < workers and time.monotonic() < deadline:
                method, seed = missing.pop(0)
                going.add(pool.submit(run, dataset, method, kind, seed, settings, commit))
            if not going:
                return
            done, going = wait(going, return_when=FIRST_COMPLETED)
            for future in done:
                row = future.result()
                stored[row.name] = row
                accuracy = "ended with an error" if row.accuracy is None else f"{100 * row.accuracy:.1f}"
                print(f"{dataset} {row.method} {kind} seed {row.seed}: {accuracy}", flush=True)
            write_rows(stored.values())


if __name__ == "__main__":
    main()
