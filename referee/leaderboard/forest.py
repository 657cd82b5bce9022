"""The results page's pictures: contenders as rows in one order, blocks as columns with a shared zero line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from referee.leaderboard.blocks import Contender
from referee.leaderboard.drawing import LARGE, SMALL, colour_of_words, heading, marks, signed, stroke_of, svg
from referee.leaderboard.findings import alone
from referee.leaderboard.measures import HOLDS, BlockResults
from referee.leaderboard.styles import INK, LINE, STYLES
from sepal.study.statistics import Interval

ORDER = (  # of the rows, the same in all pictures
    *("fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl", "pa3dfl-position", "fedavg-ft-stc", "fedavg", "fedstc"),
    *("ditto", "feddst", "fedrep", "fedper", "heterofl", "fedrolex", "flanc", "local"),
)
DATA = {"har": "HAR", "fashion-mnist": "Fashion", "cifar-10": "CIFAR-10"}  # names short enough for a column
FLOOR, TOP = -9.0, 3.0  # points; what is lower is an arrow at the left edge
LINE_HEIGHT = 34  # pixels of a row
NAMES, BYTES, ACROSS = 172, 118, 440  # pixels of the columns of names and bytes, and of all blocks together


def row_of(results: BlockResults, key: str) -> Contender | None:
    """Return a block's contender of a row: the better of those that train alone, or the one of the smallest width."""
    if key == "local":
        return alone(results)
    names = (key, f"{key}-narrow")
    return next((contender for contender in results.block.contenders if contender.name in names), None)


def cells(all_results: Sequence[BlockResults]) -> Iterator[dict[str, Any]]:
    """Yield a cell for each row and block: the difference to the yardstick in what a client holds, with its interval.

    Differences are in points. ``off`` says that the mean is below what is drawn, ``fell`` that a seed has collapsed.
    """
    for results in all_results:
        for key in ORDER:
            contender = row_of(results, key)
            if contender is None or contender is results.yardstick:
                continue
            if difference := results.difference(contender, HOLDS):
                yield {
                    "block": results.block.name,
                    "key": key,
                    **_points(difference),
                    "fell": bool(results.collapsed(contender)),
                }


def _points(difference: Interval) -> dict[str, Any]:
    mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
    off = mean < FLOOR
    return {"mean": mean, "low": max(low, FLOOR), "high": min(high, TOP), "cut": low < FLOOR or high > TOP, "off": off}


def shares(all_results: Sequence[BlockResults], key: str) -> str:
    """Return the bytes of a row in per cent of dense FedAvg's: ``2–9 %``, over blocks."""
    sent = []
    for results in all_results:
        contender, dense = row_of(results, key), results.megabytes(results.named(results.block.dense))
        megabytes = results.megabytes(contender) if contender else None
        sent += [round(100 * megabytes / dense)] if megabytes is not None and dense else []
    ends = list(dict.fromkeys((min(sent), max(sent)))) if sent else []
    return f"{'–'.join(map(str, ends))} %" if ends else ""


def picture(all_results: Sequence[BlockResults], title: str, reading: Sequence[str]) -> str:
    """Return the picture as SVG, which follows the reader's light or dark settings; empty without a cell.

    Args:
        all_results: The blocks, a column each.
        title: The finding.
        reading: Lines that say how to read it; one about arrows is added where there are some.
    """
    rows = list(cells(all_results))
    if not rows:
        return ""
    keys = [key for key in ORDER if any(row["key"] == key for row in rows)]
    names = [{"key": key, "name": STYLES[key].name, "sent": shares(all_results, key)} for key in keys]
    y = alt.Y("key:N", sort=keys, axis=None, scale=alt.Scale(domain=keys))
    width = (ACROSS - 12 * (len(all_results) - 1)) / len(all_results)
    columns = [
        _words(names, "name", y, NAMES, ""),
        *(
            _column([row for row in rows if row["block"] == results.block.name], y, width, _title(results))
            for results in all_results
        ),
        _words(names, "sent", y, BYTES, "bytes"),
    ]
    height = LINE_HEIGHT * len(keys)
    whole = alt.hconcat(*(column.properties(height=height) for column in columns), spacing=12)
    fell = any(row["fell"] and row["off"] for row in rows)
    arrows = (
        ["◀ further behind than is drawn" + "; * a seed collapsed" * fell] if any(row["off"] for row in rows) else []
    )
    return svg(whole, title, [*reading, *arrows], f"{title}. {_spoken(rows)}")


def _title(results: BlockResults) -> str:
    data = str(results.block.keys["dataset"])
    return f"{results.block.name}\n{DATA.get(data, data)}"


def _words(names: Sequence[dict[str, str]], field: str, y: alt.Y, width: float, head: str) -> Any:
    """Return a column of words: rows' names, or their bytes."""
    data = alt.Chart(alt.InlineData(values=names))
    align: Any = {"align": "left" if field == "name" else "right", "baseline": "middle", "fontSize": LARGE}
    words = data.mark_text(**align, fontWeight=600 if field == "name" else "normal")
    words = words.encode(
        y, alt.Text(f"{field}:N"), colour_of_words(STYLES), x=alt.value(0 if field == "name" else width)
    )
    return words.properties(width=width, title=heading(head))


def _column(rows: Sequence[dict[str, Any]], y: alt.Y, width: float, head: str) -> Any:
    """Return a block's column."""
    scale = alt.Scale(domain=[FLOOR, TOP], nice=False)
    axis = alt.Axis(
        values=[-8, -4, 0], labelExpr="replace(datum.label, '-', '−')", title=None, grid=True, gridColor=LINE
    )
    x, low = (alt.X(f"{field}:Q", scale=scale, axis=axis) for field in ("mean", "low"))
    data = alt.Chart(alt.InlineData(values=list(rows)))
    on, off = data.transform_filter("!datum.off"), data.transform_filter("datum.off")
    figure = off.transform_calculate(
        words="'◀ ' + replace(format(datum.mean, '.0f'), '-', '−') + (datum.fell ? '*' : '')"
    )
    look: Any = {"align": "left", "baseline": "middle", "fontSize": SMALL, "fontWeight": 600}
    layers = [
        alt.Chart(alt.InlineData(values=[{"mean": 0.0}])).mark_rule(strokeWidth=2.5, color=INK).encode(x),
        on.mark_rule(strokeWidth=2.2).encode(stroke_of(STYLES), y, low, alt.X2("high:Q")),
        marks(on, STYLES, 90).encode(x, y),
        figure.mark_text(**look).encode(y, alt.Text("words:N"), colour_of_words(STYLES), x=alt.value(0)),
    ]
    return alt.layer(*layers).properties(width=width, title=heading(head))


def _spoken(rows: Sequence[dict[str, Any]]) -> str:
    return "; ".join(f"{STYLES[row['key']].name} ({row['block']}) {signed(row['mean'])}" for row in rows)
