"""What a report's figures share: how one is declared, its record, and parts of charts.

A figure is a function with ``@figure(…)`` that draws rows of its data set. Colours are CSS variables (``var(--c0)``):
one chart serves the light page, the dark page and paper. The page sets the parameters ``cell``, ``view``, ``label``,
``figure``, ``hidden`` and ``zero`` of all charts at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

from sepal.report.data import DEPLOYED, STAND_IN, deployed, stand_ins, views
from sepal.report.learned_rows import Rows
from sepal.report.marks import ChartSubject
from sepal.study.comparison import Comparison
from sepal.study.statistics import Estimate
from sepal.tasks.scoring import ACCURACY, Measure

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])  # as vl_convert names it
WIDE: Any = "container"
LONG = 20  # letters of a name, beyond which what follows in a chart's title has a line of its own
PERCENT = alt.Scale(domain=[0, 100])  # of bars, whose length is the figure
FROM_DATA = alt.Scale(zero=alt.expr("zero"))


@dataclass(frozen=True)
class Figure:
    """One figure of the page.

    Attributes:
        name: The figure's name.
        data: Name of its data set.
        title: What is shown.
        reading: Units, and how to read it.
        words: The text alternative: the same content in sentences.
        chart: As Vega-Lite; empty if there is nothing to draw, and ``words`` say why.
        parameters: Which of the page's controls change it.
        main: Whether it is one of the first figures.
    """

    name: str
    data: str
    title: str
    reading: str
    words: str
    chart: Mapping[str, Any]
    parameters: tuple[str, ...]
    main: bool = False


class Drawn(NamedTuple):
    """What a figure's function returns.

    Attributes:
        chart: An Altair chart.
        reading: Units, and how to read it.
        words: Its content in sentences.
        height: In pixels.
        shows: An expression for what the chart shows now, such as :func:`shown` returns.
    """

    chart: Any
    reading: str
    words: str
    height: int = 260
    shows: str = ""


Draw = Callable[[Comparison, Rows, alt.Chart], Drawn]
Make = Callable[[Comparison, Rows], Figure]
MAKERS: dict[str, tuple[str, Make]] = {}  # name → data set, and what makes the figure of its rows


def figure(
    name: str,
    title: str,
    *controls: str,
    data: str = "",
    main: bool = False,
    stand_in: bool = False,
    rows: str = "",
    varying: str = "",
) -> Callable[[Draw], Draw]:
    """Declare a figure.

    Args:
        name: Its name.
        title: What is shown.
        controls: Which of the page's controls change it; its chart has the rows that they choose.
        data: Its data set; by default of the figure's name.
        main: Whether it is one of the first figures.
        stand_in: Whether trained models are shown where the chosen view has no rows.
        rows: A further expression for the rows in its chart.
        varying: What the figure shows, in %; a run in which it is the same for all clients is named instead of drawn.
    """

    def declare(draw: Draw) -> Draw:
        def make(comparison: Comparison, figure_rows: Rows) -> Figure:
            same = constant(figure_rows, varying) if varying else {}
            figure_rows = [row for row in figure_rows if (row.get("cell"), row.get("label")) not in same]
            same_values = ", ".join(f"{label} {value:g} %" for (_, label), value in same.items())
            if not figure_rows:
                words = f"All clients have the same: {same_values}."
                return Figure(
                    name, data or name, named(title, comparison), "No figure: nothing differs.", words, {}, (), main
                )
            row_views = list(dict.fromkeys(row["view"] for row in figure_rows if "view" in row))
            deployed_view = f"{json.dumps(deployed(comparison))}[datum.cell + '/' + datum.label]"
            view = "view" if DEPLOYED in row_views else f"(view == '{DEPLOYED}' ? {deployed_view} : view)"
            view = f"(indexof({row_views}, {view}) < 0 ? '{STAND_IN}' : {view})" if stand_in else view
            choices = {  # control → its first value, and the rows that it chooses
                "cell": (comparison.cells[0], "datum.cell == cell"),
                "view": (views(comparison)[0], f"datum.view == {view}"),
                "hidden": ([], "indexof(hidden, datum.label) < 0"),
                "label": (comparison.labels[0], f"datum.label == {label_of(figure_rows)}"),
                "figure": (first_own(figure_rows), "datum.figure == figure"),
                "zero": (False, "true"),  # whether axes of accuracy begin at 0
            }
            chart = alt.Chart(alt.NamedData(name=data or name))
            chart = chart.add_params(*(alt.param(name=control, value=choices[control][0]) for control in controls))
            left_out = json.dumps([f"{cell}/{label}" for cell, label in same])
            drop = f"indexof({left_out}, datum.cell + '/' + datum.label) < 0"
            parts = [*(choices[c][1] for c in controls), *filter(None, (rows, drop if same else ""))]
            chart = chart.transform_filter(" && ".join(parts))
            drawn = draw(comparison, figure_rows, chart)
            reading = (
                f"{drawn.reading} Not drawn, as all clients have the same: {same_values}." if same else drawn.reading
            )
            return Figure(
                name, data or name, named(title, comparison), reading, drawn.words, finish(drawn), controls, main
            )

        MAKERS[name] = data or name, make
        return draw

    return declare


def finish(drawn: Drawn) -> dict[str, Any]:
    """Return a chart as Vega-Lite, with its width left to the page."""
    chart = drawn.chart.properties(width=WIDE, height=drawn.height, description=drawn.words)
    if drawn.shows:
        chart = chart.properties(title=alt.Title(alt.expr(drawn.shows)))
    spec: dict[str, Any] = chart.to_dict(validate=True)
    spec["autosize"] = {"type": "fit-x", "contains": "padding", "resize": True}  # titles change, too
    spec.pop("config", None)
    return spec


def constant(rows: Rows, field: str) -> dict[tuple[str, str], float]:
    """Return cell and label of each run in which all clients, or pairs of two, have the same value, with the value."""
    values: dict[tuple[str, str], set[float]] = {}
    for row in rows:
        if row.get("one", "") != row.get("other"):
            values.setdefault((row["cell"], row["label"]), set()).add(row[field])
    return {run: next(iter(run_values)) for run, run_values in values.items() if len(run_values) == 1}


def label_of(rows: Rows) -> str:
    """Return an expression for the label of the run chosen under "Clients of", or of the first run that has rows."""
    labels = list(dict.fromkeys(row["label"] for row in rows if "label" in row)) or [""]
    return f"(indexof({json.dumps(labels)}, label) < 0 ? {json.dumps(labels[0])} : label)"


def first_own(rows: Rows) -> str:
    """Return the first of the methods' own figures that changes over the rounds of a run, or the first; "" if none."""
    values: dict[str, dict[tuple[str, str], set[float]]] = {}
    for row in rows:
        if "figure" in row:
            values.setdefault(row["figure"], {}).setdefault((row["cell"], row["label"]), set()).add(row["value"])
    varying = (name for name, runs in values.items() if any(len(run_values) > 1 for run_values in runs.values()))
    return next(varying, next(iter(values), ""))


