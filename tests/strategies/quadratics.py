"""Two clients with quadratic losses, on which rounds are computed by hand: f_1 = (w - 4)²/2, f_2 = (w + 1)².

That is a/2·(w - b)² with a = (1, 2) and b = (4, -1): the squared error of one example x = √(a/2) with the target b·x
under a model w·x. Numbers of examples n = (1, 3), K = 2 steps of SGD, rate .1, from w = 0.
FedAvg's clients reach .76 and -.36: .1·4 = .4, .4 + .1·3.6 = .76; -.2, -.2 + .1·2·(-.8) = -.36.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.tasks.builtin import regression
from sepal.wire.tensors import whole
from tests.strategies.baselines import BASE, Sent

CURVATURES, OPTIMA, EXAMPLES = (1.0, 2.0), (4.0, -1.0), (1, 3)


class Line(nn.Module):
    """One weight: w·x, (n, 1). It is what method authors call the last layer, as well as the first."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.w


class WithNorm(Line):
    """Two weights: (w + g)·x, where g stands for a norm's."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * (self.w + self.g)


ROLES = {"w": Role.WEIGHT, "g": Role.NORM}


class Quadratics:
    """A server and both clients of a method.

    Attributes:
        state: The server's state.
        clients: The client algorithms.
        states: The clients' states.
        uploads: Their last uploads, by client.
    """

    def __init__(self, method, module=Line, **keys):
        settings = {"lr": 0.1, "optimizer": "sgd", "local-epochs": 2, "clip-gradient": 0.0, **keys}
        assembly = assemble({**BASE, "method": method, **settings})
        names = [name for name, _ in module().named_parameters()]
        layout = tuple(Parameter(name, (1,), ROLES[name]) for name in names)
        self.setup = RunSetup(
            layout,
            {name: np.zeros(1, np.float32) for name in names},
            assembly.setup.config,
            assembly.setup.hyper,
            module,
            (1,),
            task=regression((1,), 1),
        )
        self.server = assembly.method.make_server(self.setup)
        self.infos = [ClientInfo(f"c{number}", examples) for number, examples in enumerate(EXAMPLES, 1)]
        self.clients = [assembly.method.make_client(self.setup, self._trainer(number)) for number in range(2)]
        self.state, self.states, self.uploads = self.server.init(), [c.init() for c in self.clients], {}
        if hasattr(self.server, "joined"):
            self.state = self.server.joined(self.state, self.infos)
        self._began = set()

    def _trainer(self, number):
        x = torch.tensor([[math.sqrt(CURVATURES[number] / 2)]], dtype=torch.float32)
        y = x * OPTIMA[number]
        return Trainer(self.infos[number], self.setup.config, x, y, x[:0], y[:0], self.setup.make, task=self.setup.task)

    def plan(self, round):
        return self.server.plan(round)

    def download(self, number, plan):
        make = self.server.download if number in self._began else self.server.newcomer
        payload = make(self.state, self.infos[number], plan)
        return unseal(seal(payload), self.clients[number].download_schema(self.states[number], plan))

    def round(self, round, who=(0, 1)):
        """A round over the wire; returns the server's metrics."""
        plan, sent = self.plan(round), Sent()
        for number in who:
            download = self.download(number, plan)
            self.states[number], payload = self.clients[number].train(self.states[number], download, plan)
            schema = self.server.upload_schema(self.state, self.infos[number], plan)
            sent.append(Upload(self.infos[number], unseal(seal(payload), schema, lambda d=download: d.tensors)))
        self._began |= set(who)
        self.uploads = {number: upload.payload for number, upload in zip(who, sent, strict=True)}
        self.state, metrics = self.server.aggregate(self.state, sent, plan)
        return metrics

    def model(self, name="w"):
        return float(self.server.model(self.state)[name][0])

    def sent(self, name="w"):
        return [float(payload.tensors[name].values[0]) for payload in self.uploads.values()]

    def predictions(self, round, stored=False):
        """The prediction at x = 1 of each client's received model, or with ``stored`` of its own."""
        plan, x = self.plan(round), torch.ones(1, 1)
        found = []
        for number, client in enumerate(self.clients):
            download = None if stored else self.download(number, plan)
            found.append(client.predictor(self.states[number], download, plan)(x)[0, 0].item())
        return found


def line(value):
    """A download of ``Line``."""
    return Payload({"w": whole(np.array([value], np.float32))})


def examples(client, copies):
    """The client with its example ``copies`` times."""
    trainer = client.trainer
    x, y = trainer.x.repeat(copies, 1), trainer.y.repeat(copies, 1)
    client.trainer = replace(trainer, x=x, y=y)
    return client


__all__ = ["Plan", "Quadratics", "examples", "line"]
