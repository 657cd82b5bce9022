"""Warnings that differ in numbers alone, as a round's or a client's, are one: told once, and at the end with a count.

So a run of a hundred rounds in which something is wrong in each says it in one line, and not in a hundred. The ledger
has every message that was refused or missing. A log as JSON lines (``--log json``) has every warning, for a collector.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sepal.operation.figures import LOG

log = logging.getLogger("sepal")
NUMBER = re.compile(r"\d+")


class Repeats(logging.Filter):
    """Passes the first warning of each kind, and counts it and the others."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, str] = {}
        self._count: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be shown: all that is below a warning is."""
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        kind = NUMBER.sub("#", text)
        self._first.setdefault(kind, text)
        self._count[kind] += 1
        return self._count[kind] == 1

    def lines(self) -> list[str]:
        """Return a line for each kind that came more than once, with its count."""
        return [f"{count} times: {self._first[kind]}" for kind, count in self._count.items() if count > 1]


@contextmanager
def told_once() -> Iterator[None]:
    """While the block runs, show a warning of each kind once; at its end, say how often those came that came again."""
    if os.environ.get(LOG) == "json":
        yield
        return
    repeats = Repeats()
    log.addFilter(repeats)
    try:
        yield
    finally:
        log.removeFilter(repeats)
        for line in repeats.lines():
            log.warning("%s", line)
