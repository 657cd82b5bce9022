"""FedSTC and FedSCR: a step by hand, the limit case that is FedAvg, and what each promises of its messages."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.masks.selection import count
from sepal.protocol.layout import Parameter, Role
from sepal.protocol.method import ClientInfo, Payload, Plan, Task, Upload
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines import fedscr, fedstc
from sepal.wire import IndexCoding, encode, inspect
from sepal.wire.tensors import SparseTensor, ValueCoding, whole
from tests.scratch_store import ScratchStore
from tests.strategies.baselines import BASE, Sent, assert_same_model, run


def four(hyper):
    """A task of four weights at 0, for steps by hand."""
    assembly = assemble({**BASE, "method": "fedavg"})
    weights = {"w": np.zeros(4, np.float32)}
    return Task((Parameter("w", (4,), Role.WEIGHT),), weights, assembly.task.config, hyper)


def dense(tensor):
    return tensor.dense().tolist()


# FedSTC


def test_stc_by_hand():
    """p = .5 of (4, -2, 1, 0): k = 2, largest 4 and -2, μ = (4 + 2)/2 = 3: (3, -3, 0, 0); owed: (1, 1, 1, 0)."""
    vector = np.array([4, -2, 1, 0], np.float32)
    sent = fedstc.stc(vector, four(fedstc.Hyper(keep=0.5)))
    assert dense(sent) == [3, -3, 0, 0]
    assert sent.coding is ValueCoding.SIGN
    assert fedstc.less(vector, sent).tolist() == [1, 1, 1, 0]


def test_stc_sends_nothing_for_an_entry_that_is_0():
    """p = .5 of (0, 0, -2, 1, 0, 0, 0, 0): of k = 4 two are not 0; μ = (2 + 1)/4, and μ·sign(0) = 0."""
    sent = fedstc.stc(np.array([0, 0, -2, 1, 0, 0, 0, 0], np.float32), four(fedstc.Hyper(keep=0.5)))
    assert dense(sent) == [0, 0, -0.75, 0.75, 0, 0, 0, 0]
    assert sent.nnz == 2


def test_fedstc_round_by_hand():
    """Two clients, n = (1, 3), p = .5, A = 0.

    They send (4, -4, 0, 0) and (0, 4, 4, 0). Mean: entry 0: 4/4 = 1; entry 1: (-4 + 3·4)/4 = 2; entry 2: 3·4/4 = 3.
    Of (1, 2, 3, 0) the two largest are 3 and 2, μ = 2.5: the update is (0, 2.5, 2.5, 0), owed is (1, -.5, .5, 0).
    Next round both send (0, 4, 0, -4): the mean is (0, 4, 0, -4), with what is owed (1, 3.5, .5, -4);
    μ = (3.5 + 4)/2 = 3.75: the update is (0, 3.75, 0, -3.75), W = (0, 6.25, 2.5, -3.75), owed is (1, -.25, .5, -.25).
    """
    server = fedstc.FedSTCServer(four(fedstc.Hyper(keep=0.5)))
    clients = ClientInfo("a", 1), ClientInfo("b", 3)

    def uploads(*rows):
        tensors = [SparseTensor((4,), np.array(index), np.array(values, np.float32)) for index, values in rows]
        return Sent(Upload(c, Payload({"update": t})) for c, t in zip(clients, tensors, strict=True))

    one, _ = server.aggregate(server.init(), uploads(([0, 1], [4, -4]), ([1, 2], [4, 4])), Plan(1))
    assert one.weights.tolist() == [0, 2.5, 2.5, 0]
    assert one.residual.tolist() == [1, -0.5, 0.5, 0]
    assert one.changed.tolist() == [0, 1, 1, 0]
    two, metrics = server.aggregate(one, uploads(([1, 3], [4, -4]), ([1, 3], [4, -4])), Plan(2))
    assert two.weights.tolist() == [0, 6.25, 2.5, -3.75]
    assert two.residual.tolist() == [1, -0.25, 0.5, -0.25]
    assert two.synced == {"a": 1, "b": 1}
    assert metrics == {"missed": 1.0}
    # a client that was never there misses both rounds; one whose upload of round 2 was accepted misses one
    assert list(server.newcomer(two, ClientInfo("c", 1), Plan(3)).tensors) == ["1", "2"]
    assert list(server.download(two, clients[0], Plan(3)).tensors) == ["2"]


@pytest.mark.parametrize("cache", [1, 2, 50])
@pytest.mark.parametrize("keys", [{}, {"fedstc.ternary": False}, {"fedstc.ternary": False, "values": "bf16"}])
def test_every_client_holds_the_servers_model_bit_for_bit(cache, keys, monkeypatch):
    """Whatever it missed, and however it was told: update by update, or by new values where the cache is short."""
    bases, models, ways = [], {}, set()
    train, aggregate = fedstc.FedSTCClient.train, fedstc.FedSTCServer.aggregate

    def spy_train(self, state, download, plan):
        after, upload = train(self, state, download, plan)
        bases.append((plan.round, after.base))
        ways.update("values" if name == "weights" else "updates" for name in download.tensors)
        return after, upload

    def spy_aggregate(self, state, uploads, plan):
        models[plan.round] = state.weights
        return aggregate(self, state, uploads, plan)

    monkeypatch.setattr(fedstc.FedSTCClient, "train", spy_train)
    monkeypatch.setattr(fedstc.FedSTCServer, "aggregate", spy_aggregate)
    run("fedstc", 9, **{"clients": 6, "clients-per-round": 2, "fedstc.cache": cache, **keys})
    assert len(bases) == 18
    for round, base in bases:
        np.testing.assert_array_equal(base.view(np.uint32), models[round].view(np.uint32))
    assert ways == ({"updates"} if cache == 50 else {"updates", "values"})


def test_fedstc_sends_one_bit_a_value_both_ways():
    """k signs, one scale, and positions: k/8 + 4 bytes, and for p = .1 at most 1.02 · .47 bits an entry (FORMAT.md)."""
    strategy = run("fedstc", 3, **{"clients-per-round": 0})
    d = strategy.algorithm.flat.size
    k = count(0.1, d)
    bound = 3 * 4 * (k / 8 + 4 + 1.02 * 0.469 * d / 8 + 60)  # 60: the header
    totals = strategy.report.totals.training
    assert 0 < totals.up < bound
    assert 0 < totals.down < totals.up  # nothing comes down in round 1


def test_fedstc_sent_and_owed_are_what_was_gained():
    host = build_host(Shared.around(assemble({**BASE, "method": "fedstc"}), "cpu"), Node(0, 4), "run", ScratchStore())
    algorithm = host.algorithm
    state, upload = algorithm.train(algorithm.init(), Payload(), Plan(1))
    gained = algorithm.flat.join(state.model) - state.base
    np.testing.assert_allclose(upload.tensors["update"].dense() + state.residual, gained, rtol=1e-6, atol=1e-9)
    assert upload.tensors["update"].nnz == count(0.1, gained.size)


def test_fedstc_that_sends_everything_as_it_is_is_fedavg():
    """p = 1 without signs: nothing is ever owed."""
    sparse, plain = run("fedstc", **{"fedstc.keep": 1.0, "fedstc.ternary": False}), run("fedavg")
    assert_same_model(sparse, plain, atol=2e-6)  # one averages weights, the other differences
    assert not sparse.progress.server.residual.any()


def test_a_round_without_uploads_changes_nothing():
    server = fedstc.FedSTCServer(four(fedstc.Hyper()))
    after, _ = server.aggregate(server.init(), [], Plan(1))
    assert after.round == 1
    assert not after.history
    assert server.download(after, ClientInfo("a", 1), Plan(2)).tensors == {}


# FedSCR

PARTS = (Parameter("conv", (3, 2), Role.WEIGHT), Parameter("bias", (3,), Role.BIAS))
UPDATE = {"conv": np.array([[3, -1], [0, 1], [-2, -2]], np.float32), "bias": np.array([0, 5, 1], np.float32)}


def test_structures_by_hand():
    """Mean magnitudes: filters 2, .5, 2; biases 0, 5, 1. Sorted: bias 1 (1 entry), filter 0 (2), filter 2 (2), bias 2.

    keep = .4 of 9 entries is 3.6, rounded 4: bias 1 and filter 0 hold 3, filter 2 would make 5. A threshold of 1
    takes everything from 1 on: bias 1, filters 0 and 2, bias 2.
    """
    chosen = fedscr.select(UPDATE, PARTS, fedscr.Hyper(keep=0.4))
    assert {name: index.tolist() for name, index in chosen.items()} == {"conv": [0, 1], "bias": [1]}
    chosen = fedscr.select(UPDATE, PARTS, fedscr.Hyper(threshold=1.0))
    assert {name: index.tolist() for name, index in chosen.items()} == {"conv": [0, 1, 4, 5], "bias": [1, 2]}


def test_at_least_the_largest_structure_fits():
    """keep = .01 of 9 entries is one entry; the budget is a filter's 2, or no filter could ever be sent."""
    assert fedscr.budget(PARTS, 0.01) == 2
    big = {**UPDATE, "conv": UPDATE["conv"] * 10}
    chosen = fedscr.select(big, PARTS, fedscr.Hyper(keep=0.01))
    assert {name: index.tolist() for name, index in chosen.items()} == {"conv": [0, 1], "bias": []}


