"""A client algorithm on one example of class 0, and steps of SGD on it by hand.

The model has no bias: the logits of x are (w·x, 0). With one example of class 0 the loss is ln(1 + exp(-w·x)), so a
step of SGD at learning rate .5 is w + .5·σ(-w·x)·x.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, RunSetup, Trainer
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import SparseTensor, whole
from tests.strategies.baselines import BASE

X = np.array([1, 2, 4, 0.5])


class Four(nn.Module):
    """Four weights, (4, 1): the logits of x, (n, 4), are (w·x, 0)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 1))

    def forward(self, x):
        return torch.cat([x @ self.w, torch.zeros(len(x), 1)], 1)


class Product(nn.Module):
    """A head h on a body b: the logits of x, (n, 1), are (h·b·x, 0)."""

    def __init__(self):
        super().__init__()
        self.b, self.h = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([x * self.b * self.h, torch.zeros_like(x)], 1)


def client(method, module=Four, x=X, start=0.0, **keys):
    """A client algorithm on one example ``x`` of class 0, all weights at ``start``, one step of SGD .5 an epoch."""
    settings = {"method": method, "lr": 0.5, "optimizer": "sgd", "local-epochs": 1, **keys}
    assembly = assemble({**BASE, **settings})
    setup = assembly.setup
    shapes = {name: tuple(p.shape) for name, p in module().named_parameters()}
    layout = tuple(Parameter(name, shape, Role.WEIGHT) for name, shape in shapes.items())
    weights = {name: np.full(shape, start, np.float32) for name, shape in shapes.items()}
    inputs, labels = torch.tensor(np.atleast_2d(x), dtype=torch.float32), torch.tensor([0])
    trainer = Trainer(ClientInfo("c", 1), setup.config, inputs, labels, inputs[:0], labels[:0], module)
    return assembly.method.make_client(RunSetup(layout, weights, setup.config, setup.hyper), trainer)


def step(w, x=X, lr=0.5):
    """One step of SGD from ``w``: the gradient of ln(1 + exp(-w·x)) is -σ(-w·x)·x."""
    w, x = np.asarray(w, float), np.asarray(x, float)
    return w + lr * x / (1 + np.exp(np.sum(w * x)))


def slope(z):
    """The derivative of ln(1 + exp(-z))."""
    return -1 / (1 + np.exp(z))


def dense(**values):
    return Payload({name: whole(np.array(value, np.float32).reshape(-1)) for name, value in values.items()})


def four(values):
    return Payload({"w": whole(np.array(values, np.float32).reshape(4, 1))})


def flat(tensor):
    return np.asarray(tensor.dense() if isinstance(tensor, SparseTensor) else tensor).reshape(-1)


def logits(algorithm, state, download, plan, x):
    """The first logit of ``x`` as the method predicts it."""
    predict = algorithm.predictor(state, download, plan)
    return predict(torch.tensor(np.atleast_2d(x), dtype=torch.float32))[0, 0].item()


class One(nn.Module):
    """One weight: the logits of x, (n, 1), are (w·x, 0)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([x * self.w, torch.zeros_like(x)], 1)
