"""Reads and writes ``referee/results/stability.ndjson``, and writes ``referee/results/stability.md`` from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from referee.stability.runs import Row
from referee.stability.verdicts import COLLAPSED, MOST_DIFFERENCE, Cell, cells, established
from sepal.storage.files import write_atomically
from sepal.strategies import registry

RESULTS = Path(__file__).parents[2] / "referee" / "results"
ROWS, PAGE = RESULTS / "stability.ndjson", RESULTS / "stability.md"
HEAD = f"""\
# How much of a figure is the processor's?

`make -C referee stability` runs every method with all its defaults under each kind of arithmetic that the processor has
(`ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA`: sums in another order, so other rounding), and asks:

- Does a run **collapse**: less than {COLLAPSED:.2f} of the method's best run on the data?
- Is there a **difference between kinds** above {100 * MOST_DIFFERENCE:g} point that is established: paired over seeds,
  by a t test, corrected by Holm's method over all methods, data sets and pairs of kinds?

Accuracy is that of the deployed model on test data, in %. *Seeds* is the standard deviation over seeds, *kinds* that of
one seed's run over kinds: how far another processor moves a single run. *Largest* is the largest difference of one seed
between two kinds. *Diverged* counts trainings of clients, *repeated* rounds. [All rows](stability.ndjson).
"""


def read_rows(path: Path = ROWS) -> list[Row]:
    """Return the stored rows."""
    return [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_rows(rows: Iterable[Row], path: Path = ROWS) -> None:
    """Write the rows in the order of data sets, methods, kinds and seeds."""
    order = {method: number for number, method in enumerate(registry.METHODS)}
    ordered = sorted(rows, key=lambda row: (row.dataset, order.get(row.method, len(order)), row.kind, row.seed))
    write_atomically(path, "".join(f"{json.dumps(row.plain())}\n" for row in ordered).encode())


def markdown(rows: Sequence[Row]) -> str:
    """Return the page."""
    found = cells(rows)
    bad, parts = established(found), [HEAD]
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        mine = [cell for cell in found if cell.dataset == dataset]
        every = [row for cell in mine for row in cell.rows]
        processors = ", ".join(sorted({row.cpu for row in every}))
        commits = ", ".join(f"`{commit}`" for commit in sorted({row.commit for row in every}))
        hours = sum(row.seconds for row in every) / 3600
        ran = len({cell.method for cell in mine})
        parts.append(
            f"\n## {dataset}\n\n{ran} of {len(registry.METHODS)} methods have run. {processors}; commits {commits}; "
        )
        parts.append(f"{hours:.1f} core-hours.\n\n")
        parts.append("| method | lr | seeds × kinds | accuracy | seeds | kinds | largest | diverged | repeated | |\n")
        parts.append(f"|{' --- |' * 10}\n")
        parts += [_line(cell, bool(bad.get((cell.dataset, cell.method)))) for cell in mine]
    return "".join(parts)


def _line(cell: Cell, differs: bool) -> str:
    by_kind, collapsed = cell.by_kind(), cell.collapsed()
    accuracies = [value for by_seed in by_kind.values() for value in by_seed.values()]
    largest = max((difference.largest for difference in cell.differences()), default=None)
    words = [f"{len(collapsed)} collapsed"] if collapsed else []
    words += ["kinds differ"] if differs else []
    shown = [
        f"{100 * value:.1f}" if value is not None else "–" for value in (cell.over_seeds(), cell.over_kinds(), largest)
    ]
    sizes = f"{max(len(by_seed) for by_seed in by_kind.values())} × {len(by_kind)}"
    mean = 100 * sum(accuracies) / len(accuracies)
    diverged, undone = (sum(getattr(row, name) for row in cell.rows) for name in ("diverged", "undone"))
    figures = " | ".join(shown)
    return (
        f"| `{cell.method}` | {cell.rows[0].lr:g} | {sizes} | {mean:.1f} | {figures} | {diverged} | {undone} | "
        f"{', '.join(words)} |\n"
    )
