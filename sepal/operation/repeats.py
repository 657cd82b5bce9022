"""Warnings that differ in numbers alone, as a round's or a client's, are one: told once, and at the end with a count.

So a run of a hundred rounds in which something is wrong in each says it in one line, and not in a hundred. The ledger
has every message that was refused or missing. A log as JSON lines (``--log json``) has every warning, for a collector.

:func:`told_once` does it for a run in this process, :class:`Heard` for what ``sepal join`` reads of a node's processes,
and :class:`Seldom` for a Ray actor, which does not know when its run ends.
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


class Heard:
    """Counts texts of each kind: those that differ in numbers alone."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._count: Counter[str] = Counter()

    def count(self, text: str) -> int:
        """Count ``text``, and return how many of its kind there were, itself among them."""
        kind = NUMBER.sub("#", text)
        self._first.setdefault(kind, text)
        self._count[kind] += 1
        return self._count[kind]

    def lines(self) -> list[str]:
        """Return a line for each kind that came more than once, with its count."""
        return [f"{count} times: {self._first[kind]}" for kind, count in self._count.items() if count > 1]


class Repeats(logging.Filter):
    """Passes the first warning of each kind, and counts it and the others in ``heard``."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = Heard()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be shown: all that is below a warning is."""
        return record.levelno < logging.WARNING or self.heard.count(record.getMessage()) == 1


class Seldom(logging.Filter):
    """Passes the first, tenth, hundredth, ... of Sepal's warnings of each kind, from the second on with their count."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = Heard()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be shown, perhaps with a count."""
        if record.levelno < logging.WARNING or record.name != log.name:
            return True
        text = record.getMessage()
        digits = str(count := self._heard.count(text))
        if count > 1:
            record.msg, record.args = f"{count} times so far: {text}", ()
        return digits.rstrip("0") == "1"


@contextmanager
def told_once() -> Iterator[None]:
    """While the block runs, show a warning of each kind once; at its end, say how often those came that came again.

    A block within another one leaves it to that one.
    """
    if os.environ.get(LOG) == "json" or any(isinstance(log_filter, Repeats) for log_filter in log.filters):
        yield
        return
    repeats = Repeats()
    log.addFilter(repeats)
    try:
        yield
    finally:
        log.removeFilter(repeats)
        for line in repeats.heard.lines():
            log.warning("%s", line)
