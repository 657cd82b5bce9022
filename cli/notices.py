"""What a command that stays running tells its user, on standard error."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sepal.errors import ConfigError
from sepal.protocol.operation import LOG


@contextmanager
def starting() -> Iterator[None]:
    """Say so on a terminal while a command imports what it needs, which can take seconds."""
    words, erase = ("sepal: starting …", "\r\x1b[K") if sys.stderr.isatty() else ("", "")
    typer.echo(words, nl=False, err=True)
    try:
        yield
    finally:
        typer.echo(erase, nl=False, err=True)


def set_log(form: str) -> None:
    """Let all processes that this one starts write their log in ``form``: ``json``, or empty for text.

    Raises:
        ConfigError: It is another one.
    """
    if form not in ("", "json"):
        raise ConfigError("--log", "json", form)
    if form:
        os.environ[LOG] = form


def tell(line: str) -> None:
    """Print a line on standard error."""
    typer.echo(line, err=True)


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
        expected = f"a directory of `sepal certs` for {host}, or --insecure: anybody on the way reads and changes all"
        raise ConfigError("--certs", expected, "none")
    tell(
        "sepal: warning: without --certs nothing is encrypted, and anybody who reaches the server can join under any "
        "name, read models and updates, and change them"
    )


def loopback(host: str) -> bool:
    """Return whether ``host`` is an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
