"""A comparison in the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from sepal.cli.comparison import Comparison, Group, rows
from sepal.cli.conclusions import conclusions
from sepal.cli.plans.trials import Tried
from sepal.cli.results import Estimate
from sepal.cli.tables import new_table
from sepal.protocol.views import CLOSING_VIEWS
from sepal.storage.files import write_atomically

LEGEND = (
    "Accuracy in % on test data, mean ± standard deviation over seeds. deployed: the model that a user of a deployed "
    "client predicts with (kept, received or trained, depending on the method); kept: the model that a client keeps "
    "if it does not take the last download; received: as the server sends it; trained: after the client's own steps; "
    "pooled: trained, on everybody's test data. MB: payloads of training, all clients and rounds. Multiply-adds: 10⁹ "
    "of training a client."
)
ACCURACIES = ("deployed", *reversed(CLOSING_VIEWS))  # in the order of :func:`accuracies`
MARK = "*"  # of a label: not converged
EDGE = " (edge)"
EDGE_WORDS = "the least or the largest value that was tried; a wider [grid] may find a better one"
TUNING_COLUMNS = ("setting", "method", "view", "tried", "chosen")
YARDSTICKS = ("local", "fedavg-ft")  # baselines for every method: no federation, and plain federation


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a comparison's tables for each swept setting: accuracy, cost, paired differences."""
    console.print(escape(comparison.title), style="bold", highlight=False)
    for cell in comparison.cells:
        groups = comparison.groups(cell)
        if not groups:
            continue
        if cell:
            console.print(escape(cell), style="bold", highlight=False)
        _print_accuracy(console, groups, comparison.view)
        for line in filter(None, (not_converged(groups), rounds_run(groups))):
            console.print(escape(line), highlight=False)
            console.print()
        _print_cost(console, groups)
        _print_differences(console, comparison, cell)
        for line in conclusions(comparison, cell):
            console.print(escape(line), highlight=False)
            console.print()
    _print_tuning(console, comparison.tuning)
    for note in comparison.notes:
        console.print(escape(note), highlight=False)
    console.print(LEGEND, style="italic", highlight=False)
    if line := without_yardsticks(comparison):
        console.print(line, highlight=False)


def without_yardsticks(comparison: Comparison) -> str:
    """Return a line that names the yardsticks that are not among the runs; empty if all are."""
    methods = {result.stored.config["method"] for result in comparison.results}
    absent = [name for name in YARDSTICKS if name not in methods]
    if not absent:
        return ""
    return f"Without {' and '.join(absent)}: add {'them' if len(absent) > 1 else 'it'} to `methods`."


def not_converged(groups: Sequence[Group]) -> str:
    """Return a line that names the groups whose curves are still rising (:mod:`sepal.cli.convergence`), or nothing."""
    found = [(group.label, group.rising) for group in groups]
    words = [f"{label} (+{100 * each.mean:.1f} points in {each.points} rounds)" for label, each in found if each]
    return f"{MARK} not converged, still rising at the last round: {', '.join(words)}" if words else ""


def rounds_run(groups: Sequence[Group]) -> str:
    """Return a line with the rounds of each group if a run ended before its limit, or nothing."""
    limits = {group.label: group.first.stored.config["rounds"] for group in groups}
    words = [f"{group.label} {group.rounds:.4g} of at most {limits[group.label]}" for group in groups]
    return f"rounds that were run, mean over seeds: {', '.join(words)}" if any(g.stopped for g in groups) else ""


def named(group: Group) -> str:
    """Return a group's label, with a mark if it has not converged."""
    return f"{group.label} {MARK}" if group.rising else group.label


def tuning_rows(tuning: Sequence[Tried]) -> Iterator[list[str]]:
    """Yield a row for each search: setting, label, view, what was tried with its accuracy in %, what was chosen."""
    for one in tuning:
        values = ", ".join(f"{name}: {'failed' if mean is None else f'{100 * mean:.1f}'}" for name, mean in one.values)
        yield [one.cell, one.label, one.view, values, (one.chosen or "nothing") + EDGE * one.edge]


