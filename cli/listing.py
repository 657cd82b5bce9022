"""Commands that list what there is: runs, data sets, models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting

if TYPE_CHECKING:
    from sepal.server_app.stored_run import StoredRun


@app.command("ls")
def list_runs(
    directory: Annotated[Path | None, typer.Argument(help="By default runs/ here and in $SEPAL_HOME.")] = None,
) -> None:
    """List runs, the newest first: name, method, data, rounds, state."""
    with starting():
        from sepal.cli.showing import print_table
        from sepal.errors import SepalError
        from sepal.server_app.stored_run import read_run
        from sepal.study.runs import runs_in

    rows = []
    for path in runs_in(directory):
        try:
            rows.append(_row(read_run(path)))
        except SepalError as error:
            rows.append((path.name, "", "", "", error.got))
    if rows:
        print_table("", ("run", "method", "data", "rounds", "state"), rows)
    else:
        typer.echo("no runs yet: `sepal run` makes one")


def _row(run: StoredRun) -> tuple[str, str, str, str, str]:
    done = sum(line["phase"] != "closing" for line in run.lines)
    state = "complete" if run.summary is not None else "unfinished"
    return run.path.name, str(run.config["method"]), str(run.config["dataset"]), f"{done}/{run.config['rounds']}", state


@app.command("data")
def list_data() -> None:
    """List the data sets: values of the key dataset, what they hold, and whether their files are here."""
    with starting():
        from sepal.cli.showing import print_table
        from sepal.data.catalogue import CATALOGUE
        from sepal.data.sources import is_here

    rows = []
    for name, info in sorted(CATALOGUE.items()):
        shape = "x".join(map(str, info.input_shape))
        rows.append((name, info.kind, shape, str(info.classes), info.partition, "yes" if is_here(name) else "no"))
    print_table("", ("dataset", "kind", "shape", "classes", "partition", "here"), rows)
    typer.echo("Your own files: dataset=folder data-dir=DIRECTORY, or dataset=hf hf.name=OWNER/NAME of Hugging Face.")
    typer.echo("Your own code: dataset=own own.data=MODULE:FUNCTION.")


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
    typer.echo("Or your own: model=MODULE:FUNCTION (docs/own-model.md).")
