"""Shows the progress of all runs of a plan in one display, with a bar for each run on a terminal.

Without a terminal, it prints a line when a run starts or ends, and every minute how far the runs are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sepal.cli.plans.model import PlannedRun
from sepal.cli.tables import percent

EVERY = 0.5  # seconds between reads of the runs' files
LINES = 60.0  # seconds between lines without a terminal


@dataclass
class _Going:
    task: TaskID
    file: Path
    seen: int = 0  # bytes of the file read so far


class PlanDisplay:
    """Shows all runs of a plan.

    Args:
        console: The console; use standard error, so that a command's output can be piped.
        notes: Lines to show at the start.
    """

    def __init__(self, console: Console, notes: Sequence[str] = ()) -> None:
        self._notes = notes
        self._console, self._out, self._begun = console, Path(), time.monotonic()
        self._looked = self._begun - EVERY
        self._total, self._done = 0, 0
        self._going: dict[str, _Going] = {}
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
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
            self._say(note)
        self._say(f"{planned - missing} of {planned} runs are there already")

    def begin(self, run: PlannedRun) -> None:
        """Show a run that has been started."""
        if not self._console.is_terminal:
            self._say(f"{run.name} begins")
        task = self._bars.add_task(run.name, total=None, figures="starting")
        self._going[run.name] = _Going(task, self._out / run.name / "metrics.jsonl")

    def end(self, name: str, trouble: str) -> None:
        """Show that a run has ended or, with ``trouble``, failed."""
        self._bars.remove_task(self._going.pop(name).task)
        self._bars.advance(self._all)
        self._done += 1
        words = f"failed: {trouble}" if trouble else "ended"
        self._say(f"{self._done}/{self._total} {name} {words} ({time.monotonic() - self._begun:.0f} s)")

    def look(self) -> None:
        """Show the runs' newest rounds."""
        if time.monotonic() < self._looked + (EVERY if self._console.is_terminal else LINES):
            return
        self._looked = time.monotonic()
        for name, going in self._going.items():
            row = _new_line(going)
            if row is None:
                continue
            line, rounds = json.loads(row), _rounds(going.file)
            figures = f"received {percent(line, 'received', 'mean')} % trained {percent(line, 'trained', 'mean')} %"
            self._bars.update(going.task, completed=line["round"], total=rounds, figures=figures)
            if not self._console.is_terminal:
                self._say(f"{name} round {line['round']} of {rounds}, {figures}")

    def _say(self, text: str) -> None:
        self._bars.console.print(text, soft_wrap=True, highlight=False, markup=False)


def _new_line(going: _Going) -> bytes | None:
    """Return the newest complete line since the last read; None if there is none."""
    try:
        if os.stat(going.file).st_size < going.seen:
            going.seen = 0  # the run was continued, and deleted lines
        with going.file.open("rb") as file:
            file.seek(going.seen)
            text = file.read()
    except OSError:
        return None
    whole = text[: text.rfind(b"\n") + 1]
    going.seen += len(whole)
    return whole.splitlines()[-1] if whole else None


def _rounds(metrics: Path) -> int | None:
    from sepal.server_app.run_directory import stored_config

    config = stored_config(metrics.parent)
    return int(config["rounds"]) + 1 if config else None
