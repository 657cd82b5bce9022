"""Moves the wall clock of a test's processes by the seconds in a file, and shortens Flower's heartbeats.

First on a process's PYTHONPATH, Python imports this at its start. Monotonic clocks and sleeps stay as they are.
"""

import datetime
import os
import time

import flwr.common.constant as names

real_time = time.time


def moved() -> float:
    """Return by how many seconds the clock is ahead."""
    try:
        with open(os.environ["SEPAL_TEST_CLOCK"], encoding="utf-8") as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


# Before others import them: a task without a heartbeat for 20 s has ended; it sends one every 15 s.
names.HEARTBEAT_DEFAULT_INTERVAL, names.HEARTBEAT_PATIENCE, names.HEARTBEAT_CALL_TIMEOUT = 20, 1, 1
import flwr.supercore.date as dates  # noqa: E402

real_now = dates.now
time.time = lambda: real_time() + moved()
dates.now = lambda: real_now() + datetime.timedelta(seconds=moved())
