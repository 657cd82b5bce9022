"""Layout, first weights, reading and loading, on a module with one of each kind of tensor."""

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models, rng
from sepal.errors import ModelError
from sepal.layout import Parameter, Role


class Scale(nn.Module):
    """Anyone's own layer: a matrix, a vector, and a constant."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.full((2, 3), 0.5))
        self.bias_matrix = nn.Parameter(torch.zeros(2, 3))
        self.gain = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.tensor([1.0, 2.0]))


def mixed():
    return nn.Sequential(
        nn.Conv2d(3, 4, (5, 2), bias=False),
        nn.BatchNorm2d(4),
        nn.Linear(6, 2),
        nn.Embedding(7, 3, padding_idx=2),
        nn.GroupNorm(2, 4),
        Scale(),
        nn.GRU(3, 4),
    )


def test_layout_follows_state_dict_and_leaves_counters_out():
    module = mixed()
    assert models.layout(module)[:12] == (
        Parameter("0.weight", (4, 3, 5, 2), Role.WEIGHT),
        Parameter("1.weight", (4,), Role.NORM),
        Parameter("1.bias", (4,), Role.NORM),
        Parameter("1.running_mean", (4,), Role.STATISTIC),
        Parameter("1.running_var", (4,), Role.STATISTIC),
        Parameter("2.weight", (2, 6), Role.WEIGHT),
        Parameter("2.bias", (2,), Role.BIAS),
        Parameter("3.weight", (7, 3), Role.WEIGHT),
        Parameter("4.weight", (4,), Role.NORM),
        Parameter("4.bias", (4,), Role.NORM),
        Parameter("5.mix", (2, 3), Role.BIAS),
        Parameter("5.bias_matrix", (2, 3), Role.BIAS),
    )
    roles = {parameter.name: parameter.role for parameter in models.layout(module)}
    assert roles["5.gain"] is Role.BIAS
    assert roles["5.shift"] is Role.STATISTIC
    assert roles["6.weight_ih_l0"] is Role.WEIGHT
    assert roles["6.bias_ih_l0"] is Role.BIAS
    order = [name for name in module.state_dict() if not name.endswith("num_batches_tracked")]
    assert [parameter.name for parameter in models.layout(module)] == order
    assert list(models.read_weights(module)) == list(models.initial_weights(module, 1)) == order


def test_first_weights_follow_torch_defaults():
    weights = models.initial_weights(mixed(), 7)
    assert all(array.dtype == np.float32 for array in weights.values())
    # fan-in of the convolution: 3 * 5 * 2 = 30; of the linear layer 6; of the recurrent one, hidden: 4
    for name, bound in [("0.weight", 30**-0.5), ("2.weight", 6**-0.5), ("2.bias", 6**-0.5), ("6.weight_ih_l0", 0.5)]:
        expected = rng.derive(7, "init", name).uniform(-bound, bound, weights[name].shape).astype(np.float32)
        np.testing.assert_array_equal(weights[name], expected)
    rows = rng.derive(7, "init", "3.weight").standard_normal((7, 3)).astype(np.float32)
    rows[2] = 0
    np.testing.assert_array_equal(weights["3.weight"], rows)
    for name, value in [("1.weight", 1), ("1.bias", 0), ("4.weight", 1), ("4.bias", 0)]:
        np.testing.assert_array_equal(weights[name], np.full(4, value))
    for name, value in [("1.running_mean", 0), ("1.running_var", 1), ("5.mix", 0.5), ("5.gain", 1)]:
        np.testing.assert_array_equal(weights[name], np.full(weights[name].shape, value))
    np.testing.assert_array_equal(weights["5.shift"], [1, 2])


def test_first_weights_have_the_spread_of_torch_defaults():
    # U(±b) has variance b²/3; 512,000 draws: relative error of the variance about .001
    weight = models.initial_weights(models.build("cnn2", (1, 28, 28), 10), 0)["fc1.weight"]
    assert np.abs(weight).max() <= np.float32(1024**-0.5)
    assert weight.var() * 1024 * 3 == pytest.approx(1, rel=0.01)


def test_first_weights_depend_on_seed_only():
    torch.manual_seed(1)
    first = models.initial_weights(mixed(), 3)
    torch.manual_seed(2)
    second = models.initial_weights(mixed(), 3)
    other_seed = models.initial_weights(mixed(), 4)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["2.weight"], other_seed["2.weight"])
    assert first["0.weight"].ravel()[0] != first["2.weight"].ravel()[0]


def test_digits_first_weight_is_pinned():
    # derive(1, "init", "conv1.weight") is PCG64 on a SHA-256 seed: the same on every machine; 1/√9 bounds it.
    weights = models.initial_weights(models.build("digits-cnn", (1, 8, 8), 10), 1)
    np.testing.assert_array_equal(
        weights["conv1.weight"].ravel()[:3],
        np.array([-0.249602809548378, 0.0827302411198616, 0.11030463129281998], np.float32),
    )


def test_load_then_read_is_the_identity_and_copies():
    module = mixed()
    weights = models.initial_weights(module, 9)
    models.load_weights(module, weights)
    back = models.read_weights(module)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    weights["2.bias"][:] = 99
    back["2.weight"][:] = 99
    again = models.read_weights(module)
    assert again["2.bias"].max() < 1
    assert again["2.weight"].max() < 1


def test_load_takes_read_only_arrays_and_keeps_training_possible():
    module = nn.Linear(2, 1)
    weights = {"weight": np.frombuffer(np.array([[1, 2]], "<f4").tobytes(), "<f4").reshape(1, 2), "bias": np.zeros(1)}
    models.load_weights(module, weights)
    module(torch.ones(1, 2)).backward()
    assert module.weight.requires_grad
    assert module.bias.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("bias"), "got bias missing"),
        (lambda weights: weights.update(more=np.zeros(1)), "got more unknown to the model"),
        (lambda weights: weights.update(weight=np.zeros((2, 1))), r"shape \(1, 2\), got shape \(2, 1\)"),
    ],
)
def test_load_refuses_what_does_not_fit_and_changes_nothing(change, words):
    module = nn.Linear(2, 1)
    before = models.read_weights(module)
    weights = {name: array + 1 for name, array in before.items()}
    change(weights)
    with pytest.raises(ModelError, match=words):
        models.load_weights(module, weights)
    after = models.read_weights(module)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_counters_survive_loading():
    module = nn.BatchNorm1d(2)
    module(torch.ones(3, 2))
    models.load_weights(module, models.initial_weights(module, 0))
    assert module.num_batches_tracked == 1
