"""FedPer: the last layers stay with the client.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019, Algorithms 1 and 2
(https://arxiv.org/abs/1912.00818). The base layers W_B are averaged as in FedAvg. The last K_P layers W_P stay with
the client and are not sent. Both are trained together. *Received* is the received base with the client's own head;
*trained* is the same after the local epochs. A deployed client predicts with its base
and head of the last local epochs, which is *kept*: *received* has a head that was trained on an older base.

Layers are counted as in :func:`sepal.layout.layers`.
Deviations: heads start with W_0; statistics of normalisation layers belong to their layer and are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from sepal.config import Settings
from sepal.layout import Layout, layers
from sepal.method import ClientBase, Payload, Plan, RunSetup, Weights
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.registration import register


class Hyper(Settings):
    """FedPer's keys."""

    # The paper takes 1 to 4 basic blocks of ResNet-34 and 1 to 4 groups of MobileNet; DM-PFL's comparison a head.
    personal_layers: int = Field(
        1, ge=0, description="number of last layers that stay with the client; 0 is FedAvg, all is Local"
    )


@dataclass(frozen=True)
class ClientState:
    """The client's model after its last round, float32 by name, and the number of rounds in which it was trained."""

    model: Weights
    rounds: int = 0


class SharedLayers:
    """The exchanged tensors: all but the last ``personal-layers`` layers."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors that are averaged."""
        return layers(self.setup.layout, self.setup.hyper.personal_layers)[0]


class PartClient(ClientBase[ClientState]):
    """Combines the received layers with the client's own, and trains the whole model."""

    batched = True
    dense_exchange = True

    def init(self) -> ClientState:
        """Start from W_0."""
        return ClientState(dict(self.setup.weights))

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the client's model with the received layers."""
        return {**state.model, **super().received_weights(state, download, plan)}

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the client's model; empty before it was trained."""
        return state.model if state.rounds else {}

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the whole model for E epochs."""
        return ClientState(self.fit(self.received_weights(state, download, plan), plan), state.rounds + 1)


class FedPerServer(SharedLayers, FedAvgServer):
    """FedAvg's server for the body."""


class FedPerClient(SharedLayers, PartClient):
    """Exchanges the body."""


FedPer = register(
    "fedper",
    "A personal head over a shared body",
    "Arivazhagan et al., 2019",
    FedPerServer,
    FedPerClient,
    Hyper,
)
