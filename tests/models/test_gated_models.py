"""Which models can be gated, and which are refused."""

import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ModelError
from sepal.models.gated import GatedModule
from sepal.strategies.pfedgate.blocks import split
from sepal.strategies.pfedgate.knapsack import Knapsack
from tests.models.gated import PLAIN


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: models.build("embedding-linear", (4,), 2, 10), r"inputs that are numbers, .*embedding \(Embedding\)"),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
            r"norms without running statistics.* 1 \(BatchNorm2d\)",
        ),
        (lambda: nn.Conv2d(4, 4, 3, groups=2), "one group.*Conv2d, 2 groups"),
        (Tied, "layers with weights of their own"),
        (Bare, "Bare"),
        (lambda: nn.LSTM(4, 4), "LSTM"),
    ],
)
def test_models_that_cannot_be_gated(model, words):
    module = model()
    blocks = split(models.layout(module), 5, 0.5)
    with pytest.raises(ModelError, match=words) as caught:
        GatedModule(module, (4,), blocks.by_tensor(), Knapsack(blocks, 0.5))
    assert "\n" not in str(caught.value)


def test_blocks_of_another_model_are_refused():
    blocks = split(models.layout(PLAIN["lenet5"][0]()), 5, 0.5)
    with pytest.raises(ModelError, match="sizes that add up to those of the model's parameters"):
        GatedModule(PLAIN["digits-cnn"][0](), (1, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))


def test_linear_layers_over_sequences_are_refused():
    model = nn.Linear(4, 3)
    blocks = split(models.layout(model), 5, 0.5)
    module = GatedModule(model, (5, 4), blocks.by_tensor(), Knapsack(blocks, 0.5))
    with pytest.raises(
        ModelError, match=r"linear layers on \(batch, features\), to gate them by sample .*, got one on \(6, 5, 4\)"
    ):
        module(torch.zeros(6, 5, 4))


def test_resnet_with_group_norm_can_be_gated():
    model = models.build("resnet18-gn", (3, 8, 8), 10)
    blocks = split(models.layout(model), 5, 0.5)
    module = GatedModule(model, (3, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))
    module(torch.randn(2, 3, 8, 8)).sum().backward()
    assert module(torch.randn(2, 3, 8, 8)).shape == (2, 10)
