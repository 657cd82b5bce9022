"""A deployment without a SuperLink: a server's strategy, and clients whose messages the ClientApp handles."""

from __future__ import annotations

import os

from flwr.app import Context, Message, RecordDict

from sepal.client_app.app import handle
from sepal.engines.in_process.grid import InProcessGrid
from sepal.protocol.messages import read_order
from sepal.runs.run_directory import RunDirectory
from sepal.server.strategy import SepalStrategy
from sepal.strategies.assembly import assemble

LOADER = """
import json, os
import numpy as np

def examples(site, count, first=0):
    x = np.stack([np.sin(np.arange(64) * (1 + n % 7) + site + n).reshape(1, 8, 8) for n in range(first, first + count)])
    return x.astype(np.float32), np.arange(first, first + count) % 2

def load(site):
    size, first = json.loads(os.environ["SIZES"])[site]
    return (*examples(site, size, first), *examples(site + 50, 4))
"""
RUN = {
    "dataset": "own",
    "own.shape": "1x8x8",
    "own.classes": 2,
    "model": "digits-cnn",
    "method": "fedavg",
    "rounds": 4,
    "evaluate-every": 0,
    "batch-size": 8,
    "clients": 2,
    "timeout": 30.0,
}
NAMES = ("site-a", "site-b")


class Clients(InProcessGrid):
    """Flower's place: nodes 1 and 2 with a context each; messages travel as in a deployment."""

    arrange = wait = None

    def __init__(self, node_configs, run_config):
        super().__init__({})
        self.node_configs, self.run_config = node_configs, run_config
        self.orders = []

    def get_node_ids(self):
        return list(range(1, len(self.node_configs) + 1))

    def answer(self, message):
        node = message.metadata.dst_node_id
        order = read_order(message.content)[0]
        self.orders.append((order.kind.value, order.plan.round, node))
        context = Context(1, node, dict(self.node_configs[node - 1]), RecordDict(), dict(self.run_config))
        return Message(handle(message, context).content, reply_to=message)


class Deployment:
    """A run over :class:`Clients`; ``changes`` are called after a round, by its number."""

    def __init__(self, node_configs, store=None, changes=None, directory=None, **run):
        self.run_config = {**RUN, **run}
        self.grid = Clients(node_configs, self.run_config)
        self.assembly = assemble(self.run_config)
        self.store, self.changes = store, changes or {}
        self.observers = [self]
        if directory:
            self.observers.append(RunDirectory(directory, self.assembly, "flower"))
            self.store = self.observers[1].store()
        self.records, self.lines = [], []

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.records.append(record)
        self.lines.append(line)
        self.changes.get(record.round, lambda: None)()

    def closed(self, progress, report):
        pass

    def start(self):
        setup, method = self.assembly.setup, self.assembly.method
        strategy = SepalStrategy(method, setup, self.store, self.observers, pause=0.0, agreed=self.assembly.agreed)
        strategy.start(self.grid)
        return strategy

    def statuses(self, name):
        return [[e.status for e in r.ledger if e.client == name and e.direction == "up"] for r in self.records]

    def reason(self, round, name):
        return next(e.reason for e in self.records[round - 1].ledger if e.client == name and e.reason)


def own_nodes(directory, monkeypatch, sizes=((24, 0), (24, 0))):
    """Write the loader, and return the node configs of two clients and a function that changes their data."""
    (directory / "sites_of_test.py").write_text(
        LOADER + "".join(f"\ndef site_{n}():\n    return load({n})\n" for n in range(len(sizes)))
    )
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("SEPAL_HOME", str(directory / "home"))

    def change(*new):
        os.environ["SIZES"] = str([list(size) for size in new])

    monkeypatch.setenv("SIZES", "")
    change(*sizes)
    configs = [
        {"name": name, "data": f"sites_of_test:site_{n}", "state-dir": str(directory / "states"), "device": "cpu"}
        for n, name in enumerate(NAMES)
    ]
    return configs, change
