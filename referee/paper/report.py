"""The results of a plan's runs: tables in Markdown, and all figures as JSON, one line per run.

All tables are computed from the lines of JSON, whose figures are rounded to five decimals. So pages
are made from the stored files alone (:mod:`referee.paper.pages`).

*deployed* comes first: the model that a user of a deployed client predicts with, which is in the view that the method's
record names; clients without a model in that view are left out. A figure with ± is a
mean and standard deviation over seeds, unless the table says over clients. Paired differences are computed for each
client and averaged over seeds, with the 95 % interval of Student's t over clients; with two clients there is no
interval. Clients of a federation are not independent, so the interval is only indicative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from referee.paper.differences import MODELS, difference_tables
from referee.paper.figures import figures
from referee.paper.optional_tables import (
    Group,
    by_capacity,
    by_round,
    chosen_by_trials,
    mean,
    of_novel_clients,
    of_the_clients,
    of_the_method,
    of_the_trials,
    privacy_table,
)
from referee.paper.plan import PaperBlock, PaperPlan, Published
from sepal.protocol.views import SHIFTS
from sepal.report.markdown import table
from sepal.storage.files import write_atomically
from sepal.study.plans.model import PlannedRun
from sepal.study.record import MEGA, RunRecord, read, write
from sepal.study.statistics import Rise, mean_rise, over_seeds

SHOWN = 8  # names of missing runs, at most


def write_report(plan: PaperPlan, runs: Sequence[PlannedRun], out: Path) -> list[Path]:
    """Write ``tables.md`` and ``results.ndjson`` (a record per run) for the runs under ``out``; return their paths."""
    tables, data = out / "tables.md", out / "results.ndjson"
    write(data, [record for run in runs if (record := figures(run, out))])
    lines = [f"# {plan.title}", "", *([plan.note, ""] if plan.note else [])]
    lines += all_tables(plan, read_results(data), missing=True)
    write_atomically(tables, "\n".join(lines).encode())
    return [tables, data]


def read_results(path: Path) -> dict[str, RunRecord]:
    """Return the record of every run in a file of records, by the run's name."""
    return {record.labels["name"]: record for record in read(path)}


def _budget(records: Group) -> Iterator[str]:
    """Yield a line with the runs' wall time, CPUs and commits; nothing if no run has recorded its commit."""
    commits = Counter(record.commit for record in records)
    unknown = commits.pop("", 0)
    if commits:
        minutes = sum(record.seconds for record in records) / 60
        cpus = sorted({record.machine for record in records} - {""})
        count = f"{len(records)} run{'s' * (len(records) > 1)}"
        words = f"{count}, {minutes:.1f} minutes of wall time in all, on {', '.join(cpus)}"
        rest = f", and unknown for {unknown}" if unknown else ""
        yield from (f"{words}; commit {', '.join(sorted(commits))}{rest}.", "")


def all_tables(plan: PaperPlan, results: Mapping[str, RunRecord], missing: bool = False) -> Iterator[str]:
    """Yield the lines of the tables of all blocks, each under its title.

    Args:
        plan: The plan.
        results: Its runs.
        missing: Whether blocks without any run are there, too.
    """
    for block in plan.block:
        if missing or any(run.name in results for run in plan.runs(block.name)):
            title = block.title or block.name
            make_tables = trial_tables if block.name in plan.trial_blocks else block_tables
            yield from (*([f"## {title}", ""] if title else []), *make_tables(plan, block.name, results))


def block_tables(plan: PaperPlan, name: str, results: Mapping[str, RunRecord]) -> Iterator[str]:
    """Yield the lines of all tables of one block."""
    block = next(block for block in plan.block if block.name == name)
    yield from _block(block, list(plan.runs(name)), results)
    yield ""


def trial_tables(plan: PaperPlan, name: str, results: Mapping[str, RunRecord]) -> Iterator[str]:
    """Yield the lines of the table of a block's trials."""
    yield from table(*of_the_trials(plan, list(plan.runs(name)), results))
    yield ""


