"""The rule for names of clients and runs, which become names of directories."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")  # names of clients and runs become names of directories


def client_name(number: int) -> str:
    """Return the name of the client with partition ``number``. Names sort like numbers."""
    return f"client-{number:05d}"
