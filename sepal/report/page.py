"""The page around a report's figures: controls, overview table, what was run; all in one file."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import sepal
from sepal.config.elsewhere import PLACES
from sepal.errors import ConfigError
from sepal.report import by_class
from sepal.report.answer import answer
from sepal.report.convergence import convergence
from sepal.report.data import COLOURS, datasets, views, with_cell
from sepal.report.looks import DASHES, SHAPES
from sepal.report.sentences import frontier_sentence, headline
from sepal.report.state import state
from sepal.report.table import table
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
    from sepal.report.figure import Figure
    from sepal.study.results import Variant

FRONTIER = "frontier"  # the figure whose module needs the extra


def write_html(places: Sequence[str], path: Path, allowed: Allowed = NOTHING) -> Path:
    """Write the report of runs, or of directories of `sepal compare`, to ``path`` and return it.

    Args:
        places: Runs and directories.
        path: The file.
        allowed: What may be done beyond reading the runs' files.

    Raises:
        ConfigError: The extra ``report`` is not installed, there is no such run, or the runs cannot be compared.
        StateError: A run's files are damaged.
    """
    comparison = read_comparison(places, allowed)
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
    return {
        "data": datasets(comparison),
        "lead": html.escape(_lead(comparison)),
        "state": "\n".join(state(comparison)),
        "answer": "\n".join(_answers(comparison)),
        "overview": "\n".join(_overview(comparison)),
        "tables": "\n".join(_tables(comparison)),
        "over": all(result.stored.summary is not None for result in comparison.results),
    }


def render(comparison: Comparison, live: bool = False) -> str:
    """Return the page of a comparison, which may be one run.

    Args:
        comparison: The runs, with at least one round.
        live: Whether the page asks its server for changes.

    Raises:
        ConfigError: The extra ``report`` is not installed.
    """
    library = _library()
    from sepal.report.charts import figures
    from sepal.report.figure import first_own

    data = datasets(comparison)
    page_figures = figures(comparison, data)
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    drawn = [f for f in page_figures if f.chart]
    specs = {f.name: {"spec": f.chart, "dataset": f.data, "parameters": f.parameters} for f in drawn}
    own_rows = data.get("own", [])
    names = [figure.name for figure in page_figures]
    first = (next(name for name in (FRONTIER, "mb", "round") if name in [*names, "round"]), "round")
    return template.substitute(
        generator=f"sepal {sepal.__version__}",
        live=" data-live" * live,
        title=html.escape(comparison.title),
        lead=html.escape(_lead(comparison)),
        state="\n".join(state(comparison)) if live else "",
        css=_part("page.css"),
        controls="\n".join(
            _controls(comparison, list(dict.fromkeys(row["figure"] for row in own_rows)), first_own(own_rows))
        ),
        answer="\n".join(_answers(comparison)),
        first="\n".join(_figures([figure for figure in page_figures if figure.name in first])),
        overview="\n".join(_overview(comparison)),
        tables="\n".join(_tables(comparison)),
        figures="\n".join(_figures([figure for figure in page_figures if figure.name not in first])),
        details="\n".join(_details(comparison)),
        footer=f"Written by <code>sepal report</code>, Sepal {sepal.__version__}. The file works without a network.",
        data=_json(data),
        specs=_json(specs),
        library=library,
        script=_part("page.js"),
    )


def _check() -> None:
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as missing:
        expected = "Altair and vl-convert: pip install 'altair<7' vl-convert-python"
        raise ConfigError("report", expected, f"no module {missing.name}") from None


def _library() -> str:
    _check()
    from sepal.report.figure import VEGA_LITE

    return _bundle(VEGA_LITE)


@cache  # it takes a second, and a page that is served grows with its run
def _bundle(version: str) -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version))


def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Return JSON that is safe in a script element: without ``<``, so without ``</script`` and ``<!--<script``."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _lead(comparison: Comparison) -> str:
    seeds = sorted({result.seed for result in comparison.results})
    ended = sum(result.stored.summary is not None for result in comparison.results)
    count = len(comparison.results)
    parts = [
        _values_of(comparison, "dataset"),
        f"{_values_of(comparison, 'clients')} clients",
        f"{', '.join(map(str, dict.fromkeys(result.rounds for result in comparison.results)))} rounds",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"{count} run{'s' * (count > 1)}" + ("" if ended == count else f", {ended} ended"),
    ]
    return " · ".join(parts)


def _values_of(comparison: Comparison, key: str) -> str:
    """Return the values that a key has in the runs, in order; clients = 0 means all."""
    values = dict.fromkeys(result.stored.config[key] or "all" for result in comparison.results)
    return ", ".join(map(str, values))


def _controls(comparison: Comparison, own_figures: Sequence[str], first_own: str) -> Iterator[str]:
    view_names = views(comparison)
    if len(comparison.cells) > 1:
        yield _select("cell", "Setting", comparison.cells)
    yield '<details class="choose"><summary>Choose models, runs, axes</summary>'
    yield "<fieldset><legend>Models</legend>"
    for view in view_names:
        mark = " checked" if view == view_names[0] else ""
        yield f'<label class="pill"><input type="radio" name="view" value="{view}"{mark}><span>{view}</span></label>'
    yield "</fieldset>"
    yield '<fieldset class="series"><legend>Runs</legend>'
    for index, label in enumerate(comparison.labels):
        words, colour = html.escape(label), f"--colour: var(--c{index % COLOURS})"
        box = f'<input type="checkbox" name="series" value="{words}" checked>'
        yield f'<label class="pill" style="{colour}" title="{words}">{box}<span>{_key(index)}{words}</span></label>'
    yield "</fieldset>"
    if len(comparison.labels) > 1:
        yield _select("label", "Clients of", comparison.labels)
    if len(own_figures) > 1:
        yield _select("figure", "Own figure", own_figures, first_own)
    yield '<label><input type="checkbox" name="zero"> Axes from 0</label>'
    yield '<button type="button" id="theme">Light / dark</button></details>'


def _key(index: int) -> str:
    """Return a label's line and mark as a small drawing."""
    shape, dashes = SHAPES[index % len(SHAPES)], " ".join(map(str, DASHES[index % len(DASHES)]))
    line = f'<path class="line" d="M0,7H28" stroke-dasharray="{dashes}"/>'
    return f'<svg aria-hidden="true" width="28" height="14">{line}<path class="mark" d="{shape}"/></svg>'


