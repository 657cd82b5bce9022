"""FedDST: a server's and a client's step by hand, budgets that always hold, and FedAvg where nothing is pruned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer, Upload
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines import feddst
from sepal.wire.tensors import SparseTensor, Support, whole
from tests.strategies.baselines import BASE, assert_same_model, run


def four(keep=0.5):
    """A layer of four weights (2, -1, .5, -3): of two kept, those are 2 and -3."""
    settings = {"method": "feddst", "lr": 0.5, "optimizer": "sgd", "local-epochs": 1}
    config = assemble({**BASE, **settings}).setup.config
    weights = {"w": np.array([[2, -1, 0.5, -3]], np.float32), "b": np.zeros(1, np.float32)}
    layout = Parameter("w", (1, 4), Role.WEIGHT), Parameter("b", (1,), Role.BIAS)
    return RunSetup(layout, weights, config, feddst.Hyper(keep=keep))


def sparse(index, values):
    return SparseTensor((1, 4), np.array(index), np.array(values, np.float32))


def test_the_first_mask_is_that_of_the_largest_first_weights():
    state = feddst.FedDSTServer(four()).init()
    assert state.masks["w"].tolist() == [[True, False, False, True]]
    assert state.weights["w"].tolist() == [[2, 0, 0, -3]]


def test_feddst_server_step_by_hand():
    """Two clients, n = (1, 3), kept {0: 4, 3: -2} and {0: 0, 1: -8}, biases 1 and 5.

    Entry 0: (1·4 + 3·0)/4 = 1, kept by both although one value is 0; entry 1: -8, of one client; entry 3: -2.
    The union is {0, 1, 3}; of (1, -8, -2) the two largest are -8 and -2: the mask is {1, 3}. Bias: (1 + 15)/4 = 4.
    """
    server = feddst.FedDSTServer(four())
    sent = [([0, 3], [4, -2], 1), ([0, 1], [0, -8], 5)]
    uploads = [
        Upload(ClientInfo(name, n), Payload({"w": sparse(index, values), "b": whole(np.array([bias]))}))
        for name, n, (index, values, bias) in zip("ab", (1, 3), sent, strict=True)
    ]
    after, metrics = server.aggregate(server.init(), uploads, Plan(1, scalars={"fraction": 0.5}))
    assert after.weights["w"].tolist() == [[0, -8, 0, -2]]
    assert after.masks["w"].tolist() == [[False, True, False, True]]
    assert after.weights["b"].tolist() == [4]
    assert metrics == {"grown": 1.0}


def test_only_what_somebody_kept_can_be_kept():
    """Means of 0 in the union win over entries that nobody sent."""
    server = feddst.FedDSTServer(four())
    upload = Upload(ClientInfo("a", 1), Payload({"w": sparse([1, 2], [0, 0]), "b": whole(np.zeros(1))}))
    after, _ = server.aggregate(server.init(), [upload], Plan(1, scalars={"fraction": 0.5}))
    assert after.masks["w"].tolist() == [[False, True, True, False]]


class Row(nn.Module):
    """The logits of x (4,) are (w·x + b, 0)."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(1, 4)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([x @ self.w.T + self.b, torch.zeros(len(x), 1)], 1)


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_feddst_client_step_by_hand(fraction):
    """Received w = (1, 0, 0, -2) under {0, 3}, b = 0; one example x = (1, 2, 4, .5) of class 0, lr .5.

    w·x = 0, so the gradient is -.5·x = (-.5, -1, -2, -.25) in w and -.5 in b. Under the mask w = (1.25, 0, 0, -1.875),
    b = .25. Readjusting by .5 prunes one of two, the smaller 1.25 at 0. The gradient at these weights is c·x with
    c = -1/(1 + e^z), so of the free {0, 1, 2} the largest is at 2, which grows and starts at 0.
    """
    setup = four()
    x, y = torch.tensor([[1, 2, 4, 0.5]]), torch.tensor([0])
    algorithm = feddst.FedDSTClient(setup, Trainer(ClientInfo("c", 1), setup.config, x, y, x[:0], y[:0], Row))
    download = Payload({"w": sparse([0, 3], [1, -2]), "b": whole(np.zeros(1))})
    state, upload = algorithm.train(algorithm.init(), download, Plan(1, scalars={"fraction": fraction}))
    expected = [[0, 0, 0, -1.875]] if fraction else [[1.25, 0, 0, -1.875]]
    assert state.model["w"].tolist() == expected
    assert upload.tensors["w"].dense().tolist() == expected
    assert upload.tensors["w"].positions().tolist() == ([2, 3] if fraction else [0, 3])
    assert upload.tensors["w"].support is (Support.EXPLICIT if fraction else Support.DERIVED)
    assert upload.tensors["b"].values.tolist() == [0.25]


