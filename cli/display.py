"""Shows a run's progress: a bar on a terminal, otherwise a line per round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sepal.cli.tables import megabytes, percent
from sepal.server.report import Report
from sepal.server.run_state import RoundRecord, RunState


class RoundDisplay:
    """Shows round, received and trained accuracy, MB up and down, and the time left.

    It is a :class:`sepal.server.observer.Observer`. It can also show lines that another process writes.

    Args:
        console: The console; use standard error, so that a command's output can be piped.
        label: Label of the run.
        notes: Lines to show when the run starts.
    """

    def __init__(self, console: Console, label: str, notes: Sequence[str] = ()) -> None:
        self._console, self._label, self._notes, self._total = console, label, notes, 0
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._first: tuple[int, float] | None = None  # round and time of the first line

    def start(self, done: int, total: int) -> None:
        """Start the display at round ``done`` of ``total`` rounds plus the closing round."""
        self._total, self._first = total + 1, None
        if not self._console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task(self._label, total=self._total, completed=done, figures="")
        self._bar.start()

    def show(self, line: Mapping[str, Any]) -> None:
        """Show a round's line."""
        round, sizes = line["round"], line["bytes"]
        accuracy = f"received {percent(line, 'received', 'mean')} % trained {percent(line, 'trained', 'mean')} %"
        figures = f"{accuracy} MB up {megabytes(sizes['up'])} down {megabytes(sizes['down'])}"
        if self._bar is not None:
            self._bar.update(self._task, completed=round, figures=figures)
            return
        text = f"{self._label} {round}/{self._total} {figures}{self._left(round)}"
        self._console.print(text, soft_wrap=True, highlight=False)

    def _left(self, round: int) -> str:
        """Return the estimated time left, from the time since the first line, which excludes start-up."""
        now = time.monotonic()
        if self._first is None or round <= self._first[0]:
            self._first = round, now
            return ""
        pace = (now - self._first[1]) / (round - self._first[0])
        return f" {pace * (self._total - round):.0f} s left"

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> RoundDisplay:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    # sepal.server.observer.Observer

    def opened(self, progress: RunState, total: int) -> None:
        """Start the display."""
        for note in self._notes:
            self._console.print(f"sepal: {note}", soft_wrap=True, highlight=False, markup=False)
        self.start(progress.round, total)

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Show the round's line."""
        self.show(line)

    def closed(self, progress: RunState, report: Report) -> None:
        """Remove the bar."""
        self.stop()
