"""``sepal doctor``: what this machine has and lacks for a run."""

from __future__ import annotations

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting
from sepal.report.printing import say


@app.command()
def doctor() -> None:
    """Say what this machine has and lacks for a run; exit code 1 if a run cannot start here. Nothing is written."""
    with starting("the examination"):
        from sepal.study.machine import examine

    stopped = False
    for finding in examine():
        mark = "ok  " if finding.good else "BAD " if finding.stops else "note"
        say(f"{mark} {finding.check}: {finding.words}")
        stopped |= finding.stops
    if stopped:
        raise typer.Exit(1)
