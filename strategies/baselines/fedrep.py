"""FedRep: the head is trained first, then the shared body.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021, Algorithm 1 (https://arxiv.org/abs/2102.07078). Like FedPer, but a client first trains its head h_i on the
received representation φ for ``head-epochs``, then φ with the new head for ``body-epochs``. *Received* is the received
body with the client's own head, which the authors report; *trained* is the same after both. Clients that do not upload
(in a full evaluation and in the closing round) train the head only. A deployed client predicts with its head and the
body of its last training, which is *kept*; with a new body it first trains the head, which is *trained* in the closing
round. *Received* has a head that was trained on an older body.

Deviations: heads start with W_0; the mean is weighted by n_i; running statistics of normalisation layers in the body
are also updated while the head is trained.
"""

from __future__ import annotations

from pydantic import Field

from sepal.config import Settings
from sepal.layout import layers
from sepal.method import Payload, Plan
from sepal.strategies.baselines.fedper import ClientState, FedPerServer, PartClient, SharedLayers
from sepal.strategies.registration import register


class Hyper(Settings):
    """FedRep's keys."""

    personal_layers: int = Field(1, ge=0, description="number of last layers kept by the client (head); 0 is FedAvg")
    # The paper trains the head for 10 epochs, then the body for 1 (CIFAR-10, 100 clients) or 5 (its other settings).
    head_epochs: int = Field(10, ge=0, description="epochs for the head; 0: local-epochs")
    body_epochs: int = Field(1, ge=0, description="epochs for the body; 0: local-epochs")


class FedRepClient(SharedLayers, PartClient):
    """FedPer's client, which trains head and body one after the other."""

    batched = True
    dense_exchange = True

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train the head on the received body, then the body with the new head."""
        body, head = layers(self.layout, self.hyper.personal_layers)
        start = self.received_weights(state, download, plan)
        model = self.fit(start, plan, epochs=self.hyper.head_epochs or None, purpose="head", only=head)
        model = self.fit(model, plan, epochs=self.hyper.body_epochs or None, only=body)
        after = ClientState(model, state.rounds + 1)
        return after, self.upload(after, plan)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the head only, for at least 10 epochs, as the authors' code does at the end."""
        head = layers(self.layout, self.hyper.personal_layers)[1]
        epochs = max(10, self.hyper.head_epochs or self.setup.config.local_epochs)
        model = self.fit(self.received_weights(state, download, plan), plan, epochs=epochs, purpose="head", only=head)
        return ClientState(model, state.rounds + 1)


FedRep = register(
    "fedrep",
    "A personal head, trained before the shared body",
    "Collins et al., ICML 2021",
    FedPerServer,
    FedRepClient,
    Hyper,
)
