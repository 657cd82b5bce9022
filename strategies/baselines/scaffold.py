"""SCAFFOLD: control variates against the drift of clients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, Algorithm 1 (https://arxiv.org/abs/1910.06378). Symbols: x → the server's model; y → a client's; c, c_i → variates
of server and client, both 0 at first; K → the client's steps.

A client starts at y = x and steps y ← y - η·(g(y) - c_i + c). Then c_i becomes c_i - c + (x - y)/(K·η), the mean of the
gradients along its path (option II, ``variate = "path"``), or the gradient at x over its training part (option I,
``"gradient"``, which costs one more pass). It sends y and c_i, and receives x and c: two models each way. The server
takes x ← x + η_g·(mean of y - x), and c = Σ n_i·c_i / Σ n_i over **all** clients of its roster, whether they were
sampled or not; those that never trained have c_i = 0. *Received* is x, which is deployed; *trained* is y, *kept* y of
the client's last local epochs.

x and c are weighted alike: the weights of c decide what is minimised. The server keeps every c_i (a model for each
client), so that the mean is exact, a restored state of a client is followed, and an evicted client's part leaves c.

Deviations: weights n_i (the paper's are equal: ``weights = "equal"``); a client sends c_i, not its change, which is as
many bytes; statistics of normalisation layers have no variate and are averaged. Momentum, Adam and a clipped gradient
break the identity behind option II and are refused, for option I too. ``adapt`` trains with the correction and leaves
c_i as it is. That the paper's experiments use option II and η_g = 1 was not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from sepal.layout import Layout, Parameter, trained
from sepal.method import (
    ClientBase,
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    ServerBase,
    Upload,
    Uploads,
    Weights,
    dense,
    weighted_mean,
)
from sepal.strategies.baselines import fedavg
from sepal.strategies.registration import register
from sepal.training.hooks import Pull
from sepal.wire import rounded

VARIATE = "c/"  # before the name of a parameter: its variate


class Hyper(fedavg.Hyper):
    """SCAFFOLD's keys."""

    variate: Literal["path", "gradient"] = Field(
        "path",
        description="a client's new control variate: the mean of the gradients along its path (option II), or the "
        "gradient at the received model (option I)",
    )
    rate: float = Field(1.0, gt=0, description="η_g, the server's rate: x + η_g·(mean - x)")

    def largest_message(self, setup: RunSetup) -> int:
        """Return the entries of a model and of its variates."""
        return super().largest_message(setup) + sum(parameter.size for parameter in trained(setup.layout))


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        weights: x, float32 by name.
        control: c, float64 by parameter.
        examples: n_i by client, of the whole roster.
        variates: c_i by client and parameter, float32, of those that have trained.
    """

    weights: Weights
    control: Mapping[str, npt.NDArray[np.float64]]
    examples: Mapping[str, int] = field(default_factory=dict)
    variates: Mapping[str, Weights] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """The client's model after its last local epochs and its variate c_i, float32 by name; both empty before."""

    model: Weights = field(default_factory=dict)
    variate: Weights = field(default_factory=dict)


class WithVariates:
    """The exchanged tensors: the model under its own names, and a variate for each parameter as ``c/NAME``."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors of the model and of the variates."""
        return (*self.setup.layout, *self.variates())

    def variates(self) -> Layout:
        """Return the tensors of the variates."""
        return tuple(Parameter(f"{VARIATE}{p.name}", p.shape, p.role) for p in trained(self.setup.layout))


def prefixed(variate: Mapping[str, npt.NDArray[np.float32]]) -> Weights:
    """Return variates by the names under which they are sent."""
    return {f"{VARIATE}{name}": array for name, array in variate.items()}


