"""The front page's picture: what deployed models lose to FedAvg + fine-tuning's, against the MB sent, in one panel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from referee.leaderboard.blocks import Contender
from referee.leaderboard.drawing import Rows, marks, named_text, signed, stroke_of, svg, text
from referee.leaderboard.findings import Findings, alone, compared_blocks
from referee.leaderboard.measures import DEPLOYED, BlockResults
from referee.leaderboard.styles import GREY, INK, STYLES

# Who is shown, and on which side of its point its name is: left, right, above or below
SHOWN = {
    **{"fedpse": "left", "dmpfl": "below", "subfedavg": "left", "pfedgate": "right", "pa3dfl": "right"},
    **{"fedavg-ft-stc": "right", "fedavg-ft": "above", "fedavg": "right"},
}
LONG = {"fedavg-ft": "FedAvg + fine-tuning", "fedavg-ft-stc": "Compressed fine-tuning"}
AXIS = "points from FedAvg + fine-tuning"
FLOOR, TOP = -8.0, 0.9  # points; what is lower is an arrow at the lower edge
WIDTH, HEIGHT = 745, 400  # pixels of the panel
ROOM = (0.8, 2.7)  # of the least and the most MB: the axis' ends; right of the points there is room for names
TICKS = (1, 3, 10, 30, 100, 300, 1000, 3000)
THIN: Any = {"strokeWidth": 1.8, "opacity": 0.7}
WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}


class Spot(NamedTuple):
    """A contender over several blocks: differences in points, and MB; each with the lowest and the highest block's."""

    key: str
    mean: float
    low: float
    high: float
    megabytes: float
    least: float
    most: float
    collapsed: int

    @property
    def off(self) -> bool:
        """Whether the mean is below what is drawn."""
        return self.mean < FLOOR


def spots(all_results: Sequence[BlockResults]) -> list[Spot]:
    """Return the contenders that are shown, with means over the compared blocks; the mean of MB is geometric.

    What is compared is the model that each deploys. Local is the better of those that train alone, and sends nothing.
    """
    blocks = compared_blocks(all_results)
    return [spot for key in (*SHOWN, "local") if (spot := _spot(blocks, key))]


def _spot(blocks: Sequence[BlockResults], key: str) -> Spot | None:
    contenders = [alone(results, DEPLOYED) if key == "local" else results.named(key) for results in blocks]
    pairs = [
        (results, contender)
        for results, contender in zip(blocks, contenders, strict=True)
        if contender and results.runs(contender)
    ]
    if not pairs or len(pairs) < len(blocks):
        return None
    points = [100 * _difference(results, contender) for results, contender in pairs]
    sent = [results.megabytes(contender) or 0.0 for results, contender in pairs]
    centre = float(np.exp(np.mean(np.log(sent)))) if all(sent) else 0.0
    fell = sum(len(results.collapsed(contender)) for results, contender in pairs)
    return Spot(key, float(np.mean(points)), min(points), max(points), centre, min(sent), max(sent), fell)


def _difference(results: BlockResults, contender: Contender) -> float:
    if contender is results.yardstick:
        return 0.0
    difference = results.difference(contender, DEPLOYED)
    return difference.mean if difference else float("nan")


