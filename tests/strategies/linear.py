"""A server and clients of a method whose model is one linear layer without bias, on which rounds are computed by hand.

The loss of an example is ½·Σ(W·x - t)². A client takes its examples in their order, one in a step of SGD.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, RunSetup, Trainer, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.tasks.builtin import regression
from tests.strategies.baselines import BASE, Sent

NAME = "fc.weight"


class Layer(nn.Module):
    """x (n, in) → W·x (n, out), or with one output as the layer gives it."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x):
        return self.fc(x)


class Linear:
    """A server and clients of a method.

    Attributes:
        state: The server's state.
        clients, states: The client algorithms and their states, by name.
        uploads: The last uploads, by name.
    """

    def __init__(self, method, first, clients, rate=0.1, **keys):
        """``first`` is W_0 (out, in) or (in,); ``clients`` are infos, or names of clients with one example."""
        settings = {"lr": rate, "optimizer": "sgd", "local-epochs": 1, "clip-gradient": 0.0, "batch-size": 1, **keys}
        assembly = assemble({**BASE, "method": method, **settings})
        first = np.atleast_2d(np.array(first, np.float32))
        self.shape = first.shape
        task = replace(
            regression((1,), len(first)), loss=lambda outputs, targets: (outputs - targets).square().sum(1).mean() / 2
        )
        self.setup = RunSetup(
            (Parameter(NAME, first.shape, Role.WEIGHT),),
            {NAME: first},
            assembly.setup.config,
            assembly.setup.hyper,
            lambda: Layer(*self.shape),
            (first.shape[1],),
            task=task,
        )
        self.infos = {i.name: i for i in (c if isinstance(c, ClientInfo) else ClientInfo(c, 1) for c in clients)}
        self.server = assembly.method.make_server(self.setup)
        self.clients = {name: assembly.method.make_client(self.setup, self._trainer(name)) for name in self.infos}
        self.state = self.server.init()
        self.states = {name: client.init() for name, client in self.clients.items()}
        self.uploads, self.began = {}, set()

    def _trainer(self, name):
        x, y = torch.zeros(1, self.shape[1]), torch.zeros(1, self.shape[0])
        config = self.setup.config
        trainer = Trainer(self.infos[name], config, x, y, x[:0], y[:0], self.setup.make, task=self.setup.task)
        trainer.rows = lambda round, purpose, epoch, smallest=1: [torch.tensor([n]) for n in range(len(trainer.y))]
        return trainer

    def download(self, name, plan):
        make = self.server.download if name in self.began else self.server.newcomer
        payload = make(self.state, self.infos[name], plan)
        return unseal(seal(payload), self.clients[name].download_schema(self.states[name], plan))

    def trained(self, name, round, examples):
        """A client's payload after training on ``examples``, (x, t) each; its state moves on."""
        plan, trainer = self.server.plan(round), self.clients[name].trainer
        trainer.x = torch.tensor(np.array([x for x, _ in examples]), dtype=torch.float32)
        trainer.y = torch.tensor(np.array([np.atleast_1d(t) for _, t in examples]), dtype=torch.float32)
        download = self.download(name, plan)
        self.states[name], payload = self.clients[name].train(self.states[name], download, plan)
        schema = self.server.upload_schema(self.state, self.infos[name], plan)
        self.uploads[name] = unseal(seal(payload), schema, lambda: download.tensors)
        return self.uploads[name]

    def round(self, round, **examples):
        """A round of the clients that are named, over the wire; returns the server's metrics."""
        sent = Sent(Upload(self.infos[name], self.trained(name, round, data)) for name, data in examples.items())
        self.began |= set(examples)
        self.state, metrics = self.server.aggregate(self.state, sent, self.server.plan(round))
        return metrics

    def received(self, name, round):
        plan = self.server.plan(round)
        return self.clients[name].received_weights(self.states[name], self.download(name, plan), plan)[NAME]

    @property
    def model(self):
        return np.squeeze(self.server.model(self.state)[NAME])

    def sent(self, name, tensor=NAME):
        """What a client has sent, 0 elsewhere."""
        return np.squeeze(self.uploads[name].tensors[tensor].dense())


def close(actual, expected, atol=2e-6):
    np.testing.assert_allclose(np.squeeze(actual), expected, rtol=0, atol=atol)
