"""Entries that stay as they are while others train."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sepal.config import RunConfig
from sepal.protocol.types import ClientInfo
from sepal.training.hooks import frozen
from sepal.training.network import Network
from sepal.training.trainer import Trainer

X = torch.linspace(-1, 1, 30).reshape(10, 3)
Y = torch.arange(10) % 2


def test_frozen_entries_keep_their_bits_despite_momentum_and_weight_decay():
    network = Network(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    free = {name: np.ones(tuple(tensor.shape), bool) for name, tensor in network.tensors.items()}
    free["0.weight"][:2] = False
    free["1.running_mean"][0] = False
    free["2.bias"][:] = False
    before = network.read()
    config = RunConfig(batch_size=4, local_epochs=3, optimizer="sgd", lr=0.5, momentum=0.9, weight_decay=0.1)
    trainer = Trainer(ClientInfo("a", 10), config, X, Y, X[:0], Y[:0], nn.Identity)
    trainer.fit(network.module, 1, frozen(network, free))
    after = network.read()
    for name, mask in free.items():
        assert after[name][~mask].tobytes() == before[name][~mask].tobytes()
        assert not mask.any() or (after[name][mask] != before[name][mask]).any(), f"{name} moved where it is free"


def test_frozen_entries_have_no_gradient():
    """Where a method clips by the norm of the gradient, what is frozen must not count."""
    network = Network(nn.Linear(3, 2))
    free = {"weight": np.array([[True, False, True]] * 2), "bias": np.zeros(2, bool)}
    hooks = frozen(network, free)
    network.module(X).sum().backward()
    hooks.before_step(network.module)
    assert (network.module.weight.grad == 0).tolist() == [[False, True, False]] * 2
    assert network.module.bias.grad.tolist() == [0, 0]
