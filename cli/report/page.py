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
from sepal.cli.comparison import Comparison, Group, read_comparison
from sepal.cli.comparison_tables import (
    ACCURACIES,
    EDGE,
    EDGE_WORDS,
    LEGEND,
    TUNING_COLUMNS,
    accuracies,
    named,
    not_converged,
    rounds_run,
    tuning_rows,
    tuning_title,
    without_yardsticks,
)
from sepal.cli.conclusions import conclusions
from sepal.cli.report.data import COLOURS, datasets, views
from sepal.cli.results import Estimate
from sepal.cli.tables import privacy_line
from sepal.errors import ConfigError
from sepal.storage.files import write_atomically

if TYPE_CHECKING:
    from sepal.cli.report.figure import Figure

PLACES = ("data-dir", "out", "state-dir")  # paths on this machine, left out because reports are passed on


def write_html(places: Sequence[str], path: Path) -> Path:
    """Write the report of runs, or of directories of `sepal compare`, to ``path`` and return it.

    Raises:
        ConfigError: The extra ``report`` is not installed, there is no such run, or the runs cannot be compared.
        StateError: A run's files are damaged.
    """
    comparison = read_comparison(places)
    if not any(result.lines for result in comparison.results):
        raise ConfigError("run", "a run with at least one round", ", ".join(places))
    write_atomically(path, render(comparison).encode())
    return path


def live_parts(comparison: Comparison) -> dict[str, Any]:
    """Return the parts of the page that change during runs: rows, overview, and whether all runs have ended."""
    return {
        "data": datasets(comparison),
        "lead": html.escape(_lead(comparison)),
        "overview": "\n".join(_overview(comparison)),
        "over": all(result.stored.summary is not None for result in comparison.results),
    }


def render(comparison: Comparison, live: bool = False) -> str:
    """Return the page of a comparison, which may be one run.

    Args:
        comparison: The runs, with at least one full evaluation.
        live: Whether the page asks its server for changes.

    Raises:
        ConfigError: The extra ``report`` is not installed.
    """
    library = _library()
    from sepal.cli.report.charts import figures
    from sepal.cli.report.further import first_own, own_names

    data = datasets(comparison)
    made = figures(comparison, data)
    template = Template((files(__package__) / "page.html").read_text())
    drawn = [f for f in made if f.chart]
    specs = {f.name: {"spec": f.chart, "dataset": f.data, "parameters": f.parameters} for f in drawn}
    own = data.get("own", [])
    return template.substitute(
        generator=f"sepal {sepal.__version__}",
        live=" data-live" * live,
        title=html.escape(comparison.title),
        lead=html.escape(_lead(comparison)),
        css=_part("page.css"),
        controls="\n".join(_controls(comparison, own_names(own), first_own(own) if own else "")),
        overview="\n".join(_overview(comparison)),
        figures="\n".join(_figures(made)),
        details="\n".join(_details(comparison)),
        footer=f"Written by <code>sepal report</code>, Sepal {sepal.__version__}. The file works without a network.",
        data=_json(data),
        specs=_json(specs),
        library=library,
        script=_part("page.js"),
    )


def _library() -> str:
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as missing:
        expected = "Altair and vl-convert: pip install 'altair<7' vl-convert-python"
        raise ConfigError("report", expected, f"no module {missing.name}") from None
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return _bundle(version)


@cache  # it takes a second, and a page that is served grows with its run
def _bundle(version: str) -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version))


def _part(name: str) -> str:
    return (files(__package__) / name).read_text()


