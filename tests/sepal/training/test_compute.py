"""Multiply-adds by hand, and in the account of the training loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sepal import models
from sepal.training.multiply_adds import REST, costs, multiply_adds


def test_har_cnn_by_hand():
    """Forward: positions × kernel entries. Backward: once for the weights, once for the inputs, which layer 1 lacks.

    conv1: 124 positions × (9·32·5 = 1,440) = 178,560, twice. conv2: 27 × (32·64·5 = 10,240) = 276,480, thrice.
    fc1: 384·64 = 24,576, thrice. fc2: 64·6 = 384, thrice. Biases, ReLU and pooling are not counted.
    """
    counts = multiply_adds(models.build("har-cnn", (9, 128), 6), torch.zeros(1, 9, 128))
    assert dict(counts) == {
        "conv1.weight": 2 * 178_560,
        "conv2.weight": 3 * 276_480,
        "fc1.weight": 3 * 24_576,
        "fc2.weight": 3 * 384,
        REST: 0,
    }


def test_a_density_scales_its_layer_and_the_rest_is_dense():
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.zeros(1, 4)
    assert costs(module, x, {}) == 2 * 12 + 3 * 6
    assert costs(module, x, {"0.weight": 0.5, "2.weight": 0.0}) == 12


def test_what_no_layer_s_weight_takes_part_in_is_counted_too():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(4, 2))

        def forward(self, x):
            return x @ self.table

    assert dict(multiply_adds(Product(), torch.zeros(1, 4))) == {REST: 2 * 8}


def test_an_lstm_by_hand():
    """A step of a layer: 4 gates x h x (inputs + h). Thrice, but once forward and once backward for what has no input.

    Five letters, inputs 3, h = 4, two layers: 4·4·(3 + 4) = 112 and 4·4·(4 + 4) = 128 a step. The first step's h is 0:
    it has no gradient, so of each layer 4·4·4 = 64 are not computed; the letters have none either: 5 · 4·4·3 = 240.
    """
    module, letters = nn.LSTM(3, 4, num_layers=2, batch_first=True), torch.zeros(1, 5, 3)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = module

        def forward(self, x):
            return self.lstm(x)[0][:, -1]

    assert dict(multiply_adds(Last(), letters)) == {REST: 3 * 5 * (112 + 128) - 2 * 64 - 240}


@pytest.mark.parametrize("training", [True, False])
def test_counting_leaves_the_module_as_it_was(training):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).train(training)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    multiply_adds(module, torch.randn(1, 1, 4, 4))
    assert module.training is training
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_gradients_that_a_method_still_reads_survive_the_count():
    """FedDST and DM-PFL regrow by gradients: what the counter's own backward pass adds would move masks."""
    module = nn.Linear(3, 2)
    module(torch.tensor([[1.0, 2.0, 3.0]])).square().sum().backward()
    gradient = module.weight.grad
    before = gradient.clone()
    multiply_adds(module, torch.ones(1, 3))
    assert module.weight.grad is gradient
    assert torch.equal(gradient, before)


def test_a_frozen_body_has_no_backward_pass():
    """4·3 + 3·2 = 18 forward; backward of the whole: 12 + 6 + 6, of the last layer alone: 6."""
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert costs(module, torch.zeros(1, 4), {}) == 18 + 24
    module[0].requires_grad_(False)
    assert costs(module, torch.zeros(1, 4), {}) == 18 + 6
    module.requires_grad_(True)
    assert costs(module, torch.zeros(1, 4), {}) == 18 + 24
