"""FedPer, FedRep, LG-FedAvg: what is shared and what stays, a step by hand, and the cases that are FedAvg and Local."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sepal.layout import Parameter, Role, layers
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import whole
from tests.strategies.baselines import BASE, assert_same_model, model, run

ALL_LAYERS = 4  # of digits-cnn: two convolutions, two linear layers


class Chain(nn.Module):
    """Two weights: the logits of x are (h·b·x, 0), b the body's, h the head's."""

    def __init__(self):
        super().__init__()
        self.b, self.h = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([x * self.b * self.h, torch.zeros_like(x)], 1)


LAST = {"lg-fedavg.shared-end": "last", "lg-fedavg.shared-layers": 1}
STAYS = [
    ("fedper", "fc2", {}),
    ("fedrep", "fc2", {}),
    ("fedbabu", "fc2", {}),
    ("lg-fedavg", "fc2", {}),
    ("lg-fedavg", "conv1", LAST),
]


def chain(method, **keys):
    """A client half over ``Chain`` from b = h = 1, one example x = 2 of class 0, lr .5, one step a pass."""
    settings = {"method": method, "lr": 0.5, "optimizer": "sgd", "local-epochs": 1, **keys}
    assembly = assemble({**BASE, **settings})
    layout = Parameter("b", (1,), Role.WEIGHT), Parameter("h", (1,), Role.WEIGHT)
    weights = {"b": np.ones(1, np.float32), "h": np.ones(1, np.float32)}
    setup = RunSetup(layout, weights, assembly.setup.config, assembly.setup.hyper)
    x, y = torch.tensor([[2.0]]), torch.tensor([0])
    work = Trainer(ClientInfo("c", 1), setup.config, x, y, x[:0], y[:0], Chain)
    return registry.get(method).make_client(setup, work)


def slope(product):
    """∂F/∂(b·h) of F = ln(1 + exp(-2·b·h))."""
    return -2 / (1 + np.exp(2 * product))


def sent(name, value):
    return Payload({name: whole(np.array([value], np.float32))})


def test_layers_go_from_weight_to_weight():
    roles = {"n": Role.NORM, "a": Role.WEIGHT, "a2": Role.BIAS, "a3": Role.NORM, "b": Role.WEIGHT, "b2": Role.BIAS}
    layout = tuple(Parameter(name, (1,), role) for name, role in roles.items())
    names = {last: tuple("".join(p.name for p in part) for part in layers(layout, last)) for last in range(4)}
    assert names[0] == ("naa2a3bb2", "")
    assert names[1] == ("naa2a3", "bb2")
    assert names[2] == names[3] == ("", "naa2a3bb2")


def test_the_head_is_the_last_linear_layer():
    layout = assemble({**BASE, "method": "fedper"}).setup.layout
    assert [p.name for p in layers(layout, 1)[1]] == ["fc2.weight", "fc2.bias"]


def test_fedper_step_by_hand():
    """Received b = 3, own head h = 1: ∂F/∂b = h·F', ∂F/∂h = b·F' with F' = -2/(1 + e⁶) at b·h = 3.

    b = 3 - .5·1·F' = 3.00247, which goes up; h = 1 - .5·3·F' = 1.00742, which stays.
    """
    algorithm = chain("fedper")
    state, upload = algorithm.train(algorithm.init(), sent("b", 3.0), Plan(1))
    assert list(upload.tensors) == ["b"]
    assert upload.tensors["b"].values[0] == pytest.approx(3 - 0.5 * slope(3.0), rel=1e-6)
    assert state.model["h"][0] == pytest.approx(1 - 1.5 * slope(3.0), rel=1e-6)
    again, _ = algorithm.train(state, sent("b", 3.0), Plan(2))
    h = float(state.model["h"][0])
    assert again.model["h"][0] == pytest.approx(h - 1.5 * slope(3 * h), rel=1e-6)  # it goes on from its own head


def test_fedrep_step_by_hand():
    """Received b = 3, h = 1. Two passes for the head with b fixed, one for the body with the new head.

    h₁ = 1 - 1.5·F'(3), h₂ = h₁ - 1.5·F'(3·h₁); b = 3 - .5·h₂·F'(3·h₂).
    """
    algorithm = chain("fedrep", **{"fedrep.head-epochs": 2, "fedrep.body-epochs": 1})
    state, upload = algorithm.train(algorithm.init(), sent("b", 3.0), Plan(1))
    h = 1 - 1.5 * slope(3.0)
    h -= 1.5 * slope(3 * h)
    assert state.model["h"][0] == pytest.approx(h, rel=1e-6)
    assert upload.tensors["b"].values[0] == pytest.approx(3 - 0.5 * h * slope(3 * h), rel=1e-6)


def test_fedrep_adapts_the_head_alone():
    """Ten passes from h = 1 under the received b = 3, which stays: h ← h - 1.5·F'(3·h)."""
    algorithm = chain("fedrep", **{"fedrep.head-epochs": 2})
    model = algorithm.adapt(algorithm.init(), sent("b", 3.0), Plan(1)).model
    h = 1.0
    for _ in range(10):
        h -= 1.5 * slope(3 * h)
    assert model["b"][0] == 3
    assert model["h"][0] == pytest.approx(h, rel=1e-5)


