"""FedSCR: a step by hand, the limit case that is FedAvg, and what it promises of its messages."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Upload
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines import fedscr
from sepal.wire import IndexCoding, encode, inspect
from sepal.wire.tensors import SparseTensor, whole
from tests.scratch_store import ScratchStore
from tests.strategies.baselines import BASE, assert_same_model, run


def four(hyper):
    """A task of four weights at 0, for steps by hand."""
    assembly = assemble({**BASE, "method": "fedavg"})
    weights = {"w": np.zeros(4, np.float32)}
    return RunSetup((Parameter("w", (4,), Role.WEIGHT),), weights, assembly.setup.config, hyper)


def dense(tensor):
    return tensor.dense().tolist()


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
    config = assemble({**BASE, "method": "fedavg"}).setup.config
    server = fedscr.FedSCRServer(RunSetup(layout, {"w": np.ones(2, np.float32)}, config, fedscr.Hyper()))
    tensors = [SparseTensor((2,), np.array([i]), np.array([v], np.float32)) for i, v in ((0, 4), (1, 8))]
    sent = [Upload(ClientInfo(c, n), Payload({"w": t})) for c, n, t in zip("ab", (1, 3), tensors, strict=True)]
    after, _ = server.aggregate(server.init(), sent, Plan(1))
    assert after.weights["w"].tolist() == [2, 7]


def first_upload(name, **keys):
    host = build_host(
        Shared.around(assemble({**BASE, "method": name, **keys}), "cpu"), Node(0, 4), "run", ScratchStore()
    )
    weights = {n: whole(w) for n, w in host.algorithm.setup.weights.items()}
    state, upload = host.algorithm.train(host.algorithm.init(), Payload(weights), Plan(1))
    return host.algorithm.setup, state, upload


@pytest.mark.parametrize("values", ["fp32", "fp16"])
def test_fedscr_sends_whole_rows_in_row_coding_and_owes_the_rest(values):
    setup, state, upload = first_upload("fedscr", values=values, **{"fedscr.keep": 0.3})
    entries = inspect(encode(upload.tensors)).tensors
    coded = {e.name: e.index for e in entries if len(e.shape) > 1 and 0 < e.count < e.size}
    assert coded
    assert set(coded.values()) == {IndexCoding.ROWS}
    for name, tensor in upload.tensors.items():
        gained = state.model[name] - setup.weights[name]
        np.testing.assert_array_equal(tensor.dense() + state.residual[name], gained)
    sent = sum(tensor.nnz for tensor in upload.tensors.values())
    assert 0.2 * sum(p.size for p in setup.layout) < sent <= fedscr.budget(setup.layout, 0.3)


def test_a_threshold_that_nothing_reaches_sends_nothing_and_everything_is_owed():
    setup, state, upload = first_upload("fedscr", **{"fedscr.threshold": 1e9})
    assert not any(tensor.nnz for tensor in upload.tensors.values())
    for name, residual in state.residual.items():
        np.testing.assert_array_equal(residual, state.model[name] - setup.weights[name])


def test_fedscr_that_sends_everything_is_fedavg():
    sparse, plain = run("fedscr", **{"fedscr.keep": 1.0}), run("fedavg")
    assert_same_model(sparse, plain, atol=2e-6)  # one averages weights, the other differences
