"""Decomposed models of different widths: cut against built narrower, names, the width for a capacity."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ModelError
from sepal.models.decomposed import Decomposed, cut
from sepal.models.factors import Decomposition, components, width_for
from tests.models.decomposed import CIFAR, NORMED, RESIDUAL, SHIPPED, built, filled, layers, plain_model


@pytest.mark.parametrize("width", [1 / 16, 3 / 16, 1 / 2, 15 / 16])
@pytest.mark.parametrize("name", [*SHIPPED, NORMED])
def test_cutting_a_full_model_is_building_it_narrower(name, width):
    """The recovered weights are the first entries of the full ones, along both axes, and so the outputs are those of a
    plain narrow network with these."""
    full, _ = built(name)
    narrow, batch = built(name, width)
    whole = full.recovered("local_head")
    expected = narrow.recovered("local_head")  # a plain model of the narrow shapes, filled from the full one
    models.load_weights(expected, cut(models.read_weights(whole), models.layout(expected)))
    torch.testing.assert_close(expected(batch), narrow(batch)[1], rtol=1e-4, atol=1e-5)
    *hidden, last = layers(narrow)
    assert layers(narrow)[last].outputs == layers(full)[last].outputs
    for layer_name in hidden:
        layer, r1 = layers(narrow)[layer_name], components(layers(full)[layer_name].outputs)
        assert layer.outputs == r1 * max(1, round(width * layers(full)[layer_name].outputs / r1))
    first = next(iter(layers(full)))
    assert layers(narrow)[first].inputs == layers(full)[first].inputs


def test_general_tensors_are_the_same_at_every_width_and_names_are_stable():
    full, _ = built("cnn-cifar100-pa3dfl")
    narrow, _ = built("cnn-cifar100-pa3dfl", 1 / 16)
    assert narrow.general == full.general
    assert [(p.name, p.shape) for p in full.general] == [
        ("body.conv1.theta_u", (100, 25)),
        ("body.conv2.theta_u", (100, 64)),
        ("body.fc1.theta_u", (24, 24)),
        ("body.fc2.theta_u", (12, 12)),
    ]
    assert [(p.name, p.shape) for p in narrow.personal] == [
        ("body.conv1.theta_v", (1, 25, 3)),
        ("body.conv1.bias", (4,)),
        ("body.conv2.theta_v", (1, 64, 4)),
        ("body.conv2.bias", (4,)),
        ("body.fc1.theta_v", (1, 24, 100)),
        ("body.fc1.bias", (24,)),
        ("body.fc2.theta_v", (16, 12, 24)),
        ("body.fc2.bias", (192,)),
        ("local_head.weight", (100, 192)),
        ("local_head.bias", (100,)),
    ]
    assert [p.name for p in full.personal] == [p.name for p in narrow.personal]
    names = {p.name for p in models.layout(full)} - {p.name for p in (*full.general, *full.personal)}
    assert names == {"global_head.weight", "global_head.bias"}


def test_channels_in_a_group_of_a_norm_stay_the_same():
    model, _ = built(NORMED, 3 / 16)
    first, second = (layer for layer in model.modules() if isinstance(layer, nn.GroupNorm))
    assert (first.num_channels, first.num_groups) == (6, 3)  # 32 channels in 16 groups before
    assert (second.num_channels, second.num_groups) == (12, 6)
    assert "body.body.1.weight" in {p.name for p in model.personal}


class OverTokens(nn.Module):
    """Linear layers on (batch, tokens, features), and their mean over the tokens."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 32), nn.Linear(32, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.two(self.one(x).relu()).mean(1))


@pytest.mark.parametrize("decomposition", Decomposition)
def test_a_linear_layers_inputs_are_its_last_axis(decomposition):
    model = filled(Decomposed(OverTokens(), (3, 6), 1 / 4, decomposition=decomposition))
    assert layers(model)["body.two"].inputs == 8
    batch = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 3, 6), np.float32))
    torch.testing.assert_close(model.recovered("local_head")(batch), model(batch)[1], rtol=1e-4, atol=1e-4)


def test_a_residual_network_with_its_last_sum_whole():
    plain = models.build("resnet18-gn", CIFAR, 10)
    with pytest.raises(ModelError, match=r"layers that fit each other at width 0\.25"):
        Decomposed(plain, CIFAR, 1 / 4)
    model = Decomposed(plain, CIFAR, 1 / 4, whole=RESIDUAL)
    filled(model)
    batch = torch.from_numpy(np.random.default_rng(1).standard_normal((2, *CIFAR), np.float32))
    assert layers(model)["body.blocks.6.conv1"].outputs == 128
    assert layers(model)["body.blocks.7.conv2"].outputs == 512
    torch.testing.assert_close(model.recovered("local_head")(batch), model(batch)[1], rtol=1e-3, atol=1e-3)


def test_on_the_device_meta_only_shapes_are_made():
    plain, shape = plain_model("cnn-fmnist-pa3dfl")
    model = Decomposed(plain.to("meta"), shape, 1 / 2)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.personal == built("cnn-fmnist-pa3dfl", 1 / 2)[0].personal


@pytest.mark.parametrize(
    ("capacity", "least", "width"),
    [
        (1, 1 / 16, 1),
        (0.99, 1 / 16, 15 / 16),
        (1 / 4, 1 / 16, 1 / 2),
        (0.01, 1 / 16, 1 / 16),  # p = .1, lowered
        (1 / 256, 1 / 16, 1 / 16),
        (0.09, 0.1, 0.3),
        (0.01, 0.1, 0.1),  # .1² is 0.010000000000000002 in binary
        ((15 / 22) ** 2, 1 / 22, 15 / 22),  # its root times 22 is 14.999999999999998 in binary
        (0.5, 1, None),
        (0.0039, 1 / 16, None),
        (1.01, 1 / 16, None),
        (math.nan, 1 / 16, None),
    ],
)
def test_width_for_a_capacity(capacity, least, width):
    if width is None:
        with pytest.raises(ModelError, match=r"capacity: expected .* \(the smallest width .* to 1, got"):
            width_for(capacity, least)
    else:
        assert width_for(capacity, least) == width
