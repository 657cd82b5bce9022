"""IFCA: a few global models, of which each client trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020, Algorithm 1
with model averaging (https://arxiv.org/abs/2006.04088). A client receives all k models, takes the one with the smallest
loss on its training part (ties: the first), trains it for E epochs, and sends it with its number. The server takes
the mean of each model over the clients that chose it; a model that nobody chose stays. *Received* is the chosen one of
the received models, which is deployed; *kept* is the client's after its last training.

The models are different draws from the seed; the first is W_0. What the user's ``build`` sets is the same in all, and
where that is everything, more than one model is refused. **One may be the best for everybody after a round**, and
the others starve: the round's figures ``cluster-0``, ``cluster-1``, … say how many clients chose each.

Deviations: clients count in the mean by n_i (in the authors' code all count alike: ``weights = "equal"``). The authors'
code draws the models anew until each is chosen by a share of the clients, for which clients would have to answer before
the first round; here they are drawn once. At test it chooses by the loss on *test* data; here by that on training
data. The losses are those of evaluation mode, in the order of the data; their sum over batches is in float64. Gradient
averaging and shared lower layers, of which the paper also speaks, are not here. The server learns each client's number.
A round counts the forward passes of all k models.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from pydantic import Field

from sepal.errors import ConfigError
from sepal.method import (
    ClientBase,
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    Predictor,
    RunSetup,
    Schema,
    Uploads,
    Weights,
    dense,
)
from sepal.protocol.types import SpecLike
from sepal.strategies.baselines import fedavg
from sepal.strategies.baselines.fedavg import FedAvgServer, ServerState
from sepal.strategies.baselines.fedem import Mixture
from sepal.strategies.registration import register
from sepal.training.columns import split
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec, members

CHOSEN = "cluster"  # the tensor that says which model is sent: a mask with one entry


class Hyper(fedavg.Hyper):
    """IFCA's keys."""

    # The authors take 2 on rotated CIFAR-10, 4 on rotated MNIST and 3 on FEMNIST.
    models: int = Field(2, ge=1, le=100, description="k, number of global models; 1 is FedAvg")

    def largest_message(self, setup: RunSetup) -> int:
        """Return k times the model's entries, because all models travel in one message."""
        return self.models * super().largest_message(setup)


@dataclass(frozen=True)
class ClientState:
    """The client's model after its last training, float32 by name, and which one it was; empty before."""

    model: Weights = field(default_factory=dict)
    cluster: int = 0


def cluster(tensors: Tensors) -> int:
    """Return the number of the model that an upload holds."""
    return int(tensors[CHOSEN].positions()[0])


class IFCAServer(Mixture, FedAvgServer):
    """Averages each model over the clients that chose it."""

    reads_uploads = "which of the models each client chose"

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        if self.hyper.models > 1 and {p.name for p in setup.layout} <= set(setup.user_set):
            expected = "1 for a model that sets all its first weights: equal models would never part"
            raise ConfigError("ifca.models", expected, self.hyper.models)

    def init(self) -> ServerState:
        """Start from k models drawn from the seed."""
        return ServerState(self.first())

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit the tensors of one model, whose number is sent before them."""

        def spec(m: int, shape: tuple[int, ...], size: int, tensors: Tensors) -> TensorSpec:
            if cluster(tensors) == m:
                return TensorSpec(shape, min_count=size)
            return TensorSpec(shape, max_count=0, optional=True)

        specs: dict[str, SpecLike] = {CHOSEN: TensorSpec((self.hyper.models,), values=False, min_count=1, max_count=1)}
        for m in range(self.hyper.models):
            specs |= {f"{m}/{p.name}": partial(spec, m, p.shape, p.size) for p in self.layout}
        return Schema(specs)

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update each model with the mean of those that were trained from it."""
        sums = {name: np.zeros(array.shape) for name, array in state.weights.items()}
        totals, choices = Counter[int](), Counter[int]()
        for upload in uploads:
            m, weight = cluster(upload.payload.tensors), self.weigh(upload)
            totals[m] += weight  # type: ignore[assignment]
            choices[m] += 1
            for p in self.layout:
                name = f"{m}/{p.name}"
                sums[name] += np.multiply(upload.payload.tensors[name].dense(), weight, dtype=np.float64)
        weights = {
            name: np.asarray(sums[name] / totals[m], np.float32) if totals[m] else state.weights[name]
            for m in range(self.hyper.models)
            for name in (f"{m}/{p.name}" for p in self.layout)
        }
        return ServerState(weights), {f"cluster-{m}": choices[m] for m in range(self.hyper.models)}


class IFCAClient(Mixture, ClientBase[ClientState]):
    """Chooses one of the models and trains it."""

    batched = True

    def init(self) -> ClientState:
        """Start without a model."""
        return ClientState()

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return all received models."""
        return super().received_weights(state, download, plan) if download.tensors else self.first()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the model after the last training."""
        return state.model

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return a predictor of the chosen model, or without a download of the client's own."""
        if download is None:
            return super().predictor(state, None, plan)
        models = self.received_weights(state, download, plan)
        return self.trainer.predictor(self.one_of(models, self.choice(models)))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Choose a model and train it for E epochs."""
        models = self.received_weights(state, download, plan)
        m = self.choice(models)
        self.trainer.report(CHOSEN, m)
        network = self.trainer.network("choice")
        self.trainer.account(network.module, self.hyper.models * len(self.trainer.y))
        return ClientState(self.fit(self.one_of(models, m), plan), m)

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return the model with its number."""
        mask = np.arange(self.hyper.models) == state.cluster
        model = {f"{state.cluster}/{name}": array for name, array in state.model.items()}
        layout = [p for p in self.shared() if p.name in model]
        tensors: dict[str, SparseTensor] = {CHOSEN: members(mask), **dense(model, tuple(layout), self.coding)}
        return Payload(tensors)

    def choice(self, models: Weights) -> int:
        """Return the number of the model with the smallest mean loss on the training part."""
        network, losses = self.trainer.network("choice"), []
        network.module.requires_grad_(False)
        for m in range(self.hyper.models):
            network.load(self.one_of(models, m))
            network.module.eval()
            total = 0.0
            with torch.no_grad():
                for x, y in split(self.trainer.x, self.trainer.y):
                    total += float(self.trainer.loss_of(network.module, x, y)) * len(y)
            losses.append(total if math.isfinite(total) else math.inf)
        return int(np.argmin(losses))


IFCA = register(
    "ifca",
    "A few global models, one for each cluster of clients",
    "Ghosh et al., NeurIPS 2020",
    IFCAServer,
    IFCAClient,
    Hyper,
    deployed="received",
)
