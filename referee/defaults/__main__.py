"""``python -m referee.defaults``: run every method with all its defaults, and compare each with FedAvg + fine-tuning.

No seed of a method may be more than ``MOST_BEHIND`` behind, in the view that the method deploys. Where NOTES.md
explains that the method itself is behind, and not a default, ``BEHIND`` has the bound. Each seed is judged alone,
because a mean would hide one that failed. With ``--arithmetic``, each kind of arithmetic that the processor has runs;
no run may collapse, and no difference between kinds may be established. The exit status is 1 if one of these rules is
broken. After a kill, the same command continues where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from referee.checkout import commit_now, options
from referee.defaults.pages import ROWS, STABILITY, default_table, pages
from referee.defaults.runs import (
    KINDS,
    MOST_BEHIND,
    YARDSTICK,
    DefaultRun,
    MethodResults,
    established,
    execute,
    kinds_here,
    method_results,
    ordered,
    run_of,
)
from sepal.storage.files import write_atomically
from sepal.strategies import registry
from sepal.study.record import RunRecord, append, read, write
from sepal.study.runner import records

SEEDS = {"": {"digits": 3, "har": 3}, "arithmetic": {"digits": 20, "har": 5}}
LEFT_OUT = {("har", "avx2")}  # takes hours; the other two kinds are farthest apart


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print a table for each data set, and say what fails."""
    parser = options("python -m referee.defaults", __doc__, hours=24.0)
    parser.add_argument("--datasets", nargs="*", default=["digits", "har"], choices=["digits", "har"])
    parser.add_argument("--methods", nargs="*", default=list(registry.METHODS), choices=registry.METHODS)
    parser.add_argument("--seeds", type=int, default=0, help="how many, from 0; by default 3, by arithmetic 20 and 5")
    parser.add_argument("--arithmetic", action="store_true", help="under each kind of arithmetic")
    parser.add_argument("--kinds", nargs="*", default=kinds_here(), choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=Path("runs/defaults.ndjson"), help="the records while it goes on")
    parser.add_argument("--store", action="store_true", help="put the records among those of the page, and write it")
    parser.add_argument("--pages", action="store_true", help="run nothing; write the pages")
    args = parser.parse_args(arguments)
    out, seeds = STABILITY if args.arithmetic else args.out, SEEDS["arithmetic" if args.arithmetic else ""]
    deadline = time.monotonic() + 3600 * args.hours
    for dataset in args.datasets if not args.pages else ():
        for kind in args.kinds if args.arithmetic else ("",):
            if (dataset, kind) not in LEFT_OUT:
                runs = [
                    DefaultRun(dataset, method, seed, kind)
                    for seed in range(args.seeds or seeds[dataset])
                    for method in args.methods
                ]
                run_missing(runs, out, args.jobs, (deadline - time.monotonic()) / 3600)
    results = [] if args.pages else method_results(row for row in ordered(read(out)) if row.method in args.methods)
    if args.store:
        write(ROWS, ordered([*read(ROWS), *read(out)]))
    for path, text in pages().items():
        write_atomically(path, text.encode())
    if bad := list(_of_arithmetic(results) if args.arithmetic else _behind(results, args.methods)):
        sys.exit(f"defaults: got {', '.join(bad)}")


def run_missing(runs: Sequence[DefaultRun], out: Path, jobs: int, hours: float) -> None:
    """Run those of ``runs`` that have no record with today's defaults. All are of one data set and kind."""
    stored = {run_of(record): record for record in read(out)}
    defaults = {planned.method: planned.defaults() for planned in runs if planned.seed == runs[0].seed}
    missing = [
        planned
        for planned in runs
        if planned not in stored or stored[planned].figures["defaults"] != defaults[planned.method]
    ]
    if not missing:
        return
    kind = runs[0].kind
    for record in records(
        lambda: missing, partial(execute, commit=commit_now()), jobs, hours, environment=KINDS.get(kind)
    ):
        append(out, record)
        accuracy = "ended with an error" if record.reached is None else f"{100 * record.reached:.1f}"
        print(f"{record.dataset} {record.method} {kind} seed {record.seed}: {accuracy}", flush=True)
    write(out, ordered(read(out)))


def _behind(results: Sequence[MethodResults], methods: Sequence[str]) -> list[str]:
    """Print the tables; return who is behind, or has no result."""
    bad = []
    for dataset in dict.fromkeys(result.dataset for result in results):
        by_method = {result.method: result for result in results if result.dataset == dataset}
        print(f"{dataset}\n\n{default_table(list(by_method.values()))}\n")
        yardstick = by_method.get(YARDSTICK)
        behind = [name for name, result in by_method.items() if yardstick and result.verdict(yardstick) == "behind"]
        bad += [f"{name} on {dataset} with a seed over {100 * MOST_BEHIND:g} points behind" for name in behind]
        bad += [f"{method} on {dataset} (no result)" for method in methods if method not in by_method]
    return bad


def _of_arithmetic(results: Sequence[MethodResults]) -> list[str]:
    """Return the runs that collapsed, and the differences between kinds that are established."""

    def name(row: RunRecord) -> str:
        return f"{row.method} on {row.dataset}, {run_of(row).kind}, seed {row.seed}, which collapsed"

    differ = [(key, difference) for key, differences in established(results).items() for difference in differences]
    return [name(row) for result in results for row in result.collapsed()] + [
        f"{method} on {dataset}: a difference between {' and '.join(difference.kinds)}"
        for (dataset, method), difference in differ
    ]


if __name__ == "__main__":
    main()
