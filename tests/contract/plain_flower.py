"""Flower's own start over MethodStrategy and wrap_client, in this process: contexts that live as long as the test."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict

from sepal import models
from sepal.client_app.plain import wrap_client
from sepal.config import flatten
from sepal.engines.in_process.grid import InProcessGrid
from sepal.strategies import plain
from sepal.strategies.assembly import assemble
from tests.methods import CASES

CLIENTS, ROUNDS = 4, 3
DATA = {
    "dataset": "digits",
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "seed": 3,
}


def contexts(count=CLIENTS, **node_config):
    configs = [{"partition-id": number, "num-partitions": count, **node_config} for number in range(count)]
    return {n + 1: Context(1, n + 1, config, RecordDict(), {}) for n, config in enumerate(configs)}


class ContextGrid(InProcessGrid):
    """A grid of nodes that run a ClientApp, each with its context."""

    def __init__(self, app, contexts):
        super().__init__({node: partial(self._run, app) for node in contexts})
        self.contexts, self.kinds = contexts, []

    def _run(self, app, message):
        self.kinds.append(message.metadata.message_type)
        return app(message, self.contexts[message.metadata.dst_node_id])


class Twin:
    """A case of tests/methods.py as a plain Flower app, with the data, model, W_0 and keys that it has in process."""

    def __init__(self, case, **keys):
        self.assembly = assemble({**DATA, "clients-per-round": 2, "evaluate-every": 0, **CASES[case], **keys})
        setup = self.assembly.setup
        self.method = assemble({**DATA, **CASES[case]}).method
        info = self.assembly.info
        self.model = partial(models.build, setup.config.model, info.input_shape, info.classes)
        tensors = self.model().state_dict()
        whole = {n: torch.tensor(np.asarray(setup.weights[n])) if n in setup.weights else t for n, t in tensors.items()}
        self.arrays = ArrayRecord({name: Array(value.numpy()) for name, value in whole.items()})
        shared = {key: value for key, value in setup.config.flat().items() if key in plain.KEYS}
        self.keys = {**shared, **flatten(setup.hyper, f"{self.method.name}.")}

    def load(self, context):
        number = context.node_config["partition-id"]
        return self.assembly.data.client(number, CLIENTS, self.assembly.client_name(number))

    def app(self):
        return wrap_client(self.record, self.model, self.load)

    @property
    def record(self):
        from sepal.strategies import registry

        return registry.get(self.method.name)

    def strategy(self, **more):
        return self.record(self.model, self.keys, **{"fraction_train": 0.5, "fraction_evaluate": 0.25, **more})


class Net(torch.nn.Module):
    """Four numbers to three classes, with a batch norm, which has statistics and a counter."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x))))


def arrays(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ArrayRecord(Net().state_dict())


def load(context):
    rng = np.random.default_rng(context.node_config["partition-id"])
    y = rng.integers(0, 3, 60)
    x = (rng.normal(size=(60, 4)) + np.eye(3, 4)[y] * 2).astype(np.float32)
    return x[:40], y[:40], x[40:], y[40:]
