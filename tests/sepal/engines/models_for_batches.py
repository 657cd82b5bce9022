"""Models that cannot train several clients at once."""

from __future__ import annotations

import math

import torch
from torch import nn


def head(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU()), nn.Linear(16, classes)


def norm(shape, classes):
    first, last = head(shape, classes)
    return nn.Sequential(first, nn.BatchNorm1d(16), last)


def dropout(shape, classes):
    first, last = head(shape, classes)
    return nn.Sequential(first, nn.Dropout(0.2), last)


class Rnn(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.gru, self.last = nn.GRU(8, 12, batch_first=True), nn.Linear(12, classes)

    def forward(self, x):
        return self.last(self.gru(x.flatten(1, 2))[0][:, -1])


def rnn(shape, classes):
    return Rnn(classes)


class Centred(nn.Module):
    """Each example's features depend on the others of its batch."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.last = head(shape, classes)

    def forward(self, x):
        x = self.first(x)
        return self.last(x - x.mean(0))


class Counting(Centred):
    """A buffer that training changes."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.last(self.first(x))


class Branching(Centred):
    """Python looks at the values."""

    def forward(self, x):
        x = self.first(x)
        return self.last(x if x.sum() > 0 else -x)


class Attention(nn.Module):
    """Torch has no batched attention for all devices; where it has none, clients train one by one."""

    def __init__(self, classes):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, classes)

    def forward(self, x):
        x = x.flatten(1, 2)
        return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))


def attention(shape, classes):
    return Attention(classes)
