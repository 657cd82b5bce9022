"""Ditto: a personal model in addition to FedAvg, regularised towards the global one.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1
(https://arxiv.org/abs/2012.04221).

Each client takes part in FedAvg and also trains a personal model v_i on F_i(v) + λ/2·‖v - w^t‖², where w^t is the
received global model. *Received* is the global model; *trained* is v_i. A deployed client predicts with v_i, which is
*kept*.

Deviations: both models train for epochs, not for s steps, and on batches in different orders; v_i has its own
statistics of normalisation layers; clients count in the global mean by n_i, as in FedAvg (in the authors' code all
count alike). As in the paper, v_i starts at W_0 and is trained only in rounds in which the client takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from sepal.config import NotNegativeOrAuto, Settings, auto
from sepal.method import ClientBase, Payload, Plan, Weights, dense
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.registration import register
from sepal.training.hooks import proximal


class Hyper(Settings):
    """Ditto's keys."""

    # The authors' scripts take 1; the paper chooses among .1, 1 and 2 by validation, and .05 to .2 under attack.
    # DM-PFL's comparison uses .1, at which v_i hardly changes under partial participation.
    lam: NotNegativeOrAuto = auto(1.0, "λ, weight of the proximal term; 0: the personal model has none", "lambda")
    epochs: int = Field(0, ge=0, description="epochs for the personal model per round; 0: local-epochs")


@dataclass(frozen=True)
class ClientState:
    """The personal model v_i, float32 by name, and the number of rounds in which it was trained."""

    personal: Weights
    rounds: int = 0


class DittoClient(ClientBase[ClientState]):
    """Trains the global model for the server, then the personal model."""

    batched = True
    dense_exchange = True

    def init(self) -> ClientState:
        """Start with v_i = W_0."""
        return ClientState(dict(self.setup.weights))

    def personal_weights(self, state: ClientState) -> Weights:
        """Return v_i; empty before it was trained."""
        return state.personal if state.rounds else {}

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train the global model, which is uploaded, then v_i."""
        sent = self.fit(self.received_weights(state, download, plan), plan)
        return self.adapt(state, download, plan), Payload(dense(sent, self.shared(), self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Update v_i ← v_i - η(∇F_i(v_i) + λ(v_i - w^t)) for the personal model's epochs."""
        near = proximal(self.received_weights(state, download, plan), self.hyper.lam, self.trainer.device)
        model = self.fit(state.personal, plan, near, epochs=self.hyper.epochs or None, purpose="personal")
        return ClientState(model, state.rounds + 1)


Ditto = register(
    "ditto",
    "A personal model near the global one",
    "Li et al., ICML 2021",
    FedAvgServer,
    DittoClient,
    Hyper,
)
