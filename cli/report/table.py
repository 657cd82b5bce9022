"""A sheet as an HTML table: the best of each column marked, sorted by a click (page.js)."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence

from sepal.cli.sheets import NONE, Sheet


def table(
    sheet: Sheet, label: str, attributes: str = 'class="scroll"', best: Sequence[Callable[..., float]] = ()
) -> Iterator[str]:
    """Yield a table that scrolls, with ``label`` as its name for screen readers.

    With ``best``, which of a column's figures is its best, that is marked, the table can be sorted, and columns without
    a figure are left out.
    """
    kept = [n for n in range(1, len(sheet.head)) if not best or any(row[n] != NONE for row in sheet.rows)]
    first, *others = (html.escape(sheet.head[n]).replace("\n", "<br>") for n in (0, *kept))
    if best:
        others = [f'<button type="button" class="sort">{head}</button>' for head in others]
    heads = f"<th>{first}</th>" + "".join(f'<th scope="col">{head}</th>' for head in others)
    yield f'<section {attributes} tabindex="0" aria-label="{label}"><table><thead><tr>{heads}</tr></thead><tbody>'
    many = best and len(sheet.rows) > 1
    marked = {n: _best([row[n] for row in sheet.rows], best[n - 1]) for n in kept} if many else {}
    for row in sheet.rows:
        figures = ""
        for n in kept:
            words = html.escape(row[n]).replace("± ", "±\u00a0").replace("≤ ", "≤\u00a0")  # lines break before these
            words = re.sub(r"\[[^]]*\]", lambda found: found[0].replace(" ", "\u00a0"), words)  # an interval
            top = n in marked and _whole(row[n]) == marked[n] is not None
            figures += f"<td><strong>{words}</strong></td>" if top else f"<td>{words}</td>"
        yield f'<tr><th scope="row">{html.escape(row[0])}</th>{figures}</tr>'
    yield "</tbody></table></section>"


def _best(cells: Sequence[str], choose: Callable[..., float]) -> float | None:
    """Return the best figure of a column; None where more than half of its rows have it, which says nothing."""
    numbers = [number for cell in cells if (number := _whole(cell)) is not None]
    best = choose(numbers, default=None)
    there = sum(cell != NONE for cell in cells)
    return best if 2 * numbers.count(best) <= there else None


def _whole(cell: str) -> float | None:
    """Return the figure that a cell begins with; None for a word, and for one of some seeds: ``(1 of 2)``."""
    found = re.match(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?(?!.*\(\d+ of \d+\))", cell.removeprefix("≤ "))
    return float(found[0]) if found else None
