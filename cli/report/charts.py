"""A report's first figures as Altair charts, each with a reading aid and its content in words; and the list of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import altair as alt

from sepal.cli.comparison import Comparison
from sepal.cli.report import further, personal
from sepal.cli.report.data import COLOURS, label_counts
from sepal.cli.report.figure import (
    CELL,
    LABEL,
    PERCENT,
    VIEW,
    VISIBLE,
    Figure,
    called,
    chart_of,
    colour_of,
    finish,
    named,
    parameters,
    said,
    shown,
)
from sepal.cli.report.learned import Rows


def figures(comparison: Comparison, data: Mapping[str, Rows]) -> list[Figure]:
    """Return the figures for which there is data."""
    made = [_MAKE[name](comparison, data) for name in _MAKE]
    return [figure for figure in made if figure is not None]


def _curve(
    x: str, title: str, axis: str, unit: str, digits: int
) -> Callable[[Comparison, Mapping[str, Rows]], Figure | None]:
    """Return a function that makes a figure of accuracy by ``x``."""

    def make(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
        if "curve" not in data:
            return None
        used = ("cell", "view", "hidden")
        drawn = chart_of("curve", parameters(comparison, *used)).transform_filter(f"{CELL} && {VIEW} && {VISIBLE}")
        logarithmic = x == "mb"
        scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(nice=False, zero=True)
        x_axis = alt.Axis(format="~f", labelOverlap="greedy", tickMinStep=1 if x == "round" else 0)
        place = alt.X(f"{x}:Q", title=axis, scale=scale, axis=x_axis)
        moved = drawn.transform_filter("datum.mb > 0") if logarithmic else drawn
        mean = alt.Y("mean:Q", title="accuracy, %", scale=PERCENT)
        colour, dashes = colour_of(comparison), alt.Scale(domain=[False, True], range=[[1, 0], [5, 4]])
        tips = [
            alt.Tooltip("label:N", title="run"),
            alt.Tooltip("round:Q", title="rounds"),
            alt.Tooltip("mb:Q", title="MB", format=".3~g"),
            alt.Tooltip("seconds:Q", title="seconds", format=".1f"),
            alt.Tooltip("mean:Q", title="accuracy, %", format=".1f"),
        ]
        band = moved.mark_area(opacity=0.14).encode(place, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
        line = moved.mark_line(strokeWidth=2).encode(
            place, mean, colour, alt.StrokeDash("stand_in:N", legend=None, scale=dashes)
        )
        dots = moved.mark_circle(size=34, opacity=1).encode(place, mean, colour, tooltip=tips)
        layers = [band, line, dots]
        if logarithmic:
            free = drawn.transform_joinaggregate(most="max(mb)", groupby=["label"])
            free = free.transform_filter("datum.most == 0 && datum.last")
            layers.append(free.mark_rule(strokeWidth=2, strokeDash=[2, 3]).encode(mean, colour, tooltip=tips))
        after = {
            (row["cell"], row["label"]): f" after {row[x]:.{digits}f} {unit}"
            for row in data["curve"]
            if row["last"] and row["view"] == comparison.view
        }
        words = "; ".join(
            f"{called(group)} ends at {said(group.accuracy(comparison.view))}{after.get((group.cell, group.label), '')}"
            for group in comparison.all_groups()
        )
        reading = (
            "Mean accuracy over clients in %, band: ± one standard deviation over seeds. Dashed: the method has no "
            "such view, its trained models stand in."
        )
        if logarithmic:
            reading += (
                " Logarithmic; MB of training payloads, up and down, all clients. Dotted: a method that sends nothing."
            )
        spoken = f"{title}, {comparison.view} models: {words}."
        spec = finish(alt.layer(*layers), spoken)
        return Figure(x, "curve", title, reading, spoken, spec, used, x != "seconds")

    return make


def _clients(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    if "clients" not in data:
        return None
    used = ("cell", "view", "label")
    drawn = chart_of("clients", parameters(comparison, *used)).transform_filter(f"{CELL} && {VIEW} && {LABEL}")
    place = alt.X("rank:O", title="clients, sorted", axis=alt.Axis(labels=False, ticks=False))
    tips = [
        alt.Tooltip("client:N"),
        alt.Tooltip("accuracy:Q", title="accuracy, %", format=".1f"),
        alt.Tooltip("part:N"),
    ]
    parts = alt.Scale(domain=["bottom 10 %", "other clients"], range=["var(--warn)", "var(--bar)"])
    bars = drawn.mark_bar().encode(
        place,
        alt.Y("accuracy:Q", title="accuracy, %", scale=PERCENT),
        alt.Color("part:N", scale=parts, legend=None),
        tooltip=tips,
    )
    rule = drawn.transform_aggregate(decile="min(decile)").mark_rule(strokeDash=[5, 4], color="var(--warn)")
    rule = rule.encode(alt.Y("decile:Q"), tooltip=[alt.Tooltip("decile:Q", title="bottom 10 %, %", format=".1f")])
    others = drawn.transform_flatten(["beside"]).transform_calculate(
        other="datum.beside && datum.beside[0]", there="datum.beside && datum.beside[1]"
    )
    names = [label for label in comparison.labels if any(label == b[0] for r in data["clients"] for b in r["beside"])]
    colours = [f"var(--c{comparison.labels.index(name) % COLOURS})" for name in names]
    ticks = (
        others.transform_filter("isValid(datum.there)")
        .mark_tick(thickness=3)
        .encode(
            place,
            alt.Y("there:Q", title="accuracy, %"),
            alt.Color("other:N", scale=alt.Scale(domain=names, range=colours), legend=None),
            tooltip=[alt.Tooltip("other:N"), alt.Tooltip("client:N"), alt.Tooltip("there:Q", title="%", format=".1f")],
        )
    )
    rows = [row for row in data["clients"] if row["view"] == comparison.view]
    low = {named(row["label"], row["cell"]): row["decile"] for row in rows}
    words = "; ".join(f"bottom decile of {name}: {value:.1f} %" for name, value in low.items())
    reading = "Accuracy of each client in %, the worst first; the lowest tenth and its limit in the warning colour."
    if names:
        reading += f" Ticks: what the same client has with {' or '.join(names)}."
    spoken = f"Clients sorted by accuracy, {comparison.view} models: {words}."
    layers = [bars, ticks, rule] if names else [bars, rule]
    chart = alt.layer(*layers).resolve_scale(color="independent")
    spec = finish(chart, spoken, title=shown(comparison, "label", view=True))
    return Figure("clients", "clients", "Accuracy of every client", reading, spoken, spec, used, True)


def _bytes(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    if "bytes" not in data:
        return None
    used = ("cell", "label")
    drawn = chart_of("bytes", parameters(comparison, *used)).transform_filter(f"{CELL} && {LABEL}")
    colours = alt.Scale(domain=["up", "down"], range=["var(--up)", "var(--down)"])
    chart = drawn.mark_bar().encode(
        alt.X("rank:O", title="clients, sorted", axis=alt.Axis(labels=False, ticks=False)),
        alt.Y("mb:Q", title="MB"),
        alt.Color("direction:N", scale=colours, legend=alt.Legend(orient="top", title=None)),
        tooltip=[alt.Tooltip("client:N"), alt.Tooltip("direction:N"), alt.Tooltip("mb:Q", title="MB", format=".4~g")],
    )
    words = "; ".join(
        f"{called(g)}: {g.megabytes('up'):.2f} MB up, {g.megabytes('down'):.2f} MB down"
        for g in comparison.all_groups()
    )
    reading = "Payloads of training in MB over all rounds, from each client (up) and to it (down)."
    spoken = f"Bytes by client and direction, sums over clients: {words}."
    spec = finish(chart, spoken, title=shown(comparison, "label"))
    return Figure("bytes", "bytes", "What every client sends and receives", reading, spoken, spec, used, True)


def _labels(comparison: Comparison, data: Mapping[str, Rows]) -> Figure | None:
    title = "Which labels each client has"
    if "labels" not in data:
        groups = comparison.all_groups()
        why = next((words for group in groups if (words := label_counts(group.first.stored.config)[2])), "")
        return Figure("labels", "labels", title, "No figure.", why, {}, (), True) if why else None
    used = ("cell",)
    rows = data["labels"]
    clients, classes = {row["client"] for row in rows}, {row["class"] for row in rows}
    chart = (
        chart_of("labels", parameters(comparison, *used))
        .transform_filter(CELL)
        .mark_circle(color="var(--bar)", opacity=0.85)
    )
    chart = chart.encode(
        alt.X("client:N", title="clients", axis=alt.Axis(labels=False, ticks=False)),
        alt.Y("class:O", title="label", sort=alt.SortField("number"), axis=alt.Axis(labelOverlap=True)),
        alt.Size("examples:Q", scale=alt.Scale(range=[4, max(30, min(320, 9000 // len(clients)))]), legend=None),
        tooltip=[alt.Tooltip("client:N"), alt.Tooltip("class:N", title="label"), alt.Tooltip("examples:Q")],
    )
    mean = len({(row["cell"], row["client"], row["class"]) for row in rows}) / len(
        {(r["cell"], r["client"]) for r in rows}
    )
    words = f"{len(clients)} clients, {len(classes)} labels; a client has {mean:.1f} of the labels on average."
    spoken = f"Training examples by client and label: {words}"
    spec = finish(chart, spoken, min(420, max(160, 24 * len(classes))), shown(comparison))
    reading = "Training examples of each client by label; the area of a dot is their number."
    return Figure("labels", "labels", title, reading, spoken, spec, used, True)


_MAKE: Mapping[str, Callable[[Comparison, Mapping[str, Rows]], Figure | None]] = {
    "round": _curve("round", "Accuracy by round", "rounds completed", "rounds", 0),
    "mb": _curve("mb", "Accuracy by MB sent", "MB, up and down", "MB", 2),
    "clients": _clients,
    "bytes": _bytes,
    "labels": _labels,
    "pairs": further.pairs,
    "seconds": _curve("seconds", "Accuracy by time", "seconds", "seconds", 1),
    "shift": further.shift,
    "capacity": further.capacity,
    "own": further.own,
    "masks": personal.masks,
    "similar": personal.similar,
    "overlap": personal.overlap,
    "layers": personal.layers,
    "pruning": personal.pruning,
    "tree": personal.tree,
}
