"""FedProx, Ditto, APFL: a step by hand, and the case in which each becomes a simpler method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import whole
from tests.strategies.baselines import BASE, Product, assert_same_model, run


def one_weight(method, x=2.0, **keys):
    """A client algorithm over ``Product`` with one example x of class 0: F(w) = ln(1 + exp(-w·x)), lr .5, one step."""
    settings = {"method": method, "lr": 0.5, "optimizer": "sgd", "local-epochs": 1, **keys}
    assembly = assemble({**BASE, **settings})
    setup = RunSetup(
        (Parameter("w", (1,), Role.WEIGHT),),
        {"w": np.zeros(1, np.float32)},
        assembly.setup.config,
        assembly.setup.hyper,
    )
    inputs, labels = torch.tensor([[x]]), torch.tensor([0])
    work = Trainer(ClientInfo("c", 1), setup.config, inputs, labels, inputs[:0], labels[:0], Product)
    return registry.get(method).make_client(setup, work)


def slope(w, x=2.0):
    """F'(w) = -x·σ(-w·x)."""
    return -x / (1 + np.exp(w * x))


def sent(value):
    return Payload({"w": whole(np.array([value], np.float32))})


# FedProx


def test_fedprox_step_by_hand():
    """Two epochs of one step, received w = 0, μ = 2, lr = .5, x = 2.

    Step 1: w = 0, the proximal term's gradient is 0: w = -.5·F'(0) = -.5·(-2·.5) = .5.
    Step 2: F'(.5) = -2/(1 + e) = -.5379; proximal: 2·(.5 - 0) = 1: w = .5 - .5·(-.5379 + 1) = .26894.
    """
    algorithm = one_weight("fedprox", **{"fedprox.mu": 2.0, "local-epochs": 2})
    state, upload = algorithm.train(algorithm.init(), sent(0.0), Plan(1))
    assert upload.tensors["w"].values[0] == pytest.approx(0.5 - 0.5 * (slope(0.5) + 1), rel=1e-6)
    assert upload.tensors["w"].values[0] == pytest.approx(0.26894, abs=1e-5)
    assert state.model["w"][0] == upload.tensors["w"].values[0]


def test_fedprox_without_its_term_is_fedavg_bit_for_bit():
    fedprox_run, fedavg_run = run("fedprox", **{"fedprox.mu": 0.0}), run("fedavg")
    assert_same_model(fedprox_run, fedavg_run)


def test_fedprox_stays_nearer_to_what_it_received():
    def moved(mu):
        algorithm = one_weight("fedprox", **{"fedprox.mu": mu, "local-epochs": 20})
        return float(algorithm.train(algorithm.init(), sent(0.0), Plan(1))[0].model["w"][0])

    assert moved(0.0) > moved(0.1) > moved(1.0) > 0


# Ditto


def test_ditto_step_by_hand():
    """Received w = 1, v = 0, λ = .5, lr = .5, x = 2.

    Up goes 1 - .5·F'(1) = 1 + .5·2/(1 + e²) = 1.1192; v = 0 - .5·(F'(0) + .5·(0 - 1)) = -.5·(-1 - .5) = .75.
    """
    algorithm = one_weight("ditto", **{"ditto.lambda": 0.5})
    state, upload = algorithm.train(algorithm.init(), sent(1.0), Plan(1))
    assert upload.tensors["w"].values[0] == pytest.approx(1 - 0.5 * slope(1.0), rel=1e-6)
    assert state.personal["w"][0] == pytest.approx(0.75, rel=1e-6)
    # adapt moves v in the same way and sends nothing
    np.testing.assert_array_equal(
        algorithm.adapt(algorithm.init(), sent(1.0), Plan(1)).personal["w"], state.personal["w"]
    )


@pytest.mark.parametrize("strength", [0.0, 0.1])
def test_dittos_global_model_is_fedavgs_bit_for_bit(strength):
    ditto_run, fedavg_run = run("ditto", **{"ditto.lambda": strength}), run("fedavg")
    assert_same_model(ditto_run, fedavg_run)


