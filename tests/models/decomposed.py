"""What the tests of decomposed models share: models, their first weights, noise on all weights."""

import numpy as np
import torch
from torch import nn

from sepal import models
from sepal.models.decomposed import Decomposed, cut, initial_weights
from sepal.models.factors import DecomposedLayer

CIFAR = (3, 32, 32)
SHIPPED = {
    "cnn-cifar100-pa3dfl": (CIFAR, 100),
    "cnn-fmnist-pa3dfl": ((1, 28, 28), 10),
    "cnn2-small": ((1, 28, 28), 10),
    "digits-cnn": ((1, 8, 8), 10),
    "mnist-cnn": ((1, 28, 28), 10),  # 10 and 20 channels: R1 = 1, and widths that do not divide
    "har-cnn": ((9, 128), 6),  # one-dimensional convolutions
    "har-mlp": ((9, 128), 6),
}
NORMED = "normed"
RESIDUAL = ("blocks.6.conv2", "blocks.6.shortcut.0", "blocks.7.conv2")


class Normed(nn.Module):
    """Convolutions without bias, a stride, padding, GroupNorm of 2 channels a group."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(16, 32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=2, dilation=2, bias=False),
            nn.GroupNorm(32, 64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x))


def plain_model(name):
    if name == NORMED:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return Normed(), (3, 9, 9)
    shape, classes = SHIPPED[name]
    return models.build(name, shape, classes), shape


def built(name, width=1.0, **options):
    """The model at ``width`` with the first weights of seed 0, and a batch of two."""
    plain, shape = plain_model(name)
    first = initial_weights(Decomposed(plain, shape, **options), 0)
    model = Decomposed(plain, shape, width, **options)
    models.load_weights(model, cut(first, models.layout(model)))
    return model, torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), np.float32))


def layers(model):
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, DecomposedLayer)}


def filled(layer):
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape, np.float32)))
    return layer
