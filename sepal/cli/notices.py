"""What a command that stays running tells its user, on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from sepal.errors import ConfigError, one_line
from sepal.operation.addresses import loopback
from sepal.report.printing import say

if TYPE_CHECKING:
    from sepal.config import Flat


@contextmanager
def starting(purpose: str = "", stays: bool = False) -> Iterator[None]:
    """Show on a terminal that a command is importing what it needs, which can take seconds; then erase that line.

    Args:
        purpose: What is prepared.
        stays: Print the line without a terminal too, where it stays: for a command that runs for days.
    """
    line = f"sepal: preparing {purpose}" if purpose else "sepal: starting"
    erased = sys.stderr.isatty()
    if erased:
        typer.echo(f"{line} …", nl=False, err=True)
    elif stays:
        tell(line)
    try:
        yield
    finally:
        if erased:
            typer.echo("\r\x1b[K", nl=False, err=True)


def what_of(flat: Flat) -> str:
    """Return a run's method and data set in words, before its keys are checked: ``fedpse on digits``."""
    from sepal.config import RunConfig

    method, data = (flat.get(key, RunConfig.model_fields[key].default) for key in ("method", "dataset"))
    return one_line(f"{method} on {data}", 100)


def set_log(form: str) -> None:
    """Let this process and all that it starts write their log in ``form``.

    Args:
        form: ``json``; ``text`` for lines with a time; or empty for lines without one, unless ``SEPAL_LOG`` says more.

    Raises:
        ConfigError: ``form`` is anything else.
    """
    if form not in ("", "json", "text"):
        raise ConfigError("--log", "json or text", form)
    if form:
        from sepal.operation.figures import LOG

        os.environ[LOG] = form


def tell(line: str, fault: bool = False, err: bool = True) -> None:
    """Print a line, with ``--log text`` behind its time, with ``--log json`` as JSON with its time, as the log has it.

    Args:
        line: The line.
        fault: Whether the command ends with it.
        err: Whether it goes to standard error.
    """
    from sepal.operation.figures import json_line, log_is_json

    if log_is_json():
        say(json_line(line, fault), err=err)
    else:
        show(line, err=err)


def show(line: str, err: bool = False) -> None:
    """Print a line of another process's log, which is JSON already with ``--log json``; with ``text``, with its time.

    Args:
        line: The line.
        err: Whether it goes to standard error.
    """
    from sepal.operation.figures import timed

    say(timed(line), err=err)


def tell_command(line: str) -> None:
    """Print a command line that is about to be run."""
    tell(f"+ {line}")


def check_plain_text(host: str, allowed: bool) -> None:
    """Warn of what is unprotected without certificates; refuse it beyond this machine unless it is allowed.

    Args:
        host: The address of the server, or on which it listens. A name other than ``localhost`` is another machine's.
        allowed: Whether ``--insecure`` was given.

    Raises:
        ConfigError: It is not allowed.
    """
    if not (allowed or loopback(host)):
        expected = (
            f"a directory of `sepal certs` for {host}, or --insecure, which lets anybody on the way read and change all"
        )
        raise ConfigError("--certs", expected, "none")
    tell(
        "sepal: warning: without --certs nothing is encrypted, and anybody who reaches the server can join under any "
        "name, read models and updates, and change them"
    )
