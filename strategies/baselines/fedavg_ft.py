"""FedAvg followed by local fine-tuning (FedAvg+FT).

The federated part is FedAvg (McMahan et al., AISTATS 2017). In rounds with a full evaluation and in the closing round,
each client fine-tunes the whole global model on its own data for ``fedavg-ft.epochs`` epochs; the result is not
uploaded. Described as a strong baseline by Yu et al., 2020 (https://arxiv.org/abs/2002.04758) and Cheng et al.,
2021 (https://arxiv.org/abs/2108.07313). *Received* is the global model, *trained* the fine-tuned one. In rounds without
a full evaluation *trained* is FedAvg's model after E epochs. A deployed client predicts with the fine-tuned model;
*kept* is that only if the client's last round was one with a full evaluation.
"""

from __future__ import annotations

from pydantic import Field

from sepal.config import Settings
from sepal.method import Payload, Plan, Weights, dense
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, FedAvgServer
from sepal.strategies.registration import register


class Hyper(Settings):
    """Keys of FedAvg+FT."""

    # Our choice; the papers that compare with fine-tuning (DM-PFL, pFedGate) were read and give no number.
    epochs: int = Field(5, ge=1, description="epochs of local fine-tuning, starting from the global model")


class FedAvgFtServer(FedAvgServer):
    """FedAvg's server; the plan tells clients when to fine-tune."""

    def plan(self, round: int) -> Plan:
        """Fine-tune only in rounds with a full evaluation, because only those use the result."""
        every = self.setup.config.evaluate_every
        return Plan(round, scalars={"finetune": bool(every and round % every == 0)})


class FedAvgFtClient(FedAvgClient):
    """FedAvg's client; keeps the fine-tuned model if the plan says so."""

    private_phases = ("",)
    batched = True
    dense_exchange = True

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train as in FedAvg, also with ``privacy.*``; then fine-tune, if the plan says so."""
        received = self.received_weights(state, download, plan)
        trained = ClientState(self.trained_for_upload(received, plan))
        after = self.adapt(state, download, plan) if plan.scalars["finetune"] else trained
        if self.clips_uploads:
            return after, self._released(received, trained, plan)
        return after, Payload(dense(trained.model, self.shared(), self.coding))

    def trained_for_upload(self, received: Weights, plan: Plan) -> Weights:
        """Return the model that is uploaded."""
        return self.fit(received, plan)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Fine-tune the received model, without an upload."""
        start = self.received_weights(state, download, plan)
        return ClientState(self.fit(start, plan, epochs=self.hyper.epochs, purpose="finetune"))


FedAvgFt = register(
    "fedavg-ft",
    "FedAvg, then local fine-tuning",
    "McMahan et al., 2017; Yu et al., 2020",
    FedAvgFtServer,
    FedAvgFtClient,
    Hyper,
    deployed="trained",
)
