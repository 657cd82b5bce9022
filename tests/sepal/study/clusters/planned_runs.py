"""What tests of tasks share: a small run, and a display that keeps its lines."""

from __future__ import annotations

import time

from sepal.study.plans.model import PlannedRun

KEYS = {"method": "local", "dataset": "digits", "clients": 2, "rounds": 1, "partition.subsample": 60, "seed": 0}


class Shown:
    """A display that keeps what it shows."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, run):
        self.lines.append(f"{run.name} begins")

    def look(self):
        pass

    def say(self, text):
        self.lines.append(text)


def planned(**keys):
    return PlannedRun("", "", "local", 0, {**KEYS, "name": "r", **keys})


def is_the_end(workers, going):
    """Wait until one task is over, and return whether it is this one."""
    until = time.monotonic() + 120
    while not (over := workers.ended([going])):
        assert time.monotonic() < until
    return over == [going]
