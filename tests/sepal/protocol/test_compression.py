"""Compressed exchange: two rounds by hand, the limit case that is FedAvg, and one R on the server and all clients."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.errors import ConfigError
from sepal.layout import Parameter, Role
from sepal.masks.selection import count
from sepal.method.compression import with_inner
from sepal.method.compression.client import ClientState as Residual
from sepal.method.compression.client import CompressedClient
from sepal.method.compression.server import CompressedServer, ServerState
from sepal.method.compression.updates import compress, drawn_support, less
from sepal.method.interface import Compression, RunSetup
from sepal.method.tensors import dense as all_entries
from sepal.protocol.types import ClientInfo, Payload, Plan, Upload
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import ClientState, FedAvgServer
from sepal.strategies.baselines.fedavgm import FedAvgMServer, Hyper
from sepal.training.trainer import Released
from sepal.wire import decode, encode
from sepal.wire.tensors import SparseTensor, Support, TensorSpec, ValueCoding
from tests.strategies.baselines import BASE, Sent, assert_same_model, run

HALF = Compression(keep=0.5)
A, B = ClientInfo("a", 1), ClientInfo("b", 3)
DENSE = [name for name in registry.METHODS if registry.get(name).dense]


def four(hyper=None):
    """A task of four weights at 0, for steps by hand."""
    config = assemble({**BASE, "method": "fedavg"}).setup.config
    return RunSetup((Parameter("w", (4,), Role.WEIGHT),), {"w": np.zeros(4, np.float32)}, config, hyper)


def server_of(kind, hyper=None):
    inner = kind(four(hyper))
    return CompressedServer(inner, four(hyper), HALF, with_inner(ServerState, type(inner.init())))


class Trained:
    """A method's client that comes to the weights it is told."""

    def __init__(self):
        self.started, self.ends = [], []

    def shared(self):
        return four().layout

    def init(self):
        return ClientState()

    def train(self, state, download, plan):
        self.started.append(dense(download.tensors["w"]))
        ended = {"w": np.array(self.ends.pop(0), np.float32)}
        return ClientState(ended), Payload(all_entries(ended, self.shared(), ValueCoding.FP32))


class Plain:
    """A trainer of a run without ``privacy.*``."""

    def release(self, update, round):
        return Released(update, update)


def client_of(*ends):
    inner = Trained()
    inner.ends.extend(ends)
    return CompressedClient(inner, four(), Plain(), HALF, with_inner(Residual, ClientState))


def dense(tensor):
    return tensor.dense().tolist()


def test_stc_by_hand():
    """p = .5 of (4, -2, 1, 0): k = 2, largest 4 and -2, μ = (4 + 2)/2 = 3: (3, -3, 0, 0); owed: (1, 1, 1, 0)."""
    vector = np.array([4, -2, 1, 0], np.float32)
    sent = compress(vector, HALF, ValueCoding.FP32)
    assert dense(sent) == [3, -3, 0, 0]
    assert sent.coding is ValueCoding.SIGN
    assert less(vector, sent).tolist() == [1, 1, 1, 0]


def test_top_k_by_hand():
    """p = .5 of (4, -2, 1, 0): the values 4 and -2; owed: (0, 0, 1, 0)."""
    vector = np.array([4, -2, 1, 0], np.float32)
    sent = compress(vector, Compression(keep=0.5, ternary=False), ValueCoding.FP32)
    assert dense(sent) == [4, -2, 0, 0]
    assert less(vector, sent).tolist() == [0, 0, 1, 0]


def test_drawn_entries_by_hand():
    """Entries 1 and 3 of (4, -2, 1, 8) are drawn: values -2 and 8; owed: (4, 0, 1, 0). No position is sent."""
    vector, how = np.array([4, -2, 1, 8], np.float32), Compression(keep=0.5, ternary=False, drawn=True)
    sent = compress(vector, how, ValueCoding.FP32, np.array([1, 3]))
    assert dense(sent) == [0, -2, 0, 8]
    assert less(vector, sent).tolist() == [4, 0, 1, 0]
    known = TensorSpec((4,), Support.DERIVED, index=np.array([1, 3]))
    assert dense(decode(encode({"u": sent}), {"u": known})["u"]) == [0, -2, 0, 8]


def test_the_entries_of_a_round_are_the_same_for_all_and_others_in_the_next_round():
    drawn = [drawn_support(7, number, 1000, 0.1) for number in range(1, 41)]
    assert all(index.size == 100 and (np.diff(index) > 0).all() for index in drawn)
    assert (drawn[0] == drawn_support(7, 1, 1000, 0.1)).all()
    assert (drawn[0] != drawn[1]).any()
    assert (drawn[0] != drawn_support(8, 1, 1000, 0.1)).any()
    # 40 draws miss an entry with a probability of .9^40 = 1.5 %: of 1000 about 15, with a deviation of 4
    assert 1000 - len(set(np.concatenate(drawn).tolist())) < 40


