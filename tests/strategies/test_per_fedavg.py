"""Per-FedAvg: a round by hand with and without the Hessian, the cases in which it is FedAvg, what it costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.method import Payload, Plan
from tests.strategies.baselines import assert_same_model, run
from tests.strategies.federation import Federation
from tests.strategies.quadratics import Quadratics

EQUAL = {"per-fedavg.weights": "equal", "per-fedavg.alpha": 0.1, "per-fedavg.epochs": 0}


def personalised(rounds, round):
    plan = Plan(round)
    adapted = [
        client.adapt(state, rounds.download(number, plan), plan)
        for number, (client, state) in enumerate(zip(rounds.clients, rounds.states, strict=True))
    ]
    return [float(state.model["w"][0]) for state in adapted]


def test_a_round_without_the_hessian_by_hand():
    """α = β = .1, K = 2, D = D'. Client 1: the gradient at w̃ = w + .1·(4 - w) is .9·(w - 4): -3.6, w = .36;

    .9·(.36 - 4) = -3.276: w = .6876. Client 2: w̃ = .8·w - .2, d = 2·(w̃ + 1) = 1.6·(w + 1): 1.6, w = -.16; 1.344:
    w = -.2944. W = .1966; a step of rate .1 from there: .1966 + .38034 = .57694, .1966 - .23932 = -.04272.
    """
    rounds = Quadratics("per-fedavg", **EQUAL)
    rounds.round(1)
    assert rounds.sent() == pytest.approx([0.6876, -0.2944], abs=1e-6)
    assert rounds.model() == pytest.approx(0.1966, abs=1e-6)
    assert personalised(rounds, 2) == pytest.approx([0.57694, -0.04272], abs=1e-6)


@pytest.mark.parametrize(
    "keys", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"weight-decay": 0.5}, {"clip-gradient": 0.5}]
)
def test_personalisation_is_plain_descent_whatever_the_outer_step_is(keys):
    """Three passes of one batch at α = .1 from 0: client 1 has 4·(1 - .9³) = 1.084, client 2 -(1 - .8³) = -.488."""
    rounds = Quadratics("per-fedavg", **{**EQUAL, "per-fedavg.epochs": 3}, **keys)
    assert personalised(rounds, 1) == pytest.approx([1.084, -0.488], abs=1e-6)


def test_a_round_with_the_hessian_by_hand():
    """The step is (1 - α·a) = .9 and .8 times as long: .9·.9·(w - 4), .8·1.6·(w + 1).

    Client 1: -3.24, w = .324; .81·-3.676 = -2.97756: .621756. Client 2: 1.28: -.128; 1.28·.872 = 1.11616: -.239616.
    """
    rounds = Quadratics("per-fedavg", **EQUAL, **{"per-fedavg.variant": "hf"})
    rounds.round(1)
    assert rounds.sent() == pytest.approx([0.621756, -0.239616], abs=1e-6)
    assert rounds.model() == pytest.approx(0.19107, abs=1e-6)
    assert personalised(rounds, 2) == pytest.approx([0.571963, -0.047144], abs=1e-6)


def test_alpha_does_not_decay():
    """In round 3 with lr-decay .5 one pass of one step still has the rate α."""
    keys = {**EQUAL, "per-fedavg.epochs": 1, "lr-decay": 0.5, "schedule": "cosine", "rounds": 2}
    rounds = Quadratics("per-fedavg", **keys)
    (client, _), plan = rounds.clients, Plan(3)
    assert float(client.adapt(client.init(), Payload(), plan).model["w"][0]) == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_without_an_inner_step_and_with_batches_that_are_not_cut_it_is_fedavg(variant):
    """α = 0: w̃ = w, and (I - 0) d = d on D'. D' is a half of the data, which the test makes all of it."""
    keys = {"clients-per-round": 0, "batch-size": 1000, "local-epochs": 1, "partition.name": "iid", "lr": 0.5}
    uncut = {"per-fedavg.alpha": 0.0, "per-fedavg.variant": variant, "model": "tests.strategies.test_per_fedavg:whole"}
    method, fedavg = (
        run(name, 2, **keys, **more) for name, more in (("per-fedavg", uncut), ("fedavg", {"model": uncut["model"]}))
    )
    assert_same_model(method, fedavg, atol=1e-5)


class Whole(torch.nn.Sequential):
    least_batch = 30  # of about 50 examples, so that no batch is cut


def whole(input_shape, classes):
    return Whole(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes))


def test_no_personalisation_at_alpha_zero():
    strategy = run("per-fedavg", 2, **{"per-fedavg.alpha": 0.0})
    assert strategy.report.accuracy["trained"] == strategy.report.accuracy["received"]


def numeric(federation, hessian, alpha):
    """The meta-gradient of client 0 in float64, by difference quotients of f on its parts of the first batch."""
    algorithm = federation.hosts[0].algorithm
    module = algorithm.trainer.network().module.double()
    x, y = algorithm.trainer.x.double(), algorithm.trainer.y
    count = 2 + hessian
    parts = [
        part
        for rows in [algorithm.trainer.rows(1, "train", 1)[0]]
        for part in zip(torch.tensor_split(x[rows], count), torch.tensor_split(y[rows], count), strict=True)
    ]
    parameters = dict(module.named_parameters())

    def gradient(weights, part):
        loss = algorithm.trainer.loss(torch.func.functional_call(module, weights, (part[0],)), part[1])
        return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))

    start = {
        name: torch.tensor(federation.setup.weights[name], dtype=torch.float64, requires_grad=True)
        for name in parameters
    }

    def moved(by, direction):
        return {name: (w + by * direction[name]).detach().requires_grad_() for name, w in start.items()}

    outer = gradient(moved(-alpha, gradient(start, parts[0])), parts[1])
    if hessian:
        delta = 1e-4
        ahead, back = gradient(moved(delta, outer), parts[2]), gradient(moved(-delta, outer), parts[2])
        outer = {name: g - alpha * (ahead[name] - back[name]) / (2 * delta) for name, g in outer.items()}
    module.float()
    return {name: g.numpy() for name, g in outer.items()}


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_one_step_on_parts_of_a_batch_against_difference_quotients(variant):
    """The three parts are different examples, and the paper's quotient of gradients is in float64 here."""
    keys = {"per-fedavg.alpha": 0.5, "per-fedavg.variant": variant, "model": "tests.strategies.federation:mlp"}
    federation = Federation([1.0], method="per-fedavg", **keys, **{"clip-gradient": 0.0, "lr": 0.1})
    expected = numeric(federation, variant == "hf", 0.5)
    upload = federation.trained(federation.server.init(), 0, federation.server.plan(1))
    for name, gradient in expected.items():
        step = (federation.setup.weights[name] - upload.payload.tensors[name].dense()) / 0.1
        np.testing.assert_allclose(step, gradient, rtol=2e-3, atol=2e-5, err_msg=name)


