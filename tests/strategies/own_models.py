"""Models as users write them: with a frozen layer, with weights of their own, with a weight that two layers share."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """(1, 8, 8) → 16 → 16 → 16 → classes."""

    def __init__(self, classes):
        super().__init__()
        self.embed, self.fc1, self.fc2 = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        x = self.embed(x.flatten(1)).relu()
        return self.head(self.fc2(self.fc1(x).relu()).relu())


def frozen(shape, classes):
    net = Net(classes)
    net.embed.requires_grad_(False)
    return net


def frozen_elsewhere(shape, classes):
    """The same model on a machine with another file for the frozen layer."""
    net = Net(classes)
    net.embed.requires_grad_(False)
    net.embed.weight += 0.01
    return net


def all_frozen(shape, classes):
    return Net(classes).requires_grad_(False)


def pretrained(shape, classes):
    """fc1 as a file would give it."""
    net = Net(classes)
    with torch.no_grad():
        net.fc1.weight.copy_(torch.linspace(-0.3, 0.3, 256).view(16, 16))
    return net


def normed(shape, classes):
    """With a norm whose running statistics are torch's."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.PReLU(), nn.Linear(16, classes))


def normed_before(shape, classes):
    """With running means from somewhere else."""
    net = normed(shape, classes)
    net[2].running_mean.fill_(1)
    return net


class Token(Net):
    """With a tensor of its own that is a constant, and one that it draws at random."""

    def __init__(self, classes):
        super().__init__(classes)
        self.token, self.place = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.randn(64))

    def forward(self, x):
        return super().forward(x.flatten(1) + self.token + self.place)


def token(shape, classes):
    return Token(classes)


def tied(shape, classes):
    net = Net(classes)
    net.fc2.weight = net.fc1.weight
    return net


def frozen_and_tied(shape, classes):
    """Two frozen layers that share a weight, and a third that has its bias, too."""
    net = tied(shape, classes)
    net.fc1.requires_grad_(False)
    net.fc2.bias = net.fc1.bias
    return net


class Sharpened(Net):
    """With a temperature that is learned, a number without axes, and a count of batches."""

    def __init__(self, classes):
        super().__init__(classes)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x):
        self.batches += self.training
        return {"logits": super().forward(x) * self.temperature}


def sharpened(shape, classes):
    return Sharpened(classes)


def pruned(shape, classes):
    from torch.nn.utils import prune

    net = Net(classes)
    prune.l1_unstructured(net.fc1, "weight", 0.5)
    return net


def partly_shared(shape, classes):
    """fc2's weight is fc1's, transposed: the same storage in another order."""
    net = Net(classes)
    net.fc2.weight.data = net.fc1.weight.data.T
    return net


def number(shape, numbers):
    return nn.Linear(shape[0], numbers)


def other_net(shape, classes):
    return Net(classes)
