"""A run's files: ``config.toml``, ``metrics.jsonl``, ``ledger.jsonl``, ``summary.json``, ``checkpoints/``.

``docs/run-directory.md`` describes every field. A round's lines are on disk before the next round starts. A resumed run
replays the rounds after its checkpoint; their lines are deleted first and written again, so that a run that was killed
ends with the same lines as one that was not.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from sepal.config import RunConfig, flatten, marked, method_name
from sepal.errors import ConfigError, SepalError, StateError
from sepal.server.report import Report
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import DiskRunStore
from sepal.server_app.json_lines import Line, append, keep_until, read_rows
from sepal.server_app.privacy import check_accountant
from sepal.server_app.summary import plain, summarise
from sepal.storage.files import check_owner, private_directory, write_atomically
from sepal.strategies.assembly import Assembly

# Keys that a resumed run may change: locations, timeouts and limits, which do not change results.
FREE = frozenset({"name", "out", "data-dir", "state-dir", "timeout", "checkpoint-every", "max-message-bytes"})
# Keys that may also change if a run goes back: what the server accepts. A method's own key is marked "free-back".
LOCK_PATIENCE = 5.0  # seconds
FREE_BACK = frozenset(
    {"max-update-norm", "robust-mean", "on-missing", "min-replies", "roster", "oversample", "deadline"}
)


def stored_config(path: Path) -> dict[str, Any] | None:
    """Return the flat keys with which the run at ``path`` was started; None if there is no run.

    Raises:
        StateError: ``config.toml`` cannot be read.
    """
    try:
        return tomllib.loads((path / "config.toml").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as reason:
        raise StateError(str(path / "config.toml"), "a readable TOML file", reason) from None


def stored_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary of the run at ``path``; None if the run has not ended or the file is damaged."""
    try:
        summary = json.loads((path / "summary.json").read_text())
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
    lines, summary = tuple(read_rows(path / "metrics.jsonl")), stored_summary(path)
    for number, line in enumerate(lines, 1):
        if not {"round", "phase", "full", "bytes", "accuracy", "seconds", "clients"} <= line.keys():
            raise StateError(f"{path / 'metrics.jsonl'}, line {number}", "a line of metrics", "other keys")
    if summary is not None and (not lines or lines[-1].get("phase") != "closing"):
        got = f"one that ends at round {lines[-1]['round']}" if lines else "one without lines"
        raise StateError(str(path / "metrics.jsonl"), "the lines of a complete run, as summary.json says", got)
    return StoredRun(path, config, lines, summary)


