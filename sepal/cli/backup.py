"""``sepal backup``: a copy of a run that goes on, from which it can be continued."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sepal.cli.app import app
from sepal.cli.notices import tell
from sepal.cli.options import Run
from sepal.errors import StateError


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
            tell(with_time(f"sepal: warning: no copy, and tried again in {every:g} minutes: {reason}"))
        else:
            tell(with_time(f"sepal: copied to {copy}, with its checkpoint of round {round}"), err=False)
            if not every or ended:
                return
        time.sleep(60 * every)


def with_time(line: str) -> str:
    """Return a line with its time (UTC) before it, unless ``SEPAL_LOG`` puts one there."""
    from sepal.operation.figures import LOG

    return line if os.environ.get(LOG) else f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}"