def _block(block: PaperBlock, runs: Sequence[PlannedRun], results: Mapping[str, RunRecord]) -> Iterator[str]:
    missing = [run.name for run in runs if run.name not in results]
    if missing:
        names = ", ".join(missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
        yield from (f"Not there: {len(missing)} of {len(runs)} runs: {names}.", "")
    yield from _budget([results[run.name] for run in runs if run.name in results])
    for cell in dict.fromkeys(run.cell for run in runs):
        groups: dict[str, list[RunRecord]] = {}
        for run in runs:
            if run.cell == cell and (record := results.get(run.name)):
                groups.setdefault(run.variant, []).append(record)
        if groups:
            yield from _cell(cell, groups, {run.variant: run.deployed for run in runs}, block.headline)
            yield from _published([published for published in block.published if published.cell == cell], groups)


def _cell(cell: str, groups: Mapping[str, Group], deployed: Mapping[str, str], headline: str | None) -> Iterator[str]:
    if cell:
        words = cell.replace("lambda=", "λ=").replace("alpha=", "α=").replace("=", " = ").replace(",", ", ")
        yield from (f"### {words}", "")
    yield from table(_main_header(), [_main_row(name, group, deployed[name]) for name, group in groups.items()])
    yield from table(*privacy_table(groups))
    yield from table(*_curves(groups))
    views = {view for group in groups.values() for record in group for view in record.accuracy}
    for view in MODELS:
        if f"{view}-shift-100" in views:
            header = [f"{view}, shift %", *map(str, SHIFTS)]
            names = [f"{view}-shift-{percent}" for percent in SHIFTS]
            rows = [[name, *(accuracy(group, shifted) for shifted in names)] for name, group in groups.items()]
            yield from table(header, rows)
    yield from table(*by_capacity(groups, "deployed", deployed))
    yield from table(*by_capacity(groups, "trained", dict.fromkeys(groups, "trained")))
    yield from table(*of_the_method(groups))
    if headline and headline in groups:
        yield from table(*by_round(headline, groups[headline]))
    yield from table(*of_the_clients(groups))
    yield from table(*of_novel_clients(groups))
    yield from table(*chosen_by_trials(groups))
    yield from difference_tables(groups, deployed)


def _published(published: Sequence[Published], groups: Mapping[str, Group]) -> Iterator[str]:
    """Yield a table of published and measured figures, in the views of the plan."""
    pairs = [(reported, view) for reported in published for view in reported.views]
    kinds = list(dict.fromkeys(_kind(*pair) for pair in pairs))
    rows: dict[str, list[str]] = {}
    for reported, whole in pairs:
        view, column = whole.partition("-")[0], 3 * kinds.index(_kind(reported, whole))
        for name, value in reported.values.items():
            measured = accuracy(groups.get(name, ()), whole, reported.figure)
            difference = "–" if measured == "–" else f"{float(measured.partition(' ')[0]) - value:+.1f}"
            row = rows.setdefault(f"{name}, {view}", ["–"] * 3 * len(kinds))
            row[column : column + 3] = [f"{value:.1f}", measured, difference]
    cells = [f"{kind}, {figure}" for kind in kinds for figure in ("published", "measured", "difference")]
    yield from table(["published beside measured, view", *cells], [[name, *row] for name, row in rows.items()])


def _kind(published: Published, view: str) -> str:
    """Return what a published figure is: accuracy, or accuracy under a shift; weighted, or of the bottom decile."""
    kind = view.partition("-")[2] or "accuracy"
    return kind if published.figure == "mean" else f"{published.figure.replace('_', ' ')} {kind}"


def _main_header() -> list[str]:
    views = [f"{view} (over clients)" for view in MODELS]
    return [
        "method",
        "deployed",
        *views,
        "pooled",
        "worst 10 %",
        "MB up",
        "MB down",
        "% of dense",
        "10⁹ multiply-adds a client",
        "s",
    ]


def _main_row(name: str, group: Group, deployed: str) -> list[str]:
    clients = [f"{accuracy(group, view)} ({_spread(group, view)})" for view in MODELS]
    clients = ["–" if cell.startswith("–") else cell for cell in clients]
    up, down, dense = (mean(sum(record.bytes[k] / MEGA for k in keys) for record in group) for keys in _SIZES)
    work = mean(record.figures["multiply_adds"] / len(record.participants) for record in group) / 1e9
    share = f"{100 * (up + down) / dense:.1f}" if up + down else "0"
    figure = [f"{up:.2f}", f"{down:.2f}", share, f"{work:.2f}", f"{mean(record.seconds for record in group):.0f}"]
    risen = mean_rise([Rise(**record.figures["rise"]) for record in group if "rise" in record.figures])
    name += (
        f" ({mean(record.rounds for record in group):.4g} rounds)"
        if any("stopped" in record.figures for record in group)
        else ""
    )
    name += " (not converged)" if risen and risen.goes_on else ""
    rest = [accuracy(group, "pooled"), accuracy(group, "trained", "bottom_decile")]
    return [name, accuracy(group, deployed), *clients, *rest, *figure]


_SIZES = (("up",), ("down",), ("up_dense", "down_dense"))


def accuracy(group: Group, view: str, figure: str = "mean") -> str:
    """Return a view's figure in %, as mean ± standard deviation over seeds; a dash if no run has the view."""
    estimate = over_seeds([record.accuracy[view][figure] for record in group if record.accuracy.get(view)])
    return estimate.text() if estimate else "–"


def _spread(group: Group, view: str) -> str:
    values = [100 * record.accuracy[view]["std"] for record in group if record.accuracy.get(view)]
    return f"{np.mean(values):.1f}" if values else ""


def _curves(groups: Mapping[str, Group]) -> tuple[list[str], list[list[str]]]:
    """Return received accuracy by round and the MB sent until then, in both directions, for the first seed."""
    first = next(record for group in groups.values() for record in group)
    rounds, rows = first.curve.get("round", []), []
    for name, group in groups.items():
        points: dict[int, dict[str, float]] = {}
        for curve in (record.curve for record in group if record.seed == first.seed):
            points |= {n: {key: curve[key][at] for key in curve} for at, n in enumerate(curve.get("round", ()))}
        cells = []
        for number in rounds:
            point = {key: value for key, value in points.get(number, {}).items() if value is not None}
            view = "received" if "received" in point else "trained"
            cells.append(f"{100 * point[view]:.1f} ({point['megabytes']:.1f} MB)" if view in point else "–")
        has = any(p.get("received") is not None for p in points.values())
        rows.append([name if has else f"{name} (trained)", *cells])
    return [f"received by round, seed {first.seed}", *map(str, rounds)], rows