class ScaffoldServer(WithVariates, ServerBase[ServerState]):
    """Averages the models, and the variates over the whole roster."""

    reads_uploads = "the control variate of each client, which it keeps"
    learns_novel = False  # they never train, so they have no part in c

    def init(self) -> ServerState:
        """Start from x = W_0 and c = 0."""
        return ServerState(dict(self.setup.weights), {p.name: np.zeros(p.shape) for p in trained(self.layout)})

    def joined(self, state: ServerState, clients: Sequence[ClientInfo]) -> ServerState:
        """Count new clients, whose c_i is 0."""
        examples = {**state.examples, **{client.name: client.examples for client in clients}}
        return self._controlled(replace(state, examples=examples))

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Take the clients' c_i out of c."""
        examples = {name: count for name, count in state.examples.items() if name not in names}
        variates = {name: variate for name, variate in state.variates.items() if name not in names}
        return self._controlled(replace(state, examples=examples, variates=variates))

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return x and c."""
        control = {name: array.astype(np.float32) for name, array in state.control.items()}
        return Payload(dense({**state.weights, **prefixed(control)}, self.shared(), self.coding))

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return x. Against its last c_i, the first c_i of a client would be far larger than the others' changes."""
        return state.weights

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update x with the mean of the models, and c with the variates that were sent."""
        weights = weighted_mean(uploads, state.weights, weigh=self.weigh)
        if self.hyper.rate != 1:
            for p in trained(self.layout):
                change = weights[p.name].astype(np.float64) - state.weights[p.name]
                weights[p.name] = np.asarray(state.weights[p.name] + self.hyper.rate * change, np.float32)
        examples, variates = dict(state.examples), dict(state.variates)
        for upload in uploads:
            tensors, name = upload.payload.tensors, upload.client.name
            examples[name] = upload.client.examples
            variates[name] = {p.name: tensors[f"{VARIATE}{p.name}"].dense() for p in trained(self.layout)}
        return self._controlled(ServerState(weights, state.control, examples, variates)), {}

    def weigh(self, upload: Upload) -> float:
        """Return the upload's weight in the means of x and of c."""
        return self._share(upload.client.examples)

    def model(self, state: ServerState) -> Weights:
        """Return x."""
        return state.weights

    def _controlled(self, state: ServerState) -> ServerState:
        """Return the state with c = Σ n_i·c_i / Σ n_i over the roster, in the order of names."""
        shares = {name: self._share(count) for name, count in sorted(state.examples.items())}
        sums = {p.name: np.zeros(p.shape) for p in trained(self.layout)}
        for client, share in shares.items():
            for name, array in state.variates.get(client, {}).items():
                sums[name] += np.multiply(array, share, dtype=np.float64)
        total = sum(shares.values()) or 1
        return replace(state, control={name: np.asarray(array / total) for name, array in sums.items()})

    def _share(self, examples: int) -> int:
        return 1 if self.hyper.weights == "equal" else examples


class ScaffoldClient(WithVariates, ClientBase[ClientState]):
    """Corrects each gradient by c - c_i, and renews c_i."""

    batched = True
    fixed_keys = MappingProxyType(
        {
            "optimizer": "whose control variates are means of the gradients of plain SGD",
            "momentum": "whose control variates are means of the gradients of plain SGD",
            "clip-gradient": "whose control variates are means of whole gradients",
        }
    )

    def init(self) -> ClientState:
        """Start without a model, and with c_i = 0."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return y of the last training; empty before."""
        return state.model

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return x."""
        if not download.tensors:
            return dict(self.setup.weights)
        return {p.name: download.tensors[p.name].dense() for p in self.layout}

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train with the correction; c_i stays, because the server would not know another one."""
        return replace(state, model=self._trained(state, download, plan)[0])

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train with the correction, renew c_i and upload both."""
        model, steps = self._trained(state, download, plan)
        variate = self._renewed(state, download, plan, model, steps)
        sent = {**model, **prefixed(variate)}
        return ClientState(model, variate), Payload(dense(sent, self.shared(), self.coding))

    def _trained(self, state: ClientState, download: Payload, plan: Plan) -> tuple[Weights, int]:
        """Return y and K."""
        control, before = self._control(download), self.trainer.steps
        difference = {
            name: torch.tensor(self._own(state, name) - array, device=self.trainer.device)
            for name, array in control.items()
        }
        correction = Pull(difference, 1.0, scale=0.0)  # g + 1·(0·y - (c_i - c))
        model = self.fit(self.received_weights(state, download, plan), plan, Hooks(before_step=correction))
        return model, self.trainer.steps - before

    def _renewed(self, state: ClientState, download: Payload, plan: Plan, model: Weights, steps: int) -> Weights:
        """Return the new c_i as the server will read it; without a step the old one."""
        control, received = self._control(download), self.received_weights(state, download, plan)
        if not steps:
            return {name: self._own(state, name) for name in control}
        if self.hyper.variate == "gradient":
            network = self.trainer.network()
            network.load(received)
            gradients = self.trainer.gradient(network.module)
            return self._as_sent({name: gradients[name] for name in control})
        length = steps * self.trainer.learning_rate(plan.round)
        new = {
            name: self._own(state, name) - array + (received[name].astype(np.float64) - model[name]) / length
            for name, array in control.items()
        }
        return self._as_sent(new)

    def _as_sent(self, variate: Mapping[str, npt.NDArray[Any]]) -> Weights:
        return {
            name: rounded(np.asarray(array, np.float32), self.coding).reshape(np.shape(array))
            for name, array in variate.items()
        }

    def _control(self, download: Payload) -> dict[str, npt.NDArray[np.float32]]:
        """Return c; 0 in the first round, whose download is empty."""
        tensors = download.tensors
        return {
            p.name: tensors[f"{VARIATE}{p.name}"].dense() if tensors else np.zeros(p.shape, np.float32)
            for p in trained(self.layout)
        }

    def _own(self, state: ClientState, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor of c_i."""
        return state.variate[name] if state.variate else np.zeros_like(self.setup.weights[name])


Scaffold = register(
    "scaffold",
    "FedAvg with control variates",
    "Karimireddy et al., ICML 2020",
    ScaffoldServer,
    ScaffoldClient,
    Hyper,
    defaults={"lr": 0.1, "optimizer": "sgd", "clip-gradient": 0.0},  # at the rate of FedAvg on digits, .5, it diverges
    deployed="received",
    one_model=True,
)
