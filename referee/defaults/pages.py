"""Makes ``referee/results/defaults.md``, and ``stability.md`` once kinds of arithmetic have run, from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from referee.checkout import RESULTS, render
from referee.defaults.runs import COLLAPSED, MOST_DIFFERENCE, YARDSTICK, Cell, cells, established
from sepal.report.markdown import table
from sepal.strategies import registry
from sepal.study.record import RunRecord, read

ROWS, STABILITY = RESULTS / "defaults.ndjson", RESULTS / "stability.ndjson"
HEAD = ["method", "lr", "deployed", "accuracy", "minus FedAvg-FT", "worst seed", "commit"]


def pages() -> dict[Path, str]:
    """Return path → text of the pages."""
    found = cells(read(ROWS))
    tables = {each.dataset: default_table([one for one in found if one.dataset == each.dataset]) for each in found}
    made = {ROWS.with_suffix(".md"): render("defaults.md", tables=tables)}
    if rows := read(STABILITY):
        made[STABILITY.with_suffix(".md")] = render("stability.md", **_stability(rows))
    return made


def default_table(found: Sequence[Cell]) -> str:
    """Return the table of one data set: the deployed model's accuracy, and how far each is behind the yardstick."""
    yardstick = next((cell for cell in found if cell.method == YARDSTICK), None)
    return "\n".join(table(HEAD, [_line(cell, yardstick) for cell in found])).rstrip()


def _line(cell: Cell, yardstick: Cell | None) -> list[str]:
    values = [100 * value for value in cell.accuracies()]
    ended = len(cell.rows) - len(values)
    words = f"{mean(values):.1f}" if values else "-"
    words += f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    words += f" ({ended} of {len(cell.rows)} ended)" if ended else ""
    there = yardstick.accuracies() if yardstick else []
    behind = f"{100 * (mean(cell.accuracies()) - mean(there)):+.1f}" if values and there else "-"
    lowest = cell.worst(yardstick) if yardstick else None
    worst = "-"
    if lowest:
        worst = f"{lowest[0]:+.1f} ({lowest[1]})" if math.isfinite(lowest[0]) else f"ended ({lowest[1]})"
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(row.commit for row in cell.rows))
    return [f"`{cell.method}`", f"{cell.lr:g}", cell.rows[0].deployed, words, behind, worst, commits]


def _stability(rows: Sequence[RunRecord]) -> dict[str, Any]:
    found = cells(rows)
    bad, datasets = established(found), []
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        mine = [cell for cell in found if cell.dataset == dataset]
        every = [row for cell in mine for row in cell.rows]
        datasets.append(
            {
                "name": dataset,
                "methods": len(mine),
                "processors": sorted({row.machine for row in every}),
                "commits": sorted({row.commit for row in every}),
                "hours": sum(row.seconds for row in every) / 3600,
                "rows": [_of_kinds(cell, (dataset, cell.method) in bad) for cell in mine],
            }
        )
    share = {"collapsed": COLLAPSED, "most": 100 * MOST_DIFFERENCE}
    return {"datasets": datasets, "methods": len(registry.METHODS), **share}


def _of_kinds(cell: Cell, differs: bool) -> list[str]:
    by_kind, collapsed = cell.by_kind(), cell.collapsed()
    accuracies = [value for by_seed in by_kind.values() for value in by_seed.values()]
    largest = max((difference.largest for difference in cell.differences()), default=None)
    words = [f"{len(collapsed)} collapsed"] * bool(collapsed) + ["kinds differ"] * differs
    sizes = f"{max(len(by_seed) for by_seed in by_kind.values())} × {len(by_kind)}"
    figures = [
        "–" if value is None else f"{100 * value:.1f}" for value in (cell.over_seeds(), cell.over_kinds(), largest)
    ]
    counts = [str(sum(getattr(row, name) for row in cell.rows)) for name in ("diverged", "undone")]
    about = [f"`{cell.method}`", f"{cell.lr:g}", sizes, f"{100 * mean(accuracies):.1f}"]
    return [*about, *figures, *counts, ", ".join(words)]
