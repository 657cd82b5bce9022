"""A comparison as Markdown: ``tables.md``, next to its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sepal.cli.comparison import Comparison
from sepal.cli.comparison_tables import (
    ACCURACIES,
    TUNING_COLUMNS,
    accuracies,
    named,
    not_converged,
    tuning_rows,
    tuning_title,
)
from sepal.cli.markdown import table
from sepal.storage.files import write_atomically

VIEWS = ("deployed", "kept", "received", "trained")


def write_markdown(comparison: Comparison, path: Path) -> None:
    """Write a comparison's tables for each swept setting, and what a search before the runs has tried."""
    write_atomically(path, "\n".join(_lines(comparison)).encode())


def _lines(comparison: Comparison) -> Iterator[str]:
    yield from (f"# {comparison.title}", "")
    for cell in comparison.cells:
        groups = comparison.groups(cell)
        if cell and groups:
            yield from (f"## {cell}", "")
        rows = []
        for group in groups:
            shown = [each.text() if each else "–" for each in accuracies(group, comparison.view)]
            sizes = [f"{group.megabytes(way):.2f}" for way in ("up", "down")]
            rows.append([named(group), *shown, *sizes, f"{group.multiply_adds:.2f}"])
        bottom = f"bottom 10 %, {comparison.view}"
        yield from table(["accuracy, %", *ACCURACIES, bottom, "MB up", "MB down", "multiply-adds, 10⁹"], rows)
        if words := not_converged(groups):
            yield from (words, "")
        found = {view: dict(comparison.differences(cell, view)) for view in VIEWS}
        labels = dict.fromkeys(label for pairs in found.values() for label in pairs)
        cells = [[n, *(f[n].text(sign="+") if n in f else "–" for f in found.values())] for n in labels]
        yield from table(["paired difference over clients, points, 95 % interval", *VIEWS], cells)
    if comparison.tuning:
        yield from (f"{tuning_title(comparison.tuning)}.", "")
        yield from table(TUNING_COLUMNS, tuning_rows(comparison.tuning))
    for note in comparison.notes:
        yield from (note, "")
