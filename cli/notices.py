"""What a command that stays running tells its user, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def starting() -> Iterator[None]:
    """Say so on a terminal while a command imports what it needs, which can take seconds."""
    words, erase = ("sepal: starting …", "\r\x1b[K") if sys.stderr.isatty() else ("", "")
    typer.echo(words, nl=False, err=True)
    try:
        yield
    finally:
        typer.echo(erase, nl=False, err=True)


def tell(line: str) -> None:
    """Print a line on standard error."""
    typer.echo(line, err=True)


def tell_command(line: str) -> None:
    """Print a command line that is about to be run."""
    tell(f"+ {line}")


def warn_of_plain_text() -> None:
    """Warn of what is unprotected without certificates."""
    tell(
        "sepal: warning: without --certs nothing is encrypted, and anybody who reaches the server can join under any "
        "name, read models and updates, and change them"
    )
