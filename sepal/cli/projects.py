"""``sepal init`` and ``sepal check-method``: a new project, and the checks that a method of one's own passes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sepal.cli import completing
from sepal.cli.app import app
from sepal.cli.notices import starting
from sepal.errors import one_line
from sepal.report.printing import say


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="The project's directory; it may not exist, or must be empty.")],
) -> None:
    """Write a project: data, model, method, run.toml, and a test that runs."""
    from sepal.study.project import write_project

    for file in write_project(directory):
        say(f"{directory / file}")
    say(f"cd {shlex.quote(str(directory))}; sepal run --config run.toml; python -m pytest")


@app.command("check-method")
def check_method(
    method: Annotated[
        str,
        typer.Argument(
            help="MODULE:NAME of your method, or the name of an installed one.", autocompletion=completing.methods
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the short runs.", autocompletion=completing.keys),
    ] = None,
) -> None:
    """Check a method as Sepal checks its own, in short runs on handwritten digits; exit code 1 if a check fails.

    The checks that hold come first, then those that do not, each reason once.
    """
    with starting(method):
        from sepal.study.method_checks import CHECKS, Case, reason_of
        from sepal.study.run_keys import parse_sets

    case = Case(method, {**parse_sets(sets or []), "method": method})
    case.assembly()  # a method that cannot be loaded is one line
    broken: dict[str, list[str]] = {}
    for check in CHECKS:
        try:
            check.check(case)
        except Exception as error:  # also of the method's own code
            broken.setdefault(one_line(reason_of(error)), []).append(check.words)
        else:
            say(f"ok   {check.words}")
    for reason, checks in broken.items():
        say("\n".join([*(f"BAD  {check}" for check in checks), f"     {reason}"]))
    if broken:
        raise typer.Exit(1)
