"""A server algorithm that learns of its roster: at the start, at a round boundary, and again when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sepal.method.interface import Method
from sepal.protocol.types import Payload
from sepal.rng import derive
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from sepal.wire.tensors import whole
from tests.contract.fakes import SIZE, LagClient, LagServer, NoKeys
from tests.contract.harness import Federation, Killed

calls, threads = [], set()


@dataclass(frozen=True)
class State:
    w: npt.NDArray[np.float32]
    synced: Mapping[str, npt.NDArray[np.float32]]
    embeddings: Mapping[str, npt.NDArray[np.float32]]


class Server(LagServer):
    uses_capacity = True

    """Adds each client's embedding to what it sends, so a client that was not announced has none."""

    def init(self) -> State:
        return State(self.start, {}, {})

    def joined(self, state, clients):
        calls.append([client.name for client in clients])
        drawn = {c.name: derive(3, "embedding", c.name).standard_normal(SIZE, np.float32) for c in clients}
        assert not drawn.keys() & state.embeddings.keys(), "a client joins once"
        return replace(state, embeddings={**state.embeddings, **drawn})

    def download(self, state, client, plan):
        missed = state.w - state.synced.get(client.name, self.start)
        return Payload({"delta": whole(missed + 0 * state.embeddings[client.name])})

    newcomer = download

    def aggregate(self, state, uploads, plan):
        threads.add(torch.get_num_threads())
        moved = {u.client.name: u.payload.tensors["delta"].dense() / 10 for u in uploads}
        after, metrics = super().aggregate(state, uploads, plan)
        embeddings = {n: e + moved.get(n, np.float32(0)) for n, e in state.embeddings.items()}
        return State(after.w, after.synced, embeddings), metrics


METHOD = Method("roster", "roster", "a fake", NoKeys, Server, LagClient)


class JoinAfter:
    """A client more after a round."""

    def __init__(self, federation, after):
        self.federation, self.after = federation, after

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if record.round == self.after and "early" not in self.federation.stores:
            self.federation.join("early", 0.7)

    def closed(self, progress, report):
        pass


def federation(directory=None, **settings):
    calls.clear()
    return Federation(
        METHOD, rounds=6, settings={"checkpoint_every": 4, "roster": "open", **settings}, directory=directory
    )


def serve(subject, store=None, after=2):
    strategy = subject.server(store)
    strategy._observers = [JoinAfter(subject, after)]
    return subject.run(strategy=strategy)


def outcome(strategy):
    return digest(strategy.progress.server), dict(strategy.report.digests)


def test_it_is_told_of_all_at_the_start_and_of_each_that_joins():
    strategy = serve(federation())
    assert calls == [[f"client-{n}" for n in range(4)], ["early"]]
    assert set(strategy.progress.server.embeddings) == {*calls[0], "early"}


@pytest.mark.parametrize("killed_at", [2, 4, 6])
def test_a_resumed_run_tells_it_the_same(killed_at, tmp_path):
    """Killed before the client joins, after it joined and before the checkpoint of round 4, and after that one."""
    whole_run = outcome(serve(federation()))
    subject = federation(tmp_path / "clients")
    subject.killed_at = killed_at
    with pytest.raises(Killed):
        serve(subject, DiskRunStore(tmp_path / "server", State))
    subject.killed_at = 0
    assert outcome(serve(subject, DiskRunStore(tmp_path / "server", State))) == whole_run


def test_the_server_works_with_the_threads_that_the_run_says():
    before = torch.get_num_threads()
    threads.clear()
    try:
        torch.set_num_threads(2)
        serve(federation(threads=1))
    finally:
        torch.set_num_threads(before)
    assert threads == {1}
