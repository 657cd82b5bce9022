"""What the commands print goes through here, and so through :func:`sepal.errors.printable`.

Names of files, what runs and models have stored, and errors of elsewhere may hold terminal escapes and marks that turn
the direction of writing. A test sees to it that no command prints in another way. Tables: :mod:`sepal.report.console`.
"""

from __future__ import annotations

import typer

from sepal.errors import printable


def say(text: str, err: bool = False, nl: bool = True) -> None:
    """Print lines, on standard error with ``err``; ``nl`` ends the last one."""
    typer.echo(printable_lines(text), err=err, nl=nl)


def printable_lines(text: str) -> str:
    """Return printable text; its line ends stay."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
