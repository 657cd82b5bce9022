"""``python -m referee.defaults``: run every method with all its defaults, and compare each with FedAvg + fine-tuning.

With no seed may a method be more than ``MOST_BEHIND`` behind, in the view that it deploys, or more than ``BEHIND`` says
if NOTES.md explains why the method itself is behind, and not a default: a mean would hide a seed that failed. With
``--arithmetic``, each kind of arithmetic that the processor has runs, and no run may collapse, nor may a difference
between kinds be established. The exit status is 1 if one is. A run that is killed is continued by the same command.
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
    Cell,
    Run,
    cells,
    established,
    kinds_here,
    ordered,
    run,
    run_of,
)
from sepal.storage.files import write_atomically
from sepal.strategies import registry
from sepal.study.record import RunRecord, append, read, write
from sepal.study.runner import records

SEEDS = {"": {"digits": 3, "har": 3}, "arithmetic": {"digits": 20, "har": 5}}
LEFT_OUT = {("har", "avx2")}  # hours; the other two kinds are farthest apart


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
    given = parser.parse_args(arguments)
    out, seeds = STABILITY if given.arithmetic else given.out, SEEDS["arithmetic" if given.arithmetic else ""]
    deadline = time.monotonic() + 3600 * given.hours
    for dataset in given.datasets if not given.pages else ():
        for kind in given.kinds if given.arithmetic else ("",):
            if (dataset, kind) not in LEFT_OUT:
                wanted = [Run(dataset, m, s, kind) for s in range(given.seeds or seeds[dataset]) for m in given.methods]
                run_missing(wanted, out, given.jobs, (deadline - time.monotonic()) / 3600)
    found = [] if given.pages else cells(row for row in ordered(read(out)) if row.method in given.methods)
    if given.store:
        write(ROWS, ordered([*read(ROWS), *read(out)]))
    for path, text in pages().items():
        write_atomically(path, text.encode())
    if bad := list(_of_arithmetic(found) if given.arithmetic else _behind(found, given.methods)):
        sys.exit(f"defaults: got {', '.join(bad)}")


def run_missing(wanted: Sequence[Run], out: Path, jobs: int, hours: float) -> None:
    """Run what has no record with today's defaults; all are of one data set and kind."""
    known = {run_of(record): record for record in read(out)}
    defaults = {one.method: one.defaults() for one in wanted if one.seed == wanted[0].seed}
    missing = [one for one in wanted if one not in known or known[one].figures["defaults"] != defaults[one.method]]
    if not missing:
        return
    kind = wanted[0].kind
    for record in records(lambda: missing, partial(run, commit=commit_now()), jobs, hours, environment=KINDS.get(kind)):
        append(out, record)
        accuracy = "ended with an error" if record.reached is None else f"{100 * record.reached:.1f}"
        print(f"{record.dataset} {record.method} {kind} seed {record.seed}: {accuracy}", flush=True)
    write(out, ordered(read(out)))


def _behind(found: Sequence[Cell], methods: Sequence[str]) -> list[str]:
    """Print the tables; return who is behind, or has no result."""
    bad = []
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        mine = {cell.method: cell for cell in found if cell.dataset == dataset}
        print(f"{dataset}\n\n{default_table(list(mine.values()))}\n")
        yardstick = mine.get(YARDSTICK)
        behind = [name for name, cell in mine.items() if yardstick and cell.verdict(yardstick) == "behind"]
        bad += [f"{name} on {dataset} with a seed over {100 * MOST_BEHIND:g} points behind" for name in behind]
        bad += [f"{method} on {dataset} (no result)" for method in methods if method not in mine]
    return bad


def _of_arithmetic(found: Sequence[Cell]) -> list[str]:
    """Return the runs that collapsed, and the differences between kinds that are established."""

    def name(row: RunRecord) -> str:
        return f"{row.method} on {row.dataset}, {run_of(row).kind}, seed {row.seed}, which collapsed"

    differ = [(cell, one) for cell, listed in established(found).items() for one in listed]
    return [name(row) for cell in found for row in cell.collapsed()] + [
        f"{method} on {dataset}: a difference between {' and '.join(one.kinds)}" for (dataset, method), one in differ
    ]


if __name__ == "__main__":
    main()