def test_every_gradient_is_counted():
    """A pass cuts each batch into parts, one gradient of an example for each (FO), and one more of a third (HF)."""
    spent = {}
    for variant in ("", "fo", "hf"):
        keys = {"per-fedavg.variant": variant} if variant else {}
        federation = Federation([1.0], method="per-fedavg" if variant else "fedavg", **keys, **{"evaluate-every": 0})
        federation.trained(federation.server.init(), 0, federation.server.plan(1))
        trainer = federation.hosts[0].algorithm.trainer
        spent[variant], count = trainer.multiply_adds, len(trainer.y)
    assert spent["fo"] == spent[""]
    assert spent["hf"] / spent[""] == pytest.approx(4 / 3, abs=1 / count)


def test_the_pass_of_the_hessian_moves_no_running_statistic():
    """HF on D, D', D'' of a batch norm model has the statistics of two forward passes, as FO on two parts."""
    federation = Federation([1.0], method="per-fedavg", model="digits-cnn-bn", **{"per-fedavg.variant": "hf"})
    algorithm = federation.hosts[0].algorithm
    passes = []
    network = algorithm.trainer.network()
    norm = network.module.norm1
    norm.register_forward_hook(lambda layer, inputs, output: passes.append(layer.running_mean.clone()))
    federation.trained(federation.server.init(), 0, federation.server.plan(1))
    states = [tuple(mean.tolist()) for mean in passes[:3]]
    assert len(passes) >= 3  # of one batch, and then that which counts multiply-adds
    assert len({states[0], states[1]}) == 2
    final = federation.states[0].model["norm1.running_mean"]
    np.testing.assert_array_equal(final, passes[1].numpy())


def test_it_says_fine_tuning_in_its_plan_and_deploys_the_personalised_model():
    strategy = run("per-fedavg", 3, **{"per-fedavg.alpha": 0.05})
    accuracy = strategy.report.accuracy
    assert accuracy["trained"] != accuracy["received"]
