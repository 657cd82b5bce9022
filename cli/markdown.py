"""Parts that the tables of results pages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table, without empty columns."""
    rows = list(rows)
    if not rows:
        return
    kept = [n for n in range(len(header)) if n == 0 or any(row[n] != "–" for row in rows)]
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row[n] for n in kept)} |"
    yield ""


def of_clients(columns: Mapping[str, Sequence[Any]], view: str) -> dict[str, float]:
    """Return client → accuracy in a view, from the columns of a run's clients; empty if no client has the view."""
    found = zip(columns["name"], columns.get(view, ()), strict=False)  # without the view there is no column
    return {name: value for name, value in found if value is not None}
