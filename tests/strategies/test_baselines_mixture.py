"""pFedMe and FedEM: two rounds against NumPy, and the cases in which they become FedAvg."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer, Upload
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import whole
from tests.strategies.baselines import BASE, Product, Sent, assert_same_model, model, run
from tests.strategies.federation import Federation

X, Y = np.array([2.0, -1.0, 0.5]), np.array([0, 1, 0])
SIGNS = np.where(Y == 0, 1.0, -1.0)


def losses(w):
    return np.log1p(np.exp(-SIGNS * w * X))


def slopes(w):
    return -SIGNS * X / (1 + np.exp(SIGNS * w * X))


def both(method, **keys):
    """A server and a client algorithm over ``Product``; three examples in one batch, two passes, lr .5."""
    settings = {"method": method, "lr": 0.5, "optimizer": "sgd", "local-epochs": 2, "batch-size": 3, **keys}
    base_task = assemble({**BASE, **settings}).setup
    layout, first = (Parameter("w", (1,), Role.WEIGHT),), {"w": np.zeros(1, np.float32)}
    setup = RunSetup(layout, first, base_task.config, base_task.hyper, Product)
    x, y = torch.tensor(X[:, None], dtype=torch.float32), torch.from_numpy(Y)
    trainer = Trainer(ClientInfo("c", 3), setup.config, x, y, x[:0], y[:0], Product)
    record = registry.get(method)
    return record.make_server(setup), record.make_client(setup, trainer)


def down(**values):
    return Payload(
        {name.replace("m", "") + "/w" if name != "w" else "w": one_value(value) for name, value in values.items()}
    )


def one_value(value):
    return whole(np.array([value], np.float32))


# pFedMe


def pfedme(w, lam, steps, eta, mu, lr=0.5, batches=2):
    theta = w
    for _ in range(batches):
        for _ in range(steps):
            theta -= lr * (slopes(theta).mean() + lam * (theta - w) + mu * theta)
        w -= eta * lam * (w - theta)
    return theta, w


def test_two_rounds_of_pfedme_against_numpy():
    """λ = .8, K = 3, η = .5, μ = .1, β = .25, from w = 1; the server's mean is of one client."""
    keys = {"lambda": 0.8, "steps": 3, "rate": 0.5, "mu": 0.1, "beta": 0.25}
    server, client = both("pfedme", **{f"pfedme.{key}": value for key, value in keys.items()})
    state, client_state, expected = server.init(), client.init(), 1.0
    state = type(state)({"w": np.ones(1, np.float32)})
    for round in (1, 2):
        theta, w = pfedme(expected, 0.8, 3, 0.5, 0.1)
        client_state, upload = client.train(client_state, down(w=float(state.weights["w"][0])), Plan(round))
        assert upload.tensors["w"].values[0] == pytest.approx(w, rel=1e-5)
        assert client_state.model["w"][0] == pytest.approx(theta, rel=1e-5)
        expected = 0.75 * expected + 0.25 * w
        state = server.aggregate(state, Sent([Upload(ClientInfo("c", 3), upload)]), Plan(round))[0]
        assert state.weights["w"][0] == pytest.approx(expected, rel=1e-5)


def test_w_of_pfedme_descends_the_moreau_envelope_once_theta_has_converged():
    """F(w) = min over θ of f(θ) + λ/2·(θ - w)² has the gradient λ·(w - θ̂), θ̂ its minimiser (the paper's section 3).

    After K = 200 steps θ is θ̂, which solves f'(θ) = λ·(w - θ); one batch moves w by -η·F'(w), here from the
    difference quotient of F on a grid of θ. With K = 1 neither holds.
    """
    theta, lam, w, eta = np.linspace(-2, 2, 4_000_001), 0.8, 0.7, 0.3
    f = np.mean([np.log1p(np.exp(-sign * theta * x)) for sign, x in zip(SIGNS, X, strict=True)], axis=0)
    low, high = (np.min(f + lam / 2 * (theta - at) ** 2) for at in (w - 1e-3, w + 1e-3))
    keys = {"pfedme.lambda": lam, "pfedme.rate": eta, "pfedme.mu": 0.0, "local-epochs": 1}
    for steps, converged in ((200, True), (1, False)):
        _, client = both("pfedme", **keys, **{"pfedme.steps": steps})
        client_state, upload = client.train(client.init(), down(w=w), Plan(2))
        local = float(client_state.model["w"][0])
        expected = w - eta * (high - low) / 2e-3
        assert (abs(slopes(local).mean() - lam * (w - local)) < 1e-6) == converged
        assert (abs(upload.tensors["w"].values[0] - expected) < 1e-5) == converged


