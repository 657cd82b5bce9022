"""FedEM: each client mixes the predictions of a few global models.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
Algorithm 1 (https://arxiv.org/abs/2108.10252). Symbols: θ_m → model m of M; π_t → ``shares``, a client's weights of the
models; q_t(z = m) → ``posterior``, of each training example.

E-step, at the received models: q ∝ π·exp(-loss) for each example, π ← mean of q. M-step: each model trains on the loss
weighted by q (batch: Σ q·loss / size). The server averages each model separately, weighted by n_i. A client predicts
Σ π_m·softmax(model m). *Received* is this with the received models under its π; *trained* the same after both steps.
A deployed client predicts with the received models under its π; *kept* is the mixture after its last training.

The models are different draws from the seed; the first is W_0. A novel client only runs the E-step, as the authors'
unseen clients do.

A model whose outputs are NaN, because a client sent a negative running variance, is left out of mixtures until training
has repaired it.

Deviations: the E-step is done on the training part, as in the paper; its forward pass is not in the multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn

from sepal.config import Settings
from sepal.layout import Layout, Parameter
from sepal.method import ClientBase, Hooks, Payload, Plan, Predictor, RunSetup, Weights
from sepal.models import initial_weights
from sepal.rng import derive
from sepal.strategies.baselines.fedavg import FedAvgServer, ServerState
from sepal.strategies.registration import register
from sepal.tasks.learning import PER_EXAMPLE
from sepal.training.columns import split

EXAMPLES = 512  # at once in the E-step


class Hyper(Settings):
    """FedEM's keys."""

    # The authors' choice, which pFedGate's comparison takes too.
    models: int = Field(3, ge=1, le=100, description="M, number of global models; 1 is FedAvg")

    def largest_message(self, setup: RunSetup) -> int:
        """Return M times the model's entries, because all models travel in one message."""
        return self.models * super().largest_message(setup)


@dataclass(frozen=True)
class ClientState:
    """A client's state: π, float64 (M,), and the models after its last training; both empty before."""

    shares: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    models: Weights = field(default_factory=dict)


class Mixture:
    """What server and client share: M models, as ``m/NAME``."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors of all models."""
        numbers = range(self.setup.hyper.models)
        return tuple(Parameter(f"{m}/{p.name}", p.shape, p.role) for m in numbers for p in self.setup.layout)

    def first(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the models before round 1: M draws, but what the user's ``build`` sets is the same in all of them."""
        models = {f"0/{name}": array for name, array in self.setup.weights.items()}
        for m in range(1, self.setup.hyper.models):
            seed = int(derive(self.setup.config.seed, "fedem", m).integers(2**62))
            drawn = initial_weights(self.setup.make(), seed)
            weights = {
                name: self.setup.weights[name] if name in self.setup.user_set else new for name, new in drawn.items()
            }
            models |= {f"{m}/{name}": array for name, array in weights.items()}
        return models

    def one_of(self, models: Weights, m: int) -> Weights:
        """Return model m of several, under its own names."""
        return {p.name: models[f"{m}/{p.name}"] for p in self.setup.layout}


class FedEmServer(Mixture, FedAvgServer):
    """Averages each model separately."""

    def init(self) -> ServerState:
        """Start from M models drawn from the seed."""
        return ServerState(self.first())


class FedEmClient(Mixture, ClientBase[ClientState]):
    """Keeps π and trains all models."""

    needs_of_task = (PER_EXAMPLE,)

    def init(self) -> ClientState:
        """Start with equal shares, and without models."""
        return ClientState()

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the received models."""
        return super().received_weights(state, download, plan) if download.tensors else self.first()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the models after the last training."""
        return state.models

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the log of the mixture of probabilities."""
        models = state.models if download is None else self.received_weights(state, download, plan)
        if not models:
            return None
        predict, shares = [self._predict(models, m) for m in range(self.hyper.models)], self._shares(state)

        def mixture(x: torch.Tensor) -> torch.Tensor:
            pairs = zip(predict, np.log(shares), strict=True)
            logs = torch.stack([torch.log_softmax(predictor(x), 1) + float(log) for predictor, log in pairs])
            return torch.logsumexp(logs.masked_fill(logs.isnan(), -torch.inf), 0)

        return mixture

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Run the E-step and the M-step, and upload all models."""
        after = self.adapt(state, download, plan)
        return after, self.upload(after, plan)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Run the E-step and the M-step; a novel client only runs the E-step."""
        models = self.received_weights(state, download, plan)
        posterior = self.posterior(models, self._shares(state))
        shares = posterior.mean(0)
        if not plan.novel:
            models = {
                name: array
                for m in range(self.hyper.models)
                for name, array in self._fit(models, m, posterior[:, m], plan).items()
            }
        return ClientState(shares, models)

    def posterior(self, models: Weights, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return q, float64 (n, M): ∝ π_m·exp(-loss of model m) of each training example."""
        losses = []
        for m in range(self.hyper.models):
            predict = self._predict(models, m)
            parts = split(self.trainer.x, self.trainer.y, EXAMPLES)
            part_losses = [self.trainer.loss_each(predict(x), y) for x, y in parts]
            losses.append(torch.cat(part_losses).cpu().numpy().astype(np.float64))
        loss = np.stack(losses, 1)
        loss[~np.isfinite(loss)] = np.inf
        loss[np.isinf(loss).all(1)] = 0  # no model says anything of the example: q = π
        scores = np.log(shares) - loss
        weights = np.exp(scores - scores.max(1, keepdims=True))
        q: npt.NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
        return q

    def _fit(self, models: Weights, m: int, weights: npt.NDArray[np.float64], plan: Plan) -> Weights:
        """Return model m trained on the loss weighted by ``weights``, float64 (n,)."""
        network = self.trainer.network()
        network.load(self.one_of(models, m))
        labels, q = self.trainer.y[:], torch.from_numpy(weights.astype(np.float32)).to(self.trainer.device)

        def loss(module: nn.Module, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return (self.trainer.loss_each(module(x), labels[index]) * q[index]).mean()

        # The loop hands out labels with the examples; here it hands out their numbers, by which q is found.
        with self.trainer.changed(y=torch.arange(len(labels), device=self.trainer.device)) as numbered:
            numbered.fit(network.module, plan.round, Hooks(loss), purpose=f"model-{m}" if m else "train")
        return {f"{m}/{name}": array for name, array in network.read().items()}

    def _shares(self, state: ClientState) -> npt.NDArray[np.float64]:
        """Return π; equal shares before the first E-step. None is below 1e-12, so that its logarithm exists."""
        count = self.hyper.models
        return np.maximum(state.shares, 1e-12) if state.shares.size else np.full(count, 1 / count)

    def _predict(self, models: Weights, m: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return self.trainer.predictor(self.one_of(models, m), f"mixture-{m}", self.trainer.make)


FedEM = register(
    "fedem",
    "A mixture of global models with each client's own weights",
    "Marfoq et al., NeurIPS 2021",
    FedEmServer,
    FedEmClient,
    Hyper,
    deployed="received",
)
