"""The rows behind the picture of the frontier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sepal.report.learned_rows import Row
from sepal.study.comparison import Comparison
from sepal.study.frontier import Standing, entries, frontier
from sepal.tasks.scoring import Measure

MARGIN = 1.25  # the axis goes on beyond the least and the largest size by this factor
SPAN = 10  # sizes further apart than so many times have a logarithmic axis


def frontier_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of all cells that have a frontier."""
    standings_of = by_cell(comparison)
    wide = logarithmic([standing.entry.megabytes for standing in standings] for standings in standings_of.values())
    for cell, standings in standings_of.items():
        yield from ({"cell": cell, **row} for row in standing_rows(standings, comparison.measure, wide))


def by_cell(comparison: Comparison) -> dict[str, list[Standing]]:
    """Return the standings of each cell that has at least two variants."""
    standings_of = {cell: frontier(entries(comparison.variants(cell)), comparison.measure) for cell in comparison.cells}
    return {cell: standings for cell, standings in standings_of.items() if len(standings) > 1}


def logarithmic(panels: Iterable[Iterable[float]]) -> bool:
    """Return whether in any panel the sizes above 0 span more than :data:`SPAN` times."""
    some = ([size for size in sizes if size > 0] for sizes in panels)
    return any(max(sizes) > SPAN * min(sizes) for sizes in some if sizes)


def standing_rows(standings: Sequence[Standing], measure: Measure, wide: bool) -> Iterator[Row]:
    """Yield a row for each standing, and one for the frontier's end at the right; ``x`` is where its line has a corner.

    Args:
        standings: Of :func:`~sepal.study.frontier.frontier`.
        measure: The metric.
        wide: Whether the axis is logarithmic: then runs without messages are drawn left of the least size.
    """
    sizes = [standing.entry.megabytes for standing in standings if standing.entry.megabytes > 0] or [1.0]
    margin = min(sizes) / MARGIN if wide else 0.0
    last = None
    for standing in standings:
        size, (low, high) = float(f"{standing.entry.megabytes:.5g}"), standing.entry.bar
        values = {"mean": standing.entry.value.mean, "low": low, "high": high}
        row = {
            "label": standing.entry.label,
            "kind": "standing",
            "on": standing.frontier,
            "rival": standing.rival,
            "mb": size,
        }
        row |= {"x": size or margin, **{key: measure.rounded(value) for key, value in values.items()}}
        last = row if standing.frontier else last
        yield row
    if last:
        yield {**last, "kind": "end", "x": MARGIN * max(sizes)}
