"""How a label looks in every figure: colour, dash and mark, so that 12 are told apart also without colour."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import altair as alt

from sepal.report.data import COLOURS, DEPLOYED, STAND_IN, stand_ins
from sepal.report.shapes import DASHES, SHAPES
from sepal.study.comparison import Comparison
from sepal.tasks.scoring import Measure

LINE, LONGEST = 14, 17  # pixels: height of a label at a line's end; letters of the longest
NAMES = 24  # letters of a name on an axis
CLIENTS = 20  # on an axis, at most, that are named there; of more, tooltips have the names
NUMBERED = re.compile("client-0*(?=[0-9])")  # client-00003 is 3 on an axis, as in `sepal export RUN 3`

RIGHT: Any = {"value": "width"}  # the right edge of a plot


class ChartSubject(Protocol):
    """What figures draw, such as a comparison."""

    @property
    def labels(self) -> list[str]:
        """The labels, in order."""

    @property
    def measure(self) -> Measure:
        """The metric."""


def short(text: str, most: int) -> str:
    """Return an expression for a text of at most ``most`` letters, cut in the middle: names differ in their ends."""
    return f"truncate({text}, {most}, 'center')"


def name_axis(**keys: Any) -> alt.Axis:
    """Return an axis of names, which are cut in the middle; tooltips have them whole."""
    return alt.Axis(labelExpr=short("datum.label", NAMES), labelLimit=0, **keys)


def client_axis(names: Iterable[str], skip: int = 0) -> alt.Axis:
    """Return an axis of clients, named if they are few: a numbered client by its number.

    Args:
        names: The clients.
        skip: Letters before a name in the axis' values, which bring clients into order.
    """
    short_names = {NUMBERED.sub("", name, 1) for name in names}
    if len(short_names) > CLIENTS:
        return alt.Axis(labels=False, ticks=False)
    name = f"replace(slice(datum.label, {skip}), regexp('^{NUMBERED.pattern}'), '')"
    angle = 0 if max(map(len, short_names)) <= 2 else -45
    return alt.Axis(labelExpr=short(name, LONGEST), labelAngle=angle, labelLimit=0, labelOverlap=False, ticks=False)


def round_axis() -> alt.Axis:
    """Return an axis of whole rounds; Vega's ``tickMinStep`` still makes halves on the shortest ones."""
    return alt.Axis(format="d", labelOverlap="greedy", tickMinStep=1, labelExpr="datum.value % 1 ? '' : datum.label")


def colour_of(subject: ChartSubject) -> alt.Color:
    """Return the colour encoding of the labels, the same in all figures."""
    return alt.Color("label:N", legend=None, scale=_scale(subject, [f"var(--c{n})" for n in range(COLOURS)]))


def shape_of(subject: ChartSubject) -> alt.Shape:
    """Return the encoding of the labels by marks."""
    return alt.Shape("label:N", legend=None, scale=_scale(subject, SHAPES))


def dash_of(subject: ChartSubject) -> alt.StrokeDash:
    """Return the encoding of the labels by dashes."""
    return alt.StrokeDash("label:N", legend=None, scale=_scale(subject, DASHES))


def _scale(subject: ChartSubject, values: Sequence[Any]) -> alt.Scale:
    looks = [values[index % len(values)] for index in range(len(subject.labels))]
    return alt.Scale(domain=subject.labels, range=looks)


def ends(comparison: Comparison, drawn: alt.Chart, height: int) -> Any:
    """Return the labels at the right of the lines' ends, moved apart where they would cover one another.

    Rows have ``label``, ``mean``, ``last`` and ``stand_in``. From the top down, a label moves below the one before;
    then, from the bottom up, above the one before, so that all stay within the axis.
    """
    chart = drawn.transform_joinaggregate(top="max(mean)", bottom="min(mean)").transform_filter("datum.last")
    chart = spread(chart, "mean", height)
    lacking = json.dumps([f"{cell}/{label}" for cell, label, view in stand_ins(comparison) if view == DEPLOYED])
    stands = f"datum.stand_in || (view == '{DEPLOYED}' && indexof({lacking}, datum.cell + '/' + datum.label) >= 0)"
    tail = f" ({STAND_IN})"
    cut = short("datum.label", LONGEST - len(tail))
    return labels(comparison, chart, f"{stands} ? {cut} + '{tail}' : {short('datum.label', LONGEST)}")


def labels(subject: ChartSubject, chart: alt.Chart, words: str, weight: Any = "normal") -> Any:
    """Return labels at the right edge, with ``words``, an expression; the whole name is in the tooltip."""
    text = chart.transform_calculate(words=words).mark_text(align="left", dx=8, fontSize=11, fontWeight=weight)
    whole = [alt.Tooltip("label:N", title="run")]
    return text.encode(alt.Y("place:Q"), colour_of(subject), alt.Text("words:N"), x=RIGHT, tooltip=whole)


def spread(chart: alt.Chart, field: str, height: int) -> alt.Chart:
    """Return ``chart`` with ``place``: ``field``, but at least a line of text apart; rows have ``top``, ``bottom``."""
    down: list[Any] = [alt.SortField(field, "descending")]
    up: list[Any] = [alt.SortField("pushed", "ascending")]
    running: dict[str, Any] = {"frame": [None, 0], "ignorePeers": True}
    floor = "(zero ? 0 : datum.bottom)"
    chart = chart.transform_calculate(step=f"max(0.002 * abs(datum.top), {LINE / height} * (datum.top - {floor}))")
    chart = chart.transform_window(n="row_number()", sort=down)
    chart = chart.transform_calculate(below=f"datum['{field}'] + datum.n * datum.step")
    chart = chart.transform_window(least="min(below)", sort=down, **running)
    chart = chart.transform_calculate(pushed="datum.least - datum.n * datum.step")
    chart = chart.transform_window(m="row_number()", sort=up)
    chart = chart.transform_calculate(above=f"max(datum.pushed, {floor}) - datum.m * datum.step")
    chart = chart.transform_window(most="max(above)", sort=up, **running)
    return chart.transform_calculate(place="datum.most + datum.m * datum.step")
