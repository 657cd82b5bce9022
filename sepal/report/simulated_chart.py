"""A report's curve of accuracy, or another headline, against simulated hours."""

from __future__ import annotations

from typing import Any

import altair as alt

from sepal.report.data import first_shown, views, with_cell
from sepal.report.figure import FROM_DATA, Drawn, digits_of, estimate_text, figure, named
from sepal.report.learned_rows import Rows
from sepal.report.marks import colour_of, dash_of, ends, shape_of
from sepal.report.simulated import IN, profiles
from sepal.study.comparison import Comparison

NAME, TITLE = "simulated", "Accuracy against simulated hours"
HEIGHT = 300  # pixels


@figure(NAME, TITLE, "cell", "view", "hidden", "zero")
def _simulated(comparison: Comparison, rows: Rows, drawn: alt.Chart) -> Drawn:
    x = alt.X(
        "hours:Q",
        title="simulated hours",
        scale=alt.Scale(nice=False, zero=True),
        axis=alt.Axis(format="~f", labelOverlap="greedy"),
    )
    mean: Any = alt.Y("mean:Q", title=comparison.measure.axis, scale=FROM_DATA)
    colour, digits = colour_of(comparison), digits_of(comparison)
    tips = [
        alt.Tooltip("label:N", title="run"),
        alt.Tooltip("at:N", title="evaluation"),
        alt.Tooltip("hours:Q", title="simulated hours", format=".3~g"),
        alt.Tooltip("early:Q", title="from", format=".3~g"),
        alt.Tooltip("later:Q", title="to", format=".3~g"),
        alt.Tooltip("mean:Q", title=comparison.measure.axis, format=digits),
    ]
    layers = [
        drawn.mark_area(opacity=0.14).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour),
        drawn.mark_rule(strokeWidth=1, opacity=0.5).encode(
            alt.X("early:Q", title="simulated hours"), mean, colour, x2="later:Q"
        ),
        drawn.mark_line(strokeWidth=2).encode(x, mean, colour, dash_of(comparison)),
        drawn.mark_point(size=48, filled=True, opacity=1).encode(x, mean, colour, shape_of(comparison), tooltip=tips),
        ends(comparison, drawn, HEIGHT),
    ]
    variants = list(comparison.all_variants())
    measure, first = comparison.measure, views(comparison)[0]
    after = {(row["cell"], row["label"]): row["hours"] for row in first_shown(comparison, rows) if row["last"]}
    words = "; ".join(
        f"{with_cell(variant.label, variant.cell)} ends at {estimate_text(variant.accuracy(first), measure)} after "
        f"{after[variant.cell, variant.label]:.3g} simulated hours"
        for variant in variants
        if (variant.cell, variant.label) in after
    )
    devices = "; or of ".join(profile.described() for profile in profiles(variants))
    reading = (
        f"Mean {measure.name} of all clients{measure.in_unit}, at the hours after which they would have the models "
        f"that were evaluated, on devices of {devices}. Simulated, not measured: another profile may rank the runs "
        f"otherwise. {IN} Bands and bars: ± one standard deviation, over seeds and, of the hours, draws of the devices."
    )
    if why := [f"{variant.label}: {variant.why_no_hours}" for variant in variants if variant.why_no_hours]:
        reading += f" Not drawn: {'; '.join(why)}."
    return Drawn(alt.layer(*layers), reading, f"{named(TITLE, comparison)}, {first} models: {words}.", HEIGHT)
