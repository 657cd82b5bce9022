"""MOON: the term by hand, the cases in which it is FedAvg, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sepal.errors import ModelError
from sepal.method import Plan
from sepal.strategies.baselines.moon import contrast
from tests.strategies.baselines import assert_same_model, model, run
from tests.strategies.federation import Federation

# Received and previous model; the features of one example
GLOBAL, PREVIOUS = torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 1.0]])


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.217622), (1.0, 0.400834)])
def test_the_term_by_hand(temperature, expected):
    """z = (1, 0): cos with (1, 1) is 1/√2, with (0, 1) it is 0. ln(1 + e^(-.707107/τ))."""
    term = contrast(torch.tensor([[1.0, 0.0]]), GLOBAL, PREVIOUS, temperature)
    assert term.item() == pytest.approx(expected, abs=1e-6)
    assert term.item() == pytest.approx(math.log1p(math.exp(-math.sqrt(0.5) / temperature)), abs=1e-6)


def test_the_gradient_by_hand():
    """d/dz: the previous model's share .19557, over τ, times (d cos_prev - d cos_glob)/dz = (0, 1) - (0, .707107).

    At z = (1, 0), the derivative of cos(z, a) in the second coordinate is a_2/‖a‖; in the first it is 0.
    """
    z = torch.tensor([[1.0, 0.0]], requires_grad=True)
    contrast(z, GLOBAL, PREVIOUS, 0.5).backward()
    share = 1 / (1 + math.exp(math.sqrt(0.5) / 0.5))
    assert share == pytest.approx(0.19557, abs=1e-5)
    assert z.grad[0].tolist() == pytest.approx([0, 0.114562], abs=1e-6)


def test_a_small_temperature_overflows_nothing():
    z = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    assert contrast(z, PREVIOUS.bfloat16(), -PREVIOUS.bfloat16() + z, 0.001).isfinite()
    assert contrast(torch.zeros(1, 2), GLOBAL, PREVIOUS, 0.5).item() == pytest.approx(math.log(2))  # a dead sample


def test_it_is_the_mean_over_the_batch():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    both = contrast(z, GLOBAL.repeat(2, 1), PREVIOUS.repeat(2, 1), 0.5)
    single = [contrast(z[[n]], GLOBAL, PREVIOUS, 0.5) for n in (0, 1)]
    assert both.item() == pytest.approx(sum(part.item() for part in single) / 2)


def test_without_the_term_it_is_fedavg_bit_for_bit():
    assert_same_model(run("moon", **{"moon.mu": 0.0}), run("fedavg"))


def test_first_rounds_of_clients_are_fedavgs_bit_for_bit():
    assert_same_model(run("moon", 1, **{"moon.mu": 5.0}), run("fedavg", 1))


def test_a_single_client_is_fedavg():
    """Its previous model is what it receives: the term is μ·ln 2, and its gradient 0 but for rounding."""
    keys = {"clients": 1, "clients-per-round": 0}
    assert_same_model(run("moon", 3, **keys, **{"moon.mu": 5.0}), run("fedavg", 3, **keys), atol=1e-5)


def first_rounds(mu, rounds=2):
    federation = Federation([1.0, 1.0], method="moon", **{"moon.mu": mu, "local-epochs": 2})
    state = federation.server.init()
    for number in range(1, rounds + 1):
        state, _ = federation.round(state, number)
    return federation, state


def test_the_second_time_counts_the_term_and_only_below_the_last_layer():
    """One step of the whole data: from the same start, the last layer gets FedAvg's gradient, and others another."""
    states = {}
    for mu in (0.0, 2.0):
        federation = Federation([1.0, 1.0], method="moon", **{"moon.mu": mu, "local-epochs": 1})
        state, _ = federation.round(federation.server.init(), 1)
        state, _ = federation.round(state, 2)
        states[mu] = federation.states[0].model
    np.testing.assert_allclose(states[0.0]["fc2.weight"], states[2.0]["fc2.weight"], rtol=0, atol=1e-7)
    assert np.abs(states[0.0]["fc1.weight"] - states[2.0]["fc1.weight"]).max() > 1e-5


def test_the_previous_model_is_that_of_the_last_training():
    federation, state = first_rounds(1.0)
    algorithm, plan = federation.hosts[0].algorithm, Plan(3)
    download = federation.download(state, 0, plan)
    plain = algorithm.adapt(federation.states[0], download, plan).model
    other = algorithm.adapt(type(federation.states[0])(dict(federation.setup.weights)), download, plan).model
    assert any(not np.array_equal(plain[name], other[name]) for name in plain)


def test_two_forward_passes_more_are_counted():
    """A pass forward and backward of digits-cnn costs nearly three forward; the first layer has no gradient of x."""
    spent = []
    for mu in (0.0, 1.0):
        federation, _ = first_rounds(mu)
        spent.append(federation.hosts[0].algorithm.trainer.multiply_adds)
    assert 1.6 < 2 * spent[1] / spent[0] - 1 < 2  # in one of two rounds


@pytest.mark.parametrize("end", ["softmaxed", "convolved"])
def test_a_model_that_does_not_end_with_a_linear_layer_is_refused(end):
    with pytest.raises(Exception, match="one that ends with a linear layer, whose input moon needs") as error:
        run("moon", 1, model=f"tests.strategies.test_moon:{end}", **{"clients-per-round": 0})
    assert "\n" not in str(error.value)
    if end == "convolved":
        assert isinstance(error.value, ModelError)  # before the run


def softmaxed(input_shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes), torch.nn.Softmax(1))


def convolved(input_shape, classes):
    return torch.nn.Sequential(torch.nn.Conv2d(1, classes, 8), torch.nn.Flatten())


def test_a_private_upload_is_the_clipped_change():
    strategy = run("moon", 2, **{"privacy.clip": 0.05})
    start, end = strategy.setup.weights, model(strategy)
    moved = np.sqrt(sum(np.square(end[name] - start[name]).sum() for name in start))
    assert 0 < moved <= 0.1 + 1e-6
