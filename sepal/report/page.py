"""The page around a report's figures: controls, overview table, what was run; all in one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sepal
from sepal.config.elsewhere import PLACES
from sepal.errors import ConfigError
from sepal.report import by_class
from sepal.report.answer import answer
from sepal.report.convergence import convergence
from sepal.report.data import COLOURS, datasets, views, with_cell
from sepal.report.sentences import frontier_sentence, headline
from sepal.report.shapes import DASHES, SHAPES
from sepal.report.simulated import simulated_words, speed_table
from sepal.report.state import state
from sepal.report.text_tables import (
    NONE,
    TextTable,
    accuracy_table,
    basis,
    conclusions,
    cost_table,
    diverged,
    legend,
    no_better,
    privacy_line,
    rates_of_others,
    rounds_run,
    tuning_note,
    tuning_table,
    tuning_title,
    without_yardsticks,
)
from sepal.runs.stored_run import NOTHING, Allowed
from sepal.storage.files import write_atomically
from sepal.study.comparison import Comparison, read_comparison

if TYPE_CHECKING:
    from jinja2 import Environment

FRONTIER = "frontier"  # the figure whose module needs the extra


def write_html(places: Sequence[str], path: Path, allowed: Allowed = NOTHING, devices: str = "") -> Path:
    """Write the report of runs, or of directories of `sepal compare`, to ``path`` and return it.

    Args:
        places: Runs and directories.
        path: The file.
        allowed: What may be done beyond reading the runs' files.
        devices: A profile of devices by which hours are simulated; empty: the runs' own.

    Raises:
        ConfigError: The extra ``report`` is not installed, there is no such run or profile, or the runs cannot be
            compared.
        StateError: A run's files are damaged.
    """
    comparison = read_comparison(places, allowed, devices)
    if not any(result.stored.lines for result in comparison.results):
        raise ConfigError("run", "a run with at least one round", ", ".join(places))
    write_atomically(path, render(comparison).encode())
    return path


def write_picture(comparison: Comparison, path: Path) -> Path | None:
    """Write the frontier as SVG, a panel for each setting; nothing if no setting has two variants with figures.

    Raises:
        ConfigError: The extra ``report`` is not installed.
    """
    _check()
    from sepal.report.frontier import panels_of, picture

    panels = panels_of(comparison)
    if not panels.standings:
        return None
    write_atomically(path, picture(panels).encode())
    return path


def live_parts(comparison: Comparison) -> dict[str, Any]:
    """Return the parts of the page that change during runs: rows, overview, and whether all runs have ended."""
    values = _values(comparison)
    return {
        "data": datasets(comparison),
        **{name: _rendered(name, **values) for name in ("lead", "state", "answer", "overview", "tables")},
        "over": all(result.stored.summary is not None for result in comparison.results),
    }


def waiting(comparison: Comparison) -> str:
    """Return the page of runs that have no round yet; it asks for itself again.

    Raises:
        ConfigError: The extra ``report`` is not installed.
    """
    return _rendered("waiting", comparison=comparison, state=state(comparison))


def render(comparison: Comparison, live: bool = False) -> str:
    """Return the page of a comparison, which may be one run.

    Args:
        comparison: The runs, with at least one round.
        live: Whether the page asks its server for changes.

    Raises:
        ConfigError: The extra ``report`` is not installed.
    """
    _check()
    from sepal.report.charts import figures
    from sepal.report.figure import VEGA_LITE, first_own

    data = datasets(comparison)
    page_figures = figures(comparison, data)
    drawn = [figure for figure in page_figures if figure.chart]
    own_rows = data.get("own", [])
    names = [figure.name for figure in page_figures]
    first = (next(name for name in (FRONTIER, "mb", "round") if name in [*names, "round"]), "round")
    return _rendered(
        "page",
        **_values(comparison),
        **_details(comparison),
        live=live,
        version=sepal.__version__,
        views=views(comparison),
        colours=COLOURS,
        dashes=DASHES,
        shapes=SHAPES,
        own_figures=list(dict.fromkeys(row["figure"] for row in own_rows)),
        first_own=first_own(own_rows),
        first_figures=[figure for figure in page_figures if figure.name in first],
        further_figures=[figure for figure in page_figures if figure.name not in first],
        data=data,
        specs={f.name: {"spec": f.chart, "dataset": f.data, "parameters": f.parameters} for f in drawn},
        library=_bundle(VEGA_LITE),
    )


def _check() -> None:
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as missing:
        expected = "Altair and vl-convert: pip install 'altair<7' vl-convert-python"
        raise ConfigError("report", expected, f"no module {missing.name}") from None


@cache  # it takes a second, and a page that is served grows with its run
def _bundle(version: str) -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version))


@cache
def _templates() -> Environment:
    """Return what reads ``templates/``; it escapes every value but what a filter marks as HTML."""
    _check()
    import jinja2  # Altair needs it, too
    from markupsafe import Markup, escape

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    templates.filters["code"] = lambda text: Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text))))
    templates.filters["lines"] = lambda text: Markup("<br>").join(text.split("\n"))
    templates.filters["unbroken"] = _unbroken
    return templates


def _rendered(template: str, **values: Any) -> str:
    return _templates().get_template(f"{template}.html").render(values)


def _unbroken(cell: str) -> str:
    """Return a cell whose lines do not break after ± and ≤, and in an interval."""
    cell = cell.replace("± ", "±\u00a0").replace("≤ ", "≤\u00a0")
    return re.sub(r"\[[^]]*\]", lambda interval: interval[0].replace(" ", "\u00a0"), cell)


def _values(comparison: Comparison) -> dict[str, Any]:
    """Return what the parts of the page show that change during runs."""
    return {
        "comparison": comparison,
        "lead": _lead(comparison),
        "state": state(comparison),
        "settings": [_setting(comparison, cell) for cell in comparison.cells if comparison.variants(cell)],
        "legend": legend(comparison),
        "by_class": by_class,
        "notes": list(filter(None, (*comparison.notes, without_yardsticks(comparison)))),
    }


def _setting(comparison: Comparison, cell: str) -> dict[str, Any]:
    """Return the tables of a setting that has runs, and what is said about them."""
    variants = comparison.variants(cell)
    overview, clear, reading = answer(comparison, cell)
    accuracy, cost = accuracy_table(variants), cost_table(variants)
    rows = [[*row, *costs[1:]] for row, costs in zip(accuracy.rows, cost.rows, strict=True)]
    warnings = (*no_better(variants), *diverged(variants), rates_of_others(variants))
    conclusion_words = (frontier_sentence(comparison, cell), *warnings)
    return {
        "cell": cell,
        "headline": headline(comparison, cell),
        "overview": overview,
        "bold": [(row, len(overview.head) - 1) for row, certain in enumerate(clear) if certain],
        "conclusions": list(filter(None, conclusion_words)),
        "readings": list(filter(None, (*convergence(variants), rounds_run(variants), reading))),
        "everything": TextTable(("run", *accuracy.head[1:], *cost.head[1:]), rows),
        "differences": list(
            filter(None, (basis(variants), *simulated_words(variants), *conclusions(comparison, cell)))
        ),
        "speeds": speed_table(variants),
        "classes": by_class.class_table(variants),
    }


def _lead(comparison: Comparison) -> list[str]:
    seeds = sorted({result.seed for result in comparison.results})
    ended = sum(result.stored.summary is not None for result in comparison.results)
    count = len(comparison.results)
    return [
        _values_of(comparison, "dataset"),
        f"{_values_of(comparison, 'clients')} clients",
        f"{', '.join(map(str, dict.fromkeys(result.rounds for result in comparison.results)))} rounds",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"{count} run{'s' * (count > 1)}" + ("" if ended == count else f", {ended} ended"),
    ]


def _values_of(comparison: Comparison, key: str) -> str:
    """Return the values that a key has in the runs, in order; clients = 0 means all."""
    values = dict.fromkeys(result.stored.config[key] or "all" for result in comparison.results)
    return ", ".join(map(str, values))


def _details(comparison: Comparison) -> dict[str, Any]:
    """Return what the page says of how the runs were made: shared settings, versions, privacy, what was searched."""
    configs = [result.stored.config for result in comparison.results]
    shareable = {key: value for key, value in configs[0].items() if key not in PLACES}  # because reports are passed on
    shared = {key: value for key, value in shareable.items() if all(c.get(key) == value for c in configs)}
    rows, titles, privacy = [], [], []
    for variant in comparison.all_variants():
        name, summary = with_cell(variant.label, variant.cell), variant.first.stored.summary or {}
        versions = summary.get("versions", {})
        spent = [(r.stored.summary or {}).get("seconds", {}).get("total", 0.0) for r in variant.results]
        figures = [str(len(variant.results)), f"{variant.rounds:g}", f"{sum(spent):.0f}"]
        kinds = dict.fromkeys(kind for result in variant.results for kind in result.processors)
        rows.append([name, *figures, versions.get("sepal", NONE), ", ".join(kinds) or NONE])
        if ":" in variant.method and variant.first.stored.title:  # of somebody's own, which no list of methods has
            titles.append(f"{name}: {variant.first.stored.title}")
        if summary.get("privacy"):
            privacy.append(f"{name}: {privacy_line(summary)}")
    return {
        "shared": {key: value for key, value in shared.items() if value not in ("", "auto")},
        "what_was_run": TextTable(("run", "seeds", "rounds", "seconds", "Sepal", "processor"), rows),
        "titles": titles,
        "privacy": privacy,
        "tuning_title": tuning_title(comparison),
        "tuning_table": tuning_table(comparison),
        "tuning_note": tuning_note(comparison),
    }
