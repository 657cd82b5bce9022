"""What the tests of gated modules share: plain models, their gated modules, batches."""

import torch
from torch import nn
from torch.nn import functional as F

from sepal import models
from sepal.models.gated import GatedModule
from sepal.strategies.pfedgate.blocks import split
from sepal.strategies.pfedgate.knapsack import Knapsack


class SmallResidual(nn.Module):
    """All that a gated layer can be: strides, no bias, GroupNorm, a way around, two axes less at the end."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, 8)
        self.shortcut = nn.Sequential(nn.Conv2d(2, 8, 1, stride=2))
        self.fc = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.stem(x)) + self.shortcut(x)).mean((2, 3)))


PLAIN = {
    "lenet5": (lambda: models.build("lenet5", (3, 32, 32), 10), (3, 32, 32)),
    "digits-cnn": (lambda: models.build("digits-cnn", (1, 8, 8), 10), (1, 8, 8)),
    "har-cnn": (lambda: models.build("har-cnn", (3, 40), 6), (3, 40)),
    "residual": (SmallResidual, (2, 9, 9)),
    "two rows": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (3, 4)),  # borders cut a row twice
}


def gated(name, keep=0.5, parts=5, **options):
    torch.manual_seed(0)
    build, shape = PLAIN[name]
    model = build()
    blocks = split(models.layout(model), parts, keep)
    return GatedModule(model, shape, blocks.by_tensor(), Knapsack(blocks, keep), **options), blocks


def batch(name, size=6, dtype=torch.float32):
    return torch.randn(size, *PLAIN[name][1], dtype=dtype, generator=torch.Generator().manual_seed(3))
