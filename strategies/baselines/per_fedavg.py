"""Per-FedAvg: a global model that is good after one local step.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", NeurIPS 2020 (https://arxiv.org/abs/2002.07948). Symbols: α → the rate of the step that personalises, β → the
rate of training, which is the run's ``lr``.

The objective is the mean of f_i(w - α·∇f_i(w)), whose gradient is (I - α·∇²f_i(w))·∇f_i(w - α·∇f_i(w)). A client
repeats, on parts D, D', D'' of the data: w̃ = w - α·∇f(w; D), d = ∇f(w̃; D'), then w ← w - β·d (``variant = "fo"``, the
Hessian is left out) or w ← w - β·(d - α·∇²f(w; D'')·d) (``"hf"``). The server takes the mean. *Received* is the global
model; *trained* is personalised from it by ``epochs`` passes at the rate α over the client's training part, as a
deployed client predicts. The state of a client is FedAvg + fine-tuning's: *kept* is the personalised model in rounds
with a full evaluation, and the model of the last local epochs otherwise.

A batch of twice (FO) or three times (HF) ``batch-size`` examples is cut into D, D' and D'', so that a pass uses all
examples once. A batch with too few examples to be cut is all of them.

Deviations: clients count in the mean by n_i (``weights = "equal"``: alike; whether the paper weighs equally was not
checked); a pass of personalisation is the default, and the paper's single step is ``epochs = 0``: one step along the
gradient of the whole training part. Codes differ here: one takes a batch of *test* data, another an epoch. The product
with the Hessian is exact, where the paper takes a difference quotient of gradients. α does not decay with the
rounds. Momentum, Adam, weight decay and a gradient's limit apply to the outer step alone. The forward pass on D''
changes no running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from sepal.config import NotNegativeOrAuto, auto
from sepal.method import Hooks, Payload, Plan, Weights
from sepal.strategies.baselines import fedavg
from sepal.strategies.baselines.fedavg import ClientState
from sepal.strategies.baselines.fedavg_ft import FedAvgFtClient, FedAvgFtServer
from sepal.strategies.registration import register
from sepal.training.batches import smallest_batch
from sepal.training.capturable import Capturable, Objective
from sepal.training.optimizers import ParameterGroup

Tensors = dict[str, torch.Tensor]
# Of the steps that personalise, which are those of the objective: w - α·∇f(w)
PLAIN: Mapping[str, Any] = {
    "optimizer": "sgd",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip_gradient": 0.0,
    "lr_decay": 1.0,
    "schedule": "constant",
}


class Hyper(fedavg.Hyper):
    """Per-FedAvg's keys."""

    # .005 to .01 in public code. At the run's lr for digits a smaller one hardly personalises.
    alpha: NotNegativeOrAuto = auto(0.01, "α, rate of the steps that personalise; lr is β, the rate of training")
    variant: Literal["fo", "hf"] = Field("fo", description="fo: without the Hessian; hf: with it")
    epochs: int = Field(
        1, ge=0, description="passes that personalise the received model; 0: the paper's single step, on all data"
    )


