"""Finds and reads run directories, of finished and running runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepal.client.state_store import DiskStateStore
from sepal.errors import ConfigError, StateError
from sepal.protocol.messages import is_version, version_round
from sepal.server_app.run_directory import IN_PROCESS, default_base, stored_config, stored_summary
from sepal.strategies.assembly import Assembly

Line = Mapping[str, Any]
INDEX = "comparison.json"  # the list of runs in a directory of `sepal compare`


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
    def bytes(self) -> Mapping[str, Any]:
        """Bytes so far: of training, and of all purposes under ``total``; empty before the first round."""
        if self.summary is not None:
            return dict(self.summary["bytes"])
        return dict(self.lines[-1]["bytes"]) if self.lines else {}


@dataclass(frozen=True)
class NewestState:
    """A client's newest state: its round, the state itself (None if it is damaged), and the store that holds it."""

    round: int
    state: Any
    store: DiskStateStore


def newest_state(path: Path, assembly: Assembly, client: str) -> NewestState | None:
    """Return the newest state of a client of the run at ``path``; None if it has none here."""
    files = [file for file in path.glob(f"clients/*/{client}/*.safetensors") if is_version(file.stem)]
    states = sorted(files, key=lambda file: version_round(file.stem))
    if not states:
        return None
    store = DiskStateStore(states[-1].parent, assembly.method.client_state, durable=False)
    stored = store.load(states[-1].stem)
    return NewestState(version_round(states[-1].stem), stored.state if stored else None, store)


def find_run(text: str) -> Path:
    """Return the run directory for ``text``: a path, or a name under ``runs/`` here or in ``$SEPAL_HOME``.

    Raises:
        ConfigError: There is no such run.
    """
    return _find(text, ("config.toml",), "a run directory")


def find_place(text: str) -> Path:
    """Return the directory of a run or a comparison for ``text``, which is a path or a name, as for :func:`find_run`.

    Raises:
        ConfigError: There is neither.
    """
    return _find(text, ("config.toml", INDEX), "a directory of a run or a comparison")


def _find(text: str, files: tuple[str, ...], what: str) -> Path:
    bases = [default_base(engine) / "runs" for engine in (IN_PROCESS, "flower")]
    for place in (Path(text).expanduser(), *(base / text for base in bases)):
        if any((place / file).is_file() for file in files):
            return place
    expected = what if "/" in text else f"{what}, or a name under {bases[0]} or {bases[1]}"
    raise ConfigError("run", expected, text)


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
    lines, summary = tuple(read_rows(path / "metrics.jsonl")), stored_summary(path)
    for number, line in enumerate(lines, 1):
        if not {"round", "phase", "full", "bytes", "accuracy", "seconds", "clients"} <= line.keys():
            raise StateError(f"{path / 'metrics.jsonl'}, line {number}", "a line of metrics", "other keys")
    if summary is not None and (not lines or lines[-1].get("phase") != "closing"):
        got = f"one that ends at round {lines[-1]['round']}" if lines else "one without lines"
        raise StateError(str(path / "metrics.jsonl"), "the lines of a complete run, as summary.json says", got)
    return StoredRun(path, config, lines, summary)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn errors from figures of unexpected types into one error that names the run at ``path``.

    Raises:
        StateError: See above.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
        raise StateError(str(path), "figures as a run writes them", f"{type(reason).__name__}: {reason}") from reason


def read_rows(path: Path) -> list[Line]:
    """Return the rows of a file of JSON lines, without an incomplete last one; none if the file is missing.

    Raises:
        StateError: A complete line is not a JSON object.
    """
    try:
        lines = path.read_text().splitlines(keepends=True)
    except OSError:
        return []
    except ValueError as reason:
        raise StateError(str(path), "text", reason) from None
    rows: list[Line] = []
    for number, line in enumerate(lines, 1):
        if line.endswith("\n"):
            try:
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                raise StateError(f"{path}, line {number}", "a JSON object", line.strip()[:60]) from None
    return rows