class RunDirectory:
    """Writes a run's files; a :class:`sepal.server.observer.Observer`.

    Creates the directory, or checks that an existing run has the same configuration; a run that has not :func:`begun`
    takes the new one. More ``rounds`` extend a run: its closing round is undone. Only one process at a time can have it
    open.

    Args:
        path: The run's directory; its last part is the run's name.
        assembly: The run's parts.
        engine: Name of the engine, for the summary.
        from_round: Go back to the checkpoint of this round; None to continue after the last one.

    Raises:
        ConfigError: The existing run has another configuration; the error names the first different key. Or the run
            has ``privacy.noise``, and is to go back to a round or dp-accounting is not installed. Or the method cannot
            run with this configuration or model.
        ModelError: As above.
        StateError: The directory cannot be written, somebody else owns it or may write to it, or another process has it
            open.
    """

    def __init__(self, path: Path, assembly: Assembly, engine: str, from_round: int | None = None) -> None:
        check_accountant(assembly.task.config)
        assembly.method.make_server(assembly.task)  # refuses what cannot run, before there is a directory
        if from_round is not None and assembly.task.config.privacy.noise:
            expected = "a run without privacy.noise: ε would leave out the uploads of the rounds that are undone"
            raise ConfigError("--from-round", expected, from_round)
        if from_round is not None and not begun(path):
            raise ConfigError("--from-round", "a run that was started", path.name)
        back = FREE_BACK | marked(assembly.task.hyper, "free-back", f"{method_name(assembly.task.config.method)}.")
        self._free = FREE if from_round is None else FREE | back
        self.path, self._assembly, self._engine = path, assembly, engine
        self._total = assembly.task.config.rounds
        self._new = not path.exists()
        try:
            private_directory(path)
        except OSError as reason:
            raise StateError(str(path), "a directory that can be made", reason.strerror or str(reason)) from None
        check_owner(path)
        self._lock = _lock(path)
        try:
            self._check_config()
            if from_round is not None:
                self.store().rewind(from_round)
                (path / "summary.json").unlink(missing_ok=True)
        except BaseException:
            self.close()
            raise

    def _check_config(self) -> None:
        task = self._assembly.task
        wanted = {
            **task.config.flat(),
            "name": self.path.name,
            **flatten(task.hyper, f"{method_name(task.config.method)}."),
        }
        stored = stored_config(self.path)
        if begun(self.path):
            if stored is None:
                path = self.path / "config.toml"
                raise StateError(str(path), "the keys with which the run was started, beside its files", "no file")
            method = self._assembly.method
            defaults = {**RunConfig().flat(), **flatten(method.hyper(), f"{method_name(task.config.method)}.")}
            begun_with = {**defaults, **stored}  # a run of an earlier version lacks keys that are newer
            if self.completed and self._extends(begun_with["rounds"]):
                self._free |= {"rounds"}
            for key in {**stored, **wanted}:
                if key not in self._free and begun_with.get(key) != wanted.get(key):
                    expected = f"{begun_with.get(key)!r}, with which the run {self.path.name} was started"
                    raise ConfigError(key, expected, repr(wanted.get(key)))
            if "rounds" in self._free:
                self.store().reopen(begun_with["rounds"])
                (self.path / "summary.json").unlink()
        if stored != wanted:
            write_atomically(self.path / "config.toml", tomli_w.dumps(wanted).encode())

    def _extends(self, rounds: object) -> bool:
        """Return whether the run has more rounds than the ``rounds`` with which it was started, and may have them.

        Raises:
            ConfigError: It has more, but it was stopped, or what the method does in a round depends on their number.
        """
        wanted, summary, method = self._total, stored_summary(self.path) or {}, self._assembly.method
        if not isinstance(rounds, int) or wanted <= rounds:
            return False
        if summary.get("stopped"):
            raise ConfigError("rounds", f"{rounds}: the run was stopped after {summary['rounds']}", wanted)
        if self._assembly.task.config.privacy.noise and rounds not in self.store().rounds():
            raise ConfigError("rounds", f"{rounds}: privacy.noise undoes no round, and no checkpoint is there", wanted)
        if method.scheduled:
            expected = f"{rounds}, as the run was started: the schedule of {method.name} depends on it"
            raise ConfigError("rounds", expected, wanted)
        return True

    @property
    def completed(self) -> bool:
        """Whether the run has ended."""
        return stored_summary(self.path) is not None

    def store(self) -> DiskRunStore:
        """Return the store of checkpoints, records and uploads."""
        return DiskRunStore(self.path / "checkpoints", self._assembly.method.server_state)

    def close(self) -> None:
        """Release the directory's lock."""
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; a start that was refused leaves no directory."""
        self.close()
        if self._new and isinstance(value, SepalError) and not begun(self.path):
            shutil.rmtree(self.path, ignore_errors=True)

    # sepal.server.observer.Observer

    def opened(self, progress: RunState, total: int) -> None:
        """Delete the lines of rounds after ``progress``, which will be written again."""
        self._total = total
        for name in ("metrics.jsonl", "ledger.jsonl"):
            keep_until(self.path / name, progress.round)

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Append the round's lines."""
        append(self.path / "ledger.jsonl", (asdict(entry) for entry in record.ledger))
        append(self.path / "metrics.jsonl", [line])

    def closed(self, progress: RunState, report: Report) -> None:
        """Write the summary, which marks the run as complete."""
        name, engine, rounds = self.path.name, self._engine, self._total
        summary = summarise(self._assembly, progress, report, name=name, engine=engine, rounds=rounds)
        text = json.dumps(plain(summary), indent=2, ensure_ascii=False)
        write_atomically(self.path / "summary.json", f"{text}\n".encode())
        self.close()


def _lock(path: Path) -> FileLock:
    """Lock the directory; the kernel releases the lock when the process ends, however it ends.

    A process whose parent was killed needs a moment to notice it, so a lock that is held is waited for.
    """
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(timeout=LOCK_PATIENCE)
    except Timeout:
        raise StateError(str(path), "no other process that runs it", "one that has it open") from None
    except OSError as reason:
        raise StateError(str(path), "a directory that can be written", reason.strerror or str(reason)) from None
    return lock
