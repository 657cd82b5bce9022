"""FedBABU: only the body is trained and averaged; the head keeps its initial weights until fine-tuning.

Oh, Kim, Yun, "FedBABU: Towards Enhanced Representation for Federated Image Classification", ICLR 2022, Algorithm 1
(https://arxiv.org/abs/2106.06042). *Received* is the averaged body with the initial head. In rounds with a full
evaluation and in the closing round, clients that do not upload fine-tune the whole model, which is *trained* then.
A deployed client predicts with the fine-tuned model; *kept* is the model of its last training, with the initial head.

Deviations: the mean is weighted by n_i, and the authors' code uses equal weights; the rate falls only with
``lr-decay``, and the authors' in two steps (see ``tuning``).
"""

from __future__ import annotations

from pydantic import Field

from sepal.config import Settings
from sepal.layout import Layout, layers
from sepal.method import Payload, Plan, RunSetup, Weights
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, FedAvgServer
from sepal.strategies.registration import register


class Hyper(Settings):
    """FedBABU's keys."""

    head_layers: int = Field(1, ge=0, description="number of last layers that form the head; 0 is FedAvg")
    # The authors' code fine-tunes for 5 epochs.
    epochs: int = Field(5, ge=1, description="epochs of fine-tuning the whole model")
    # The authors' code trains at .1, which falls to .001 in two steps, and fine-tunes at .001. At the rate of training
    # fine-tuning destroys the model: the body has grown large features to make up for the small initial head.
    tuning: float = Field(0.01, gt=0, description="learning rate of fine-tuning, as a multiple of the run's")


class Body:
    """The exchanged tensors: all but the head."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors that are averaged."""
        return layers(self.setup.layout, self.setup.hyper.head_layers)[0]


class FedBabuServer(Body, FedAvgServer):
    """FedAvg's server for the body."""


class FedBabuClient(Body, FedAvgClient):
    """Trains the body with the initial head; fine-tunes both at a lower rate."""

    batched = True
    dense_exchange = True

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the averaged body with the initial head."""
        return {**self.setup.weights, **super().received_weights(state, download, plan)}

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Fine-tune the received body and the initial head, without an upload."""
        start, lr = self.received_weights(state, download, plan), self.hyper.tuning * float(self.setup.config.lr)
        return ClientState(self.fit(start, plan, epochs=self.hyper.epochs, purpose="finetune", lr=lr))

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train the body."""
        after = ClientState(self.fit(self.received_weights(state, download, plan), plan, only=self.shared()))
        return after, self.upload(after, plan)


FedBabu = register(
    "fedbabu",
    "A shared body under a fixed head, then fine-tuning",
    "Oh et al., ICLR 2022",
    FedBabuServer,
    FedBabuClient,
    Hyper,
    deployed="trained",
)
