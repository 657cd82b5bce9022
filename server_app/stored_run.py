"""Reads a run directory, without what it takes to run one: neither Flower nor the methods are imported."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepal.errors import ConfigError, StateError
from sepal.protocol.tasks.scoring import ACCURACY, Measure, measure_of
from sepal.server_app.json_lines import Line, read_rows

# Keys that a resumed run may change: locations, timeouts and limits, which do not change results.
FREE = frozenset({"name", "out", "data-dir", "state-dir", "timeout", "checkpoint-every", "max-message-bytes"})


def stored_config(path: Path) -> dict[str, Any] | None:
    """Return the flat keys with which the run at ``path`` was started; None if there is no run.

    Raises:
        StateError: ``config.toml`` cannot be read.
    """
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as reason:
        raise StateError(str(path / "config.toml"), "a readable TOML file", reason) from None


def stored_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of the run at ``path``; None if the run has not ended or the file is damaged."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) and summary.get("complete") is True else None


def begun(path: Path) -> bool:
    """Return whether the run at ``path`` has anything to lose: a checkpoint, lines of a round, or a summary.

    A run without them was refused or interrupted at its start, and may be started again with other keys.
    """
    files = (path / name for name in ("metrics.jsonl", "ledger.jsonl", "summary.json"))
    return any((path / "checkpoints").glob("round-*")) or any(file.exists() for file in files)


@dataclass(frozen=True)
class StoredRun:
    """A run directory's content.

    Attributes:
        config: Flat keys.
        path: The run directory.
        lines: Lines of metrics.jsonl, one per round; an incomplete last line is ignored.
        summary: Content of summary.json; None until the run has ended.
    """

    path: Path
    config: Mapping[str, Any]
    lines: tuple[Line, ...]
    summary: Mapping[str, Any] | None

    @property
    def measure(self) -> Measure:
        """The headline metric; accuracy before the first round."""
        return measure_of(self.lines[0]) if self.lines else ACCURACY

    @property
    def bytes(self) -> Mapping[str, Any]:
        """Bytes so far: of training, and of all purposes under ``total``; empty before the first round."""
        if self.summary is not None:
            return dict(self.summary["bytes"])
        return dict(self.lines[-1]["bytes"]) if self.lines else {}


def read_run(path: Path) -> StoredRun:
    """Read the run directory ``path``.

    Raises:
        ConfigError: It is not a run directory.
        StateError: Its config or its lines cannot be read.
    """
    config = stored_config(path)
    if config is None:
        raise ConfigError("run", "a run directory", str(path))
    needed = ("clients", "rounds", "seed", "method", "dataset")
    if lacking := [key for key in needed if key not in config]:
        raise StateError(str(path / "config.toml"), f"the keys {', '.join(needed)}", f"none named {lacking[0]}")
    summary = stored_summary(path)  # first: a run that ends in between has its last line before its summary
    lines = tuple(read_rows(path / "metrics.jsonl"))
    for number, line in enumerate(lines, 1):
        needed_here = {"round", "phase", "full", "bytes", "seconds", "clients"}
        if not needed_here <= line.keys() or not ("accuracy" in line or {"headline", "metric"} <= line.keys()):
            raise StateError(f"{path / 'metrics.jsonl'}, line {number}", "a line of metrics", "other keys")
    if summary is not None and (not lines or lines[-1].get("phase") != "closing"):
        got = f"one that ends at round {lines[-1]['round']}" if lines else "one without lines"
        raise StateError(str(path / "metrics.jsonl"), "the lines of a complete run, as summary.json says", got)
    return StoredRun(path, config, lines, summary)
