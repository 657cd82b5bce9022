"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1 (https://arxiv.org/abs/1602.05629).

The server sends the global model, each sampled client trains it for E epochs and returns it, and the server takes the
mean, weighted by the clients' numbers of examples n_i. *Received* is the global model. *Trained* is the client's model
after its local epochs, which FedAvg itself does not keep. A deployed client predicts with
the global model; *kept* is the model of its last local epochs, which may be rounds old.

Deviations: statistics of normalisation layers are averaged like weights. Nothing is sent in round 1, because clients
derive W_0 from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field

from sepal.config import Settings
from sepal.masks.flat import Flat
from sepal.method import (
    ClientBase,
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    ServerBase,
    Upload,
    Uploads,
    Weights,
    dense,
    weighted_mean,
)
from sepal.strategies.registration import register


class Hyper(Settings):
    """FedAvg's keys."""

    weights: Literal["examples", "equal"] = Field("examples", description="client's weight in the mean: n_i, or 1")


@dataclass(frozen=True)
class ServerState:
    """The tensors that are averaged, float32 by name."""

    weights: Weights


@dataclass(frozen=True)
class ClientState:
    """The client's model after its last local epochs, only used for evaluation; empty before."""

    model: Weights = field(default_factory=dict)


class FedAvgServer(ServerBase[ServerState]):
    """Averages the uploads."""

    robust_means = True
    summed_phases = ("",)
    dense_exchange = True

    def init(self) -> ServerState:
        """Start from W_0."""
        return ServerState({p.name: self.setup.weights[p.name] for p in self.shared()})

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the averaged tensors, from which every client trains."""
        return state.weights

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update W with the mean of the uploads."""
        return self.update(state, weighted_mean(uploads, state.weights, weigh=self.weigh, robust=self.robust)), {}

    def update(self, state: Any, mean: Weights) -> Any:
        """Return the state after a round whose uploads have the mean Σ n_i·w_i / Σ n_i; by default, the mean is W.

        Override it for a step of the server's own. ``state`` is what ``init`` or the last ``update`` returned.
        """
        return ServerState(mean)

    def weigh(self, upload: Upload) -> float:
        """Return n_i, or 1 with ``fedavg.weights = equal``."""
        return 1 if isinstance(self.hyper, Hyper) and self.hyper.weights == "equal" else super().weigh(upload)

    def model(self, state: ServerState) -> Weights:
        """Return the averaged tensors."""
        return state.weights


class FedAvgClient(ClientBase[ClientState]):
    """Trains the global model for E epochs."""

    private_phases: ClassVar[tuple[str, ...]] = ("",)
    batched = True
    dense_exchange = True

    def init(self) -> ClientState:
        """Start without a model."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the model after the last local epochs; empty before."""
        return state.model

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the global model for E epochs."""
        return ClientState(self.fit(self.received_weights(state, download, plan), plan))

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train the global model. With ``privacy.*``, W plus the noised change of W is sent; the state has no noise."""
        after, upload = super().train(state, download, plan)
        return after, self._released(
            self.received_weights(state, download, plan), after, plan
        ) if self.clips_uploads else upload

    def _released(self, received: Weights, after: ClientState, plan: Plan) -> Payload:
        flat = Flat(self.shared())
        start = flat.join(received)
        change = self.trainer.release(flat.join(after.model) - start, plan.round).noised
        return Payload(dense(flat.cut(start + change), self.shared(), self.coding))


FedAvg = register(
    "fedavg",
    "Federated averaging",
    "McMahan et al., AISTATS 2017",
    FedAvgServer,
    FedAvgClient,
    Hyper,
    deployed="received",
    one_model=True,
)