def test_fedbabu_step_by_hand():
    """Received b = 3, h = 1 is fixed: b = 3 - .5·1·F'(3) goes up. Fine-tuning moves both, at a tenth of the rate."""
    algorithm = chain("fedbabu", **{"fedbabu.epochs": 1, "fedbabu.tuning": 0.1})
    state, upload = algorithm.train(algorithm.init(), sent("b", 3.0), Plan(1))
    assert list(upload.tensors) == ["b"]
    assert upload.tensors["b"].values[0] == pytest.approx(3 - 0.5 * slope(3.0), rel=1e-6)
    assert state.model["h"][0] == 1
    tuned = algorithm.adapt(state, sent("b", 3.0), Plan(2))
    assert tuned.model["b"][0] - 3 == pytest.approx(-0.05 * slope(3.0), rel=1e-3)
    assert tuned.model["h"][0] - 1 == pytest.approx(-0.15 * slope(3.0), rel=1e-3)
    assert algorithm.received_weights(tuned, sent("b", 2.0), Plan(3))["h"][0] == 1, (
        "the first head stands beside every body"
    )


def test_lg_fedavg_counts_layers_not_tensors():
    """A layer has its bias and its norm with it: two layers of four are conv1 to norm2."""
    assembly = assemble({**BASE, "method": "lg-fedavg", "model": "digits-cnn-bn"})
    shared = {p.name.partition(".")[0] for p in assembly.method.make_server(assembly.setup).shared()}
    assert shared == {"conv1", "norm1", "conv2", "norm2"}


def test_lg_fedavg_step_by_hand():
    """FedPer's step with the sides exchanged: received h = 3, own b = 1; h = 3 - .5·F'(3) goes up."""
    algorithm = chain("lg-fedavg", **LAST)
    state, upload = algorithm.train(algorithm.init(), sent("h", 3.0), Plan(1))
    assert list(upload.tensors) == ["h"]
    assert upload.tensors["h"].values[0] == pytest.approx(3 - 0.5 * slope(3.0), rel=1e-6)
    assert state.model["b"][0] == pytest.approx(1 - 1.5 * slope(3.0), rel=1e-6)


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedper", {"fedper.personal-layers": 0}),
        ("fedrep", {"fedrep.personal-layers": 0, "fedrep.body-epochs": 0}),
        ("fedbabu", {"fedbabu.head-layers": 0}),
        ("lg-fedavg", {"lg-fedavg.shared-layers": ALL_LAYERS}),
    ],
)
def test_sharing_everything_is_fedavg_bit_for_bit(method, keys):
    method_run, fedavg_run = run(method, **keys), run("fedavg")
    assert_same_model(method_run, fedavg_run)
    assert method_run.report.accuracy["received"] == fedavg_run.report.accuracy["received"]


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedper", {"fedper.personal-layers": ALL_LAYERS}),
        ("fedrep", {"fedrep.personal-layers": ALL_LAYERS, "fedrep.head-epochs": 0}),
        ("lg-fedavg", {"lg-fedavg.shared-layers": 0}),
    ],
)
def test_sharing_nothing_is_local_training(method, keys):
    """The same steps as Local; FedRep's draws its batches under another name, so its accuracies may differ."""
    method_run, local_run = run(method, **keys), run("local")
    assert model(method_run) == {}
    assert (method_run.report.totals.training.up, method_run.report.totals.training.down) == (0, 0)
    if method != "fedrep":
        assert method_run.report.accuracy["trained"] == local_run.report.accuracy["trained"]


@pytest.mark.parametrize(("method", "stays", "keys"), STAYS)
def test_what_stays_with_the_client_is_never_sent(method, stays, keys):
    strategy = run(method, 2, **keys)
    assert not any(name.startswith(stays) for name in model(strategy))
    shared = sum(array.size for array in model(strategy).values())
    totals = strategy.report.totals.training
    # two clients, four bytes an entry and a header; nothing goes down in round 1
    for sent, rounds in ((totals.up, 2), (totals.down, 1)):
        assert rounds * 2 * 4 * shared <= sent < rounds * 2 * (4 * shared + 400)
