"""Every method trains parameters and averages buffers of any shape, also those without axes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.errors import ModelError
from sepal.server.strategy import SepalStrategy
from sepal.storage.serialize import digest, flatten, restore
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

SHAPES = {"none": (), "one": (1,), "ones": (1, 1, 1), "row": (1, 2), "empty": (0,)}
KEYS = {
    "pfedhn": {"pfedhn.inner-rate": 0.005},
    "fedsa-lora": {"lora.rank": 2, "trainable": "scale"},
    "flasc": {"lora.rank": 2, "trainable": "scale"},
}
# They cut, decompose or gate layers one by one, read a last layer's input, or keep norms, and refuse the user's own.
REFUSE = {
    "fedbn",
    "moon",
    "fedrod",
    "fedproto",
    "local-width",
    "heterofl",
    "fjord",
    "fedrolex",
    "tailorfl",
    "flanc",
    "pa3dfl",
    "pfedgate",
}


def data(client):
    rng = np.random.default_rng(client)
    x = rng.normal(client, 1, (24, 3)).astype(np.float32)
    y = (x.sum(1) > 3 * client).astype(np.int64)
    return x[:16], y[:16], x[16:], y[16:]


class Scaled(nn.Module):
    """Logits times a learned scale, with a moving mean of the inputs; both have the same shape."""

    def __init__(self, classes, shape):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, classes)
        self.scale = nn.Parameter(torch.full(shape, 1.5))
        self.register_buffer("mean", torch.zeros(shape))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
        x = x - (self.mean.mean() if self.mean.numel() else 0)
        return self.last(self.first(x).relu()) * (self.scale.mean() if self.scale.numel() else 1)


def none(shape, classes):
    return Scaled(classes, SHAPES["none"])


def one(shape, classes):
    return Scaled(classes, SHAPES["one"])


def ones(shape, classes):
    return Scaled(classes, SHAPES["ones"])


def row(shape, classes):
    return Scaled(classes, SHAPES["row"])


def empty(shape, classes):
    return Scaled(classes, SHAPES["empty"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", registry.METHODS)
def test_tensors_of_any_shape_are_trained_and_stored(method, shape, tmp_path):
    flat = {"dataset": "own", "own.shape": "3", "own.classes": 2, "own.data": f"{__name__}:data", "clients": 2}
    flat |= {"rounds": 2, "method": method, "lr": 0.05, "batch-size": 8, "model": f"{__name__}:{shape}"}
    flat |= KEYS.get(method, {})
    if method in REFUSE:
        with pytest.raises(ModelError, match=r"(model|blocks): expected"):
            run(flat, tmp_path)
        return
    strategy, result = run(flat, tmp_path)
    state = strategy.progress.server
    again = restore(type(state), *flatten(state))
    assert digest(again) == digest(state)
    model, stored = strategy.algorithm.model(state), strategy.algorithm.model(again)
    for name, array in model.items():
        assert np.asarray(array).dtype == np.asarray(stored[name]).dtype
        np.testing.assert_array_equal(array, stored[name])
    sent = {name: array.numpy() for name, array in result.arrays.items()} if model else {}
    assert {name: array.shape for name, array in sent.items()} == {n: np.shape(array) for n, array in model.items()}
    if method == "fedavg":
        assert sent["scale"].shape == SHAPES[shape]
        assert (sent["scale"] != 1.5).all()


def run(flat, directory):
    """Run with states that are written, and read again, each time; return the strategy and its result."""
    assembled = assemble(flat)
    clients = Clients(assembled, directory, limit=0)
    strategy = SepalStrategy(assembled.method, assembled.setup, agreed=assembled.agreed, settle=0.0)
    nodes = {number + 1: partial(clients.answer, number) for number in range(2)}
    return strategy, strategy.start(InProcessGrid(nodes))