def _json(value: Any) -> str:
    """Return JSON that is safe in a script element: without ``<``, so without ``</script`` and ``<!--<script``."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _lead(comparison: Comparison) -> str:
    seeds = sorted({result.seed for result in comparison.results})
    ended = sum(result.stored.summary is not None for result in comparison.results)
    count = len(comparison.results)
    parts = [
        _each(comparison, "dataset"),
        f"{_each(comparison, 'clients')} clients",
        f"{', '.join(map(str, dict.fromkeys(result.rounds for result in comparison.results)))} rounds",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"{count} run{'s' * (count > 1)}" + ("" if ended == count else f", {ended} ended"),
    ]
    return " · ".join(parts)


def _each(comparison: Comparison, key: str) -> str:
    """Return the values that a key has in the runs, in order; clients = 0 means all."""
    found = dict.fromkeys(result.stored.config[key] or "all" for result in comparison.results)
    return ", ".join(map(str, found))


def _controls(comparison: Comparison, own: Sequence[str], first_own: str) -> Iterator[str]:
    there = views(comparison)
    chosen = comparison.view if comparison.view in there else there[0]
    yield "<fieldset><legend>Models</legend>"
    for view in there:
        mark = " checked" if view == chosen else ""
        yield f'<label class="pill"><input type="radio" name="view" value="{view}"{mark}><span>{view}</span></label>'
    yield "</fieldset>"
    yield '<fieldset class="series"><legend>Runs</legend>'
    for place, label in enumerate(comparison.labels):
        words, colour = html.escape(label), f"--colour: var(--c{place % COLOURS})"
        box = f'<input type="checkbox" name="series" value="{words}" checked>'
        yield f'<label class="pill" style="{colour}">{box}<span>{words}</span></label>'
    yield "</fieldset>"
    if len(comparison.cells) > 1:
        yield _select("cell", "Setting", comparison.cells)
    if len(comparison.labels) > 1:
        yield _select("label", "Clients of", comparison.labels)
    if len(own) > 1:
        yield _select("figure", "Own figure", own, first_own)
    yield '<button type="button" id="theme">Light / dark</button>'


def _select(name: str, title: str, options: Sequence[str], chosen: str = "") -> str:
    rows = "".join(
        f'<option value="{html.escape(each)}"{" selected" * (each == chosen)}>{html.escape(each)}</option>'
        for each in options
    )
    return f'<label>{title} <select name="{name}">{rows}</select></label>'


def _overview(comparison: Comparison) -> Iterator[str]:
    for cell in comparison.cells:
        groups = comparison.groups(cell)
        if not groups:
            continue
        view = html.escape(comparison.view)
        target = f"{100 * groups[0].target:.0f} % {view}"
        heads = [*ACCURACIES, f"bottom 10 %<br>{view}", "MB up", "MB down", "multiply-<br>adds, 10⁹"]
        heads += [f"rounds to<br>{target}", f"MB to<br>{target}"]
        place = f'data-cell="{html.escape(cell)}"'
        yield f'<section class="overview scroll" {place} tabindex="0" aria-label="Overview"><table>'
        yield "<thead><tr><th>run</th>" + "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead>"
        yield "<tbody>"
        for group in groups:
            cells = "".join(f"<td>{each}</td>" for each in _cells(group, comparison.view))
            yield f'<tr><th scope="row">{html.escape(named(group))}</th>{cells}</tr>'
        yield "</tbody></table></section>"
        for words in filter(None, (not_converged(groups), rounds_run(groups), *conclusions(comparison, cell))):
            yield f'<p class="conclusion" {place}>{html.escape(words)}</p>'
        yield f'<p class="reading" {place}>{LEGEND}</p>'
    for note in comparison.notes:
        yield f'<p class="reading">{_with_code(note)}</p>'
    if line := without_yardsticks(comparison):
        yield f'<p class="reading">{_with_code(line)}</p>'


def _with_code(text: str) -> str:
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))


def _cells(group: Group, view: str) -> Iterator[str]:
    yield from (_text(each) for each in accuracies(group, view))
    yield from (f"{group.megabytes(way):.2f}" for way in ("up", "down"))
    yield f"{group.multiply_adds:.2f}"
    yield group.reached(group.rounds_to, 1)
    yield group.reached(group.megabytes_to, 2)


def _text(found: Estimate | None) -> str:
    return found.text() if found else "–"


def _figures(made: Sequence[Figure]) -> Iterator[str]:
    for main, title in ((True, ""), (False, "Further figures")):
        chosen = [figure for figure in made if figure.main is main]
        if not chosen:
            continue
        if title:
            yield f"<h2>{title}</h2>"
        yield '<div class="grid">'
        for figure in chosen:
            name = f"figure-{figure.name}"
            yield f'<figure aria-labelledby="{name}" aria-describedby="{name}-words"><figcaption>'
            yield f'<h3 id="{name}">{html.escape(figure.title)}</h3>'
            yield f'<p class="reading">{html.escape(figure.reading)}</p></figcaption>'
            words = f'<p class="words" id="{name}-words">{html.escape(figure.words)}</p>'
            if figure.chart:
                yield f'<div class="chart" id="chart-{figure.name}"></div>'
                words = f"<details><summary>In words</summary>{words}</details>"
            yield f"{words}</figure>"
        yield "</div>"


def _details(comparison: Comparison) -> Iterator[str]:
    configs = [result.stored.config for result in comparison.results]
    told = {key: value for key, value in configs[0].items() if key not in PLACES}
    shared = {key: value for key, value in told.items() if all(c.get(key) == value for c in configs)}
    words = ", ".join(f"{key} = {value}" for key, value in shared.items() if value not in ("", "auto"))
    yield f'<details><summary>Settings that all runs share</summary><p class="words">{html.escape(words)}</p></details>'
    heads = ("run", "seeds", "rounds", "seconds", "Sepal", "processor")
    yield '<section class="scroll" tabindex="0" aria-label="What was run"><table><thead><tr>'
    yield "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead><tbody>"
    for cell in comparison.cells:
        for group in comparison.groups(cell):
            summary = group.first.stored.summary or {}
            versions = summary.get("versions", {})
            spent = [(r.stored.summary or {}).get("seconds", {}).get("total", 0.0) for r in group.results]
            name = f"{group.label}{f' ({cell})' * bool(cell)}"
            figures = [str(len(group.results)), f"{group.rounds:g}", f"{sum(spent):.0f}"]
            figures += [versions.get("sepal", "–"), versions.get("cpu", "–")]
            yield "<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in (name, *figures)) + "</tr>"
    yield "</tbody></table></section>"
    yield from _privacy(comparison)
    yield from _tuning(comparison)


def _tuning(comparison: Comparison) -> Iterator[str]:
    """Yield a table of what was searched before the runs."""
    if not comparison.tuning:
        return
    yield f"<h2>{html.escape(tuning_title(comparison.tuning))}</h2>"
    yield '<section class="scroll" tabindex="0" aria-label="What was searched"><table><thead><tr>'
    yield "".join(f'<th scope="col">{name}</th>' for name in TUNING_COLUMNS) + "</tr></thead><tbody>"
    for row in tuning_rows(comparison.tuning):
        yield "<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in row) + "</tr>"
    yield "</tbody></table></section>"
    if any(one.edge for one in comparison.tuning):
        yield f'<p class="reading">{html.escape(f"{EDGE.strip()}: {EDGE_WORDS}")}.</p>'


def _privacy(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each run with ``privacy.clip`` that has ended."""
    for cell in comparison.cells:
        for group in comparison.groups(cell):
            found = group.first.stored.summary or {}
            if found.get("privacy"):
                name = f"{group.label}{f' ({cell})' * bool(cell)}"
                yield f'<p class="reading">{html.escape(f"{name}: {privacy_line(found)}")}</p>'