def test_without_pull_the_personal_model_does_not_see_the_global_one():
    """λ = 0: v depends on the client's own data alone; with λ > 0 it follows what was received."""
    for strength, alike in ((0.0, True), (0.5, False)):
        algorithm = one_weight("ditto", **{"ditto.lambda": strength})
        near, far = (algorithm.train(algorithm.init(), sent(w), Plan(1))[0].personal["w"][0] for w in (0.0, 3.0))
        assert (near == far) == alike


# APFL


def test_apfl_step_by_hand():
    """Received w = 1, v = 0, α = .5, lr = .5, x = 2: v̄ = .5, F'(v̄) = -2/(1 + e) = -.5379.

    w: 1 - .5·F'(1) = 1.1192, as FedAvg. v: 0 - .5·α·F'(v̄) = .13447. α: .5 - .5·(v - w)·F'(v̄) = .5 - .5·(-1)(-.5379)
    = .23106, both from v and w before the step. Afterwards v̄ = .23106·.13447 + .76894·1.1192 = .89167.
    """
    algorithm = one_weight("apfl", **{"apfl.alpha": 0.5})
    state, upload = algorithm.train(algorithm.init(), sent(1.0), Plan(1))
    w, v, alpha = 1 - 0.5 * slope(1.0), -0.25 * slope(0.5), 0.5 + 0.5 * slope(0.5)
    assert upload.tensors["w"].values[0] == pytest.approx(w, rel=1e-6)
    assert state.personal["w"][0] == pytest.approx(v, rel=1e-6)
    assert state.alpha == pytest.approx(alpha, rel=1e-6)
    assert state.mixed["w"][0] == pytest.approx(alpha * v + (1 - alpha) * w, rel=1e-6)
    assert (v, alpha) == (pytest.approx(0.13447, abs=1e-5), pytest.approx(0.23106, abs=1e-5))


def test_alpha_moves_once_a_round():
    """Its value after one pass of one batch is that after three."""
    single, three = (one_weight("apfl", **{"local-epochs": epochs, "apfl.alpha": 0.5}) for epochs in (1, 3))
    after, longer = single.train(single.init(), sent(1.0), Plan(1))[0], three.train(three.init(), sent(1.0), Plan(1))[0]
    assert after.alpha == longer.alpha != 0.5
    assert after.personal["w"][0] != longer.personal["w"][0]


def test_alpha_stays_within_0_and_1_and_where_it_is_not_adaptive():
    """Far below, by hand: α = .9, v = 0, w = 3, x = 4: F'(.3) = -4/(1 + e^1.2) = -.926; .9 - .5·(-3)(-.926) < 0.

    And above: α = .5, w = -1: F'(-.5) = -4/(1 + e^-2) = -3.52; .5 - .5·1·(-3.52) > 1.
    """
    for start, w, end in ((0.9, 3.0, 0.0), (0.5, -1.0, 1.0)):
        algorithm = one_weight("apfl", x=4.0, **{"apfl.alpha": start})
        assert algorithm.train(algorithm.init(), sent(w), Plan(1))[0].alpha == end
    fixed = one_weight("apfl", **{"apfl.adaptive": False, "apfl.alpha": 0.25})
    assert fixed.train(fixed.init(), sent(1.0), Plan(1))[0].alpha == 0.25


def test_apfls_global_model_is_fedavgs_bit_for_bit():
    apfl_run, fedavg_run = run("apfl"), run("fedavg")
    assert_same_model(apfl_run, fedavg_run)


def test_apfl_with_alpha_0_is_fedavg_for_the_clients_too():
    """v̄_i = w_i: the same logits, so the same accuracies, of received and trained."""
    apfl_run, fedavg_run = run("apfl", **{"apfl.alpha": 0.0, "apfl.adaptive": False}), run("fedavg")
    assert_same_model(apfl_run, fedavg_run)
    assert apfl_run.report.accuracy == fedavg_run.report.accuracy


def test_apfl_with_alpha_1_does_not_see_the_global_model():
    """v̄_i = v_i: what is received changes nothing in it."""
    algorithm = one_weight("apfl", **{"apfl.alpha": 1.0, "apfl.adaptive": False})
    near, far = (algorithm.train(algorithm.init(), sent(w), Plan(1))[0].mixed["w"][0] for w in (0.0, 3.0))
    assert near == far == pytest.approx(0.5)