def test_fedscr_round_by_hand():
    """Two clients, n = (1, 3): W + (1·(4, 0) + 3·(0, 8))/4 = W + (1, 6): what was not sent counts as 0."""
    layout = (Parameter("w", (2,), Role.WEIGHT),)
    config = assemble({**BASE, "method": "fedavg"}).task.config
    server = fedscr.FedSCRServer(Task(layout, {"w": np.ones(2, np.float32)}, config, fedscr.Hyper()))
    tensors = [SparseTensor((2,), np.array([i]), np.array([v], np.float32)) for i, v in ((0, 4), (1, 8))]
    sent = [Upload(ClientInfo(c, n), Payload({"w": t})) for c, n, t in zip("ab", (1, 3), tensors, strict=True)]
    after, _ = server.aggregate(server.init(), sent, Plan(1))
    assert after.weights["w"].tolist() == [2, 7]


def first_upload(name, **keys):
    host = build_host(
        Shared.around(assemble({**BASE, "method": name, **keys}), "cpu"), Node(0, 4), "run", ScratchStore()
    )
    weights = {n: whole(w) for n, w in host.algorithm.task.weights.items()}
    state, upload = host.algorithm.train(host.algorithm.init(), Payload(weights), Plan(1))
    return host.algorithm.task, state, upload


