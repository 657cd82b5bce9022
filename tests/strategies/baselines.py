"""What the tests of baselines share: short runs on digits, and comparisons of two methods' global models."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sepal.engines.in_process import run_in_process
from sepal.strategies.assembly import assemble

BASE = {"dataset": "digits", "lr": 0.05, "clients": 4, "partition.name": "dirichlet", "partition.subsample": 240}


class Sent(list):
    """Uploads made by hand."""

    @property
    def clients(self):
        return [upload.client for upload in self]


def normed(input_shape, classes):
    """A model with running statistics, which none of ours has."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes)
    )


class Product(nn.Module):
    """One weight, no bias: the logits of x are (w·x, 0), so an example's loss is ln(1 + exp(-±w·x))."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([x * self.w, torch.zeros_like(x)], 1)


def run(method, rounds=3, **keys):
    """A finished run of four clients, two of them sampled each round."""
    keys = {**BASE, "clients-per-round": 2, "rounds": rounds, "evaluate-every": 0, **keys}
    return run_in_process(assemble({**keys, "method": method}))


def model(strategy):
    return strategy.algorithm.model(strategy.progress.server)


def assert_same_model(run, reference, atol=0.0):
    """The same global model, bit for bit or to a tolerance, after something was trained."""
    a, b, start = model(run), model(reference), reference.setup.weights
    assert list(a) == list(b)
    for name in b:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=atol)
        assert atol or a[name].tobytes() == b[name].tobytes()
    assert max(np.abs(b[name] - start[name]).max() for name in b) > 1e-2, "nothing was trained"
