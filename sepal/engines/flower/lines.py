"""What ``sepal serve`` and ``sepal join`` show of the output of Flower's processes: Sepal's own lines.

Everything goes to a log file. The rest of it, by Flower and Uvicorn, is for who looks for a fault.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from sepal.operation.figures import CLOSING, LOG, NO_ANSWER
from sepal.operation.repeats import Heard
from sepal.protocol.client_errors import AWAY

BYTES, OLDER = 10_000_000, 2  # bytes of a log file, and how many older ones are kept beside it
OURS = "sepal: "
_CLOSING = re.compile(rf"{OURS}[\w.-]+: {CLOSING}")
SELDOM = 600.0  # seconds between two lines that say that the server does not answer
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ROUND = re.compile(r"\[RUN (\S+), ROUND (\d+)\]")
_SENT = re.compile(r"Sending: (\S+) message")
_FAILED = re.compile(rf"{OURS}[\w.-]+: {NO_ANSWER} (\S+) \(([\w-]+)\), code ")  # of sepal.client_app.app
_WORK = {"train": "trained, and the reply is on its way", "train.adapt": "evaluated, and the figures are on their way"}


class RotatingLog:
    """A log file that lines are appended to, with older ones beside it once it is full: ``FILE.1``, ``FILE.2``.

    Args:
        file: Its path.
    """

    def __init__(self, file: Path) -> None:
        self._file = _Silent(file, maxBytes=BYTES, backupCount=OLDER, delay=True, encoding="utf-8")

    def write(self, line: str) -> None:
        """Append a line without its end; it is lost where the file cannot be written."""
        self._file.emit(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Silent(RotatingFileHandler):
    """Without a traceback on the terminal for each line while a disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Leave a line out that a full disk does not take: the console has those that matter."""


class Lines:
    """Called with each line: writes it to the log file, and shows it if it is Sepal's or what it means is news.

    A node's process ends with each message, so lines of Sepal's that differ in numbers alone are told apart here: the
    first of a run is shown, and once the run closes, or another one begins, how often it came.

    Args:
        file: The log file.
        show: Shows a line.
        everything: Show all lines as they are; also where ``--log json`` was given, for a collector of logs.
    """

    def __init__(self, file: Path, show: Callable[[str], None], everything: bool = False) -> None:
        self._log = RotatingLog(file)
        self._show, self._everything = show, everything or os.environ.get(LOG) == "json"
        self._run, self._round, self._closing, self._lost = "", "", False, -SELDOM
        self._failed, self._away = set[str](), False
        self._heard = Heard()

    def __call__(self, line: str) -> None:
        """Take a line without its end."""
        plain = _COLOUR.sub("", line)
        self._log.write(plain)
        for news in [line] if self._everything else self._news(plain):
            self._show(news)

    def _counts(self) -> list[str]:
        """Return how often the lines of the run came that came more than once, and forget them."""
        heard, self._heard = self._heard, Heard()
        return [f"{OURS}{text}" for text in heard.lines()]

    def _news(self, line: str) -> list[str]:
        """Return what a line of Flower's SuperNode means for who watches it; nothing if it means nothing."""
        if _CLOSING.fullmatch(line):
            self._closing = True
            return self._counts()
        if match := _FAILED.match(line):
            self._failed.add(match[1])
            self._away = self._away or match[2] in AWAY
        if line.startswith(OURS):
            return [line] if self._heard.count(line.removeprefix(OURS)) == 1 else []
        if match := _ROUND.search(line):
            another, (self._run, self._round) = match[1] != self._run, match.groups()
            return self._counts() if another else []
        if "SuperNode ID" in line:
            return [f"{OURS}joined, and waits for the server's messages"]
        if match := _SENT.search(line):
            self._lost = -SELDOM
            if match[1] in self._failed:  # the reply is an error, of which a line before has told
                self._failed.remove(match[1])
                return []
            if match[1] not in _WORK:
                return []
            again, self._away = [f"{OURS}its files can be written again"] if self._away else [], False
            name, self._closing = "closing evaluation" if self._closing else f"round {self._round}", False
            return [*again, f"{OURS}{name}: {_WORK[match[1]]}"]
        if "Connection attempt failed" in line and time.monotonic() - self._lost >= SELDOM:
            self._lost = time.monotonic()
            ended = "the run may have ended, then Ctrl-C ends this client"
            return [f"{OURS}the server does not answer: {ended}; trying again"]
        return []
