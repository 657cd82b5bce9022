"""Callbacks for a run's start, each round and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from sepal.server.report import Report
from sepal.server.run_state import RoundRecord, RunState


class Observer(Protocol):
    """Receives the progress of a run, for example to draw a bar or to write files."""

    def opened(self, progress: RunState, total: int) -> None:
        """The run starts or continues from ``progress``; ``total`` is its number of rounds."""

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """A round is done, or was replayed; ``line`` is its line of metrics.jsonl."""

    def closed(self, progress: RunState, report: Report) -> None:
        """The closing round is done and its checkpoint written."""


@runtime_checkable
class UndoObserver(Protocol):
    """An observer that has to know when rounds are undone (:mod:`sepal.server.recovery`)."""

    def undone(self, progress: RunState, record: RoundRecord) -> None:
        """The run has gone back to ``progress``; ``record`` has what the undone rounds have cost."""
