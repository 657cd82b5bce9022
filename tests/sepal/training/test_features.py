"""The last layer's input, and the models whose last layer is no linear one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ModelError
from sepal.training.features import last_layer


def network(*parts):
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), *parts)


def of(module):
    return last_layer(module, models.layout(module), "moon")


def test_outputs_are_the_layers_own_of_what_is_read():
    module, x = network(nn.Linear(4, 2)), torch.randn(5, 3)
    last = of(module)
    outputs, features = last.read(module, x)
    torch.testing.assert_close(outputs, module(x), rtol=0, atol=0)
    torch.testing.assert_close(features @ module[2].weight.T + module[2].bias, outputs)
    assert (last.name, last.outputs, last.features, last.weight, last.bias) == ("2", 2, 4, "2.weight", "2.bias")
    assert not module[2]._forward_hooks
    features.sum().backward()
    assert module[0].weight.grad is not None
    assert module[2].weight.grad is None


def test_a_layer_without_bias():
    assert of(network(nn.Linear(4, 2, bias=False))).bias == ""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Conv1d(1, 2, 1)), "got 0.weight of Conv1d"),
        (network(nn.Linear(4, 4), nn.LayerNorm(4)), "got 2.weight, 2.bias, 3.weight, 3.bias"),
    ],
)
def test_another_end_is_refused(module, words):
    with pytest.raises(ModelError, match=f"model: expected one that ends with a linear layer, .* moon needs, {words}"):
        of(module)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(self.fc(x))


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x)[:, :2]


class Reversed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(4, 2), nn.Linear(3, 4)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (network(nn.Linear(4, 2), nn.Softmax(1)), "got 2, after which something follows"),
        (network(nn.Linear(4, 2), nn.ReLU(inplace=True)), "got 2, after which something follows"),
        (Sliced(), "got head, after which something follows"),
        (Twice(), "got fc, which is used more than once"),
        (Reversed(), "got body, after which something follows"),
    ],
)
def test_a_layer_that_is_not_the_last_in_use_is_refused(module, words):
    with pytest.raises(ModelError, match=words):
        of(module).read(module, torch.zeros(2, 3))
