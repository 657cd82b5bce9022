"""``sepal backup``: a copy of a run that goes on, from which it can be continued."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sepal.cli.app import app
from sepal.cli.options import Run
from sepal.errors import StateError
from sepal.report.printing import say


@app.command()
def backup(
    run: Run,
    directory: Annotated[Path, typer.Argument(help="Where the copy goes, on another disk: DIRECTORY/NAME.")],
    every: Annotated[
        float, typer.Option(min=0, metavar="MINUTES", help="Copy again every so many minutes, until the run has ended.")
    ] = 0.0,
) -> None:
    """Copy a run while it goes on: keys, checkpoints, records, figures. The copy replaces an older one."""
    from sepal.runs.backup import back_up
    from sepal.runs.stored_run import stored_summary
    from sepal.study.runs import find_run

    path = find_run(run)
    while True:
        ended = stored_summary(path) is not None
        try:
            copy, round = back_up(path, directory)
        except StateError as reason:
            if not every or ended:
                raise
            say(f"{datetime.now():%Y-%m-%d %H:%M:%S} no copy, and tried again in {every:g} minutes: {reason}", err=True)
        else:
            say(f"{datetime.now():%Y-%m-%d %H:%M:%S} copied to {copy}, with its checkpoint of round {round}")
            if not every or ended:
                return
        time.sleep(60 * every)
