"""A method in short runs on handwritten digits: four clients, two of them sampled."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.host import ClientHost
from sepal.client_app.state_store import DiskStateStore
from sepal.config import Flat
from sepal.engines.in_process import run_in_process
from sepal.protocol.types import Payload
from sepal.server.ledger import LedgerEntry
from sepal.server.observer import Observer
from sepal.server.report import RunFigures
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import MemoryRunStore
from sepal.server.strategy import SepalStrategy
from sepal.storage.serialize import digest
from sepal.strategies.assembly import Assembly, assemble
from sepal.wire.tensors import ValueCoding

CLIENTS = 4
SHORT: Flat = {
    "dataset": "digits",
    "clients": CLIENTS,
    "clients-per-round": 2,
    "rounds": 4,
    "evaluate-every": 3,
    "checkpoint-every": 2,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "seed": 3,
}


class ScratchStore(DiskStateStore):
    """A client's states in a directory that is deleted with the store, and not synced.

    Args:
        kind: The method's client state type, where states are loaded.
    """

    def __init__(self, kind: type = object) -> None:
        path = tempfile.mkdtemp(prefix="sepal-states-")
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        super().__init__(Path(path), kind, durable=False)


class RoundLog:
    """Keeps the lines and records of a run's rounds; a :class:`sepal.server.observer.Observer`."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.records: list[RoundRecord] = []

    def opened(self, progress: RunState, total: int) -> None:
        """Do nothing."""

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Keep the round's line and record."""
        self.lines.append(line)
        self.records.append(record)

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """Do nothing."""


class Stop(BaseException):
    """Stands for the end of the server's process; nothing may catch it."""


class StopAfter(RoundLog):
    """Ends the server while a round is being reported, after its record was written."""

    def __init__(self, round: int) -> None:
        super().__init__()
        self.at = round

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Raise :class:`Stop` in the round."""
        if record.round == self.at:
            raise Stop


class FirstCheckpoint(MemoryRunStore):
    """Keeps the checkpoint that a run begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.first: RunState | None = None
        self.digest = ""

    def checkpoint(self, progress: RunState) -> None:
        """Keep it, and what the server's state is now."""
        self.first, self.digest = self.first or progress, self.digest or digest(progress.server)
        super().checkpoint(progress)


@dataclass
class FinishedRun:
    """A run that has ended.

    Attributes:
        start: Its state before the first round.
        digest: Digest of the server's state in ``start``, taken before the first round.
    """

    strategy: SepalStrategy
    lines: RoundLog
    start: RunState
    digest: str

    @property
    def trained(self) -> list[LedgerEntry]:
        """The ledger's entries of training."""
        return [entry for record in self.lines.records for entry in record.ledger if entry.purpose == "training"]


@dataclass
class FirstTraining:
    """A client's first training, from the first download and its first state."""

    assembly: Assembly
    host: ClientHost
    server: Any
    plan: Any
    download: Payload
    after: Any
    upload: Payload


@dataclass(frozen=True)
class Case:
    """A method with keys, and its short run, which several checks look at.

    Attributes:
        name: What it is called.
        keys: Its keys, with ``method``; the others are those of :data:`SHORT`.
    """

    name: str
    keys: Flat
    runs: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def flat(self, **keys: Any) -> dict[str, Any]:
        """Return the keys of the run; ``keys`` win."""
        return {**SHORT, **self.keys, **keys}

    def assembly(self, **keys: Any) -> Assembly:
        """Return the parts of the run."""
        return assemble(self.flat(**keys))

    def finished(self, **keys: Any) -> FinishedRun:
        """Return a run with further keys, which runs once."""
        key = repr(sorted(keys.items()))
        if key not in self.runs:
            self.runs[key] = self.run(keys)
        finished: FinishedRun = self.runs[key]
        return finished

    def run(self, keys: Flat, observers: Sequence[Observer] = ()) -> FinishedRun:
        """Run the method to its end."""
        lines, store = RoundLog(), FirstCheckpoint()
        strategy = run_in_process(self.assembly(**keys), store=store, observers=[lines, *observers])
        if store.first is None:
            raise RuntimeError("a run writes a checkpoint before its first round")
        return FinishedRun(strategy, lines, store.first, store.digest)

    @cached_property
    def first(self) -> FirstTraining:
        """Client 2's first training, which runs once."""
        return self.first_training()

    def first_training(self, **keys: Any) -> FirstTraining:
        """Train client 2 in round 1."""
        assembly = self.assembly(**keys)
        server = assembly.method.make_server(assembly.setup)
        host = build_host(Shared.around(assembly, "cpu"), Node(2, CLIENTS), "run", ScratchStore())
        plan = server.plan(1)
        download = server.newcomer(server.init(), host.info, plan)
        after, upload = host.algorithm.train(host.algorithm.init(), download, plan)
        return FirstTraining(assembly, host, server, plan, download, after, upload)

    def codings(self) -> set[ValueCoding]:
        """Return the value codings of a first upload's tensors that are not empty."""
        return {tensor.coding for tensor in self.first.upload.tensors.values() if tensor.nnz}