def test_stc_sends_nothing_for_an_entry_that_is_0():
    """p = .5 of (0, 0, -2, 1, 0, 0, 0, 0): of k = 4 two are not 0; μ = (2 + 1)/4, and μ·sign(0) = 0."""
    sent = compress(np.array([0, 0, -2, 1, 0, 0, 0, 0], np.float32), HALF, ValueCoding.FP32)
    assert dense(sent) == [0, 0, -0.75, 0.75, 0, 0, 0, 0]
    assert sent.nnz == 2


def test_rounds_by_hand_with_a_client_that_misses_one():
    """n = (1, 3), p = .5, W_0 = 0; a is away in round 2.

    Round 1. a trains to (4, -4, 1, 0): μ = 4, it sends (4, -4, 0, 0) and owes (0, 0, 1, 0).
    b trains to (0, 5, 3, 1): μ = 4, it sends (0, 4, 4, 0) and owes (0, 1, -1, 1).
    M = mean: 4/4 = 1; (-4 + 3·4)/4 = 2; 3·4/4 = 3; 0. Of (1, 2, 3, 0) the largest are 3 and 2, μ = 2.5:
    the update is (0, 2.5, 2.5, 0), R the same, M - R = (1, -.5, .5, 0).
    Round 2. b starts at R and trains to (0, 6.5, 2.5, -3): w - R = (0, 4, 0, -3), with what it owes (0, 5, -1, -2),
    μ = 3.5: it sends (0, 3.5, 0, -3.5) and owes (0, 1.5, -1, 1.5). M = (1, 2, 3, 0) + (0, 3.5, 0, -3.5)
    = (1, 5.5, 3, -3.5); M - R = (1, 3, .5, -3.5), μ = 3.25: the update is (0, 3.25, 0, -3.25),
    R = (0, 5.75, 2.5, -3.25), M - R = (1, -.25, .5, -.25).
    Round 3. a gets both updates, starts at R, and trains to (2, 5.75, 2.5, -3.25): w - R = (2, 0, 0, 0), with what it
    owes (2, 0, 1, 0), μ = 1.5: it sends (1.5, 0, 1.5, 0) and owes (.5, 0, -.5, 0).
    """
    server = server_of(FedAvgServer)
    a, b = client_of([4, -4, 1, 0], [2, 5.75, 2.5, -3.25]), client_of([0, 5, 3, 1], [0, 6.5, 2.5, -3])
    state = server.init()
    at_a, up_a = a.train(a.init(), server.newcomer(state, A, Plan(1)), Plan(1))
    at_b, up_b = b.train(b.init(), server.newcomer(state, B, Plan(1)), Plan(1))
    assert (dense(up_a.tensors["update"]), at_a.residual.tolist()) == ([4, -4, 0, 0], [0, 0, 1, 0])
    assert (dense(up_b.tensors["update"]), at_b.residual.tolist()) == ([0, 4, 4, 0], [0, 1, -1, 1])
    state, _ = server.aggregate(state, Sent([Upload(A, up_a), Upload(B, up_b)]), Plan(1))
    assert state.inner.weights["w"].tolist() == [1, 2, 3, 0]
    assert state.held.tolist() == server.model(state)["w"].tolist() == [0, 2.5, 2.5, 0]

    at_b, up_b = b.train(at_b, server.download(state, B, Plan(2)), Plan(2))
    assert b.inner.started[-1] == [0, 2.5, 2.5, 0]
    assert (dense(up_b.tensors["update"]), at_b.residual.tolist()) == ([0, 3.5, 0, -3.5], [0, 1.5, -1, 1.5])
    state, metrics = server.aggregate(state, Sent([Upload(B, up_b)]), Plan(2))
    assert state.inner.weights["w"].tolist() == [1, 5.5, 3, -3.5]
    assert state.held.tolist() == [0, 5.75, 2.5, -3.25]
    assert state.changed.tolist() == [0, 2, 1, 2]
    assert (state.synced, metrics) == ({"a": 0, "b": 1}, {"missed": 1.0})

    missed = server.download(state, A, Plan(3))
    assert list(missed.tensors) == ["1", "2"]
    assert list(server.download(state, B, Plan(3)).tensors) == ["2"]
    at_a, up_a = a.train(at_a, missed, Plan(3))
    assert a.inner.started[-1] == [0, 5.75, 2.5, -3.25]
    assert (dense(up_a.tensors["update"]), at_a.residual.tolist()) == ([1.5, 0, 1.5, 0], [0.5, 0, -0.5, 0])


