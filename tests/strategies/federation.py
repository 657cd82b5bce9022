"""A server algorithm and clients of given capacities, with messages between them by hand, over the wire."""

from __future__ import annotations

from torch import nn

from sepal.client_app.build import Node, Shared, build_host
from sepal.method import Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from tests.scratch_store import ScratchStore
from tests.strategies.baselines import Sent

FLAT = {
    "dataset": "digits",
    "clients": 4,
    "partition.name": "dirichlet",
    "partition.alpha": 0.3,
    "partition.subsample": 240,
    "rounds": 4,
    "local-epochs": 1,
    "batch-size": 1000,
    "lr": 0.5,
    "seed": 3,
}


def mlp(input_shape, classes):
    """fc1: 64 → 8, ReLU, fc2: 8 → classes."""
    model = nn.Sequential()
    for name, layer in (("flat", nn.Flatten()), ("fc1", nn.Linear(64, 8)), ("relu", nn.ReLU())):
        model.add_module(name, layer)
    model.add_module("fc2", nn.Linear(8, classes))
    return model


def short_kernels(input_shape, classes):
    """Two convolutions of 1 × 1 with 64 channels and a head on the mean of the image."""
    model = nn.Sequential()
    layers = {"conv1": nn.Conv2d(1, 64, 1), "conv2": nn.Conv2d(64, 64, 1), "mean": nn.AdaptiveAvgPool2d(1)}
    for name, layer in (layers | {"flat": nn.Flatten(), "fc": nn.Linear(64, classes)}).items():
        model.add_module(name, layer)
    return model


class Federation:
    """Clients 0, 1, … of ``capacities``; ``round`` exchanges messages with all of them."""

    def __init__(self, capacities, **keys):
        self.assembly = assemble({**FLAT, **keys})
        self.setup = self.assembly.setup
        self.server = self.assembly.method.make_server(self.setup)
        self.shared = Shared.around(self.assembly, "cpu")
        nodes = [Node(number, 4, capacity=capacity) for number, capacity in enumerate(capacities)]
        self.hosts = [build_host(self.shared, node, "run", ScratchStore()) for node in nodes]
        self.states = [host.algorithm.init() for host in self.hosts]
        self.welcomed = set()

    def download(self, state, number, plan):
        """What a client gets."""
        host = self.hosts[number]
        make = self.server.download if number in self.welcomed else self.server.newcomer
        return unseal(seal(make(state, host.info, plan)), host.algorithm.download_schema(self.states[number], plan))

    def trained(self, state, number, plan):
        """A client's upload; its state moves on."""
        host, download = self.hosts[number], self.download(state, number, plan)
        self.states[number], payload = host.algorithm.train(self.states[number], download, plan)
        schema = self.server.upload_schema(state, host.info, plan)
        return Upload(host.info, unseal(seal(payload), schema, lambda: download.tensors))

    def round(self, state, round, who=None):
        """The server's state and metrics after a round with all clients, or those in ``who``."""
        plan, numbers = self.server.plan(round), range(len(self.hosts)) if who is None else who
        uploads = Sent(self.trained(state, number, plan) for number in numbers)
        self.welcomed |= set(numbers)
        return self.server.aggregate(state, uploads, plan)