def test_pfedme_counts_every_step_of_a_batch():
    totals = []
    for steps in (1, 4):
        _, client = both("pfedme", **{"pfedme.steps": steps, "model": "digits-cnn"})
        client.train(client.init(), down(w=1.0), Plan(1))
        totals.append(client.trainer.spent()["multiply-adds"])
    assert totals[1] == 4 * totals[0]


def test_pfedme_whose_local_model_jumps_to_the_personal_one_is_fedavg():
    """K = 1 and η·λ = 1: w = θ after each batch, so the pull is 0 when θ steps."""
    keys = {"pfedme.lambda": 2.0, "pfedme.rate": 0.5, "pfedme.steps": 1, "pfedme.mu": 0.0}
    assert_same_model(run("pfedme", **keys, lr=0.1), run("fedavg", lr=0.1), atol=1e-5)


# FedEM


def fedem(models, shares, lr=0.5, passes=2):
    scores = np.log(shares) - np.stack([losses(w) for w in models], 1)
    q = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    after = []
    for m, start in enumerate(models):
        w = start
        for _ in range(passes):
            w -= lr * (q[:, m] * slopes(w)).mean()
        after.append(w)
    return after, q.mean(0)


def test_two_rounds_of_fedem_against_numpy():
    server, client = both("fedem", **{"fedem.models": 2})
    client_state, models, shares = client.init(), [0.6, -0.9], np.array([0.5, 0.5])
    for round in (1, 2):
        client_state, upload = client.train(client_state, down(m0=models[0], m1=models[1]), Plan(round))
        models, shares = fedem(models, shares)
        assert [upload.tensors[f"{m}/w"].values[0] for m in (0, 1)] == pytest.approx(models, rel=1e-5)
        assert client_state.shares == pytest.approx(shares, rel=1e-5)
        state = server.aggregate(server.init(), Sent([Upload(ClientInfo("c", 3), upload)]), Plan(round))[0]
        assert [float(state.weights[f"{m}/w"][0]) for m in (0, 1)] == pytest.approx(models, rel=1e-5)
    x = torch.tensor([[1.5]])
    probabilities = client.predictor(client_state, None, Plan(3))(x).exp()
    sigmoid = 1 / (1 + np.exp(-1.5 * np.array(models)))
    assert probabilities[0, 0].item() == pytest.approx((shares * sigmoid).sum(), rel=1e-5)
    assert probabilities.sum().item() == pytest.approx(1, rel=1e-5)


def test_a_novel_client_of_fedem_learns_its_shares_alone():
    _, client = both("fedem", **{"fedem.models": 2})
    after = client.adapt(client.init(), down(m0=0.6, m1=-0.9), Plan(9, novel=True))
    assert after.models["0/w"][0] == np.float32(0.6)
    assert after.shares == pytest.approx(fedem([0.6, -0.9], np.array([0.5, 0.5]))[1], rel=1e-5)


def test_the_models_of_fedem_start_apart_and_the_first_at_w_0():
    assembly = assemble({**BASE, "method": "fedem"})
    server = assembly.method.make_server(assembly.setup)
    weights = server.init().weights
    assert np.array_equal(weights["0/fc1.weight"], assembly.setup.weights["fc1.weight"])
    assert len({weights[f"{m}/fc1.weight"].tobytes() for m in range(3)}) == 3


def test_one_model_of_fedem_is_fedavg():
    """To rounding: the loss is a mean of products with q = 1, and FedAvg's a mean."""
    single, fedavg_run = run("fedem", **{"fedem.models": 1}), run("fedavg")
    for name, array in model(fedavg_run).items():
        np.testing.assert_allclose(model(single)[f"0/{name}"], array, rtol=0, atol=1e-5)
    assert max(np.abs(array - fedavg_run.setup.weights[name]).max() for name, array in model(fedavg_run).items()) > 1e-2


