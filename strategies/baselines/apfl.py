"""APFL: a personal model mixed with the global one.

Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020 (https://arxiv.org/abs/2003.13461): Algorithm 1;
eq. 10 for α. Symbols: w_i → ``shared``, the client's version of the global model; v_i → ``personal``;
v̄_i = α·v_i + (1 - α)·w_i → ``mixed``, with which the client predicts.

On every batch w_i takes FedAvg's step and v_i becomes v_i - η·∇_v F_i(v̄_i), where ∇_v F_i(v̄_i) = α·∇F_i(v̄_i). On a
round's first batch an adaptive α becomes α - η·⟨v_i - w_i, ∇F_i(v̄_i)⟩, clipped to [0, 1]; the authors' code, too,
updates it once a round (updated at every step it falls to 0 within a few rounds, and stays there, because v_i then has
no gradient). Only w_i is uploaded. *Received* is v_i mixed with the received global model; *trained* is v̄_i after the
local epochs. A deployed client predicts with v̄_i, which is *kept*.

Deviations: clients train for epochs; α is updated by plain gradient descent for every optimizer (the authors' code adds
a small penalty on α, and mixes logits where the paper mixes weights); the mean is weighted by n_i; v̄_i has its own
statistics of normalisation layers.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from sepal.config import Settings, ShareOrAuto, auto
from sepal.layout import Layout, trained
from sepal.method import ClientBase, Hooks, Payload, Plan, Weights, dense
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective


class Hyper(Settings):
    """APFL's keys."""

    # The paper's figures take α = .25, .5 and .75, and the adaptive one; DM-PFL's comparison starts it at .5.
    alpha: ShareOrAuto = auto(0.5, "initial α, weight of the personal model; 0 is FedAvg")
    adaptive: bool = Field(True, description="update α by its gradient (eq. 10); false: keep it fixed")


@dataclass(frozen=True)
class ClientState:
    """A client's state: v_i, v̄_i after the last local epochs (float32 by name), α, and the rounds it took part in."""

    personal: Weights
    mixed: Weights
    alpha: float
    rounds: int = 0


class MixedModel(nn.Module):
    """w_i, v_i and α in one module, trained on the same batch by one loss."""

    def __init__(self, shared: nn.Module, personal: nn.Module, alpha: float, adaptive: bool) -> None:
        super().__init__()
        self.shared, self.personal = shared, personal
        device = next(personal.parameters()).device
        self.alpha = nn.Parameter(torch.tensor(alpha, device=device), requires_grad=adaptive)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of v̄_i, with w_i as a constant."""
        shared = dict(self.shared.named_parameters())
        mixed = {
            name: self.alpha * parameter + (1 - self.alpha) * shared[name].detach()
            for name, parameter in self.personal.named_parameters()
        }
        logits: torch.Tensor = functional_call(self.personal, mixed, (x,))
        return logits


@dataclass(frozen=True)
class BothLosses(Capturable):
    """F_i(w_i) + F_i(v̄_i). The first term has no gradient for v_i and α, the second none for w_i."""

    objective: Objective

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        both = typing.cast("MixedModel", module)
        return self.objective(both.shared(x), y) + self.objective(both(x), y)


@dataclass(frozen=True)
class MoveAlpha(Capturable):
    """Updates α ← α - η·∂F_i(v̄_i)/∂α, clipped to [0, 1], at the first step only."""

    TENSORS: typing.ClassVar[tuple[str, ...]] = ("rate",)
    rate: float

    def __call__(self, module: nn.Module) -> None:
        """Move α, if it is adaptive and has not been moved."""
        alpha = typing.cast("MixedModel", module).alpha
        if alpha.grad is not None:
            with torch.no_grad():
                alpha.sub_(self.rate * alpha.grad).clamp_(0, 1)
            alpha.requires_grad_(False)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the rate, and whether the next step is the first."""
        return {**super().tensors(), "first": torch.tensor(True)}

    def captured(self, tensors: Mapping[str, torch.Tensor], objective: Objective, optimizer: Any) -> Callable[..., Any]:
        """Return what says on the device whether it is the first step: a captured step is always the same."""
        rate, first = tensors["rate"], tensors["first"]

        def move(module: nn.Module) -> None:
            alpha = typing.cast("MixedModel", module).alpha
            if alpha.grad is not None:
                with torch.no_grad():
                    alpha.copy_(torch.where(first, (alpha - rate * alpha.grad).clamp(0, 1), alpha))
                    first.fill_(False)

        return move


def mix(personal: Weights, shared: Weights, alpha: float, parts: Layout) -> Weights:
    """Return v̄ = α·v + (1 - α)·w for the tensors of ``parts``, and v for the others."""
    a = np.float32(alpha)
    return {**personal, **{p.name: a * personal[p.name] + (1 - a) * shared[p.name] for p in parts}}


class APFLClient(ClientBase[ClientState]):
    """Trains both models and α on the same batches."""

    dense_exchange = True

    def init(self) -> ClientState:
        """Start with v_i = W_0 and α as configured."""
        return ClientState(dict(self.setup.weights), dict(self.setup.weights), self.hyper.alpha)

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return v_i mixed with the received global model."""
        return mix(state.personal, super().received_weights(state, download, plan), state.alpha, trained(self.layout))

    def personal_weights(self, state: ClientState) -> Weights:
        """Return v̄_i once it has been trained."""
        return state.mixed if state.rounds else {}

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Algorithm 1 on the client; w_i is uploaded."""
        shared, personal = self.trainer.network(), self.trainer.network("personal")
        shared.load(super().received_weights(state, download, plan))
        personal.load(state.personal)
        both = MixedModel(shared.module, personal.module, state.alpha, self.hyper.adaptive)
        rate = self.trainer.learning_rate(plan.round)
        parts = [*shared.module.parameters(), *personal.module.parameters()]
        hooks = Hooks(loss=BothLosses(self.trainer.loss), after_step=MoveAlpha(rate))
        self.trainer.fit(both, plan.round, hooks, parameters=parts)
        epochs = self.setup.config.local_epochs
        self.trainer.account(shared.module, epochs * len(self.trainer.y))  # fit counts the pass of v̄_i only
        alpha, sent, personal_weights = float(both.alpha.detach()), shared.read(), personal.read()
        after = ClientState(
            personal_weights, mix(personal_weights, sent, alpha, trained(self.layout)), alpha, state.rounds + 1
        )
        return after, Payload(dense(sent, self.layout, self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload."""
        return self.train(state, download, plan)[0]


APFL = register(
    "apfl",
    "A personal model mixed with the global one",
    "Deng et al., 2020",
    FedAvgServer,
    APFLClient,
    Hyper,
)