def picture(all_results: Sequence[BlockResults]) -> str:
    """Return the picture as SVG, which follows the reader's light or dark settings; empty without a block."""
    all_spots = spots(all_results)
    if not all_spots:
        return ""
    rows, count = list(_rows(all_spots)), len(compared_blocks(all_results))
    ends = _ends(all_spots)
    wide, high = alt.Scale(type="log", domain=ends, nice=False), alt.Scale(domain=[FLOOR, TOP], nice=False)
    across = alt.Axis(
        values=[tick for tick in TICKS if ends[0] <= tick <= ends[1]],
        format="~f",
        title="MB sent and received by all clients, logarithmic",
    )
    up = alt.Axis(values=list(range(int(FLOOR), 1, 2)), labelExpr="replace(datum.label, '-', '−')", title=AXIS)
    x, least = (alt.X(f"{field}:Q", scale=wide, axis=across) for field in ("mb", "least"))
    y, low = (alt.Y(f"{field}:Q", scale=high, axis=up) for field in ("mean", "low"))
    data = alt.Chart(alt.InlineData(values=rows))
    on = data.transform_filter("!datum.off")
    zero = alt.Chart(alt.InlineData(values=[{"mean": 0.0}])).mark_rule(strokeWidth=3, color=INK).encode(y)
    lines = on.transform_filter("datum.key != 'fedavg-ft'")
    layers = [
        zero,
        lines.mark_rule(**THIN).encode(stroke_of(STYLES), x, low, alt.Y2("high:Q")),
        lines.mark_rule(**THIN).encode(stroke_of(STYLES), least, y, alt.X2("most:Q")),
        marks(on, STYLES, size=200).encode(x, y),
        *_names(data, x, y),
        *_arrows(rows, ends),
    ]
    finding = Findings(all_results).few_bytes
    title = finding[:1].upper() + finding[1:]
    reading = [
        f"Accuracy of the models that are deployed, mean of {WORDS.get(count, count)} federations.",
        "Thin lines: from the lowest to the highest of them.",
    ]
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
    return svg(chart, title, reading, f"{title}. {_spoken(all_spots)}")


def _ends(all_spots: Sequence[Spot]) -> tuple[float, float]:
    """Return the ends of the axis of MB."""
    sent = [end for spot in all_spots if spot.megabytes for end in (spot.least, spot.most)]
    return ROOM[0] * min(sent), ROOM[1] * max(sent)


def _rows(all_spots: Sequence[Spot]) -> Iterator[dict[str, Any]]:
    for spot in all_spots:
        look, fell = STYLES[spot.key], " (a run collapsed)" if spot.collapsed else ""
        name = LONG.get(spot.key, look.name)
        row = {"key": spot.key, "name": name + fell, "off": spot.off, "mean": spot.mean, "mb": spot.megabytes}
        ends = {"low": max(spot.low, FLOOR), "high": spot.high, "least": spot.least, "most": spot.most}
        yield {**row, **ends, "side": SHOWN.get(spot.key, "right")}


def _names(data: alt.Chart, x: alt.X, y: alt.Y) -> Iterator[alt.Chart]:
    """Yield each name beside its point."""
    for side, keys in {
        "left": {"align": "right", "dx": -14, "dy": -12},
        "right": {"align": "left", "dx": 14, "dy": -14},
        "above": {"align": "center", "dx": 0, "dy": -20},
        "below": {"align": "left", "dx": 14, "dy": 16},
    }.items():
        side_data = data.transform_filter(f"datum.side == '{side}' && !datum.off && datum.key != 'local'")
        yield from named_text(side_data, STYLES, x, y, **keys)


def _arrows(rows: Rows, ends: tuple[float, float]) -> Iterator[alt.Chart]:
    """Yield an arrow at the lower edge for each that is below it, with its figure."""
    for row in (row for row in rows if row["off"]):
        free = row["mb"] == 0
        share = 0.0 if free else float(np.log(row["mb"] / ends[0]) / np.log(ends[1] / ends[0]))
        words = f"{row['name']} {signed(row['mean'], 0)}" + ("; sends nothing" if free else "")
        yield text("▼", WIDTH * share + 10 * free, HEIGHT - 12, GREY, align="center")
        yield text(words, WIDTH * share + 22 + 4 * free, HEIGHT - 12, GREY)


def _spoken(all_spots: Sequence[Spot]) -> str:
    return "; ".join(
        f"{STYLES[spot.key].name} {signed(spot.mean)} points, {spot.megabytes:.3g} MB" for spot in all_spots
    )
