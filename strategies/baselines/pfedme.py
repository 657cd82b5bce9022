"""pFedMe: personal models regularised by Moreau envelopes.

Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1
(https://arxiv.org/abs/2006.08848). Symbols: θ_i → the personal model; w_i → the client's version of the global model.

For each batch a client takes K steps on f_i(θ) + λ/2·‖θ - w‖², from the current θ, then w ← w - η·λ·(w - θ). Only w is
uploaded. The server takes W ← (1 - β)·W + β·Σ n_i·w_i / Σ n_i. *Received* is the global model, *trained* is θ_i. Both θ
and w start each round at the received model, as in the authors' code. The run's ``lr`` is the rate of θ. A deployed
client predicts with θ_i of its last training, which is *kept*.

Deviations: R is the number of batches in ``local-epochs`` passes (the authors take 20 batches); only sampled clients
train; statistics of normalisation layers are θ's, and averaged. The multiply-adds count all K steps. The authors' code
tests w_i as the personal model; the paper's personal model is θ_i, and it is what we test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn

from sepal.config import PositiveOrAuto, Settings, auto
from sepal.layout import trained
from sepal.method import Hooks, Payload, Plan, Weights, dense
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, FedAvgServer, ServerState
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective, Steps


class Hyper(Settings):
    """pFedMe's keys. The authors' settings for MNIST: λ 15, K 5, η .005, β 1, and .09 as rate of θ."""

    lam: PositiveOrAuto = auto(15.0, "λ, pull of the personal model θ towards the local w", alias="lambda")
    steps: int = Field(5, ge=1, description="K, steps on the personal model per batch")
    rate: PositiveOrAuto = auto(0.005, "η, learning rate of w: w ← w - η·λ·(w - θ); lr is that of θ")
    beta: float = Field(1.0, gt=0, description="β, weight of the clients' mean in the server's update")
    # In the authors' code only.
    mu: float = Field(0.001, ge=0, description="weight decay of the personal model")


class PFedMeServer(FedAvgServer):
    """FedAvg's server, which moves by β towards the mean."""

    def update(self, state: ServerState, mean: Weights) -> ServerState:
        """W ← (1 - β)·W + β·mean; statistics are the mean, because beyond it a variance may be below 0."""
        keep, take = np.float32(1 - self.hyper.beta), np.float32(self.hyper.beta)
        new_weights = {p.name: keep * state.weights[p.name] + take * mean[p.name] for p in trained(self.layout)}
        return ServerState({**mean, **new_weights})


@dataclass(frozen=True)
class PullTowards(Capturable):
    """Adds λ(θ - w) + μθ to the gradient of θ."""

    TENSORS: ClassVar[tuple[str, ...]] = ("local",)
    local: dict[str, torch.Tensor]
    strength: float
    decay: float

    def __call__(self, module: nn.Module) -> None:
        """Pull the parameters."""
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                theta = parameter.detach()
                parameter.grad.add_(self.strength * (theta - self.local[name]) + self.decay * theta)


@dataclass(frozen=True)
class InnerSteps(PullTowards):
    """Takes K - 1 steps of θ on a batch and returns the loss for the last one, which the loop takes."""

    objective: Objective
    optimizer: Steps
    steps: int

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Take the steps."""
        for _ in range(self.steps - 1):
            self.optimizer.zero_grad()
            self.objective(module(x), y).backward()  # type: ignore[no-untyped-call]
            super().__call__(module)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.objective(module(x), y)


@dataclass(frozen=True)
class DrawLocal(Capturable):
    """Moves w towards θ after each batch: w ← w - ηλ(w - θ)."""

    TENSORS: ClassVar[tuple[str, ...]] = ("local",)
    CHANGED: ClassVar[tuple[str, ...]] = ("local",)
    local: dict[str, torch.Tensor]
    rate: float

    def __call__(self, module: nn.Module) -> None:
        """Move w."""
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                self.local[name].sub_(self.rate * (self.local[name] - parameter))


class PFedMeClient(FedAvgClient):
    """Takes K steps of θ on each batch, and moves w towards θ."""

    dense_exchange = True

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Run the client's part of Algorithm 1."""
        network = self.trainer.network()
        network.load(self.received_weights(state, download, plan))
        module = network.module
        local = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        optimizer = self.trainer.optimizer(module, plan.round)
        pull = PullTowards(local, float(self.hyper.lam), float(self.hyper.mu))
        loss = InnerSteps(pull.local, pull.strength, pull.decay, self.trainer.loss, optimizer, self.hyper.steps)
        draw = DrawLocal(local, float(self.hyper.rate) * float(self.hyper.lam))
        before = self.trainer.steps
        self.trainer.fit(module, plan.round, Hooks(loss, pull, draw), optimizer=optimizer)
        passes = (self.hyper.steps - 1) * self.setup.config.local_epochs if self.trainer.steps > before else 0
        self.trainer.account(module, passes * len(self.trainer.y))  # fit counts one step of each batch
        theta = network.read()
        sent = {**theta, **{name: tensor.cpu().numpy() for name, tensor in local.items()}}
        return ClientState(theta), Payload(dense(sent, self.shared(), self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload."""
        return self.train(state, download, plan)[0]


PFedMe = register(
    "pfedme",
    "Personal models regularised by Moreau envelopes",
    "Dinh et al., NeurIPS 2020",
    PFedMeServer,
    PFedMeClient,
    Hyper,
    defaults={"lr": 0.09},  # the authors' rate of θ; it must be below 2/λ
)
