"""``sepal clean``: lists and removes what past runs have left on this machine."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting
from sepal.errors import StateError
from sepal.report.printing import say


@app.command()
def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this, it is only listed.")] = False,
    days: Annotated[float, typer.Option(min=0, help="What was not used for so many days.")] = 30.0,
    run: Annotated[
        str,
        typer.Option(metavar="NAME|UUID", help="What this run has left, alone; also if it never ended, or just did."),
    ] = "",
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory of clients' states; by default ~/.sepal/state.")
    ] = None,
) -> None:
    """List what ended runs have left here: a client's states, a server's own files, prepared data; --yes removes it.

    Runs themselves stay, and so do counts of uploads, what noise is drawn from, and audit logs.
    """
    with starting():
        from sepal.cli.showing import print_table
        from sepal.storage.regular import expanded
        from sepal.study.cleaning import leftovers, remove
        from sepal.study.runs import LATEST

    candidates = leftovers(days, run, expanded("--state-dir", state_dir).absolute() if state_dir else None)
    rows, in_use = [], []
    for item in candidates:
        if item.stays:
            does = f"stays: {item.stays}"
        elif not yes:
            does = "may go"
        elif remove(item):
            does = "removed"
        else:
            does = "stays: in use"
            in_use.append(item)
        when = f"{datetime.fromtimestamp(min(item.used, LATEST)):%Y-%m-%d}"
        rows.append((item.what, f"{item.bytes / 1e6:.3g}", when, str(item.directory), does))
    if not rows:
        say("nothing is left of past runs")
        return
    print_table("", ("what", "MB", "last used", "where", ""), rows)
    size = sum(item.bytes for item in candidates if not item.stays and item not in in_use) / 1e6
    say(f"{size:.3g} MB removed" if yes else f"{size:.3g} MB may go: --yes removes them")
    if in_use:
        raise StateError(
            str(in_use[0].directory), "files that nobody uses", f"{len(in_use)} in use; run it again later"
        )
