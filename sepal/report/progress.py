"""Shows progress: of one run, or of all runs of a plan; as bars on a terminal, otherwise as lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sepal.errors import SepalError
from sepal.report.tables import megabytes, percent
from sepal.runs.stored_run import stored_config
from sepal.server.report import RunFigures
from sepal.server.run_state import RoundRecord, RunState
from sepal.storage.regular import TEXT, check_parts, check_regular, is_regular
from sepal.study.plans.model import PlannedRun
from sepal.study.runs import UNFIT
from sepal.tasks.scoring import ACCURACY, measure_of

EVERY = 0.5  # seconds between reads of the runs' files
LINES = 60.0  # seconds between lines without a terminal
LAST = TEXT  # bytes of a run's lines that are read at a time, at most
CLOSING = "closing evaluation"


def bars(console: Console, clock: ProgressColumn) -> Progress:
    """Return bars with a description, rounds, figures and a clock; none without a terminal."""
    texts = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[figures]"))
    columns = (next(texts), BarColumn(bar_width=20), MofNCompleteColumn(), next(texts), clock)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def accuracies(line: Mapping[str, Any]) -> str:
    """Return the accuracies of a round's line, or the means of another headline, as text."""
    measure = measure_of(line)
    unit, name = f" {measure.unit}".rstrip(), "" if measure == ACCURACY else f"{measure.name} "
    return f"{name}received {percent(line, 'received', 'mean')}{unit} trained {percent(line, 'trained', 'mean')}{unit}"


def is_closing(line: Mapping[str, Any]) -> bool:
    """Return whether a line is that of the closing evaluation, which is none of the rounds that the user has set."""
    return bool(line["phase"] == "closing")


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
        """Start the display at round ``done`` of ``total`` rounds; the closing evaluation follows them."""
        self._total, self._first = total, None
        if not self._console.is_terminal:
            return
        self._bar = bars(self._console, TimeRemainingColumn())
        self._task = self._bar.add_task(self._label, total=total, completed=min(done, total), figures="")
        self._bar.start()

    def show(self, line: Mapping[str, Any]) -> None:
        """Show a round's line."""
        round, sizes = line["round"], line["bytes"]
        figures = f"{accuracies(line)} MB up {megabytes(sizes['up'])} down {megabytes(sizes['down'])}"
        closing = is_closing(line)
        if self._bar is not None:
            if closing:
                self._bar.update(self._task, figures=f"{CLOSING}: {figures}")
            else:
                next_up = f"; {CLOSING} …" if round == self._total else ""
                self._bar.update(self._task, completed=round, figures=figures + next_up)
            return
        which = CLOSING if closing else f"{round}/{self._total}"
        text = f"{self._label} {which} {figures}{'' if closing else self._left(round)}"
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _left(self, round: int) -> str:
        """Return the estimated time left, from the time since the first line, which excludes start-up."""
        now = time.monotonic()
        if self._first is None or round <= self._first[0]:
            self._first = round, now
            return ""
        pace = (now - self._first[1]) / (round - self._first[0])
        return f" {pace * (self._total + 1 - round):.0f} s left"

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

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """Remove the bar."""
        self.stop()


@dataclass
class _ShownRun:
    task: TaskID
    file: Path
    bytes_read: int = 0  # of the file, so far


class PlanDisplay:
    """Shows all runs of a plan, with a bar for each on a terminal.

    Without a terminal, it prints a line when a run starts or ends, and every minute how far the runs are.

    Args:
        console: The console; use standard error, so that a command's output can be piped.
        notes: Lines to show at the start.
    """

    def __init__(self, console: Console, notes: Sequence[str] = ()) -> None:
        self._notes = notes
        self._console, self._out, self._begun = console, Path(), time.monotonic()
        self._looked = self._begun - EVERY
        self._total, self._done = 0, 0
        self._going: dict[str, _ShownRun] = {}
        self._bars = bars(console, TimeElapsedColumn())
        self._all = self._bars.add_task("all runs", figures="")

    def __enter__(self) -> PlanDisplay:
        self._bars.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._bars.stop()

    def start(self, planned: int, missing: int, out: Path) -> None:
        """Start the display, with ``missing`` of ``planned`` runs left to run; they write to ``out``."""
        self._total, self._out = missing, out
        self._bars.update(self._all, total=planned, completed=planned - missing)
        for note in self._notes:
            self.say(note)
        self.say(f"{planned - missing} of {planned} runs are there already")

    def begin(self, run: PlannedRun) -> None:
        """Show a run that has been started."""
        if not self._console.is_terminal:
            self.say(f"{run.name} begins")
        task = self._bars.add_task(run.name, total=None, figures="starting")
        self._going[run.name] = _ShownRun(task, self._out / run.name / "metrics.jsonl")

    def end(self, name: str, trouble: str) -> None:
        """Show that a run has ended or, with ``trouble``, failed."""
        self._bars.remove_task(self._going.pop(name).task)
        self._bars.advance(self._all)
        self._done += 1
        words = f"failed: {trouble}" if trouble else "ended"
        self.say(f"{self._done}/{self._total} {name} {words} ({time.monotonic() - self._begun:.0f} s)")

    def look(self) -> None:
        """Show the runs' newest rounds."""
        if time.monotonic() < self._looked + (EVERY if self._console.is_terminal else LINES):
            return
        self._looked = time.monotonic()
        for name, going in self._going.items():
            row = _new_line(going)
            if row is None:
                continue
            try:
                line, rounds = json.loads(row), _rounds(going.file)
                figures, done = accuracies(line), int(line["round"]) - is_closing(line)
                which = CLOSING if is_closing(line) else f"round {done} of {rounds}"
            except (SepalError, RecursionError, *UNFIT):  # the run was begun elsewhere; its own process says what it is
                continue
            words = f"{CLOSING}: {figures}" if is_closing(line) else figures
            self._bars.update(going.task, completed=done, total=rounds, figures=words)
            if not self._console.is_terminal:
                self.say(f"{name} {which}, {figures}")

    def say(self, text: str) -> None:
        """Show a line."""
        self._bars.console.print(text, soft_wrap=True, highlight=False, markup=False)


def _new_line(going: _ShownRun) -> bytes | None:
    """Return the newest complete line since the last read; None if there is none, or the file is none of a run's."""
    try:
        check_regular(going.file)
        if not is_regular(going.file, going.file.parent):
            return None
        size = os.stat(going.file).st_size
        if size < going.bytes_read:
            going.bytes_read = 0  # the run was continued, and deleted lines
        start = max(going.bytes_read, size - LAST)
        with going.file.open("rb") as file:
            file.seek(start)
            text = file.read(LAST)
        check_parts(going.file, text)
    except (OSError, ValueError, SepalError):
        return None
    whole = text[: text.rfind(b"\n") + 1]
    going.bytes_read = start + len(whole)
    return whole.splitlines()[-1] if whole else None


def _rounds(metrics: Path) -> int | None:
    config = stored_config(metrics.parent)
    return int(config["rounds"]) if config else None
