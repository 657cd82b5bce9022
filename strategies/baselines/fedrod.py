"""FedRoD: a generic head with a balanced loss, and a personal head on top of it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022
(https://arxiv.org/abs/2107.00778). Symbols: z → the input of the last layer; g = h_G(z) → the generic head's logits,
which are the model's; φ_i → the personal head, a linear layer beside it that is never sent; n_c → the client's training
examples of class c.

On each batch, body and generic head step on the balanced loss, the cross-entropy of g_c + γ·ln n_c; the personal head
steps on the cross-entropy of g + h_P(z), with z and g of the same forward pass as constants. The server averages body
and generic head. *Received* is the generic model, without the term γ·ln n. The personal model is g + h_P(z): as both
heads are linear, it is the run's own model with the sum of both heads' weights. *Kept* is that after the last local
epochs, which is deployed, and *trained* the same of this round.

Deviations: the personal head starts at 0, so that personal and generic are the same before training; one public code
starts it at the generic head, another trains it alone and lets its loss train the body, which is another method. A
client without examples of a class has no such term for it: its logit is left out of the balanced loss. The variant in
which a hypernetwork makes personal heads is not here. Label smoothing and class weights are refused: the loss has
weights of its own. Each head has its own optimizer, the run's. The personal head's multiply-adds are not counted. That
γ = 1 is the paper's was not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from sepal.config import Settings
from sepal.method import ClientBase, Hooks, Payload, Plan, RunSetup, Weights, dense
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.registration import register
from sepal.tasks.learning import LABELS
from sepal.training.features import LastLayer, checked_last_layer, last_layer

NAME = "fedrod"


class Hyper(Settings):
    """FedRoD's keys."""

    gamma: float = Field(1.0, ge=0, description="γ, exponent of the class counts in the generic loss; 0: not balanced")


@dataclass(frozen=True)
class ClientState:
    """A client's state, float32 by name.

    Attributes:
        model: Body and generic head after its last local epochs; empty before.
        head: The personal head φ_i, by the names of the last layer; empty before.
    """

    model: Weights = field(default_factory=dict)
    head: Weights = field(default_factory=dict)


class FedRoDServer(FedAvgServer):
    """FedAvg's server, which refuses a model without a linear last layer before the run."""

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        checked_last_layer(setup.make(), setup.layout, setup.input_shape, NAME)


class FedRoDClient(ClientBase[ClientState]):
    """Trains the generic model on the balanced loss, and the personal head beside it."""

    dense_exchange = True
    needs_of_task = (LABELS,)
    fixed_keys = MappingProxyType(
        {
            "label-smoothing": "whose generic loss is balanced by the class counts",
            "own.class-weights": "whose generic loss is balanced by the class counts",
        }
    )

    def init(self) -> ClientState:
        """Start without a model, and with φ_i = 0."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the model whose last layer is the sum of both heads; empty before it was trained."""
        return {**state.model, **{name: np.asarray(state.model[name] + array) for name, array in state.head.items()}}

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return body and generic head."""
        return Payload(dense(state.model, self.shared(), self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train body and both heads for E epochs."""
        start, network = self.received_weights(state, download, plan), self.trainer.network()
        last = last_layer(network.module, self.layout, NAME, self.trainer.x[:1])
        head = self._head(state, last)
        optimizer, prior = self.trainer.optimizer(head, plan.round), self._prior(last)

        def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            outputs, features = last.read(module, x)
            optimizer.zero_grad()
            personal = outputs.detach() + head(features.detach())
            functional.cross_entropy(personal, y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return functional.cross_entropy(outputs + prior, y)

        model = self.fit(start, plan, Hooks(loss))
        names = {"weight": last.weight, "bias": last.bias}
        return ClientState(model, {names[name]: p.detach().cpu().numpy().copy() for name, p in head.named_parameters()})

    def _head(self, state: ClientState, last: LastLayer) -> nn.Linear:
        """Return φ_i as a layer."""
        head = nn.Linear(last.features, last.outputs, bias=bool(last.bias), device=self.trainer.device)
        with torch.no_grad():
            for name, parameter in (("weight", head.weight), ("bias", head.bias)):
                if parameter is not None:
                    array = state.head.get(getattr(last, name))
                    parameter.copy_(torch.zeros_like(parameter) if array is None else torch.tensor(array))
        return head

    def _prior(self, last: LastLayer) -> torch.Tensor:
        """Return γ·ln n_c, float32 (classes,); 0 for all classes with γ = 0."""
        counts = torch.bincount(self.trainer.y[:], minlength=last.outputs).to(torch.float32)
        return self.hyper.gamma * counts.log() if self.hyper.gamma else torch.zeros_like(counts)


FedRoD = register(
    NAME,
    "A generic head with a balanced loss, and a personal head on top",
    "Chen and Chao, ICLR 2022",
    FedRoDServer,
    FedRoDClient,
    Hyper,
)