def shown(comparison: Comparison, run: str = "", view: bool = False, before: str = "") -> str:
    """Return an expression for the runs that a figure of the first seeds shows: ``fedpse, trained models, seed 0``.

    Args:
        comparison: The runs.
        run: An expression for the label of the one run that is shown; empty if all are.
        view: Whether the figure shows the models chosen on the page.
        before: An expression for what comes first.
    """
    seeds = {f"{variant.cell}/{variant.label}": variant.first.seed for variant in comparison.all_variants()}
    parts = []
    if view and run:
        lacking = json.dumps([f"{cell}/{label}/{name}" for cell, label, name in stand_ins(comparison)])
        stands = f"indexof({lacking}, cell + '/' + {run} + '/' + view) >= 0"
        parts.append(f"({stands} ? '{STAND_IN} models in place of ' + view : view + ' models')")
    elif view:
        parts.append("view + ' models'")
    if len(set(seeds.values())) == 1:
        parts.append(f"'seed {next(iter(seeds.values()))}'")
    else:
        parts.append(f"'seed ' + {json.dumps(seeds)}[cell + '/' + {run}]" if run else "'the first seed of each run'")
    if any(comparison.cells):
        parts.append("cell")
    rest = " + ', ' + ".join(parts)
    first = " + ', ' + ".join(filter(None, (before, run)))
    if not (first and rest):
        return first or rest
    return f"length({first}) > {LONG} ? [{first}, {rest}] : {first} + ', ' + {rest}"  # two lines on a phone


def estimate_text(estimate: Estimate | None, measure: Measure = ACCURACY) -> str:
    """Return an estimate with its unit as text."""
    return estimate.with_unit(measure) if estimate else "no figure"


def named(title: str, comparison: Comparison) -> str:
    """Return a title with the name of the headline metric in place of accuracy."""
    name = comparison.measure.name
    return title if name == ACCURACY.name else title.replace("Accuracy", name.capitalize()).replace("accuracy", name)


def digits_of(subject: ChartSubject) -> str:
    """Return the format of the headline's values in a chart."""
    return ".1f" if subject.measure.percent else ".4~g"


def drawn_text(comparison: Comparison, value: float) -> str:
    """Return a value of a chart's rows with its unit."""
    return f"{value:.1f} %" if comparison.measure.percent else f"{value:.4g} {comparison.measure.unit}".rstrip()