@pytest.mark.parametrize("values", ["fp32", "fp16"])
def test_fedscr_sends_whole_rows_in_row_coding_and_owes_the_rest(values):
    task, state, upload = first_upload("fedscr", values=values, **{"fedscr.keep": 0.3})
    entries = inspect(encode(upload.tensors)).tensors
    coded = {e.name: e.index for e in entries if len(e.shape) > 1 and 0 < e.count < e.size}
    assert coded
    assert set(coded.values()) == {IndexCoding.ROWS}
    for name, tensor in upload.tensors.items():
        gained = state.model[name] - task.weights[name]
        np.testing.assert_array_equal(tensor.dense() + state.residual[name], gained)
    sent = sum(tensor.nnz for tensor in upload.tensors.values())
    assert 0.2 * sum(p.size for p in task.layout) < sent <= fedscr.budget(task.layout, 0.3)


def test_a_threshold_that_nothing_reaches_sends_nothing_and_everything_is_owed():
    task, state, upload = first_upload("fedscr", **{"fedscr.threshold": 1e9})
    assert not any(tensor.nnz for tensor in upload.tensors.values())
    for name, residual in state.residual.items():
        np.testing.assert_array_equal(residual, state.model[name] - task.weights[name])


def test_fedscr_that_sends_everything_is_fedavg():
    sparse, plain = run("fedscr", **{"fedscr.keep": 1.0}), run("fedavg")
    assert_same_model(sparse, plain, atol=2e-6)  # one averages weights, the other differences
