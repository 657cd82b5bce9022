"""A text table as an HTML table, sorted by a click (page.js)."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator

from sepal.report.text_tables import NONE, TextTable


def table(
    text_table: TextTable,
    label: str,
    attributes: str = 'class="scroll"',
    *,
    figures: bool = False,
    bold: Collection[tuple[int, int]] = (),
) -> Iterator[str]:
    """Yield a table that scrolls, with ``label`` as its name for screen readers.

    Args:
        text_table: The table.
        label: Its name.
        attributes: Of its element.
        figures: Whether its columns hold figures: a click on a head sorts it, and columns without one are left out.
        bold: Row and column of the cells that are marked.
    """
    kept = [n for n in range(1, len(text_table.head)) if not figures or any(row[n] != NONE for row in text_table.rows)]
    first, *others = (html.escape(text_table.head[n]).replace("\n", "<br>") for n in (0, *kept))
    if figures:
        others = [f'<button type="button" class="sort">{head}</button>' for head in others]
    heads = f"<th>{first}</th>" + "".join(f'<th scope="col">{head}</th>' for head in others)
    yield f'<section {attributes} tabindex="0" aria-label="{label}"><table><thead><tr>{heads}</tr></thead><tbody>'
    for row_index, row in enumerate(text_table.rows):
        cells = ""
        for n in kept:
            words = html.escape(row[n]).replace("± ", "±\u00a0").replace("≤ ", "≤\u00a0")  # lines break before these
            words = re.sub(r"\[[^]]*\]", lambda interval: interval[0].replace(" ", "\u00a0"), words)  # an interval
            cells += f"<td><strong>{words}</strong></td>" if (row_index, n) in bold else f"<td>{words}</td>"
        yield f'<tr><th scope="row">{html.escape(row[0])}</th>{cells}</tr>'
    yield "</tbody></table></section>"
