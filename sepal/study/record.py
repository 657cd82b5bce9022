"""The record of a run that has ended, and files of records: a line of JSON each (``.ndjson``).

Every study stores its runs so: trials of a calibration, runs of a leaderboard, a paper's plan, attacks. A record has
the keys that the run was given, so that it can be made again, and digests of its weights, so that this can be checked.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from sepal.errors import ConfigError, SepalError, one_line
from sepal.protocol.views import CLOSING_VIEWS
from sepal.server.report import RunFigures
from sepal.storage.files import write_atomically

if TYPE_CHECKING:
    from sepal.method.interface import Method
    from sepal.server.observer import Observer
    from sepal.server.run_state import RoundRecord as Round
    from sepal.server.run_state import RunState

MEGA = 1e6  # bytes in a MB
MEANS, DIGITS = 6, 5  # decimals of a mean over clients, and of all other stored figures
TEST = ("accuracy", "clients", "curve", "spent")  # parts of a record that need test data, or are for reported runs


class RunRecord(BaseModel):
    """A run that has ended.

    Accuracies are in [0, 1], of the closing round; MB are payload bytes / 10⁶.

    Attributes:
        labels: What the run is among the others of its study, such as its block.
        config: The run-config keys that it was given, the seed among them.
        rounds: Its rounds; 0 where a converted record does not have them.
        deployed: View of the model that a user of its method predicts with.
        error: Why it ended before its last round; empty if it did not.
        commit: The commit that ran, short.
        machine: The processor's name.
        written: When it had ended, in UTC.
        seconds: Wall time.
        cpu_seconds: Of its process, on one core.
        diverged: Trainings of clients that diverged.
        undone: Rounds that were repeated for them.
        weights_sha256: Digest of the server's model; empty if it has none.
        clients_sha256: Digest of the clients' states.
        validation: View → mean over participants on validation data.
        accuracy: View → figures over participants on test data (``mean``, ``weighted``, ``std``, ``bottom_decile``).
        clients: Columns of equal length: ``name``, ``novel`` (whether it never trained) and each view's accuracy.
        curve: Columns of the full evaluations: ``round``, ``megabytes`` until then, and each view's mean.
        bytes: Payload bytes of training over all clients, ``up`` and ``down``; ``…_dense``: as whole models in float32.
        closing: MB of the last download of all clients that train, without which they do not hold what is measured.
        spent: MB of training after each round, up and down, with that download.
        figures: What only some studies or methods have, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    labels: dict[str, Any] = {}
    config: dict[str, Any] = {}
    rounds: int = 0
    deployed: str = ""
    error: str = ""
    commit: str = ""
    machine: str = ""
    written: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    diverged: int = 0
    undone: int = 0
    weights_sha256: str = ""
    clients_sha256: str = ""
    validation: dict[str, float] = {}
    accuracy: dict[str, Any] = {}
    clients: dict[str, Any] = {}
    curve: dict[str, Any] = {}
    bytes: dict[str, Any] = {}
    closing: float = 0.0
    spent: tuple[float, ...] = ()
    figures: dict[str, Any] = {}

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config["method"])

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return str(self.config["dataset"])

    @property
    def held_out(self) -> float:
        """Validation accuracy in the deployed view; 0 for a run that ended with an error."""
        return self.validation.get(self.deployed, 0.0)

    @property
    def reached(self) -> float | None:
        """Accuracy of the deployed model on test data, mean over clients; None for a run that ended with an error."""
        figures = self.accuracy.get(self.deployed)
        return None if figures is None else float(figures["mean"])

    @property
    def participants(self) -> list[str]:
        """The clients that trained."""
        names = self.clients["name"]
        return [
            name for name, new in zip(names, self.clients.get("novel", [False] * len(names)), strict=True) if not new
        ]

    def of_clients(self, view: str, novel: bool = False) -> dict[str, float]:
        """Return client → accuracy in a view, of those that trained or of those that never did."""
        names, values = self.clients.get("name", ()), self.clients.get(view)
        new = self.clients.get("novel") or [False] * len(names)
        rows = zip(names, new, values or [None] * len(names), strict=True)
        return {name: value for name, is_new, value in rows if is_new == novel and value is not None}

    def digests(self) -> tuple[str, str, str]:
        """Return what a second run must reproduce: digests of the server's model and clients' states, and the error."""
        return self.weights_sha256, self.clients_sha256, self.error


