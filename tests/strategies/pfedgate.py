"""What the tests of pFedGate share: its keys on a few digits, both sides of it, one client alone."""

from __future__ import annotations

import torch
from torch import nn

from sepal.client_app.build import Node, Shared, build_host
from sepal.method import ClientInfo, Trainer
from sepal.strategies.assembly import assemble
from sepal.strategies.pfedgate.client import PFedGateClient
from tests.scratch_store import ScratchStore

FLAT = {
    "method": "pfedgate",
    "dataset": "digits",
    "lr": 0.05,
    "clients": 4,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "batch-size": 8,
    "evaluate-every": 0,
    "rounds": 3,
    "seed": 5,
    "pfedgate.keep": 0.3,
    "pfedgate.start": "half",  # a gate that chooses by example from the first step on
    "pfedgate.rate": 0.1,
}
BATCH = {"pfedgate.gating": "batch"}


def parts(number=0, **keys):
    """A server algorithm and a client's host on a few digits."""
    assembly = assemble({**FLAT, **keys})
    host = build_host(Shared.around(assembly, "cpu"), Node(number, 4), "run", ScratchStore())
    return assembly.method.make_server(assembly.setup), host


def two_rows(input_shape, classes):
    """Borders of blocks cut each row several times."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.ReLU(), nn.Linear(2, classes, bias=False))


def normed(input_shape, classes):
    """Convolutions over a line of pixels, with norms and biases that have a block or two."""
    return nn.Sequential(
        nn.Flatten(2), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 62, classes)
    )


def alone(examples, capacity=1.0, x=None, **keys):
    """A client algorithm over examples of random pixels."""
    assembly = assemble({**FLAT, **keys})
    x = torch.randn(examples, 1, 8, 8, generator=torch.Generator().manual_seed(1)) if x is None else x
    y = torch.arange(len(x)) % 10
    trainer = Trainer(ClientInfo("c", len(x), capacity), assembly.setup.config, x, y, x[:0], y[:0], assembly.make)
    return PFedGateClient(assembly.setup, trainer)


def flat(server, weights):
    return server.gated.flat.join(weights)
