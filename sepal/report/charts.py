"""A report's figures of accuracy or another headline, bytes and data, each with a reading aid and its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import altair as alt

from sepal.report import curves, frontier, personal, simulated_chart
from sepal.report.data import COLOURS, PLACE, STAND_IN, first_shown, views, with_cell
from sepal.report.figure import FROM_DATA, MAKERS, PERCENT, Drawn, Figure, digits_of, drawn_text, figure, named, shown
from sepal.report.learned_rows import Rows, readers
from sepal.report.marks import NAMES, client_axis, colour_of, dash_of, name_axis, round_axis, shape_of, short
from sepal.report.sizes import size
from sepal.runs.about import labels_of
from sepal.study.comparison import Comparison

SECOND = (simulated_chart.NAME, "seconds", "shift", "capacity", "own")
FIRST = (frontier.NAME, *curves.NAMES, "clients", "bytes", "labels", "sizes", "pairs", *SECOND)
ORDER = (*FIRST, *personal.NAMES)
LABELS, MASKS = "Which labels each client has", "Masks and labels"


def figures(comparison: Comparison, data: Mapping[str, Rows]) -> list[Figure]:
    """Return the figures for which there is data; and of labels and masks, why there is none."""
    page_figures = []
    for name in ORDER:
        source, make = MAKERS[name]
        if source in data:
            page_figures.append(make(comparison, data[source]))
        elif name == "labels":
            runs = (variant.first.stored for variant in comparison.all_variants())
            if why := next((words for run in runs if (words := labels_of(run).reason)), ""):
                page_figures.append(Figure("labels", "labels", LABELS, "No figure.", why, {}, (), True))
        if name == "masks" and (unread := _unread(comparison)):
            why = f"{', '.join(unread)}: masks follow from the clients' examples, which `sepal report --data` reads."
            if source in data:
                page_figures[-1] = replace(page_figures[-1], reading=f"{page_figures[-1].reading} {why}")
            else:
                page_figures.append(Figure("masks", "masks", MASKS, "No figure.", why, {}, ()))
    return page_figures


def _unread(comparison: Comparison) -> list[str]:
    """Return the labels of ended runs whose masks need examples that may not be read."""
    variants = (v for v in comparison.all_variants() if v.first.stored.summary and not v.first.stored.allowed.data)
    return [v.label for v in variants if (reader := readers(v.method).get("masks")) and reader.examples]


@figure("clients", "Accuracy of every client", "cell", "view", "label", main=True)
def _clients(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    measure = comparison.measure
    x = alt.X("place:O", title="clients, sorted", axis=client_axis({row["client"] for row in rows}, PLACE))
    tips = [
        alt.Tooltip("client:N"),
        alt.Tooltip("accuracy:Q", title=measure.axis, format=digits_of(comparison)),
        alt.Tooltip("part:N"),
    ]
    parts = alt.Scale(domain=["worst 10 %", "other clients"], range=["var(--warn)", "var(--bar)"])
    accuracy = alt.Y("accuracy:Q", title=measure.axis, scale=PERCENT if measure.percent else alt.Undefined)
    bars = drawn.mark_bar().encode(x, accuracy, alt.Color("part:N", scale=parts, legend=None), tooltip=tips)
    rule = drawn.transform_aggregate(decile="min(decile)").mark_rule(strokeDash=[5, 4], color="var(--warn)")
    title = "worst 10 %, %" if measure.percent else "worst 10 %"
    tip = alt.Tooltip("decile:Q", title=title, format=digits_of(comparison))
    rule = rule.encode(alt.Y("decile:Q"), tooltip=[tip])
    others = drawn.transform_flatten(["beside"]).transform_calculate(
        other="datum.beside && datum.beside[0]", there="datum.beside && datum.beside[1]"
    )
    names = [label for label in comparison.labels if any(label == pair[0] for r in rows for pair in r["beside"])]
    colours = [f"var(--c{comparison.labels.index(name) % COLOURS})" for name in names]
    ticks = (
        others.transform_filter("isValid(datum.there)")
        .mark_tick(thickness=3)
        .encode(
            x,
            alt.Y("there:Q", title=measure.axis),
            alt.Color("other:N", scale=alt.Scale(domain=names, range=colours), legend=None),
            tooltip=[
                alt.Tooltip("other:N"),
                alt.Tooltip("client:N"),
                alt.Tooltip("there:Q", title=measure.unit, format=digits_of(comparison)),
            ],
        )
    )
    low = {with_cell(r["label"], r["cell"]): r["decile"] for r in first_shown(comparison, rows)}
    words = "; ".join(f"worst 10 % of {name}: {drawn_text(comparison, value)}" for name, value in low.items())
    reading = f"{named('Accuracy', comparison)} of each client{measure.in_unit}, the worst first; "
    reading += "the worst 10 % and their limit in the warning colour."
    if names:
        reading += f" Ticks: what the same client has with {' or '.join(names)}."
    spoken = f"Clients sorted by {measure.name}, {views(comparison)[0]} models: {words}."
    chart = alt.layer(*([bars, ticks, rule] if names else [bars, rule])).resolve_scale(color="independent")
    return Drawn(chart, reading, spoken, shows=shown(comparison, "label", view=True))


@figure("bytes", "What every client sends and receives", "cell", "label", main=True)
def _bytes(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    colours = alt.Scale(domain=["up", "down"], range=["var(--up)", "var(--down)"])
    chart = drawn.mark_bar().encode(
        alt.X("place:O", title="clients, sorted", axis=client_axis({row["client"] for row in rows}, PLACE)),
        alt.Y("mb:Q", title="MB"),
        alt.Color("direction:N", scale=colours, legend=alt.Legend(orient="top", title=None)),
        tooltip=[alt.Tooltip("client:N"), alt.Tooltip("direction:N"), alt.Tooltip("mb:Q", title="MB", format=".4~g")],
    )
    words = "; ".join(
        f"{with_cell(v.label, v.cell)}: {size(v.megabytes('up'))} MB up, {size(v.megabytes('down'))} MB down"
        for v in comparison.all_variants()
    )
    reading = "Payloads of training in MB over all rounds, from each client (up) and to it (down)."
    spoken = f"Bytes by client and direction, sums over clients: {words}."
    return Drawn(chart, reading, spoken, shows=shown(comparison, "label"))


@figure("labels", LABELS, "cell", main=True)
def _labels(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    clients, classes = {row["client"] for row in rows}, {row["class"] for row in rows}
    chart = drawn.mark_circle(color="var(--bar)", opacity=0.85).encode(
        alt.X("client:N", title="clients", axis=client_axis(clients)),
        alt.Y("class:O", title="label", sort=alt.SortField("number"), axis=name_axis(labelOverlap=True)),
        alt.Size("examples:Q", scale=alt.Scale(range=[4, max(30, min(320, 9000 // len(clients)))]), legend=None),
        tooltip=[alt.Tooltip("client:N"), alt.Tooltip("class:N", title="label"), alt.Tooltip("examples:Q")],
    )
    pairs = {(row["cell"], row["client"], row["class"]) for row in rows}
    mean = len(pairs) / len({pair[:2] for pair in pairs})
    words = f"{len(clients)} clients, {len(classes)} labels; a client has {mean:.1f} of the labels on average."
    reading = "Training examples of each client by label; the area of a dot is their number."
    height = min(420, max(160, 24 * len(classes)))
    return Drawn(chart, reading, f"Training examples by client and label: {words}", height, shown(comparison))


@figure("sizes", "How much data each client has", "cell")
def _sizes(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    clients, domains = {row["client"] for row in rows}, sorted({row["domain"] for row in rows})
    palette = alt.Scale(domain=domains, range=[f"var(--c{number % COLOURS})" for number in range(len(domains))])
    chart = drawn.mark_bar().encode(
        alt.X("client:N", title="clients", sort=None, axis=client_axis(clients)),
        alt.Y("examples:Q", title="training examples"),
        alt.Color("domain:N", scale=palette, legend=alt.Legend(orient="top", title=None) if domains[1:] else None),
        tooltip=[alt.Tooltip("client:N"), alt.Tooltip("examples:Q"), alt.Tooltip("noise:Q"), alt.Tooltip("domain:N")],
    )
    sizes, noise = [row["examples"] for row in rows], [row["noise"] for row in rows]
    facts = [f"{len(clients)} clients with {min(sizes):,} to {max(sizes):,} training examples each"]
    facts += [f"of {len(domains)} domains"] * (len(domains) > 1)
    facts += [f"with noise of standard deviation {min(noise):g} to {max(noise):g} on their inputs"] * (max(noise) > 0)
    reading = (
        "Training examples of each client (the unit is one example), by their numbers. Colours are domains; a client's "
        "noise, in the unit of partition.noise, shows at its bar."
    )
    return Drawn(chart, reading, f"Training examples by client: {', '.join(facts)}.", shows=shown(comparison))


def _lines(comparison: Comparison, drawn: alt.Chart, x: alt.X, y: alt.Y) -> Any:
    """Return a line for each label, with its colour, dash and marks."""
    encodings = (x, y)
    tips = [alt.Tooltip("label:N", title="run"), alt.Tooltip(x.shorthand), alt.Tooltip(y.shorthand)]
    line = drawn.mark_line(strokeWidth=1.5).encode(*encodings, colour_of(comparison), dash_of(comparison))
    marks = drawn.mark_point(size=40, filled=True, opacity=1)
    return alt.layer(line, marks.encode(*encodings, colour_of(comparison), shape_of(comparison), tooltip=tips))


@figure("shift", "Accuracy under test-time shift", "cell", "view", "hidden", "zero", stand_in=True)
def _shift(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    measure = comparison.measure
    chart = _lines(
        comparison,
        drawn,
        alt.X("shift:Q", title="test data from other clients, %"),
        alt.Y("mean:Q", title=measure.axis, scale=FROM_DATA),
    )
    first = views(comparison)[0]
    ends = [row for row in first_shown(comparison, rows) if row["shift"] == 100]
    words = "; ".join(f"{with_cell(row['label'], row['cell'])} {drawn_text(comparison, row['mean'])}" for row in ends)
    reading = (
        f"Mean {measure.name}{measure.in_unit} when a share of each client's test data is replaced "
        "by other clients'. Trained models where the chosen ones were not evaluated so."
    )
    return Drawn(
        chart,
        reading,
        f"{named('Accuracy', comparison)} under test-time shift; {first} models under full shift: {words}.",
    )


@figure("pairs", "Paired differences", "cell", "view", stand_in=True)
def _pairs(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    order = list(dict.fromkeys(row["pair"] for row in rows))
    first = views(comparison)[0] if any(row["view"] == views(comparison)[0] for row in rows) else STAND_IN
    parts = "split(datum.label, ' − ')"
    lines = f"[{short(f'{parts}[0]', NAMES)} + ' −', {short(f'{parts}[1]', NAMES)}]"
    words = f"length(datum.label) > {NAMES} ? {lines} : datum.label"
    y = alt.Y("pair:N", title=None, sort=order, axis=alt.Axis(labelExpr=words, labelLimit=0))
    measure = comparison.measure
    difference = f"difference, {measure.points}"
    form, python, points = ("+.1f", "+.1f", "points") if measure.percent else ("+.4~g", "+.4g", measure.points)
    tips = [alt.Tooltip("pair:N"), *(alt.Tooltip(f"{name}:Q", format=form) for name in ("mean", "low", "high"))]
    interval = drawn.mark_rule(strokeWidth=3, color="var(--bar)").encode(
        alt.X("low:Q", title=difference), alt.X2("high:Q"), y, tooltip=tips
    )
    dots = drawn.mark_circle(size=90, color="var(--ink)", opacity=1)
    dots = dots.encode(alt.X("mean:Q", title=difference), y, tooltip=tips)
    zero = alt.Chart(alt.InlineData(values=[{}])).mark_rule(color="var(--muted)", strokeDash=[2, 3])
    words = "; ".join(
        f"{with_cell(r['pair'], r['cell'])}: {r['mean']:{python}} {points}, "
        f"from {r['low']:{python}} to {r['high']:{python}}"
        for r in rows
        if r["view"] == first
    )
    over = sorted({comparison.paired_over(row["cell"]) for row in rows}, reverse=True)
    reading = (
        f"{'Percentage points' if measure.percent else difference.capitalize()}, client by client on the same data, "
        f"with the 95 % interval over {' or '.join(over)}."
    )
    if "clients" in over:
        reading += " Clients of one federation are not independent, so it is a guide and no test."
    reading += " Trained models, as the deployed ones are not evaluated." * (first != views(comparison)[0])
    chart = alt.layer(zero.encode(x=alt.datum(0)), interval, dots)
    spoken = f"Paired differences, {first} models: {words}."
    return Drawn(chart, reading, spoken, max(70, 34 * len(order)))


@figure("capacity", "Accuracy by capacity", "cell", "view", "hidden", "zero")
def _capacity(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    measure = comparison.measure
    chart = drawn.mark_point(size=60, filled=True, opacity=0.8).encode(
        alt.X("capacity:Q", title="capacity, % of the full model"),
        alt.Y("accuracy:Q", title=measure.axis, scale=FROM_DATA),
        colour_of(comparison),
        shape_of(comparison),
        tooltip=[alt.Tooltip("label:N", title="run"), alt.Tooltip("client:N"), "capacity:Q", "accuracy:Q"],
    )
    reading = (
        f"{named('Accuracy', comparison)} of each client{measure.in_unit} by the share of the full model that it can "
    )
    reading += "hold, in %."
    return Drawn(
        chart,
        reading,
        f"{named('Accuracy', comparison)} by capacity, {len(rows)} points.",
        shows=shown(comparison, view=True),
    )


@figure("own", "The methods' own figures", "cell", "hidden", "figure")
def _own_figures(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    chart = _lines(
        comparison,
        drawn,
        alt.X("round:Q", title="round", scale=alt.Scale(nice=False, zero=True), axis=round_axis()),
        alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),  # the figure's name is in the chart's title
    )
    reading = "By round: what a method's server reports, and means over what clients report; units are in the names."
    names = ", ".join(dict.fromkeys(row["figure"] for row in rows))
    spoken = f"Figures of the methods' own by round: {names}."
    return Drawn(chart, reading, spoken, shows=shown(comparison, before="figure"))
