"""Executes one run of a plan in its own process.

When the process that started it ends, for whatever reason, a pipe between them is closed and the run ends at once. It
can be continued from its last checkpoint, as after any kill.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from sepal import user_modules
from sepal.errors import SepalError

BAD_INPUT = 2


def run(lifeline: Connection, log: Path, keys: Mapping[str, Any], workers: int) -> None:
    """Execute a run: the main function of its process.

    Args:
        lifeline: Closed at its other end when the process that started this one ends.
        log: Takes what is printed.
        keys: The run's keys, as in its file, and ``out``.
        workers: Its worker processes.
    """
    os.setsid()  # a Ctrl-C reaches it only once, through the process that started it
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    user_modules.enable(Path.cwd())
    from sepal.study.run import execute, prepare

    try:
        execute(prepare(dict(keys), Path.cwd()), workers)
    except SepalError as error:
        print(f"sepal: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _end_with_parent(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):  # nothing is ever sent
        lifeline.recv_bytes()
    os._exit(1)
