"""Commands that list what there is: runs, data sets, models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sepal.cli import completing
from sepal.cli.app import app
from sepal.cli.notices import starting
from sepal.report.printing import say


@app.command("ls")
def list_runs(
    directory: Annotated[
        str,
        typer.Argument(
            help="A directory, or a folder's name; by default runs/ here and in $SEPAL_HOME.",
            autocompletion=completing.runs,
        ),
    ] = "",
) -> None:
    """List runs, the newest first; a comparison or a tuning is one line, and `sepal ls NAME` lists its runs."""
    with starting():
        from sepal.cli.showing import print_table
        from sepal.errors import SepalError
        from sepal.storage.regular import expanded
        from sepal.study.runs import find_place, is_run, name_of, naming, places_in, started

    if not directory:
        folders = places_in()
    else:
        try:
            path = find_place(directory)
        except SepalError:
            if not (path := expanded("run", directory)).is_dir():
                raise
        folders = [(path, [path])] if is_run(path) else places_in(path)
    rows = []
    for path, runs in folders:
        when = f"{datetime.fromtimestamp(started(runs[0])):%Y-%m-%d %H:%M}"
        try:
            with naming(path):
                rows.append((name_of(path), *(_row(path) if is_run(path) else _folder(path, runs)), when))
        except SepalError as error:  # a bad run is a line, and the others are listed
            rows.append((name_of(path), "", "", "", error.got, when))
    if rows:
        print_table("", ("run", "method", "data", "rounds", "state", "started"), rows)
    else:
        say(f"no runs in {directory}" if directory else "no runs yet: `sepal run` makes one")


def _row(path: Path) -> tuple[str, str, str, str]:
    from sepal.runs.stored_run import read_run

    run = read_run(path)
    rounds_over = sum(line["phase"] != "closing" for line in run.lines)
    state = "complete" if run.summary is not None else "unfinished"
    return str(run.config["method"]), str(run.config["dataset"]), f"{rounds_over}/{run.config['rounds']}", state


def _folder(path: Path, runs: Sequence[Path]) -> tuple[str, str, str, str]:
    from sepal.runs.stored_run import stored_config, stored_summary
    from sepal.storage.regular import is_regular
    from sepal.study.runs import INDEX, compared_in

    indexed = is_regular(path / INDEX)
    kind = "comparison, " if indexed else "tuning, " if is_regular(path / "chosen.toml") else ""
    trials = len({run.name for run in runs} - compared_in(path)) if indexed else 0
    counts = ((len(runs) - trials, "run"), (trials, "trial"))
    words = " and ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count)
    going = sum(stored_summary(run) is None for run in runs)
    data = str((stored_config(runs[0]) or {}).get("dataset", ""))
    return f"{kind}{words}", data, "", f"{going} unfinished" if going else "complete"


@app.command("models")
def list_models() -> None:
    """List the models: values of the key model, and the data sets whose default they are."""
    with starting():
        from sepal import models
        from sepal.cli.showing import print_table
        from sepal.data.catalogue import CATALOGUE

    defaults = {
        name: [data for data, info in CATALOGUE.items() if info.defaults["model"] == name] for name in models.names()
    }
    print_table("", ("model", "default for"), ((name, ", ".join(data)) for name, data in defaults.items()))
    say("Or your own: model=MODULE:FUNCTION (docs/own-model.md).")
