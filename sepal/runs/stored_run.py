"""Reads a run directory, without what it takes to run one: neither Flower nor the methods are imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sepal.config import Mark, RunConfig, former_values, marked
from sepal.config.elsewhere import permits
from sepal.errors import ConfigError, StateError
from sepal.protocol.views import MODELS
from sepal.runs.json_lines import Line, cleaned, read_rows
from sepal.storage.regular import read_text
from sepal.storage.toml_text import parse_toml
from sepal.strategies import registry
from sepal.tasks.scoring import Measure, measure_of

ABOUT = "about.json"
RATE_OF = "rate_of"  # field of about.json
FORMAT = 1  # of the run directory (docs/versioning.md); a run without the number has this one
# Keys that a resumed run may change: locations, timeouts and limits, which do not change results.
FREE = frozenset(marked(RunConfig, Mark.FREE))
LISTED = marked(RunConfig, Mark.LISTED)


def stored_config(path: Path) -> dict[str, Any] | None:
    """Return the flat keys with which the run at ``path`` was started; None if there is no run.

    Raises:
        StateError: ``config.toml`` cannot be read.
    """
    try:
        return parse_toml(read_text(path / "config.toml", within=path))
    except StateError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as reason:
        raise StateError(str(path / "config.toml"), "a readable TOML file", reason) from None


def started_with(path: Path, key: str, stored: Any, current: Any) -> ConfigError:
    """Return the error of a key that is not what the run at ``path`` was started with."""
    way = f"give another --name (in Python name=), or delete {path}"
    return ConfigError(key, f"{stored!r}, with which the run {path.name} was started", f"{current!r}; {way}")


def stored_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of the run at ``path``; None if the run has not ended or the file is damaged."""
    summary = _read_json(path, "summary.json")
    return summary if summary.get("complete") is True else None


def stored_about(path: Path) -> dict[str, Any]:
    """Return ``about.json`` of the run at ``path``; empty if there is none or it is damaged.

    Raises:
        StateError: The run directory has another format.
    """
    about = _read_json(path, ABOUT)
    if (written := about.get("format", FORMAT)) != FORMAT:
        raise StateError(str(path), f"a run directory of format {FORMAT}", f"{written}, of another release of Sepal")
    return about


def _read_json(path: Path, name: str) -> dict[str, Any]:
    """Return a JSON object in a run's file, with printable texts; an empty one if it is missing or damaged."""
    try:
        content = json.loads(read_text(path / name, within=path))
        return cleaned(content) if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError, StateError):
        return {}


def begun(path: Path) -> bool:
    """Return whether the run at ``path`` has anything to lose: a checkpoint, lines of a round, or a summary.

    A run without them was refused or interrupted at its start, and may be started again with other keys.
    """
    files = (path / name for name in ("metrics.jsonl", "ledger.jsonl", "summary.json"))
    try:
        return any((path / "checkpoints").glob("round-*")) or any(file.exists() for file in files)
    except OSError:  # of a name that no file can have
        return False


@dataclass(frozen=True)
class Allowed:
    """What looking at a run may do beyond reading its files: nothing, unless the reader says so.

    Attributes:
        code: What may be imported if the run's config names it: ``package.module:NAME``, or all of ``package.module``.
        data: Whether the data that its config names may be read, or asked for over the network.
    """

    code: frozenset[str] = frozenset()
    data: bool = False


NOTHING = Allowed()


@dataclass(frozen=True)
class StoredRun:
    """A run directory's content. All texts in it are printable (:func:`sepal.errors.printable`).

    Attributes:
        config: Flat keys.
        path: The run directory.
        lines: Lines of metrics.jsonl, one per round; an incomplete last line is ignored.
        summary: Content of summary.json; None until the run has ended.
        about: Content of about.json (:mod:`sepal.runs.about`); empty for a run of an earlier version.
        allowed: What the reader allows beyond the run's files.
    """

    path: Path
    config: Mapping[str, Any]
    lines: tuple[Line, ...]
    summary: Mapping[str, Any] | None
    about: Mapping[str, Any] = field(default_factory=dict)
    allowed: Allowed = NOTHING

    @property
    def measure(self) -> Measure:
        """The headline metric."""
        return measure_of(self.lines[0] if self.lines else self.about)

    @property
    def method(self) -> str:
        """The method's name, or ``package.module:NAME`` of the user's own."""
        return str(self.config["method"])

    @property
    def deployed(self) -> str:
        """The view of the model that a user of a deployed client predicts with; empty if unknown.

        It is read from the record of a built-in or installed method, and from the run for the user's own. An older run
        has not stored it: it has none, unless its method may be imported.
        """
        if view := registry.deployed(self.method):
            return view
        if ":" in self.method and permits(self.allowed.code, self.method):
            return registry.get(self.method).deployed
        stored = self._method.get("deployed")
        return str(stored) if stored in MODELS else ""

    @property
    def title(self) -> str:
        """What the method is, in one line, as the run has stored it; empty if it has not."""
        return str(self._method.get("title", ""))

    @property
    def rate_of(self) -> str:
        """The other method for which the run's ``lr`` was calibrated; empty where it was set, or for its own method."""
        stored = self.about.get(RATE_OF)
        return stored if isinstance(stored, str) else ""

    @property
    def _method(self) -> Mapping[str, Any]:
        method = self.about.get("method")
        return method if isinstance(method, dict) else {}

    @property
    def bytes(self) -> Mapping[str, Any]:
        """Bytes so far: of training, and of all purposes under ``total``; empty before the first round."""
        if self.summary is not None:
            return dict(self.summary["bytes"])
        return dict(self.lines[-1]["bytes"]) if self.lines else {}


def read_run(path: Path, allowed: Allowed = NOTHING) -> StoredRun:
    """Read the run directory ``path``: its files and nothing else. No link leads out of it.

    Args:
        path: The directory.
        allowed: What may be done beyond, when something is drawn of the run.

    Raises:
        ConfigError: It is not a run directory.
        StateError: Its config or its lines cannot be read, or it has another format.
    """
    config = stored_config(path)
    if config is None:
        raise ConfigError("run", "a run directory", str(path))
    config = {**{key: value for key, value in former_values(RunConfig).items() if key in LISTED}, **config}
    if lacking := [key for key in LISTED if key not in config]:
        raise StateError(str(path / "config.toml"), f"the keys {', '.join(LISTED)}", f"none named {lacking[0]}")
    summary = stored_summary(path)  # first: a run that ends in between has its last line before its summary
    lines = tuple(read_rows(path / "metrics.jsonl"))
    last = 0
    for number, line in enumerate(lines, 1):
        needed_here = {"round", "phase", "full", "bytes", "seconds", "clients"}
        if not needed_here <= line.keys() or not ("accuracy" in line or {"headline", "metric"} <= line.keys()):
            raise StateError(f"{path / 'metrics.jsonl'}, line {number}", "a line of metrics", "other keys")
        if not isinstance(line["round"], int) or line["round"] <= last:
            where, expected = f"{path / 'metrics.jsonl'}, line {number}", f"a round after {last}"
            raise StateError(where, expected, line["round"])
        last = line["round"]
    if summary is not None and (not lines or lines[-1].get("phase") != "closing"):
        got = f"one that ends at round {lines[-1]['round']}" if lines else "one without lines"
        raise StateError(str(path / "metrics.jsonl"), "the lines of a complete run, as summary.json says", got)
    return StoredRun(path, cleaned(config), lines, summary, stored_about(path), allowed)