def tuning_title(tuning: Sequence[Tried]) -> str:
    """Return what the rows of :func:`tuning_rows` are."""
    seeds = sorted({seed for one in tuning for seed in one.seeds})
    return f"Searched before the runs, with seeds {', '.join(map(str, seeds))}: accuracy on validation data in %"


def accuracies(group: Group, view: str) -> list[Estimate | None]:
    """Return a group's accuracies: of the deployed models, in each view, and of the bottom decile in ``view``."""
    found = [group.accuracy(each) for each in (group.deployed, *reversed(CLOSING_VIEWS))]
    return [*found, group.accuracy(view, "bottom_decile")]


def _print_accuracy(console: Console, groups: list[Group], view: str) -> None:
    """Print one table of all accuracies, or two where one is too wide for the terminal."""
    heads = [*ACCURACIES, f"bottom 10 %\n{view}"]

    def part(first: int, last: int) -> Table:
        table = new_table(None)
        table.padding = 0
        table.add_column("accuracy, %", no_wrap=True)
        for name in heads[first:last]:
            table.add_column(name, justify="right", no_wrap=True)
        for group in groups:
            cells = [each.text() if each else "-" for each in accuracies(group, view)]
            table.add_row(escape(named(group)), *cells[first:last])
        return table

    whole, half = part(0, len(heads)), len(heads) // 2
    wide = Measurement.get(console, console.options.update(max_width=1000), whole).maximum > console.width
    for table in [part(0, half), part(half, len(heads))] if wide else [whole]:
        console.print(table)
        console.print()  # printing a table ignores `end`


def _print_cost(console: Console, groups: list[Group]) -> None:
    target = f"{100 * groups[0].target:.0f} %\n{groups[0].view}"
    table = new_table(None)
    table.add_column("cost", no_wrap=True)
    for name in ("MB up", "MB down", "multiply-\nadds, 10⁹", f"rounds to\n{target}", f"MB to\n{target}"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        cells = [f"{group.megabytes(way):.2f}" for way in ("up", "down")]
        cells += [f"{group.multiply_adds:.2f}"]
        cells += [group.reached(group.rounds_to, 1), group.reached(group.megabytes_to, 2)]
        table.add_row(escape(group.label), *cells)
    console.print(table)
    console.print()  # printing a table ignores `end`


def _print_differences(console: Console, comparison: Comparison, cell: str) -> None:
    views = ("deployed", "kept", "received", "trained")
    found = {view: dict(comparison.differences(cell, view)) for view in views}
    labels = list(dict.fromkeys(label for pairs in found.values() for label in pairs))
    if not labels:
        return
    table = new_table(None)
    table.add_column("paired difference over clients,\npoints, 95 % interval")
    for view in views:
        table.add_column(view, justify="right", no_wrap=True)
    for label in labels:
        cells = [found[view][label].text(sign="+") if label in found[view] else "-" for view in views]
        table.add_row(escape(label), *cells)
    console.print(table)
    console.print()  # printing a table ignores `end`


def _print_tuning(console: Console, tuning: Sequence[Tried]) -> None:
    if not tuning:
        return
    table = new_table(tuning_title(tuning))
    for name in TUNING_COLUMNS:
        table.add_column(name)
    for row in tuning_rows(tuning):
        table.add_row(*map(escape, row))
    console.print(table)
    if any(one.edge for one in tuning):
        console.print(f"{EDGE.strip()}: {EDGE_WORDS}", highlight=False)
    console.print()


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write a comparison's figures, with a line for each group; accuracies are fractions."""
    found = list(rows(comparison))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]) if found else [])
    writer.writeheader()
    writer.writerows(found)
    write_atomically(path, text.getvalue().encode())
