"""A report's further figures, each for runs that have its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from sepal.cli.comparison import Comparison
from sepal.cli.report.figure import (
    CELL,
    PERCENT,
    VIEW,
    VISIBLE,
    Figure,
    chart_of,
    colour_of,
    finish,
    named,
    parameters,
    shown,
)
from sepal.cli.report.learned import Row, Rows
from sepal.protocol.views import MODELS


def shift(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    """Return the mean accuracy by the share of replaced test data."""
    if "shift" not in data:
        return None
    used = ("cell", "view", "hidden")
    drawn = chart_of("shift", parameters(comparison, *used)).transform_filter(f"{CELL} && {VISIBLE}")
    there = [view for view in MODELS if any(row["view"] == view for row in data["shift"])]
    drawn = drawn.transform_filter(f"datum.view == (indexof({there}, view) < 0 ? 'trained' : view)")
    chart = drawn.mark_line(point=True, strokeWidth=2).encode(
        alt.X("shift:Q", title="test data from other clients, %"),
        alt.Y("mean:Q", title="accuracy, %", scale=PERCENT),
        colour_of(comparison),
        tooltip=[alt.Tooltip("label:N", title="run"), alt.Tooltip("shift:Q"), alt.Tooltip("mean:Q", format=".1f")],
    )
    ends = [row for row in data["shift"] if row["shift"] == 100 and row["view"] == "trained"]
    words = "; ".join(f"{named(row['label'], row['cell'])} {row['mean']:.1f} %" for row in ends)
    reading = (
        "Mean accuracy in % when a share of each client's test data is replaced by other clients'. Trained models "
        "where the chosen ones were not evaluated so."
    )
    spoken = f"Accuracy under test-time shift; of trained models under full shift: {words}."
    return Figure("shift", "shift", "Accuracy under test-time shift", reading, spoken, finish(chart, spoken), used)


def pairs(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    """Return the paired differences with their intervals."""
    if "pairs" not in data:
        return None
    used = ("cell", "view")
    drawn = chart_of("pairs", parameters(comparison, *used)).transform_filter(f"{CELL} && {VIEW}")
    order = list(dict.fromkeys(row["pair"] for row in data["pairs"]))
    place = alt.Y("pair:N", title=None, sort=order, axis=alt.Axis(labelLimit=150))
    difference = alt.X("mean:Q", title="difference, percentage points")
    tips = [alt.Tooltip("pair:N"), *(alt.Tooltip(f"{name}:Q", format="+.1f") for name in ("mean", "low", "high"))]
    interval = drawn.mark_rule(strokeWidth=3, color="var(--bar)").encode(
        alt.X("low:Q", title="difference, percentage points"), alt.X2("high:Q"), place, tooltip=tips
    )
    dots = drawn.mark_circle(size=90, color="var(--ink)", opacity=1).encode(difference, place, tooltip=tips)
    zero = alt.Chart(alt.InlineData(values=[{}])).mark_rule(color="var(--muted)", strokeDash=[2, 3])
    zero = zero.encode(x=alt.datum(0))
    here = [row for row in data["pairs"] if row["view"] == comparison.view]
    words = "; ".join(
        f"{named(r['pair'], r['cell'])}: {r['mean']:+.1f} points, from {r['low']:+.1f} to {r['high']:+.1f}"
        for r in here
    )
    reading = (
        "Percentage points, client by client on the same data, with the 95 % interval over clients. Clients of one "
        "federation are not independent: a guide, no test."
    )
    spoken = f"Paired differences, {comparison.view} models: {words}."
    spec = finish(alt.layer(zero, interval, dots), spoken, max(70, 34 * len(order)))
    return Figure("pairs", "pairs", "Paired differences", reading, spoken, spec, used)


def capacity(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    """Return the clients' accuracy by their capacity."""
    if "capacity" not in data:
        return None
    used = ("cell", "view", "hidden")
    drawn = chart_of("capacity", parameters(comparison, *used)).transform_filter(f"{CELL} && {VIEW} && {VISIBLE}")
    chart = drawn.mark_circle(size=60, opacity=0.8).encode(
        alt.X("capacity:Q", title="capacity, % of the full model"),
        alt.Y("accuracy:Q", title="accuracy, %", scale=PERCENT),
        colour_of(comparison),
        tooltip=[alt.Tooltip("label:N", title="run"), alt.Tooltip("client:N"), "capacity:Q", "accuracy:Q"],
    )
    reading = "Accuracy of each client in % by the share of the full model that it can hold, in %."
    spoken = f"Accuracy by capacity, {len(data['capacity'])} points."
    spec = finish(chart, spoken, title=shown(comparison, view=True))
    return Figure("capacity", "capacity", "Accuracy by capacity", reading, spoken, spec, used)


def own_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the methods' own figures, in order."""
    return list(dict.fromkeys(row["figure"] for row in rows))


def first_own(rows: Sequence[Row]) -> str:
    """Return the first of the methods' own figures that changes over the rounds of a run, or the first of all."""
    values: dict[str, dict[tuple[str, str], set[float]]] = {}
    for row in rows:
        values.setdefault(row["figure"], {}).setdefault((row["cell"], row["label"]), set()).add(row["value"])
    varying = (name for name, runs in values.items() if any(len(found) > 1 for found in runs.values()))
    return next(varying, rows[0]["figure"])


def own(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    """Return the methods' own figures by round."""
    if "own" not in data:
        return None
    used = ("cell", "hidden", "figure")
    names, rows = own_names(data["own"]), data["own"]
    drawn = chart_of("own", {**parameters(comparison, "cell", "hidden"), "figure": first_own(rows)})
    drawn = drawn.transform_filter(f"{CELL} && {VISIBLE} && datum.figure == figure")
    rounds = alt.Axis(tickMinStep=1, format="d")
    chart = drawn.mark_line(point=True, strokeWidth=2).encode(
        alt.X("round:Q", title="round", scale=alt.Scale(nice=False, zero=True), axis=rounds),
        alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),  # the figure's name is in the chart's title
        colour_of(comparison),
        tooltip=[alt.Tooltip("label:N", title="run"), alt.Tooltip("round:Q"), alt.Tooltip("value:Q")],
    )
    reading = (
        "What a method's server reports of itself, and means over clients of what they report, by round; unit as named."
    )
    spoken = f"Figures of the methods' own by round: {', '.join(names)}."
    spec = finish(chart, spoken, title=shown(comparison, before="figure"))
    return Figure("own", "own", "The methods' own figures", reading, spoken, spec, used)
