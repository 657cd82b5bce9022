"""A report's curves of accuracy or another headline by rounds, MB and time."""

from __future__ import annotations

from typing import Any

import altair as alt

from sepal.report.data import first_shown, views, with_cell
from sepal.report.figure import FROM_DATA, Drawn, digits_of, estimate_text, figure, named
from sepal.report.learned_rows import Rows
from sepal.report.marks import colour_of, dash_of, ends, round_axis, shape_of
from sepal.report.sizes import size
from sepal.study.comparison import Comparison

HEIGHT = 300  # pixels
KINDS = (("at", "closing"), ("kind", "sampled"))  # of rows
NAMES = ("round", "mb")  # of the first figures, in order


def _curve(x: str, title: str, axis: str, unit: str, digits: int) -> None:
    """Declare a figure of accuracy by ``x``."""

    @figure(x, title, "cell", "view", "hidden", "zero", data="curve", main=x != "seconds")
    def curve(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
        logarithmic = x == "mb"
        scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(nice=False, zero=True)
        x_axis = round_axis() if x == "round" else alt.Axis(format="~f", labelOverlap="greedy")
        x_encoding = alt.X(f"{x}:Q", title=axis, scale=scale, axis=x_axis)
        drawable = drawn.transform_filter("datum.mb > 0") if logarithmic else drawn
        full, between = (drawable.transform_filter(f"datum.kind == '{kind}'") for kind in ("full", "sampled"))
        mean: Any = alt.Y("mean:Q", title=comparison.measure.axis, scale=FROM_DATA)
        colour, dash = colour_of(comparison), dash_of(comparison)
        tips = [
            alt.Tooltip("label:N", title="run"),
            alt.Tooltip("at:N", title="evaluation"),
            alt.Tooltip("mb:Q", title="MB", format=".3~g"),
            alt.Tooltip("seconds:Q", title="seconds", format=".1f"),
            alt.Tooltip("mean:Q", title=comparison.measure.axis, format=digits_of(comparison)),
        ]
        layers = [
            full.mark_area(opacity=0.14).encode(x_encoding, alt.Y("low:Q"), alt.Y2("high:Q"), colour),
            between.mark_line(strokeWidth=1, opacity=0.6).encode(x_encoding, mean, colour, dash),
            full.mark_line(strokeWidth=2).encode(x_encoding, mean, colour, dash),
            full.mark_point(size=48, filled=True, opacity=1).encode(
                x_encoding, mean, colour, shape_of(comparison), tooltip=tips
            ),
            ends(comparison, drawn, HEIGHT),
        ]
        if logarithmic:
            free = drawn.transform_joinaggregate(most="max(mb)", groupby=["label"])
            free = free.transform_filter("datum.most == 0 && datum.last")
            layers.append(free.mark_rule(strokeWidth=2, strokeDash=[2, 3]).encode(mean, colour, tooltip=tips))
        first = views(comparison)[0]
        last = [row for row in first_shown(comparison, rows) if row["last"]]
        text = size if logarithmic else f"{{:.{digits}f}}".format
        after = {(row["cell"], row["label"]): f" after {text(row[x])} {unit}" for row in last}
        words = "; ".join(
            f"{with_cell(variant.label, variant.cell)} ends at "
            f"{estimate_text(variant.accuracy(first), comparison.measure)}"
            f"{after.get((variant.cell, variant.label), '')}"
            for variant in comparison.all_variants()
        )
        closed, sampled = (any(row[key].startswith(value) for row in rows) for key, value in KINDS)
        measure = comparison.measure
        reading = f"Points and the lines through them: mean {measure.name} of all clients{measure.in_unit}"
        reading += ", band: ± one standard deviation over seeds." if _seeds(comparison) > 1 else "."
        if x == "round" and closed:
            reading += " The last point is the closing evaluation, after the last round."
        if x != "round":
            reading += f" A round is drawn at the {unit} of the rounds before it, the last point at those of all."
        if x != "round" and sampled:
            reading += " Lines as in the figure by round."
        elif sampled:
            reading += _thin(comparison)
        if any(row["stand_in"] for row in rows):
            reading += " Where a name ends in “trained”, the method lacks this view, and its trained models are shown."
        if logarithmic:
            reading += (
                " Logarithmic; MB of training payloads, up and down, all clients. Dotted: a run without messages."
            )
        spoken = f"{named(title, comparison)}, {first} models: {words}."
        return Drawn(alt.layer(*layers), reading, spoken, HEIGHT)


_curve("round", "Accuracy by round", "round", "rounds", 0)
_curve("mb", "Accuracy by MB sent", "MB, up and down", "MB", 2)
_curve("seconds", "Accuracy by time", "seconds", "seconds", 1)


def _thin(comparison: Comparison) -> str:
    """Return how to read the thin lines beside the points."""
    words = " Thin lines: the rounds between, each over its own clients alone."
    if "kept" in views(comparison):
        words += " Kept: points are from before the round's training, thin lines from after it."
    if tuned := [variant.label for variant in comparison.all_variants() if variant.deployed == "trained"]:
        words += f" Trained, of {', '.join(dict.fromkeys(tuned))}: points are fine-tuned as for a user,"
        words += " thin lines trained as in any round."
    return words


def _seeds(comparison: Comparison) -> int:
    return max(len(variant.results) for variant in comparison.all_variants())