@dataclass(frozen=True)
class MetaLoss(Capturable):
    """A loss whose gradient is the meta-gradient; its value is the loss at w̃ on D'.

    Attributes:
        objective: The task's mean loss.
        alpha: α.
        hessian: Whether the product with the Hessian counts.
        smallest: Fewest examples of a part.
    """

    FILLED: ClassVar[bool] = False  # a batch is cut by its number of examples

    objective: Objective
    alpha: float
    hessian: bool
    smallest: int

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of one step's batch."""
        parts = self._parts(x, y)
        weights: Tensors = {name: p for name, p in module.named_parameters() if p.requires_grad}
        inner, _ = self._gradient(module, weights, *parts[0])
        shifted = {name: (w - self.alpha * inner[name]).detach().requires_grad_() for name, w in weights.items()}
        outer, loss = self._gradient(module, shifted, *parts[1])
        if self.hessian:
            product = self._product(module, weights, outer, *parts[2])
            outer = {name: gradient - self.alpha * product[name] for name, gradient in outer.items()}
        surrogate = torch.stack([(w * outer[name]).sum() for name, w in weights.items()]).sum()
        return surrogate - surrogate.detach() + loss

    def gradients(self, batch: int) -> int:
        """Return the number of examples' gradients that a batch costs, each a forward and backward pass."""
        sizes = [len(x) for x, _ in self._parts(torch.empty(batch), torch.empty(batch))]
        return sum(sizes[:2]) + 2 * sum(sizes[2:])

    def _parts(self, x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return D, D' and, with the Hessian, D''."""
        count = 2 + self.hessian
        if len(y) < count * self.smallest:
            return [(x, y)] * count
        return list(zip(torch.tensor_split(x, count), torch.tensor_split(y, count), strict=True))

    def _gradient(
        self, module: nn.Module, weights: Tensors, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[Tensors, torch.Tensor]:
        """Return ∇f and f at ``weights``."""
        loss = self.objective(functional_call(module, weights, (x,)), y)
        return _by_name(weights, torch.autograd.grad(loss, list(weights.values()), allow_unused=True)), loss.detach()

    def _product(
        self, module: nn.Module, weights: Tensors, vector: Tensors, x: torch.Tensor, y: torch.Tensor
    ) -> Tensors:
        """Return ∇²f at ``weights`` times ``vector``; running statistics stay as they are."""
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        loss = self.objective(functional_call(module, {**weights, **buffers}, (x,)), y)
        first = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
        pairs = [(g, vector[name]) for name, g in zip(weights, first, strict=True) if g is not None and g.requires_grad]
        if not pairs:  # a loss that is linear in the weights
            return _by_name(weights, [None] * len(weights))
        dot = torch.stack([(g * v).sum() for g, v in pairs]).sum()
        return _by_name(weights, torch.autograd.grad(dot, list(weights.values()), allow_unused=True))


def _by_name(weights: Tensors, gradients: Sequence[torch.Tensor | None]) -> Tensors:
    """Return gradients by name; 0 for weights without one."""
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: torch.zeros_like(w) if gradient is None else gradient for (name, w), gradient in pairs}


class PerFedAvgClient(FedAvgFtClient):
    """Takes meta-steps for the upload, and steps of rate α for the client itself."""

    private_phases = ("",)
    batched = False
    dense_exchange = True

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Personalise the received model, without an upload."""
        network, start, alpha = self.trainer.network(), self.received_weights(state, download, plan), self._alpha
        network.load(start)
        if self.hyper.epochs:
            group = ParameterGroup(list(network.module.parameters()), alpha)
            plain = self.trainer.config.model_copy(update=PLAIN)
            with self.trainer.changed(config=plain, halvings=0) as trainer:
                trainer.fit(
                    network.module, plan.round, epochs=self.hyper.epochs, purpose="finetune", parameters=[group]
                )
            return ClientState(network.read())
        gradient = self.trainer.gradient(network.module)
        step = {
            name: np.asarray(w - np.float32(alpha) * gradient[name]) for name, w in start.items() if name in gradient
        }
        return ClientState({**start, **step})

    def trained_for_upload(self, received: Weights, plan: Plan) -> Weights:
        """Return the model after the meta-steps."""
        network, hessian = self.trainer.network(), self.hyper.variant == "hf"
        network.load(received)
        loss = MetaLoss(self.trainer.loss, self._alpha, hessian, smallest_batch(network.module))
        batch_size = self.setup.config.batch_size * (2 + hessian)
        with self.trainer.changed(config=self.trainer.config.model_copy(update={"batch_size": batch_size})) as trainer:
            trainer.fit(network.module, plan.round, Hooks(loss))
            batches = [len(rows) for rows in trainer.rows(plan.round, "train", 1, loss.smallest)]
            more = sum(loss.gradients(size) - size for size in batches)  # fit counts one of each example
            trainer.account(network.module, trainer.config.local_epochs * more)
        return network.read()

    @property
    def _alpha(self) -> float:
        return float(self.hyper.alpha)


PerFedAvg = register(
    "per-fedavg",
    "A global model that is good after one local step",
    "Fallah et al., NeurIPS 2020",
    FedAvgFtServer,
    PerFedAvgClient,
    Hyper,
    deployed="trained",
)
