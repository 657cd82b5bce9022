"""Reads TOML that somebody else may have written: bounded sizes, names of few parts, and numbers as TOML has them.

:mod:`tomllib` takes time and memory with the square of the number of parts of a dotted name: 100 kB of ``a.a.a…`` took
85 seconds. And it reads whole numbers of any size, which Python then refuses to print.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_TEXT = 1 << 20  # characters; a table takes a few hundred times the memory of the shortest text for it
MOST_PARTS = 16  # of a dotted name; the deepest of ours has five
# No part begins within a word or at an escaped quote, so that the search takes time with the length of the text alone.
_PART = r"""(?:(?<![\w-])[\w-]+|(?<!\\)"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_LONG = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_PARTS}}}", re.ASCII)


def parse_toml(text: str, most: int = MOST_TEXT) -> dict[str, Any]:
    """Return the table that ``text`` is.

    Args:
        text: TOML.
        most: Characters that it may have.

    Raises:
        ValueError: It is no TOML, has more characters, a name of more than ``MOST_PARTS`` parts, or a whole number
            that 64 bits do not hold.
        RecursionError: Its lists or tables are nested too deeply.
    """
    if len(text) > most:
        raise ValueError(f"more than {most:,} characters")
    if _LONG.search(text):
        raise ValueError(f"a name of more than {MOST_PARTS} parts")
    table = tomllib.loads(text)
    values: list[Any] = [table]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("a whole number of more than 64 bits")
    return table
