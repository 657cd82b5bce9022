"""A federation of plain functions for contract tests: real strategy, real hosts, faults on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from flwr.app import Error, Message

from sepal.client_app.host import ClientHost
from sepal.client_app.state_store import DiskStateStore, StateStore
from sepal.config import RunConfig, Settings
from sepal.engines.in_process.grid import InProcessGrid
from sepal.layout import Parameter, Role
from sepal.method.interface import Method, RunSetup
from sepal.protocol.messages import read_order
from sepal.protocol.types import ClientInfo, Kind
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import MemoryRunStore, RunStore
from sepal.server.strategy import SepalStrategy
from tests.contract.fakes import SIZE
from tests.scratch_store import ScratchStore


@dataclass
class Federation:
    """Clients that live as long as the test, and servers that come and go."""

    method: Method
    rounds: int = 8
    clients: int = 4
    settings: dict[str, object] = field(default_factory=dict)
    directory: Path | None = None
    lost: set[tuple[int, str]] = field(default_factory=set)  # (round, client): the first reply is lost
    killed_at: int = 0  # the server dies before this round's replies arrive
    trained: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = {"clients": self.clients, "rounds": self.rounds, "timeout": 20.0, "checkpoint_every": 1}
        config = RunConfig(**{**values, "evaluate_every": 3, "seed": 5, **self.settings})
        layout = (Parameter("w", (SIZE,), Role.WEIGHT),)
        start = np.linspace(-1, 1, SIZE).astype(np.float32)
        self.setup = RunSetup(layout, {"w": start}, config, Settings())
        self.stores: dict[str, StateStore] = {}
        self.nodes: dict[int, str] = {}
        for number in range(self.clients):
            self.join(f"client-{number}", 0.4 + 0.15 * number)

    def join(self, name: str, capacity: float = 1.0) -> None:
        self.nodes[100 + len(self.nodes)] = name
        kind = self.method.client_state
        self.stores[name] = DiskStateStore(self.directory / name, kind) if self.directory else ScratchStore(kind)
        setattr(self, f"capacity_{name}", min(capacity, 1.0))

    def host(self, name: str) -> ClientHost:
        capacity = getattr(self, f"capacity_{name}")
        algorithm = self.method.make_client(self.setup, SimpleNamespace(name=name, capacity=capacity))
        info = ClientInfo(name, 10, capacity)
        return ClientHost("", info, algorithm, self.stores[name], lambda predictor, view: {}, {})

    def _handle(self, message: Message) -> Message:
        name = self.nodes[message.metadata.dst_node_id]
        order, _ = read_order(message.content)
        reply = self.host(name).handle(message.content)
        if order.kind is Kind.TRAIN:
            self.trained.append((order.plan.round, name))
        if order.kind is not Kind.QUERY and order.plan.round == self.killed_at:
            raise Killed
        if (order.plan.round, name) in self.lost:
            self.lost.remove((order.plan.round, name))
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        return Message(reply, reply_to=message)

    def server(self, store: RunStore | None = None) -> SepalStrategy:
        return SepalStrategy(self.method, self.setup, store or MemoryRunStore(), pause=0.0)

    def run(self, store: RunStore | None = None, strategy: SepalStrategy | None = None) -> SepalStrategy:
        strategy = strategy or self.server(store)
        strategy.start(Nodes(self))
        return strategy

    def states(self, strategy: SepalStrategy) -> dict[str, object]:
        """What each client holds at the version that the server last accepted."""
        stored_states = {name: self.stores[name].load(v) for name, v in strategy.progress.versions.items()}
        return {name: stored.state for name, stored in stored_states.items() if stored}


class Recording(MemoryRunStore):
    """A store in memory that a second server can start from, at either of two checkpoints, as from one on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, RoundRecord] = {}
        self.checkpoints: list[RunState] = []

    def checkpoint(self, progress: RunState) -> None:
        self.checkpoints = [*self.checkpoints, progress][-2:]

    def latest(self) -> RunState | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def durable(self) -> Mapping[str, str]:
        return self.checkpoints[0].versions if self.checkpoints else {}

    def commit(self, record: RoundRecord) -> None:
        self.kept[record.round] = record

    def records(self, last: int) -> Iterator[RoundRecord]:
        return (self.kept[round] for round in range(1, last + 1))


class Killed(BaseException):
    """Stands for the end of the server's process; nothing may catch it."""


class Nodes(InProcessGrid):
    """A grid whose nodes are those that the federation has at the moment."""

    def __init__(self, federation: Federation) -> None:
        super().__init__({})
        self._federation = federation

    def get_node_ids(self) -> list[int]:
        return list(self._federation.nodes)

    def answer(self, message):
        return self._federation._handle(message)
