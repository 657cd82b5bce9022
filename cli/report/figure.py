"""Building blocks of a report's figures: the record of a figure, and the parts that several figures share.

Colours are CSS variables (``var(--c0)``), so one chart serves the light page, the dark page and paper. The page sets
the parameters ``cell``, ``view``, ``label``, ``figure`` and ``hidden`` of all charts at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt

from sepal.cli.comparison import Comparison, Group
from sepal.cli.report.data import COLOURS, STAND_IN, stand_ins
from sepal.cli.results import Estimate

WIDE: Any = "container"
HEIGHT = 260


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


def chart_of(data: str, parameters: Mapping[str, Any]) -> alt.Chart:
    """Return an empty chart of a data set with the given parameters, which the page sets later."""
    chart = alt.Chart(alt.NamedData(name=data))
    return chart.add_params(*(alt.param(name=name, value=value) for name, value in parameters.items()))


def finish(chart: Any, words: str, height: int = HEIGHT, title: str = "") -> dict[str, Any]:
    """Return a chart as Vega-Lite, with its width left to the page.

    Args:
        chart: An Altair chart.
        words: Its text alternative.
        height: In pixels.
        title: An expression for what the chart shows now, such as :func:`shown` returns.
    """
    chart = chart.properties(width=WIDE, height=height, description=words)
    if title:
        chart = chart.properties(title=alt.Title(alt.expr(title)))
    spec: dict[str, Any] = chart.to_dict(validate=True)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec.pop("config", None)
    return spec


def colour_of(comparison: Comparison) -> alt.Color:
    """Return the colour encoding of the labels, the same in all figures."""
    colours = [f"var(--c{place % COLOURS})" for place in range(len(comparison.labels))]
    return alt.Color("label:N", legend=None, scale=alt.Scale(domain=comparison.labels, range=colours))


CELL = "datum.cell == cell"
VIEW = "datum.view == view"
VISIBLE = "indexof(hidden, datum.label) < 0"
LABEL = "datum.label == label"
PERCENT = alt.Scale(domain=[0, 100])


def shown(comparison: Comparison, run: str = "", view: bool = False, before: str = "") -> str:
    """Return an expression for the runs that a figure of the first seeds shows: ``fedpse, trained models, seed 0``.

    Args:
        comparison: The runs.
        run: An expression for the label of the one run that is shown; empty if all are.
        view: Whether the figure shows the models chosen on the page.
        before: An expression for what comes first.
    """
    seeds = {f"{group.cell}/{group.label}": group.first.seed for group in comparison.all_groups()}
    parts = [part for part in (before, run) if part]
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
    return " + ', ' + ".join(parts)


def _first(comparison: Comparison) -> dict[str, Any]:
    return {"cell": comparison.cells[0], "view": comparison.view, "hidden": [], "label": comparison.labels[0]}


def parameters(comparison: Comparison, *names: str) -> dict[str, Any]:
    """Return the initial values of the named parameters."""
    return {name: _first(comparison)[name] for name in names}


def said(found: Estimate | None, unit: str = " %") -> str:
    """Return an estimate as text."""
    return f"{found.text()}{unit}" if found else "no figure"


def called(group: Group) -> str:
    """Return the name of a group, with its cell if there are several."""
    return named(group.label, group.cell)


def named(label: str, cell: str) -> str:
    """Return a label, with its cell if there are several."""
    return f"{label} ({cell})" if cell else label
