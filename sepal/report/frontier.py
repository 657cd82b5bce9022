"""The frontier as a figure of the report, and as a picture by itself: a panel for each setting or block."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import altair as alt

from sepal.report.figure import FROM_DATA, VEGA_LITE, Drawn, digits_of, figure
from sepal.report.frontier_rows import by_cell, logarithmic, standing_rows
from sepal.report.learned_rows import Rows
from sepal.report.marks import LONGEST, RIGHT, ChartSubject, colour_of, labels, shape_of, short, spread
from sepal.report.sentences import frontier_sentence, on_frontier
from sepal.study.comparison import Comparison
from sepal.study.frontier import Standing
from sepal.tasks.scoring import ACCURACY, Measure

NAME = "frontier"
HEIGHT, WIDTH = 300, 320  # pixels of a panel
MEGABYTES = "MB, up and down"
PICTURED = 28  # letters of a name in a picture by itself, which cannot show the rest
PADDING = {"left": 5, "top": 5, "bottom": 5, "right": 24}  # right: the reader's font may be wider than the one measured


@dataclass(frozen=True)
class Panels:
    """What a picture shows.

    Attributes:
        standings: Title of a panel → its standings, of :func:`~sepal.study.frontier.frontier`.
        measure: The metric.
        megabytes: The lower axis.
        order: Labels by whose order looks are given; further ones come after them.
    """

    standings: Mapping[str, Sequence[Standing]]
    measure: Measure = ACCURACY
    megabytes: str = MEGABYTES
    order: Sequence[str] = ()

    @cached_property
    def labels(self) -> list[str]:
        """All labels, each with one look in all panels."""
        panel_labels = (standing.entry.label for panel in self.standings.values() for standing in panel)
        return list(dict.fromkeys([*self.order, *panel_labels]))


def _layers(subject: ChartSubject, drawn: alt.Chart, wide: bool, megabytes: str, longest: int = LONGEST) -> Any:
    """Return a panel of the rows of :func:`~sepal.report.frontier_rows.standing_rows`; longer names are cut."""
    scale = alt.Scale(type="log", nice=False) if wide else alt.Scale(nice=False, zero=True)
    axis = alt.Axis(format="~f", labelOverlap="greedy")
    x_point, x_corner = (alt.X(f"{x}:Q", title=megabytes, scale=scale, axis=axis) for x in ("mb", "x"))
    value, low = (alt.Y(f"{y}:Q", title=subject.measure.axis, scale=FROM_DATA) for y in ("mean", "low"))
    digits = digits_of(subject)
    tips = [
        alt.Tooltip("label:N", title="run"),
        alt.Tooltip("mb:Q", title="MB", format=".3~g"),
        alt.Tooltip("mean:Q", title=subject.measure.axis, format=digits),
        alt.Tooltip("low:Q", title="from", format=digits),
        alt.Tooltip("high:Q", title="to", format=digits),
        alt.Tooltip("on:N", title="on the frontier"),
        alt.Tooltip("rival:N", title="within the noise of"),
    ]
    colour, cut = colour_of(subject), short("datum.label", longest)
    standings_chart = drawn.transform_filter("datum.kind == 'standing'")
    sends, free = standings_chart.transform_filter("datum.mb > 0"), standings_chart.transform_filter("datum.mb == 0")
    named = spread(standings_chart.transform_joinaggregate(top="max(high)", bottom="min(low)"), "mean", HEIGHT)
    stairs = drawn.transform_filter("datum.on").mark_line(interpolate="step-after", strokeWidth=2, color="var(--muted)")
    leader: dict[str, Any] = {"x2": RIGHT, "y2": "place:Q"}
    return alt.layer(
        free.mark_rect(opacity=0.1).encode(low, alt.Y2("high:Q"), colour),
        named.transform_filter("datum.mb > 0").mark_rule(opacity=0.35).encode(x_point, value, colour, **leader),
        stairs.encode(x_corner, value, alt.Order("x:Q")),
        free.mark_rule(strokeWidth=2, strokeDash=[2, 3]).encode(value, colour, tooltip=tips),
        sends.mark_rule(strokeWidth=1.5).encode(x_point, low, alt.Y2("high:Q"), colour),
        sends.mark_point(size=80, filled=True, opacity=1).encode(
            x_point, value, colour, shape_of(subject), tooltip=tips
        ),
        labels(subject, named.transform_filter("datum.on"), cut, "bold"),
        labels(subject, named.transform_filter("!datum.on"), cut),
    )


@figure(NAME, "Accuracy against MB", "cell", "hidden", "zero", main=True)
def _frontier(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    wide = logarithmic([row["mb"] for row in rows if row["cell"] == cell] for cell in comparison.cells)
    cells = (frontier_sentence(comparison, cell) for cell in comparison.cells)
    names = [f"{cell}: " if cell else "" for cell in comparison.cells]
    spoken = " ".join(f"{name}{sentence}" for name, sentence in zip(names, cells, strict=True))
    measure = comparison.measure
    bars = "; bars: ± one standard deviation over seeds" * any(row["low"] != row["high"] for row in rows)
    reading = (
        f"Mean {measure.name} of deployed models at the end{measure.in_unit}{bars}. MB of training payloads, up and "
        f"down, all clients{'; logarithmic' * wide}. The line is the frontier: "
        f"{'above' if measure.higher else 'below'} it and left of it there is nothing, and names on it are bold. "
        "Dotted: a run without messages."
    )
    return Drawn(_layers(comparison, drawn, wide, MEGABYTES), reading, spoken, HEIGHT)


def panels_of(comparison: Comparison) -> Panels:
    """Return a panel for each setting of a comparison, without those that have a single variant."""
    return Panels(by_cell(comparison), comparison.measure, order=comparison.labels)


def picture(panels: Panels, theme: str = "", columns: int = 2) -> str:
    """Return a picture as SVG, which needs the extra ``report``.

    Args:
        panels: What it shows.
        theme: ``light`` or ``dark``, on a transparent ground; empty for one that follows the reader's settings.
        columns: Panels side by side.
    """
    import vl_convert

    wide = logarithmic([standing.entry.megabytes for standing in panel] for panel in panels.standings.values())
    charts = []
    for title, standings in panels.standings.items():
        drawn = alt.Chart(alt.InlineData(values=list(standing_rows(standings, panels.measure, wide))))
        chart = _layers(panels, drawn, wide, panels.megabytes, PICTURED)
        charts.append(chart.properties(width=WIDTH, height=HEIGHT, title=title))
    whole = alt.concat(*charts, columns=columns).add_params(alt.param(name="zero", value=False))
    words = (on_frontier(standings) for standings in panels.standings.values())
    spec = whole.properties(description=" ".join(words)).to_dict(validate=True)
    drawing: str = vl_convert.vegalite_to_svg({**spec, "config": CONFIG, "padding": PADDING}, vl_version=VEGA_LITE)
    return coloured(drawing, theme)


def coloured(drawing: str, theme: str = "") -> str:
    """Return a drawing with the page's colours in place of their names, or with both themes' beside the names.

    Args:
        drawing: An SVG whose colours are names such as ``var(--ink)``.
        theme: ``light`` or ``dark``; empty for one that follows the reader's settings.
    """
    css = (files(__package__) / "templates/page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"(--\w+): (#\w+)", block)) for block in re.findall(r":root.*?\{(.+?)\}", css, re.S)[:2]
    )
    if theme:
        return re.sub(r"var\((--\w+)\)", lambda match: (light if theme == "light" else dark)[match[1]], drawing)
    rules = [
        f":root {{ {'; '.join(f'{name}: {colour}' for name, colour in colours.items())} }}" for colours in (light, dark)
    ]
    style = f"<style>{rules[0]} @media (prefers-color-scheme: dark) {{ {rules[1]} }}</style>"
    ground = '<rect width="100%" height="100%" fill="var(--card)"/>'
    return re.sub(r"(<svg.*?>)", rf"\1{style}{ground}", drawing, count=1, flags=re.S)


CONFIG: dict[str, Any] = {  # as page.js has it
    "background": "transparent",
    "font": "system-ui, 'DejaVu Sans', sans-serif",
    "view": {"stroke": "transparent"},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "titleFontWeight": 500,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "gridColor": "var(--line)",
        "gridOpacity": 0.6,
    },
    "axisX": {"grid": False, "labelSeparation": 8, "labelFlush": False},
    "title": {"color": "var(--ink)", "fontSize": 14, "fontWeight": 600, "anchor": "start"},
}