def test_a_model_of_fedem_with_a_negative_running_variance_has_no_part_until_it_is_trained():
    """Somebody sent it: the model's outputs are no numbers in evaluation, and are again after a few batches."""
    keys = {"model": "tests.strategies.baselines:normed", "fedem.models": 2, "local-epochs": 8, "batch-size": 8}
    federation = Federation([1.0], method="fedem", **keys)
    (host,), server = federation.hosts, federation.server
    algorithm, names = host.algorithm, [p.name for p in server.shared() if p.name.endswith("running_var")]
    poisoned = {**server.init().weights, "1/2.running_var": np.full(16, -1, np.float32)}
    assert "1/2.running_var" in names
    down = Payload({name: whole(array) for name, array in poisoned.items()})
    x = algorithm.trainer.x
    alone = algorithm.trainer.predictor({p.name: poisoned[f"0/{p.name}"] for p in server.layout})(x)
    mixed = algorithm.predictor(algorithm.init(), down, Plan(2))(x)
    np.testing.assert_allclose(mixed.softmax(1), alone.softmax(1), rtol=1e-4, atol=1e-6)
    after = algorithm.adapt(algorithm.init(), down, Plan(2))
    assert after.shares == pytest.approx([1, 0])
    assert all(np.isfinite(array).all() for array in after.models.values())
    assert after.models["1/2.running_var"].min() > 0


def test_without_any_model_that_gives_numbers_fedem_keeps_its_shares():
    keys = {"model": "tests.strategies.baselines:normed", "fedem.models": 2, "local-epochs": 8, "batch-size": 8}
    (host,) = (federation := Federation([1.0], method="fedem", **keys)).hosts
    poisoned = {
        name: np.full_like(array, -1) if name.endswith("running_var") else array
        for name, array in federation.server.init().weights.items()
    }
    down, algorithm = Payload({name: whole(array) for name, array in poisoned.items()}), host.algorithm
    before = replace(algorithm.init(), shares=np.array([0.3, 0.7]))
    after = algorithm.adapt(before, down, Plan(2))
    assert after.shares == pytest.approx([0.3, 0.7])
    assert all(np.isfinite(array).all() for array in after.models.values())


def test_statistics_of_pfedme_are_the_mean_at_any_beta():
    """β = 3, running variance from 1 to a mean of .5: beyond the mean lies 3·.5 - 2·1 = -.5, which is no variance."""
    assembled = assemble({**BASE, "method": "pfedme", "pfedme.beta": 3.0, "model": "tests.strategies.baselines:normed"})
    server = assembled.method.make_server(assembled.setup)
    start = server.init()
    sent = {name: whole(np.full_like(array, 0.5)) for name, array in start.weights.items()}
    after, _ = server.aggregate(start, Sent([Upload(ClientInfo("c", 3), Payload(sent))]), Plan(1))
    assert after.weights["2.running_var"] == pytest.approx(0.5)
    assert after.weights["1.bias"] == pytest.approx(3 * 0.5 - 2 * start.weights["1.bias"], abs=1e-6)


def test_more_models_of_fedem_fit_into_its_messages():
    """Four models are more than twice the dense one, which other methods' messages may have."""
    strategy = run("fedem", rounds=1, **{"fedem.models": 4})
    assert strategy.report.totals.training.up > 0


def test_pfedme_counts_no_multiply_adds_where_no_step_was_taken():
    """A model with batch normalisation and one example: no batch is large enough."""
    assembled = assemble({**BASE, "method": "pfedme"}).setup
    normed = lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))  # noqa: E731
    setup = RunSetup(models.layout(normed()), models.read_weights(normed()), assembled.config, assembled.hyper, normed)
    x, y = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    trainer = Trainer(ClientInfo("c", 1), setup.config, x, y, x[:0], y[:0], normed)
    client = registry.get("pfedme").make_client(setup, trainer)
    client.train(client.init(), Payload(), Plan(1))
    assert (trainer.steps, trainer.multiply_adds) == (0, 0.0)