READJUST = {"feddst.readjust-every": 2, "feddst.fraction": 0.3, "feddst.until": 20, "local-epochs": 2}


@pytest.mark.parametrize("shares", ["erk", "uniform"])
def test_the_budget_holds_in_every_round_and_masks_move_only_when_they_should(shares, monkeypatch):
    states = []
    aggregate = feddst.FedDSTServer.aggregate

    def spy(self, state, uploads, plan):
        after, metrics = aggregate(self, state, uploads, plan)
        states.append((plan, state, after, metrics))
        return after, metrics

    monkeypatch.setattr(feddst.FedDSTServer, "aggregate", spy)
    strategy = run("feddst", 5, **READJUST, **{"feddst.keep": 0.3, "feddst.budgets": shares})
    counts = feddst.budgets(strategy.setup)
    total = sum(p.size for p in strategy.setup.layout if p.role is Role.WEIGHT)
    assert sum(counts.values()) == pytest.approx(0.3 * total, abs=4)
    for plan, before, after, metrics in states:
        for name, mask in after.masks.items():
            assert mask.sum() == counts[name]
            assert not after.weights[name][~mask].any()
        if plan.round % 2:
            assert all(np.array_equal(after.masks[name], before.masks[name]) for name in counts)
        assert (metrics["grown"] > 0) is (plan.round % 2 == 0)


def test_rounds_2_12_and_so_on_of_the_first_half_readjust_by_a_constant_fraction():
    plan = feddst.FedDSTServer(assemble({**BASE, "method": "feddst", "rounds": 80}).setup).plan
    fractions = {round: plan(round).scalars["fraction"] for round in range(1, 82)}
    assert {round for round, fraction in fractions.items() if fraction} == {2, 12, 22, 32}
    assert set(fractions.values()) == {0.0, 0.01}


def test_keeping_everything_is_fedavg_bit_for_bit():
    feddst_run, fedavg_run = run("feddst", **{"feddst.keep": 1.0, "feddst.fraction": 0.0}), run("fedavg")
    assert_same_model(feddst_run, fedavg_run)
    assert feddst_run.report.accuracy == fedavg_run.report.accuracy


def test_a_mask_costs_no_bytes_where_it_did_not_change():
    """keep .3: four bytes for each kept weight and each bias up; on the way down at most a bit a weight more."""
    strategy = run("feddst", 2, **{"feddst.keep": 0.3, "feddst.fraction": 0.0})
    entries = sum(feddst.budgets(strategy.setup).values())
    masked = sum(p.size for p in strategy.setup.layout if p.role is Role.WEIGHT)
    rest = sum(p.size for p in strategy.setup.layout) - masked
    totals = strategy.report.totals.training
    assert 2 * 2 * 4 * (entries + rest) <= totals.up < 2 * 2 * (4 * (entries + rest) + 400)
    # nothing travels down in round 1: both sides derive W_0 and the first masks
    assert totals.up / 2 < totals.down <= totals.up / 2 + 2 * (masked / 8 + 100)


@pytest.mark.parametrize("method", ["feddst", "fedrts"])
def test_a_client_without_a_batch_reports_gradients_of_zero(method):
    """With batch normalisation and one example there is no step. The first entries outside the mask are taken."""
    assembly = assemble({**BASE, "method": method, "model": "tests.strategies.baselines:normed"})
    x, y = torch.ones(1, 1, 8, 8), torch.tensor([0])
    trainer = Trainer(ClientInfo("c", 1), assembly.setup.config, x, y, x[:0], y[:0], assembly.make)
    client, server = (
        assembly.method.make_client(assembly.setup, trainer),
        assembly.method.make_server(assembly.setup),
    )
    plan = Plan(1, scalars={"fraction": 0.2})
    state, payload = client.train(client.init(), Payload(), plan)
    server.upload_schema(server.init(), trainer.client, plan)
    for name, mask in server.init().masks.items():
        on = mask if method == "fedrts" else state.model[name] != 0
        np.testing.assert_array_equal(state.model[name][on], assembly.setup.weights[name][on])
    if method == "fedrts":
        assert all(t.positions().tolist() == list(range(t.nnz)) for n, t in payload.tensors.items() if "/grow" in n)
    client.adapt(client.init(), Payload(), plan)
