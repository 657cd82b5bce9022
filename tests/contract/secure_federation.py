"""A federation of plain functions whose rounds are secure sums, with clients and a server that die on demand."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from flwr.app import Error, Message

from sepal.client_app.host import ClientHost
from sepal.client_app.secure_sums import ON_ONE_MACHINE, FileVault, SecureSums
from sepal.config import Settings
from sepal.layout import Parameter, Role
from sepal.method.interface import Method
from sepal.method.tensors import dense_schema
from sepal.protocol.messages import Content, read_order, read_reply
from sepal.protocol.summed import UPDATE
from sepal.protocol.types import ClientInfo, Kind, Payload, Schema
from sepal.strategies.baselines.fedavg import ClientState, FedAvgServer
from sepal.wire.tensors import whole
from tests.contract.fakes import SIZE, FakeClient, step
from tests.contract.harness import Federation, Killed

STEPS = ["train", "share", "mask", "unmask"]


class SummedClient(FakeClient):
    """Uploads the model that it "trained"; its figures are in ``figures`` of its federation."""

    def init(self) -> ClientState:
        return ClientState()

    def download_schema(self, state, plan):
        return Schema() if plan.round == 1 else dense_schema((Parameter("w", (SIZE,), Role.WEIGHT),))

    def train(self, state, download: Payload, plan):
        start = download.tensors["w"].dense() if download.tensors else self.start
        model = (start + step(start, self.name, plan)).astype(np.float32)
        return ClientState({"w": model}), Payload({"w": whole(model)})

    def adapt(self, state, download, plan):
        return self.train(state, download, plan)[0]

    def predictor(self, state, download, plan):
        return lambda x: x


METHOD = Method("summed", "A fake", "", Settings, FedAvgServer, SummedClient)


@dataclass
class SecureFederation(Federation):
    """Clients with 10, 11, … examples.

    Attributes:
        kills: (who, round, step, when): ``server`` dies before the step's first answer, or after it; a client dies
            before its answer is stored, after it, or for good (``lost``). Each happens once.
        seen: (round, step, client) to the bytes that left, all of them.
        commitments: (round, client) to the commitment that came with its keys.
        forged: Called with round, step, client and the reply's records; returns what is sent instead.
        gone: Clients that never come back.
        repeatable: Whether noise follows from the seed, as in process.
    """

    kills: list = field(default_factory=list)
    seen: dict = field(default_factory=dict)
    commitments: dict = field(default_factory=dict)
    forged: object = None
    secret: bytes = b"secret"
    gone: set = field(default_factory=set)
    repeatable: bool = False

    def host(self, name: str) -> ClientHost:
        number = int(name.rpartition("-")[2])
        algorithm = self.method.make_client(self.setup, SimpleNamespace(name=name, capacity=1.0))
        store, secure = self.stores[name], None
        if self.setup.config.secure != "off":
            vault = FileVault(store.directory / "secure", durable=False)
            key = ON_ONE_MACHINE if self.repeatable else self.secret + name.encode()
            weight = 1.0 if self.setup.config.privacy.distributed else 10.0 + number
            secure = SecureSums(name, self.setup.config, self.setup.weights, vault, key, lambda: weight)
        counts = {"correct": 3.0 + number, "examples": 10.0 + number}
        info = ClientInfo(name, 10 + number)
        return ClientHost("", info, algorithm, store, lambda predictor, view: counts, {}, secure=secure)

    def _killed(self, who: str, round: int, kind: str, when: str) -> bool:
        mark = (who, round, kind, when)
        if mark in self.kills:
            self.kills.remove(mark)
            return True
        return False

    def _note(self, round: int, kind: str, name: str, content: Content) -> None:
        self.seen.setdefault((round, kind, name), []).append(content.data)
        if UPDATE in content.scalars:
            self.commitments[round, name] = bytes.fromhex(content.scalars[UPDATE])

    def _handle(self, message: Message) -> Message:
        name = self.nodes[message.metadata.dst_node_id]
        order, _ = read_order(message.content)
        round, kind = order.plan.round, order.kind.value
        unavailable = Message(Error(5, "Node Unavailable"), reply_to=message)
        if order.kind is Kind.QUERY:
            return Message(self.host(name).handle(message.content), reply_to=message)
        if self._killed("server", round, kind, "before"):
            raise Killed
        if name in self.gone or self._killed(name, round, kind, "before"):
            return unavailable
        if self._killed(name, round, kind, "lost"):
            self.gone.add(name)
            return unavailable
        if self._killed(name, round, kind, "wiped"):
            shutil.rmtree(self.stores[name].directory)
            self.stores[name].directory.mkdir()
        reply = self.host(name).handle(message.content)
        if "error" not in reply:
            self._note(round, kind, name, read_reply(reply)[1])
        if self.forged:
            reply = self.forged(round, kind, name, reply)
        if self._killed(name, round, kind, "after"):
            return unavailable
        if self._killed("server", round, kind, "after"):
            raise Killed
        return Message(reply, reply_to=message)


def federation(directory=None, clients=5, rounds=3, secure="sum", kills=(), **settings) -> SecureFederation:
    return SecureFederation(
        METHOD, rounds, clients, {"secure": secure, **settings}, directory=directory, kills=list(kills)
    )