def _select(name: str, title: str, options: Sequence[str], chosen: str = "") -> str:
    rows = "".join(
        f'<option value="{html.escape(option)}"{" selected" * (option == chosen)}>{html.escape(option)}</option>'
        for option in options
    )
    return f'<label>{title} <select name="{name}">{rows}</select></label>'


def _cells(comparison: Comparison) -> Iterator[tuple[str, list[Variant], str]]:
    """Yield each setting that has runs, its variants, and the attribute by which the page shows or hides it."""
    for cell in comparison.cells:
        if variants := comparison.variants(cell):
            yield cell, variants, f'data-cell="{html.escape(cell)}"'


def _answers(comparison: Comparison) -> Iterator[str]:
    for cell, _, cell_attribute in _cells(comparison):
        if words := headline(comparison, cell):
            yield f'<p class="headline" {cell_attribute}>{html.escape(words)}</p>'


def _overview(comparison: Comparison) -> Iterator[str]:
    """Yield the overview: a short table, which runs are best for their bytes, and what is wrong with a run."""
    for cell, variants, cell_attribute in _cells(comparison):
        text_table, clear, reading = answer(comparison, cell)
        bold = [(row, len(text_table.head) - 1) for row, certain in enumerate(clear) if certain]
        yield from table(text_table, "Overview", f'class="overview scroll" {cell_attribute}', figures=True, bold=bold)
        for words in (frontier_sentence(comparison, cell), *no_better(variants), *diverged(variants)):
            yield f'<p class="conclusion" {cell_attribute}>{_with_code(words)}</p>' if words else ""
        for words in filter(None, (*convergence(variants), rounds_run(variants), reading)):
            yield f'<p class="reading" {cell_attribute}>{_with_code(words)}</p>'