def test_a_servers_own_step_gets_the_updates_and_not_what_it_owes():
    """FedAvgM, β = .5, the uploads of the rounds above: v = (1, 2, 3, 0), then .5·v + (0, 3.5, 0, -3.5)."""
    server = server_of(FedAvgMServer, Hyper(beta=0.5, rate=1.0))

    def send(state, client, index, values, round):
        update = SparseTensor((4,), np.array(index), np.array(values, np.float32))
        return server.aggregate(state, Sent([Upload(client, Payload({"update": update}))]), Plan(round))[0]

    state = send(server.init(), A, [0, 1, 2], [1, 2, 3], 1)
    assert state.inner.momentum["w"].tolist() == [1, 2, 3, 0]
    state = send(state, B, [1, 3], [3.5, -3.5], 2)
    assert state.inner.momentum["w"].tolist() == [0.5, 4.5, 1.5, -3.5]
    assert state.inner.weights["w"].tolist() == [1.5, 6.5, 4.5, -3.5]


def test_a_client_that_was_evicted_and_comes_back_new_gets_everything():
    server = server_of(FedAvgServer)
    update = SparseTensor((4,), np.array([1]), np.array([2], np.float32))
    state, _ = server.aggregate(server.init(), Sent([Upload(A, Payload({"update": update}))]), Plan(1))
    state, _ = server.aggregate(state, Sent([Upload(A, Payload({"update": update}))]), Plan(2))
    assert list(server.download(state, A, Plan(3)).tensors) == ["2"]
    assert list(server.newcomer(state, A, Plan(3)).tensors) == ["1", "2"]


@pytest.mark.parametrize("cache", [1, 2, 50])
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedstc", {}),
        ("fedavg", {"compress.name": "topk"}),
        ("fedavg", {"compress.name": "randk"}),
        ("fedper", {"compress.name": "topk", "values": "bf16", "model": "digits-cnn-bn"}),
    ],
)
def test_every_client_holds_the_servers_model_bit_for_bit(cache, method, keys, monkeypatch):
    """Whatever it missed, and however it was told: update by update, or by new values where the cache is short."""
    held_models, models, ways = [], {}, set()
    train, aggregate = CompressedClient.train, CompressedServer.aggregate

    def spy_train(self, state, download, plan):
        after, upload = train(self, state, download, plan)
        held_models.append((plan.round, after.held))
        fixed = {p.name for p in self.fixed}
        ways.update("values" if name == "weights" else "updates" for name in download.tensors if name not in fixed)
        return after, upload

    def spy_aggregate(self, state, uploads, plan):
        models[plan.round] = state.held
        return aggregate(self, state, uploads, plan)

    monkeypatch.setattr(CompressedClient, "train", spy_train)
    monkeypatch.setattr(CompressedServer, "aggregate", spy_aggregate)
    key = "fedstc.cache" if method == "fedstc" else "compress.cache"
    run(method, 9, **{"clients": 6, "clients-per-round": 2, key: cache, **keys})
    assert len(held_models) == 18
    for round, held_model in held_models:
        np.testing.assert_array_equal(held_model.view(np.uint32), models[round].view(np.uint32))
    assert ways == ({"updates"} if cache == 50 else {"updates", "values"})


def test_stc_sends_one_bit_a_value_both_ways():
    """k signs, one scale, and positions: k/8 + 4 bytes, and for p = .1 at most 1.02 · .47 bits an entry (FORMAT.md)."""
    strategy = run("fedstc", 3, **{"clients-per-round": 0})
    d = strategy.algorithm.flat.size
    k = count(0.1, d)
    bound = 3 * 4 * (k / 8 + 4 + 1.02 * 0.469 * d / 8 + 60)  # 60: the header
    totals = strategy.report.totals.training
    assert 0 < totals.up < bound
    assert 0 < totals.down < totals.up  # nothing comes down in round 1


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "fedadam"])
def test_everything_sent_as_it_is_gives_the_method_without_compression(method):
    """p = 1 as values: nothing is ever owed. One averages weights, the other differences."""
    sparse = run(method, 5, **{"compress.name": "topk", "compress.keep": 1.0})
    assert_same_model(sparse, run(method, 5), atol=1e-3 if method == "fedadam" else 2e-6)


def test_fedstc_is_fedavg_with_stc():
    named, same = run("fedstc", 8), run("fedavg", 8, **{"compress.name": "stc"})
    assert_same_model(named, same, atol=0)
    assert named.report.totals.training == same.report.totals.training


def test_a_round_without_uploads_changes_nothing():
    server = server_of(FedAvgServer)
    after, _ = server.aggregate(server.init(), Sent([]), Plan(1))
    assert after.round == 1
    assert not after.history
    assert server.download(after, A, Plan(2)).tensors == {}


def test_a_method_without_a_dense_exchange_refuses_compression_by_name():
    with pytest.raises(ConfigError, match=r"compress.name: expected none: fedpse .*fedavg, .*ditto") as refused:
        assemble({**BASE, "method": "fedpse", "compress.name": "stc"})
    assert "topk" not in str(refused.value)
    assert {"fedavg", "fedavg-ft", "fedprox", "ditto", "apfl", "fedper", "fedrep", "fedbabu", "lg-fedavg"} < set(DENSE)
    assert {"pfedme", "fedavgm", "fedadam", "fedyogi", "fedadagrad"} < set(DENSE)
