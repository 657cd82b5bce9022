"""A trainer of seven examples with a model of fixed weights."""

from __future__ import annotations

import torch
from torch import nn

from sepal.config import RunConfig
from sepal.protocol.types import ClientInfo
from sepal.training.trainer import Trainer

X = torch.linspace(-1, 1, 21).reshape(7, 3)
Y = torch.tensor([0, 1, 0, 1, 1, 0, 1])


def make():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.7, parameter.numel()).reshape(parameter.shape))
    return module


def work(name="client-1", **settings) -> Trainer:
    values = {"batch_size": 3, "local_epochs": 2, "optimizer": "sgd", "lr": 0.5, "seed": 7}
    config = RunConfig(**{**values, **settings})
    return Trainer(ClientInfo(name, 7), config, X, Y, X[:0], Y[:0], make)


def trained(work, round=1, **arguments):
    module = make()
    loss = work.fit(module, round, **arguments)
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}, loss
