"""Tables as Markdown, and a comparison in them: ``tables.md``, next to its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sepal.report.sentences import frontier_sentence
from sepal.report.simulated import simulated_words, speed_table
from sepal.report.text_tables import (
    NONE,
    accuracy_table,
    cost_table,
    difference_table,
    remarks,
    tuning_table,
    tuning_title,
)
from sepal.storage.files import write_atomically
from sepal.study.comparison import Comparison


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table, without empty columns."""
    rows = list(rows)
    if not rows:
        return
    columns = [n for n in range(len(header)) if n == 0 or any(row[n] != NONE for row in rows)]
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row[n] for n in columns)} |".replace("\n", " ")
    yield ""


def write_markdown(comparison: Comparison, path: Path, beside: Sequence[Path] = ()) -> Path:
    """Write a comparison's tables for each swept setting, and what a search before the runs has tried.

    Args:
        comparison: The runs.
        path: The file.
        beside: Files of the comparison; pictures among them are shown.
    """
    pictures = [f"![The frontier]({file.name})\n" for file in beside if file.suffix == ".svg"]
    write_atomically(path, "\n".join([*_lines(comparison), *pictures]).encode())
    return path


def _lines(comparison: Comparison) -> Iterator[str]:
    yield from (f"# {comparison.title}", "")
    for cell in comparison.cells:
        variants = comparison.variants(cell)
        if not variants:
            continue
        if cell:
            yield from (f"## {cell}", "")
        tables = accuracy_table(variants), cost_table(variants), speed_table(variants)
        for text_table in (*tables, difference_table(comparison, cell)):
            yield from table(text_table.head, text_table.rows)
        said = (frontier_sentence(comparison, cell), *simulated_words(variants), *remarks(comparison, cell))
        for words in filter(None, said):
            yield from (words, "")
    if comparison.tuning:
        text_table = tuning_table(comparison)
        yield from (f"{tuning_title(comparison)}.", "", *table(text_table.head, text_table.rows))
    for note in comparison.notes:
        yield from (note, "")
