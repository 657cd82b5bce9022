"""Commands that show what there is: runs and comparisons, methods and keys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from sepal.cli import completing
from sepal.cli.app import app
from sepal.cli.notices import starting
from sepal.cli.options import Devices, Run
from sepal.errors import ConfigError, one_line
from sepal.report.printing import say

POLL = 0.2  # seconds between reads by watch
NAMES = ("key", "name", "run", "dataset", "model")  # columns
MOST = {"values": 0.18, "default": 0.16}  # of the width: the rest is for what keys mean
PAGE, TEXT = 100, {"title", "meaning"}  # width of a table with columns of text that goes to a file or a pipe
NAME, WIDE = 40, 1000  # characters: of a name that is not wrapped; of a table that goes to a file or a pipe, at most


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(help="A run or a comparison: its directory or its name.", autocompletion=completing.runs)
    ],
    beside: Annotated[str | None, typer.Option(help="Another run, whose accuracy is shown beside it.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the figures by round to this CSV file.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Write them to this directory for TensorBoard.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Of a comparison, also every view, the costs and all differences.")
    ] = False,
    devices: Devices = "",
) -> None:
    """Show a run, or the directory of a comparison: accuracy, cost, and bytes next to their dense equivalent."""
    with starting():
        from sepal.report.console import console
        from sepal.report.files import by_round, write_csv, write_tensorboard
        from sepal.report.tables import print_run, print_simulated
        from sepal.runs.stored_run import read_run
        from sepal.study.comparison import check_comparable, read_comparison
        from sepal.study.results import read_result
        from sepal.study.runs import find_place, find_run, is_run, naming

    path = find_place(run)
    if not is_run(path):
        for option, value in {"--beside": beside, "--tensorboard": tensorboard}.items():
            if value:
                raise ConfigError(option, "one run, not a comparison", str(path))
        with naming(path):
            _show_comparison(str(path), csv, everything, devices)
        return
    with naming(path):
        if beside:
            check_comparable([read_result(path), read_result(find_run(beside))])
        stored = read_run(path)
        comparison = read_comparison([str(path)], devices=devices)  # an unknown profile is refused before any table
        print_run(console(), stored, read_run(find_run(beside)) if beside else None)
        print_simulated(console(), comparison)
        if csv:
            say(f"written to {write_csv(list(by_round(stored)), csv)}")
        if tensorboard:
            say(f"written to {write_tensorboard(stored, tensorboard)}")


def _show_comparison(directory: str, csv: Path | None, everything: bool, devices: str) -> None:
    from sepal.report.console import console
    from sepal.report.files import by_variant, write_csv
    from sepal.report.tables import print_comparison
    from sepal.study.comparison import read_comparison

    comparison = read_comparison([directory], devices=devices)
    print_comparison(console(), comparison, everything)
    if csv:
        say(f"written to {write_csv(list(by_variant(comparison)), csv)}")


@app.command()
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run directories, runs' names, or directories of `sepal compare`.", autocompletion=completing.runs
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The file; else report.html or comparison.html, see above.")] = None,
    data: Annotated[
        bool,
        typer.Option("--data", help="Read the data that the runs' keys name; else nothing but their files is read."),
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Code of these runs that may be imported: package.module:NAME, or all of a module."),
    ] = None,
    devices: Devices = "",
) -> None:
    """Write a page that opens offline: RUN/report.html; of several, comparison.html in their folder, or else here."""
    with starting():
        from sepal.report.page import write_html
        from sepal.runs.stored_run import Allowed
        from sepal.study.runs import find_place, naming

    places = [find_place(run) for run in runs]
    parents = {path.resolve().parent for path in places}
    both = (parents.pop() if len(parents) == 1 else Path.cwd()) / "comparison.html"  # a run's own report stays
    with naming(places[0]):
        file = out or (both if places[1:] else places[0] / "report.html")
        say(f"written to {write_html(runs, file, Allowed(frozenset(allow or ()), data), devices)}")


@app.command()
def methods(
    keys: Annotated[bool, typer.Option("--keys", help="With each method's own keys.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table in docs/methods.md.")] = False,
) -> None:
    """List the methods."""
    with starting():
        from sepal.strategies import registry

        rows = [(name, *registry.description(name)[:3]) for name in registry.names()]
        records = [registry.get(name) for name in registry.names()] if keys or markdown else []  # imports them
    if markdown:
        say(markdown_table())
        return
    print_table("", ("name", "title", "source", "deployed"), rows)
    for method in records if keys else []:
        _print_keys(f"Keys of {method.name}", method.hyper, f"{method.name}.")


def markdown_table() -> str:
    """Return the table of docs/methods.md."""
    from sepal.strategies import registry

    rows = ["| name | method | source | deployed |", "|---|---|---|---|"]
    for method in map(registry.get, registry.names()):
        rows.append(f"| `{method.name}` | {method.title} | {method.source} | {method.deployed} |")
    return "\n".join(rows)


@app.command("keys")
def list_keys(
    method: Annotated[
        str, typer.Argument(help="A method, for its own keys; none: shared keys.", autocompletion=completing.methods)
    ] = "",
) -> None:
    """List run-config keys: values, default, meaning."""
    from sepal.config import RunConfig
    from sepal.strategies import registry

    if method:
        _print_keys(f"Keys of {method}", registry.get(method).hyper, f"{registry.get(method).name}.")
    else:
        _print_keys("Keys shared by all methods", RunConfig, "")


def _print_keys(title: str, model: Any, prefix: str) -> None:
    from sepal.cli.keys import keys_of

    rows = [(key.name, key.values, key.default, key.description) for key in keys_of(model, prefix)]
    if rows:
        print_table(title, ("key", "values", "default", "meaning"), rows)
    else:
        say(f"{title}: none")


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of words, without escapes, in the terminal's width.

    Where it goes to a file or a pipe, a row is one line, unless a column holds text, which is wrapped. Keys and names
    are wrapped only where they are long paths.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from sepal.report.console import console

    table, out = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left"), console()
    cells = [[escape(one_line(word)) for word in row] for row in rows]
    words = bool(TEXT.intersection(head))
    if words and not out.is_terminal:
        out.width = max(out.width, PAGE)
    for index, column in enumerate(head):
        short = max((len(row[index]) for row in cells), default=0) <= NAME
        most = int(MOST[column] * out.width) if column in MOST else None
        table.add_column(column, no_wrap=short and column in NAMES, overflow="fold", max_width=most)
    for row in cells:
        table.add_row(*row)
    if not words and not out.is_terminal:
        out.width = max(out.width, out.measure(table, options=out.options.update(width=WIDE)).maximum)
    out.print(table)


@app.command()
def watch(
    run: Run,
    follow: Annotated[bool, typer.Option(help="Wait for further rounds until the run has ended.")] = True,
    web: Annotated[bool, typer.Option("--web", help="As a page on this machine instead, until Ctrl-C.")] = False,
    web_port: Annotated[int, typer.Option(help="Of the page, on 127.0.0.1; 0: any that is free.")] = 8090,
    open_in: Annotated[bool, typer.Option("--open/--no-open", help="Open the page where there is a screen.")] = True,
) -> None:
    """Show the rounds of a running or finished run, one line per round, or a page in a browser."""
    if web:
        from sepal.report.live import ReportServer, open_in_browser

        with ReportServer([run], web_port) as server:
            say(f"{server.url}\nCtrl-C ends the page, not the run.")
            if open_in and open_in_browser(server.url):
                say("opened in the browser")
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    from sepal.report.console import console
    from sepal.report.progress import RoundDisplay
    from sepal.runs.stored_run import read_run
    from sepal.study.runs import find_run, naming

    path = find_run(run)
    lines_shown = 0
    with naming(path), RoundDisplay(console(), path.name) as display:
        display.start(0, int(read_run(path).config["rounds"]))
        while True:
            stored = read_run(path)
            for line in stored.lines[lines_shown:]:
                display.show(line)
            lines_shown = len(stored.lines)
            if stored.summary is not None or not follow:
                return
            time.sleep(POLL)
