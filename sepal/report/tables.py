"""A run and a comparison on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from sepal.errors import one_line
from sepal.report import sentences
from sepal.report.answer import answer
from sepal.report.convergence import convergence
from sepal.report.simulated import simulated_words, speed_table
from sepal.report.sizes import size
from sepal.report.text_tables import (
    NONE,
    TextTable,
    accuracy_table,
    aim,
    basis,
    conclusions,
    cost_table,
    difference_table,
    diverged,
    hours_text,
    legend,
    no_better,
    novel_line,
    privacy_line,
    rates_of_others,
    rounds_run,
    title_of,
    together_line,
    tuning_note,
    tuning_table,
    tuning_title,
    without_yardsticks,
)
from sepal.runs.json_lines import Line
from sepal.runs.stored_run import StoredRun
from sepal.study.comparison import Comparison
from sepal.study.divergence import divergence
from sepal.study.majority import warning
from sepal.study.results import MEGA
from sepal.tasks.scoring import ACCURACY, Measure, measure_of
from sepal.tasks.scoring import headline as headline_of

NAMES = 3  # a table's names have at most this part of the width
LEAST_FOR_TWO = 20  # clients of which the worst 10 % are more than one
RUN_LEGEND = "{} on test data. MB of training so far; dense: the same messages with the whole model as float32."


def print_run(console: Console, run: StoredRun, yardstick: StoredRun | None = None) -> None:
    """Print a run's tables and its path.

    Args:
        console: The console.
        run: The run.
        yardstick: Another run, such as Local, whose accuracy is shown for comparison.
    """
    console.print(printable(headline(run)), style="bold", soft_wrap=True, highlight=False)
    console.print(rounds_table(run, yardstick))
    legend_words = (RUN_LEGEND.format(title_of(run.measure)), of_some_clients(run), of_one_client(run))
    console.print(" ".join(filter(None, legend_words)), style="italic", highlight=False)
    if run.summary is not None:
        if run.summary.get("stopped"):
            words = f"Ended after round {run.summary['rounds']}: {run.summary['stopped']['reason']}"
            console.print(printable(words), highlight=False)
        console.print()
        console.print(figures_table(run, yardstick))
        view, lr = run.deployed, run.config["lr"]
        if words := warning([run.summary], view, lr):
            console.print(f"Warning: {printable(words)}", style="yellow", soft_wrap=True, highlight=False)
        if words := divergence([run.summary]):
            console.print(f"Warning: {printable(words)}", style="yellow", soft_wrap=True, highlight=False)
        if words := together_line(run.summary):
            console.print(printable(words), highlight=False)
        if run.summary.get("novel"):
            console.print(printable(novel_line(run.summary)), highlight=False)
        if run.summary.get("privacy"):
            console.print(printable(privacy_line(run.summary)), soft_wrap=True, highlight=False)
        if run.summary.get("by_capacity"):
            console.print()
            console.print(capacity_table(run.summary))
    if run.bytes:
        console.print()
        console.print(bytes_table(run))
        console.print()
    console.print(f"Run written to {printable(str(run.path))}", soft_wrap=True, highlight=False)


def printable(text: object) -> str:
    """Return text from a run's files for the console: a run from elsewhere may hold markup or terminal escapes."""
    return escape(one_line(str(text)))


def headline(run: StoredRun) -> str:
    """Return one line with the run's name, configuration and progress."""
    config, rounds_over = run.config, sum(line["phase"] != "closing" for line in run.lines)
    state = "complete" if run.summary is not None else f"at round {rounds_over}"
    rounds = f"{config['rounds']} rounds"
    if run.summary and run.summary.get("stopped"):
        rounds = f"{run.summary['rounds']} of at most {rounds}"
    parts = f"{config['clients'] or 'all'} clients, {rounds}, seed {config['seed']}"
    return f"{run.path.name}: {config['method']} on {config['dataset']}, {parts}, {state}"


def of_some_clients(run: StoredRun) -> str:
    """Return a sentence about rounds whose figures are of a part of the clients; empty if there are none."""
    counts = [len(line["clients"]) for line in run.lines]
    some = [count for count, line in zip(counts, run.lines, strict=True) if not line["full"] and count < max(counts)]
    if not some:
        return ""
    few = f"{min(some)}" if min(some) == max(some) else f"{min(some)} to {max(some)}"
    return (
        f"A round's figures are of that round's clients alone, {few} of {max(counts)}, so rows differ also by who took "
        "part; those of full evaluations (`evaluate-every`, and at the end) are of all."
    )


def of_one_client(run: StoredRun) -> str:
    """Return a sentence about the worst 10 % where that is a single client; empty where it is more."""
    most = max((len(line["clients"]) for line in run.lines), default=0)
    return "The worst 10 % of fewer than 20 clients is the worst one." if 1 < most < LEAST_FOR_TWO else ""


