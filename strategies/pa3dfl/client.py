"""Pa3dFL, client algorithm: training under two heads (Algorithm 3), choice of α on validation data (Algorithm 1).

Wang et al., "Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity".
Deviations: see NOTES.md.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sepal.layout import Layout
from sepal.method import (
    ClientBase,
    Hooks,
    Payload,
    Plan,
    Predictor,
    RunSetup,
    Schema,
    Trainer,
    Weights,
    dense,
    dense_schema,
)
from sepal.models.decomposed import Decomposed, cut, initial_weights
from sepal.models.weights import read_weights
from sepal.strategies.pa3dfl.contract import Array, ClientState, DecomposedShape, Hyper
from sepal.tasks.learning import LABELS
from sepal.training.capturable import Capturable, Objective
from sepal.training.evaluation import score
from sepal.training.multiply_adds import multiply_adds
from sepal.training.network import Network

Dense = dict[str, Array]


@dataclass(frozen=True)
class BothHeads(Capturable):
    """The loss of Algorithm 3: of the global head, of the local head (features detached), and λ·regulariser."""

    objective: Objective
    strength: float

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        logits = module(x)
        fit = self.objective(logits[0], y) + self.objective(logits[1], y)
        return fit + self.strength * typing.cast("Decomposed", module).regulariser()


class Pa3dFLClient(ClientBase[ClientState]):
    """Trains a decomposed model at its width, and predicts with a plain mixture of the received and trained models."""

    needs_of_task = (LABELS,)

    hyper: Hyper

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.shape = DecomposedShape.of(setup, trainer.client.capacity)
        first = read_weights(self.shape.module())
        self.head = {name: array for name, array in first.items() if name.startswith("global_head")}

    def init(self) -> ClientState:
        """Start without a model; in the ablation ``local``, with initial personal tensors, the same for all clients."""
        if self.hyper.personal != "local":
            return ClientState()
        first = initial_weights(DecomposedShape(self.setup, 1.0).module(), self.setup.config.seed)
        return ClientState(personal=cut(first, self.shape.personal))

    def shared(self) -> Layout:
        """Return the tensors that travel, at the client's width."""
        return self.shape.shared

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the shared tensors, dense, in every round."""
        return dense_schema(self.shared())

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Dense:
        """Return the decomposed model: received tensors, the client's own personal tensors, and the fixed head."""
        return {**self.head, **state.personal, **{name: tensor.dense() for name, tensor in download.tensors.items()}}

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train, choose α, and upload the trained general and personal tensors."""
        after, trained = self._trained(state, download, plan)
        return after, Payload(dense(trained, self.shared(), self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train and choose α in the same way, without an upload."""
        return self._trained(state, download, plan)[0]

    def _trained(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Dense]:
        """Return the new state, and the decomposed model after E epochs."""
        start = self.received_weights(state, download, plan)
        network = self._network()
        network.load(start)
        self.trainer.fit(
            network.module,
            plan.round,
            Hooks(BothHeads(self.trainer.loss, self.hyper.lambda_)),
            density=self.density(network.module),
        )
        trained = network.read()
        alpha, model = self.choose(self.recovered(start, "global_head"), self.recovered(trained, "local_head"))
        for name, figure in (("width", self.shape.width), ("share", self.shape.share), ("alpha", alpha)):
            self.trainer.report(name, figure)
        personal = {name: trained[name] for name in state.personal}
        return ClientState(model, alpha, personal), trained

    def density(self, module: nn.Module) -> dict[str, float]:
        """Return the factor on an example's multiply-adds that counts recovered weights once a batch."""
        work, examples = multiply_adds(module, self.trainer.x[:1]), len(self.trainer.y)
        whole, batches = sum(work.values()), -(-examples // self.setup.config.batch_size)
        return dict.fromkeys(work, typing.cast("Decomposed", module).cost(whole, examples, batches) / whole)

    def choose(self, received: Weights, trained: Weights) -> tuple[float, Dense]:
        """Return α and M_0 + α·(M_1 - M_0): the α with most correct validation examples, then least loss, then least α.

        Args:
            received: M_0, the plain model as received, with the global head.
            trained: M_1, the plain model after training, with the local head. It is used (α = 1) if the client has no
                validation data.
        """
        x, y = self.trainer.x_validation, self.trainer.y_validation

        def rank(alpha: float) -> tuple[float, float]:
            figures = score(self._predict(mix(received, trained, alpha)), x, y)
            return figures["correct"], -figures["loss"]

        alpha = max((step / 10 for step in range(11)), key=rank) if len(y) else 1.0  # the first of equals
        return alpha, mix(received, trained, alpha)

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the received model with the global head, or without a download the mixed one."""
        if download is not None:
            return self._predict(self.recovered(self.received_weights(state, download, plan), "global_head"))
        return self._predict(state.model) if state.model else None

    # Networks of the client's width

    def _network(self) -> Network:
        return self.trainer.network(f"decomposed-{self.shape.width:g}", self.shape.module)

    def recovered(self, weights: Weights, head: str) -> Dense:
        """Return the plain model of decomposed ``weights`` under ``global_head`` or ``local_head``, float32 by name."""
        network = self._network()
        network.load(weights)
        return read_weights(typing.cast("Decomposed", network.module).recovered(head))

    def _predict(self, weights: Weights) -> Predictor:
        name = f"recovered-{self.shape.width:g}"
        return self.trainer.predictor(weights, name, lambda: self.shape.module().recovered())


def mix(received: Weights, trained: Weights, alpha: float) -> Dense:
    """Return M_0 + α·(M_1 - M_0), float32 by name; exact at the ends, and where both are equal."""
    if alpha in (0, 1):
        return dict(trained if alpha else received)
    return {name: received[name] + np.float32(alpha) * (array - received[name]) for name, array in trained.items()}