class RunTrace:
    """An observer that keeps each round's line of metrics.jsonl and the report."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.report = RunFigures()

    def opened(self, progress: RunState, total: int) -> None:
        """Do nothing."""

    def round(self, progress: RunState, record: Round, line: Mapping[str, Any]) -> None:
        """Keep the line."""
        self.lines.append(line)

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """Keep the report."""
        self.report = report


def recorded(
    config: Mapping[str, Any],
    labels: Mapping[str, Any],
    commit: str,
    parts: Collection[str] = TEST,
    views: Collection[str] = (),
    method: Method | None = None,
    observers: Sequence[Observer] = (),
) -> RunRecord:
    """Execute a run in this process, in memory, and return its record; that of a run with an error has no figures.

    Args:
        config: Flat run-config keys.
        labels: The record's labels.
        commit: The commit of the checkout.
        parts: Which of :data:`TEST` the record has; without any, no figure in it is of test data.
        views: Which views it has; by default all.
        method: The method; by default that of the keys.
        observers: Further observers of every round.

    Raises:
        SepalError: A key is invalid, or data is missing.
    """
    from sepal.engines.in_process.run import run_in_process
    from sepal.runs.processors import processor
    from sepal.runs.summary import digest_clients, weights_digest
    from sepal.strategies.assembly import assemble

    begun, cpu, trace = time.monotonic(), time.process_time(), RunTrace()
    assembly = assemble(dict(config), method)
    fields: dict[str, Any] = {"labels": dict(labels), "config": dict(config), "commit": commit, "machine": processor()}
    fields |= {"rounds": assembly.setup.config.rounds, "deployed": assembly.method.deployed}
    try:
        strategy = run_in_process(assembly, observers=[trace, *observers])
        report, algorithm = trace.report, assembly.method.make_server(assembly.setup)
        fields |= {"diverged": report.diverged, "undone": report.undone}
        fields["weights_sha256"] = weights_digest(algorithm, strategy.progress.server)
        fields |= {"clients_sha256": digest_clients(report.digests), **of_lines(trace.lines, parts, views)}
    except SepalError as problem:
        fields |= {"error": one_line(str(problem)), "diverged": max(1, trace.report.diverged)}
    fields |= {"seconds": round(time.monotonic() - begun, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    return RunRecord(**fields, written=datetime.now(UTC).isoformat(timespec="seconds"))


def of_lines(
    lines: Sequence[Mapping[str, Any]], parts: Collection[str] = TEST, views: Collection[str] = ()
) -> dict[str, Any]:
    """Return a record's figures from the lines of metrics.jsonl, the closing round's last; see :func:`recorded`."""

    def some(by_view: Mapping[str, Any]) -> dict[str, Any]:
        return {view: figures for view, figures in by_view.items() if figures and (view in views or not views)}

    *rounds, last = lines
    sizes = {key: rounds[-1]["bytes"][key] for key in ("up", "down", "up_dense", "down_dense")}
    figures: dict[str, Any] = {"validation": _means(some(last["validation"])), "bytes": sizes}
    if "accuracy" in parts:
        figures["accuracy"] = rounded(some(last["accuracy"]), MEANS)
    if "clients" in parts:
        figures["clients"] = columns(_client(client, views) for client in last["clients"])
    if "curve" in parts:
        full = [line for line in lines if line["full"] or line is last]
        figures["curve"] = columns(
            {"round": line["round"], "megabytes": _megabytes(line), **_means(some(line["accuracy"]))} for line in full
        )
    if "spent" in parts:
        closing = sum(client["down"] for client in last["clients"] if not client.get("novel")) / MEGA
        spent = tuple(rounded(_megabytes(line) + closing) for line in rounds)
        figures |= {"closing": rounded(closing), "spent": spent}
    return figures


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, which take a fifth of the space as JSON.

    A value that a row lacks is None; columns of None alone are left out.
    """
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    by_name = {name: [rounded(row.get(name)) for row in listed] for name in names}
    return {name: column for name, column in by_name.items() if any(value is not None for value in column)}


def _client(client: Mapping[str, Any], views: Collection[str]) -> dict[str, Any]:
    values = {view: client[view] for view in CLOSING_VIEWS} | client.get("further", {})
    values = {view: value for view, value in values.items() if view in views or not views}
    about = {"name": client["name"], "novel": bool(client.get("novel"))}
    return {**about, **values, "steps": client["metrics"].get("steps")}


def _means(by_view: Mapping[str, Any]) -> dict[str, float]:
    return {view: round(figures["mean"], MEANS) for view, figures in by_view.items()}


def _megabytes(line: Mapping[str, Any]) -> float:
    return float(line["bytes"]["up"] + line["bytes"]["down"]) / MEGA


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Return a value of JSON whose floats have so many decimals."""
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return round(value, digits) if isinstance(value, float) else value


def read(path: Path) -> list[RunRecord]:
    """Return the records of a file, none if it is missing; a last line that a kill cut off is left out.

    Raises:
        ConfigError: A line is no record; the error names it.
    """
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    records = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            records.append(RunRecord.model_validate_json(line))
        except ValueError as reason:
            raise ConfigError(f"{path}, line {number}", "a run's record", one_line(str(reason), 200)) from None
    return records


def append(path: Path, record: RunRecord) -> None:
    """Append a record, on disk when this returns; what a kill left of a line goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(_line(record).encode())
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, records: Iterable[RunRecord]) -> None:
    """Write a file of records anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(map(_line, records)).encode())


def _line(record: RunRecord) -> str:
    return f"{json.dumps(record.model_dump(exclude_defaults=True), ensure_ascii=False)}\n"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a file of records, so that two commands do not run the same runs.

    Raises:
        ConfigError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(str(path), "a file that no other process adds records to", "one in use") from None
        yield