def _tables(comparison: Comparison) -> Iterator[str]:
    for cell, variants, cell_attribute in _cells(comparison):
        accuracy, cost = accuracy_table(variants), cost_table(variants)
        rows = [[*row, *costs[1:]] for row, costs in zip(accuracy.rows, cost.rows, strict=True)]
        text_table = TextTable(("run", *accuracy.head[1:], *cost.head[1:]), rows)
        yield from table(text_table, "All views and costs", f'class="sorted scroll" {cell_attribute}', figures=True)
        yield f'<p class="reading" {cell_attribute}>{legend(comparison)}</p>'
        for words in filter(None, (basis(variants), *conclusions(comparison, cell))):
            yield f'<p class="conclusion" {cell_attribute}>{_with_code(words)}</p>'
        if classes := by_class.class_table(variants):
            yield f"<h3 {cell_attribute}>{by_class.TITLE}</h3>"
            yield from table(classes, "By class", f'class="scroll" {cell_attribute}')
            yield f'<p class="reading" {cell_attribute}>{by_class.READING}</p>'
    for note in filter(None, (*comparison.notes, without_yardsticks(comparison))):
        yield f'<p class="reading">{_with_code(note)}</p>'


def _with_code(text: str) -> str:
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))


def _figures(chosen: Sequence[Figure]) -> Iterator[str]:
    yield '<div class="grid">'
    for figure in chosen:
        name = f"figure-{figure.name}"
        yield f'<figure aria-labelledby="{name}" aria-describedby="{name}-words"><figcaption>'
        yield f'<h3 id="{name}">{html.escape(figure.title)}</h3>'
        first, end, rest = figure.reading.partition(". ")
        yield f'<p class="reading">{html.escape(first + end.strip())}</p></figcaption>'
        words = f'<p class="words" id="{name}-words">{html.escape(figure.words)}</p>'
        if figure.chart:
            yield f'<div class="chart" id="chart-{figure.name}"></div>'
            more = f'<p class="reading">{html.escape(rest)}</p>' * bool(rest)
            words = f"<details><summary>How to read it, and in words</summary>{more}{words}</details>"
        yield f"{words}</figure>"
    yield "</div>"


def _details(comparison: Comparison) -> Iterator[str]:
    configs = [result.stored.config for result in comparison.results]
    shareable = {key: value for key, value in configs[0].items() if key not in PLACES}  # because reports are passed on
    shared = {key: value for key, value in shareable.items() if all(c.get(key) == value for c in configs)}
    words = ", ".join(f"{key} = {value}" for key, value in shared.items() if value not in ("", "auto"))
    yield f'<details><summary>Settings that all runs share</summary><p class="words">{html.escape(words)}</p></details>'
    rows = []
    for variant in comparison.all_variants():
        versions = (variant.first.stored.summary or {}).get("versions", {})
        spent = [(r.stored.summary or {}).get("seconds", {}).get("total", 0.0) for r in variant.results]
        figures = [str(len(variant.results)), f"{variant.rounds:g}", f"{sum(spent):.0f}"]
        figures += [versions.get("sepal", NONE), versions.get("cpu", NONE)]
        rows.append([with_cell(variant.label, variant.cell), *figures])
    heads = ("run", "seeds", "rounds", "seconds", "Sepal", "processor")
    yield from table(TextTable(heads, rows), "What was run")
    for variant in comparison.all_variants():
        if ":" in variant.method and variant.first.stored.title:  # of somebody's own, which no list of methods has
            words = f"{with_cell(variant.label, variant.cell)}: {variant.first.stored.title}"
            yield f'<p class="reading">{html.escape(words)}</p>'
    yield from _privacy(comparison)
    if comparison.tuning:
        yield f"<h2>{html.escape(tuning_title(comparison))}</h2>"
        yield from table(tuning_table(comparison), "What was searched")
        if note := tuning_note(comparison):
            yield f'<p class="reading">{html.escape(note)}.</p>'


def _privacy(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each run with ``privacy.clip`` that has ended."""
    for variant in comparison.all_variants():
        summary = variant.first.stored.summary or {}
        if summary.get("privacy"):
            words = f"{with_cell(variant.label, variant.cell)}: {privacy_line(summary)}"
            yield f'<p class="reading">{html.escape(words)}</p>'