def rounds_table(run: StoredRun, yardstick: StoredRun | None = None, most: int = 12) -> Table:
    """Return accuracy and cumulative bytes by round, for at most about ``most`` evenly spaced rounds."""
    table = new_table(None)
    names = ["round", "received\nmean", "trained\nmean", "trained\nworst\n10 %"]
    if yardstick:
        names += [f"{printable(yardstick.config['method'])}\nmean", "its\nworst\n10 %"]
    for name in [*names, "MB\nup", "dense\nup", "MB\ndown", "dense\ndown"]:
        table.add_column(name, justify="right", no_wrap=True)
    beside = {line["round"]: line for line in yardstick.lines} if yardstick else {}
    for line in spaced(run.lines, most):
        cells = [printable("closing" if line["phase"] == "closing" else line["round"])]
        cells += [percent(line, "received", "mean"), *trained(line)]
        if yardstick:
            cells += trained(beside.get(line["round"]))
        sizes = line["bytes"]
        cells += [megabytes(sizes[key]) for key in ("up", "up_dense", "down", "down_dense")]
        table.add_row(*cells)
    return table


def new_table(title: str | None) -> Table:
    """Return an empty table, narrow enough for ten columns on a terminal 80 characters wide."""
    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False, padding=(0, 1, 0, 0))


def spaced(lines: Sequence[Line], most: int) -> list[Line]:
    """Return the first, the last and evenly spaced lines between, about ``most`` of them."""
    if len(lines) <= most:
        return list(lines)
    step = next(size for size in _round_numbers() if len(lines) / size <= most)
    shown_lines = [line for line in lines[1:-1] if line["round"] % step == 0]
    return [lines[0], *shown_lines, lines[-1]]


def _round_numbers() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def trained(line: Line | None) -> list[str]:
    """Return the cells of the trained view: mean and worst 10 %."""
    return [percent(line, "trained", key) for key in ("mean", "bottom_decile")]


def percent(line: Line | None, view: str, key: str) -> str:
    """Return an accuracy in percent, or another headline as it is shown, or a dash."""
    figures = headline_of(line or {}).get(view)
    return measure_of(line or {}).number(figures[key]) if figures and key in figures else "-"


def megabytes(count: int) -> str:
    """Return bytes as MB."""
    return size(count / MEGA)


def figures_table(run: StoredRun, yardstick: StoredRun | None = None) -> Table:
    """Return the figures of the last full evaluation, by view; of the best round, which validation data chooses."""
    measure = run.measure
    table = new_table(f"At the end, over all clients: {measure.name}{measure.in_unit}")
    for name in ("method", "view", "mean", "weighted", "std", "worst 10 %", "validation's\nbest (round)"):
        table.add_column(name, justify="left" if name in ("method", "view") else "right")
    for shown_run in (run, yardstick):
        if shown_run is None or shown_run.summary is None:
            continue
        view_figures = headline_of(shown_run.summary)
        deployed = shown_run.deployed
        for view in sorted(view_figures, key=lambda view: view != deployed):  # first the one that users predict with
            figures = view_figures[view]
            mark = " (deployed)" * (view == deployed)
            cells = [printable(shown_run.config["method"]), printable(view) + mark]
            if figures is None:
                table.add_row(*cells, *["-"] * 5)
                continue
            shown = ("mean", "weighted", "std", "bottom_decile")
            cells += [measure.number(figures[key]) if key in figures else "-" for key in shown]
            table.add_row(*cells, best(figures["best"], shown_run.summary["rounds"], measure))
    return table


def capacity_table(summary: Mapping[str, Any]) -> Table:
    """Return the mean accuracy by quarter of the clients' capacities."""
    measure = measure_of(summary)
    table = new_table(f"At the end, by capacity: mean {measure.name}{measure.in_unit}")
    views = [view for view, group_figures in headline_of(summary).items() if group_figures]
    for name in ("capacity", "clients", *map(printable, views)):
        table.add_column(name, justify="left" if name == "capacity" else "right")
    for group, group_figures in summary["by_capacity"].items():
        clients = max(figures["clients"] for figures in group_figures.values())
        cells = [measure.number(group_figures[view]["mean"]) if view in group_figures else "-" for view in views]
        table.add_row(printable(group), str(clients), *cells)
    return table


def best(chosen: Mapping[str, Any] | None, rounds: int, measure: Measure = ACCURACY) -> str:
    """Return the table cell of the best of a run's ``rounds`` rounds, or of its closing evaluation."""
    if not chosen:
        return "-"
    return f"{measure.number(chosen['mean'])} ({chosen['round'] if chosen['round'] <= rounds else 'closing'})"


