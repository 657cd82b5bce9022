"""Callbacks for a run's start, each round and its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from sepal.server.report import RunFigures
from sepal.server.run_state import RoundRecord, RunState
from sepal.tasks.scoring import headline, measure_of


class Observer(Protocol):
    """Receives the progress of a run, for example to draw a bar or to write files."""

    def opened(self, progress: RunState, total: int) -> None:
        """The run starts or continues from ``progress``; ``total`` is its number of rounds."""

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """A round is done, or was replayed; ``line`` is its line of metrics.jsonl."""

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """The closing round is done and its checkpoint written."""


@runtime_checkable
class UndoObserver(Protocol):
    """An observer that has to know when rounds are undone (:mod:`sepal.server.recovery`)."""

    def undone(self, progress: RunState, record: RoundRecord) -> None:
        """The run has gone back to ``progress``; ``record`` has what the undone rounds have cost."""


class RoundLines:
    """Logs a line per round; an :class:`Observer`."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._total = log, 0

    def opened(self, progress: RunState, total: int) -> None:
        """Log the number of clients and rounds."""
        self._total = total
        who = f"{len(progress.roster)} clients" if progress.roster else "clients to be drawn"
        done = progress.round
        self._log.info("%s, from %s", who, f"round {done + 1} of {total}" if done < total else "the closing evaluation")

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Log the round's accuracy or other headline, bytes and time."""
        measure = measure_of(line)
        views = [f"{view} {measure.text(figures['mean'])}" for view, figures in headline(line).items() if figures]
        sent = f"MB up {line['bytes']['up'] / 1e6:.3g} down {line['bytes']['down'] / 1e6:.3g}"
        which = "closing evaluation" if line["phase"] == "closing" else f"round {record.round}/{self._total}"
        self._log.info("%s: %s, %s, %.1f s", which, " ".join(views) or "not evaluated", sent, record.seconds["total"])

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """Do nothing: the last round was logged."""
