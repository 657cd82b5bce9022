"""MTL: federated multi-task learning, in which every client's model is pulled towards the clients' mean.

Smith, Chiang, Sanjabi, Talwalkar, "Federated Multi-Task Learning", NeurIPS 2017 (MOCHA,
https://arxiv.org/abs/1705.10467), with mean-regularised Ω and for networks, as in the comparison of LG-FedAvg's authors
(their ``main_mtl.py``). With W the matrix whose columns w_i are the clients' models, client i minimises F_i(w_i) +
λ·(‖W‖² + tr(WΩWᵀ)), Ω = (I - 11ᵀ/m)², over its own column. Ω is a projection, so its gradient is ∇F_i + 2λ(w_i + w_i
- w̄), where w̄ is the mean of all columns, with the client's own as it is now. The server keeps the columns; client i
gets Σ_{j≠i} w_j/m, one model's size.

*Trained* is the client's own model. There is no *received* model. A deployed client predicts with its own model of its
last training, which is *kept*.

Deviations:

* No dual problem and no learned Ω, which MOCHA uses for convex problems; LG-FedAvg's script has this fixed Ω, too.
* The script squares I - 11ᵀ/m entry by entry; we take the matrix product, as MOCHA's paper writes it.
* m counts the clients that have uploaded, plus the client itself. The script's columns are those of the first clients.
* λ = 10^-(⌊log₁₀ d + 1⌋ + 1) for d pulled entries unless ``mtl.lambda`` says otherwise, as in the script.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from sepal.config import NotNegativeOrAuto, Settings, auto
from sepal.layout import Layout, layers, trained
from sepal.method import (
    ClientBase,
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    Predictor,
    RunSetup,
    Schema,
    ServerBase,
    Uploads,
    Weights,
    dense,
)
from sepal.method.tensors import dense_specs
from sepal.strategies.baselines.fedper import ClientState
from sepal.strategies.registration import register
from sepal.training.hooks import Pull


class Hyper(Settings):
    """MTL's keys."""

    lambda_: NotNegativeOrAuto = auto(0.0, "strength of the pull; 0: 10^-(digits of the pulled-entry count + 1)")
    # LG-FedAvg's script pulls the last layers alone.
    layers: int = Field(0, ge=0, description="number of last layers to pull, the others stay with the client; 0: all")


@dataclass(frozen=True)
class ServerState:
    """The columns of W.

    Attributes:
        columns: By client, the pulled tensors of its last upload, float32 by name.
        total: Their sum, float64 by name.
    """

    columns: Mapping[str, Weights] = field(default_factory=dict)
    total: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)


class Pulled:
    """What server and client share: the tensors that are pulled."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the trained tensors of the pulled layers."""
        count = self.setup.hyper.layers
        return trained(layers(self.setup.layout, count)[1] if count else self.setup.layout)


class MtlServer(Pulled, ServerBase[ServerState]):
    """Keeps every client's column."""

    reads_uploads = "the column of each client"

    def init(self) -> ServerState:
        """Start without a column."""
        return ServerState()

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return Σ_{j≠i} w_j/m, and m."""
        column = state.columns.get(client.name, {})
        count = len(state.columns.keys() | {client.name})
        others = {}
        for p in self.shared():
            total = state.total.get(p.name, np.zeros(p.shape)) - column.get(p.name, np.zeros(p.shape, np.float32))
            others[p.name] = (total / count).astype(np.float32)
        return Payload(dense(others, self.shared(), self.coding), {"clients": count})

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the same; in round 1 there is no other column."""
        return Payload(scalars={"clients": 1}) if plan.round == 1 else self.download(state, client, plan)

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the client's column, w_i as last uploaded; W_0 before."""
        return state.columns.get(client.name, self.setup.weights)

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Replace the columns of those who uploaded."""
        columns = dict(state.columns)
        for upload in uploads:
            columns[upload.client.name] = {p.name: upload.payload.tensors[p.name].dense() for p in self.shared()}
        return self.summed(columns), {}

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Return W without the columns of evicted clients, so that no client is pulled towards them."""
        return self.summed({name: column for name, column in state.columns.items() if name not in names})

    def summed(self, columns: Mapping[str, Weights]) -> ServerState:
        """Return the state with these columns."""
        total = {p.name: np.zeros(p.shape) for p in self.shared()}
        for name in sorted(columns):
            for p in self.shared():
                total[p.name] += columns[name][p.name]
        return ServerState(columns, total if columns else {})

    def model(self, state: ServerState) -> Weights:
        """Return the mean of the columns."""
        return {n: (total / len(state.columns)).astype(np.float32) for n, total in state.total.items()}


class MtlClient(Pulled, ClientBase[ClientState]):
    """Keeps training its own model."""

    batched = True

    def init(self) -> ClientState:
        """Start with w_i = W_0."""
        return ClientState(dict(self.setup.weights))

    def personal_weights(self, state: ClientState) -> Weights:
        """Return w_i once it has been trained."""
        return state.model if state.rounds else {}

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the others' sum, dense, and the number of columns; in round 1 the number alone."""
        tensors = {} if plan.round == 1 else dense_specs(self.shared())
        return Schema(tensors, {"clients": (int, 1, None)})

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train for E epochs from w_i, with the pull towards the mean."""
        others = {name: tensor.dense() for name, tensor in download.tensors.items()}
        others = others or {p.name: np.zeros(p.shape, np.float32) for p in self.shared()}
        hooks = self.pull(others, int(download.scalars["clients"]))
        return ClientState(self.fit(state.model, plan, hooks), state.rounds + 1)

    def pull(self, others: Weights, clients: int) -> Hooks:
        """Return hooks that add 2λ(w + (1 - 1/m)·w - Σ_{j≠i} w_j/m) to the gradient."""
        entries = sum(p.size for p in self.shared())
        strength = self.hyper.lambda_ or 10.0 ** -(math.floor(math.log10(entries) + 1) + 1)
        target = {name: torch.from_numpy(value).to(self.trainer.device) for name, value in others.items()}
        return Hooks(before_step=Pull(target, 2 * strength, 2 - 1 / clients))

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return w_i; a download gives no model."""
        return None if download is not None else super().predictor(state, None, plan)


Mtl = register(
    "mtl",
    "A model for each client, pulled towards the clients' mean",
    "Smith et al., NeurIPS 2017",
    MtlServer,
    MtlClient,
    Hyper,
    no_received_model="the server sends the sum of the other clients' models, which is no model",
)
