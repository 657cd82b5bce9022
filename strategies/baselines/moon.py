"""MOON: local training contrasts the received model's features with those of the client's previous model.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021 (https://arxiv.org/abs/2103.16257). Symbols: z → the
features of the model in training, z_glob → those of the received model, z_prev → those of the client's model after its
last training; the last two are constants.

FedAvg with another local loss: cross-entropy + μ·(-log [e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z,
z_prev)/τ})]), the mean over a batch, here as μ·softplus((cos(z, z_prev) - cos(z, z_glob))/τ). In a client's first
round there is no previous model and no such term. *Received* is the global model, which is deployed; *kept* is the
client's own after its last training, which is the next one's previous model.

Deviations: features are the input of the last layer, as in two public benchmarks; the authors add a projection head of
two layers, with which the model and its bytes would be others than those of the methods it is compared with. Received
and previous model are in evaluation mode. In the authors' code the previous model of a client that has never trained is
a random network from the second round on; here there is none. The default μ = 1 is that of the authors' parser; their
command for CIFAR-10 takes 5. The closing round's training, which is not uploaded, is the previous model of a run
that is extended. The multiply-adds count the two forward passes more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from sepal.config import NotNegativeOrAuto, Settings, auto
from sepal.method import Hooks, Payload, Plan, RunSetup
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, FedAvgServer
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective
from sepal.training.features import LastLayer, checked_last_layer, last_layer

NAME = "moon"


class Hyper(Settings):
    """MOON's keys."""

    mu: NotNegativeOrAuto = auto(1.0, "μ, weight of the contrastive term; 0 is FedAvg")
    temperature: float = Field(0.5, gt=0, description="τ, by which cosines are divided")


def contrast(
    features: torch.Tensor, received: torch.Tensor, previous: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the mean of the contrastive term over a batch, a scalar; all features are (n, F)."""
    near, far = (functional.cosine_similarity(features, other) for other in (received, previous))
    return functional.softplus((far - near) / temperature).mean()


@dataclass(frozen=True)
class Contrasted(Capturable):
    """The loss with the contrastive term.

    Attributes:
        received, previous: Tensors of the received and of the previous model, by name.
        frozen: A module in evaluation mode, whose tensors they replace.
        last: The layer whose input is contrasted.
        objective: The task's mean loss.
        mu, temperature: μ and τ.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ("received", "previous")
    FILLED: ClassVar[bool] = False  # the term is a mean over the batch

    received: Mapping[str, torch.Tensor]
    previous: Mapping[str, torch.Tensor]
    frozen: nn.Module
    last: LastLayer
    objective: Objective
    mu: float
    temperature: float

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        outputs, features = self.last.read(module, x)
        with torch.no_grad():
            constants = [self.last.read(self.frozen, x, model)[1] for model in (self.received, self.previous)]
        near, far = (constant.flatten(1) for constant in constants)
        return self.objective(outputs, y) + self.mu * contrast(features.flatten(1), near, far, self.temperature)


class MoonServer(FedAvgServer):
    """FedAvg's server, which refuses a model without such a last layer before the run."""

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        checked_last_layer(setup.make(), setup.layout, setup.input_shape, NAME)


class MoonClient(FedAvgClient):
    """FedAvg's client with the contrastive term."""

    private_phases = ("",)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the global model for E epochs, from the second time on with the term."""
        start = self.received_weights(state, download, plan)
        network = self.trainer.network(NAME)
        frozen = network.module.requires_grad_(False)
        last = last_layer(frozen, self.layout, NAME, self.trainer.x[:1])  # so a model is refused in its first round
        if not (self.hyper.mu and state.model):
            return ClientState(self.fit(start, plan))
        received, previous = (
            {name: torch.tensor(array, device=self.trainer.device) for name, array in model.items()}
            for model in (start, state.model)
        )
        mu, temperature = float(self.hyper.mu), self.hyper.temperature
        loss = Contrasted(received, previous, frozen, last, self.trainer.loss, mu, temperature)
        before = self.trainer.steps
        model = self.fit(start, plan, Hooks(loss))
        passes = 2 * self.setup.config.local_epochs if self.trainer.steps > before else 0
        self.trainer.account(frozen, passes * len(self.trainer.y))
        return ClientState(model)


Moon = register(
    NAME,
    "FedAvg whose features are contrasted with the client's previous model",
    "Li et al., CVPR 2021",
    MoonServer,
    MoonClient,
    Hyper,
    deployed="received",
    one_model=True,
)