def bytes_table(run: StoredRun) -> Table:
    """Return the bytes of payloads next to their dense equivalent: training, and everything."""
    table = new_table("Bytes of payloads beside their dense equivalent")
    for name in ("", "MB up", "dense", "share", "MB down", "dense", "share"):
        table.add_column(name, justify="right" if name else "left")
    for name, sizes in (("training", run.bytes), ("all purposes", run.bytes["total"])):
        cells: list[str] = []
        for key in ("up", "down"):
            sent, dense = sizes[key], sizes[f"{key}_dense"]
            cells += [megabytes(sent), megabytes(dense), f"{100 * sent / dense:.1f} %" if dense else "-"]
        table.add_row(name, *cells)
    return table


def print_simulated(console: Console, comparison: Comparison) -> None:
    """Print the simulated hours of a single run, by thirds of its clients' devices too; nothing without a profile."""
    for variant in comparison.all_variants():
        for words in simulated_words([variant]):
            console.print(escape(words), highlight=False)
        if variant.hours is not None:
            console.print()
            to = f" to {aim([variant])} ({variant.view}): {hours_text(variant.hours_to)};" if variant.hours_to else ""
            words = f"{variant.label}: simulated hours{to} to the end: {hours_text(variant.hours)}"
            console.print(escape(words), highlight=False)
            console.print()
            print_text_table(console, speed_table([variant]))


def print_comparison(console: Console, comparison: Comparison, everything: bool = False) -> None:
    """Print a comparison: of each swept setting a sentence, a short table, and who is best for its bytes.

    Args:
        console: The console.
        comparison: The runs.
        everything: Also print every view, the costs, paired differences, what was searched, and notes.
    """

    def say(*lines: str) -> None:
        for line in filter(None, lines):
            console.print(escape(line), highlight=False)

    def paragraphs(*lines: str) -> None:
        for line in filter(None, lines):
            say(line, " ")

    console.print(escape(comparison.title), style="bold", highlight=False)
    for cell in filter(comparison.variants, comparison.cells):
        variants = comparison.variants(cell)
        if cell:
            console.print(escape(cell), style="bold", highlight=False)
        paragraphs(sentences.headline(comparison, cell))
        text_table, clear, reading = answer(comparison, cell)
        last = len(text_table.head) - 1
        print_text_table(console, text_table, bold=[(row, last) for row, certain in enumerate(clear) if certain])
        paragraphs(sentences.frontier_sentence(comparison, cell))
        paragraphs(*no_better(variants), *diverged(variants), *convergence(variants))
        paragraphs(rates_of_others(variants), rounds_run(variants))
        console.print(escape(reading), style="italic", highlight=False)
        say(" ")
        for further_sheet, *words in _further(comparison, cell) if everything else ():
            print_text_table(console, further_sheet)
            paragraphs(*words)
    if everything:
        print_text_table(console, tuning_table(comparison), tuning_title(comparison), left=True)
        paragraphs(tuning_note(comparison))
        say(*comparison.notes)
        console.print(legend(comparison), style="italic", highlight=False)
    say(without_yardsticks(comparison))


def _further(comparison: Comparison, cell: str) -> Iterator[tuple[Any, ...]]:
    """Yield the other tables of a cell, each with what is said below it."""
    variants = comparison.variants(cell)
    yield (accuracy_table(variants),)
    yield cost_table(variants), basis(variants), *simulated_words(variants)
    yield (speed_table(variants),)
    yield difference_table(comparison, cell), *conclusions(comparison, cell)


def print_text_table(
    console: Console,
    text_table: TextTable,
    title: str | None = None,
    left: bool = False,
    bold: Collection[tuple[int, int]] = (),
) -> None:
    """Print a table, or several with some of the columns each where one is too wide for the terminal.

    Columns without a figure are left out. Long names are wrapped, so that figures have most of the width.

    Args:
        console: The console.
        text_table: The table; nothing is printed without rows.
        title: What stands above it.
        left: Whether its columns hold text, which may be wrapped, instead of figures.
        bold: Row and column of the cells that are marked.
    """

    def written(row: int, column: int) -> str:
        cell = "-" if text_table.rows[row][column] == NONE else escape(text_table.rows[row][column])
        return f"[bold]{cell}[/bold]" if (row, column) in bold else cell

    def part(columns: Sequence[int]) -> Table:
        table = new_table(title)
        table.padding = (0, 1, 0, 0) if left else 0
        table.add_column(text_table.head[0], overflow="fold", max_width=None if left else console.width // NAMES)
        for number in columns:
            table.add_column(text_table.head[number], justify="left" if left else "right", no_wrap=not left)
        for row_index, row in enumerate(text_table.rows):
            table.add_row(escape(row[0]), *(written(row_index, n) for n in columns))
        return table

    if not text_table.rows:
        return
    columns = text_table.columns(figures=not left)
    parts: list[list[int]] = [columns] if left else [[]]
    for number in [] if left else columns:
        wide = Measurement.get(console, console.options.update(max_width=1000), part([*parts[-1], number])).maximum
        if parts[-1] and wide > console.width:
            parts.append([])
        parts[-1].append(number)
    for part_columns in parts:
        console.print(part(part_columns))
        console.print()  # printing a table ignores `end`
