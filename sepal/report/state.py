"""How far runs are, for the page of runs that go on."""

from __future__ import annotations

import time

from sepal.report.data import with_cell
from sepal.report.sentences import first_point
from sepal.study.comparison import Comparison
from sepal.study.results import RunResult

RECENT = 10  # rounds whose mean time is that of the rounds to come
SILENT = 60.0  # seconds without a round, and as many usual rounds, after which a run may have been stopped
LISTED = 6  # runs that go on, at most, that are listed


def state(comparison: Comparison) -> list[tuple[str, bool]]:
    """Return sentences, each with whether its run goes on: how many runs have ended, how far each other one is."""
    going = [result for result in comparison.results if result.stored.summary is None]
    ended = len(comparison.results) - len(going)
    sentences = []
    if len(comparison.results) == 1 and ended:
        sentences.append((f"Ended after {comparison.results[0].rounds} rounds.", False))
    elif ended:
        sentences.append((f"{ended} of {len(comparison.results)} runs have ended.", False))
    for result in going[:LISTED]:
        name = "" if len(comparison.results) == 1 else f"{with_cell(result.label, result.cell)}, seed {result.seed}: "
        sentences.append((name + progress(result, time.time()), True))
    return sentences


def progress(result: RunResult, now: float) -> str:
    """Return a run's round, the time left and its clients; before it has any, when they come. ``now``: in seconds."""
    rounds, lines = result.rounds, result.stored.lines
    if not lines:
        return f"starting, round 0 of {rounds}; the line begins when round 1 ends. {first_point(result.stored.config)}"
    rounds_over, last = min(int(lines[-1]["round"]), rounds), lines[-1]
    took = [line["seconds"]["total"] + line["seconds"]["server"] for line in lines[-RECENT:]]
    pace = sum(took) / len(took)
    quiet = now - (result.stored.path / "metrics.jsonl").stat().st_mtime
    parts = [f"round {rounds_over} of {rounds}"]
    if quiet > max(SILENT, RECENT * pace):
        parts.insert(0, f"no round for {_span(quiet)}: perhaps it was stopped")
    else:
        parts.insert(0, "running")
        parts.append(f"about {_span(pace * (rounds + 1 - rounds_over))} left")
    of = result.stored.config["clients"] or last.get("population", 0)
    parts.append(f"{len(last['clients'])} of {of} clients present in the last round")
    return ", ".join(parts)


def _span(seconds: float) -> str:
    """Return ``40 s``, ``12 min`` or ``3.5 h``."""
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
