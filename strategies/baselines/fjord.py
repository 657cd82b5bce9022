"""Fjord: ordered dropout, narrower models within each client's own.

Horváth, Laskaridis, Almeida, Leontiadis, Venieris, Lane, "FjORD: Fair and Accurate Federated Learning under
heterogeneous targets with Ordered Dropout", NeurIPS 2021, Algorithm 1 (https://arxiv.org/abs/2102.13451). A client
holds the first channels of every hidden layer, up to its width p_max. For each batch, a width p ≤ p_max is drawn
uniformly from the method's widths. The client's whole model is trained on the labels and the part of width p on the
whole model's outputs, in one step; with ``fjord.distill = false`` the part alone is trained, on the labels. The server
averages each entry over the clients that hold it, weighted by n_i. A deployed client predicts with its part of the
server's model, of width p_max, which is *received*; *kept* is its part after its last local epochs.

Deviations: batch norms share their statistics between widths (the paper has a set for each);
distillation uses temperature 1 and weight 1, as the authors' code does; layers must follow one
another (:mod:`sepal.models.channels`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from sepal.config import Mark, marks
from sepal.method import Hooks, Plan, Weights
from sepal.rng import derive
from sepal.strategies.baselines.widths import Dense, WidthClient, WidthServer, WidthSettings, numbers
from sepal.strategies.registration import register
from sepal.tasks.learning import LABELS
from sepal.training.capturable import Capturable, Objective
from sepal.training.multiply_adds import multiply_adds


class Hyper(WidthSettings):
    """Fjord's keys."""

    # Section 5.1: uniform-5.
    widths: str = Field(
        "0.2,0.4,0.6,0.8,1",
        description="model widths; each client gets the largest with width² ≤ capacity",
        json_schema_extra=marks(Mark.WORDS),
    )
    # The abstract names self-distillation as a part of FjORD; the authors' Flower baseline runs both.
    distill: bool = Field(True, description="train the whole model on labels, its parts on the whole model's outputs")


@dataclass(frozen=True)
class PartLoss(Capturable):
    """The loss of a part of a random width.

    Attributes:
        objective: The loss of outputs.
        distill: Whether the whole model is trained on labels, and the part on the whole model's outputs.
        widths: The widths, one of which is drawn for each batch.
        parts: A module of each of them.
        rng: What widths are drawn from.
        drawn: The widths so far, and the sizes of their batches.
    """

    OF_NETWORK: ClassVar[tuple[str, ...]] = ("parts", "rng", "drawn")
    FILLED: ClassVar[bool] = False  # the distance from the whole model's outputs is a mean over the batch
    objective: Objective
    distill: bool
    widths: tuple[float, ...]
    parts: Mapping[float, nn.Module]
    rng: np.random.Generator
    drawn: list[tuple[float, int]]

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Draw a width and return the loss of a batch."""
        width = self._draw(self.rng)
        self.drawn.append((width, len(y)))
        return self.of(width, module, x, y)

    def of(self, width: float, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch at ``width``."""
        if not self.distill:
            return self.objective(run_part(self.parts[width], module, x), y)
        whole = module(x)
        target = whole.detach().softmax(1)
        return self.objective(whole, y) + functional.cross_entropy(run_part(self.parts[width], module, x), target)

    def choices(self, batches: Sequence[int]) -> list[float]:
        """Return the width of each batch."""
        rng = copy.deepcopy(self.rng)
        return [self._draw(rng) for _ in batches]

    def chosen(self, choice: Any) -> OfWidth:
        """Return the loss at one width."""
        return OfWidth(self.objective, self, choice)

    def ended(self, batches: Sequence[int], last: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Note the widths."""
        self.drawn.extend(zip(self.choices(batches), batches, strict=True))

    def _draw(self, rng: np.random.Generator) -> float:
        return self.widths[rng.integers(len(self.widths))]


@dataclass(frozen=True)
class OfWidth(Capturable):
    """The loss of a part of one width, for a captured step."""

    objective: Objective
    parts: PartLoss
    width: float

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return replace(self.parts, objective=self.objective).of(self.width, module, x, y)


class FjordClient(WidthClient):
    """Trains a part of its model in each step."""

    needs_of_task = (LABELS,)

    def trained(self, start: Weights, plan: Plan) -> Dense:
        """Return the model after E epochs; multiply-adds are those of the parts that were trained."""
        network = self.network(self.own_width)
        network.load(start)
        module, x = network.module, self.trainer.x
        widths = [width for width in numbers(self.hyper.widths) if width <= self.own_width]
        parts = {width: self.network(width).module for width in widths}
        rng = derive(self.setup.config.seed, "fjord", self.trainer.client.name, plan.round)
        loss = PartLoss(self.trainer.loss, self.hyper.distill, tuple(widths), parts, rng, [])
        counted = 1.0 if self.hyper.distill else 0.0
        density = dict.fromkeys(multiply_adds(module, x[:1]), counted)
        self.trainer.fit(module, plan.round, Hooks(loss), density=density)
        for width, examples in loss.drawn:
            self.trainer.account(parts[width], examples)
        return network.read()


def run_part(part: nn.Module, whole: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the logits of ``part`` with the first entries, along each axis, of ``whole``'s tensors.

    Gradients reach the tensors of ``whole``, and so do the running statistics that ``part`` updates.

    Args:
        part: A module of a smaller width, or of the same; its own tensors are not used.
        whole: The module that is trained.
        x: Inputs (batch, …).
    """
    if part is whole:
        out: torch.Tensor = whole(x)
        return out
    shapes = {name: tensor.shape for name, tensor in part.state_dict().items()}
    tensors = whole.state_dict(keep_vars=True)
    first = {name: tensors[name][tuple(slice(side) for side in shape)] for name, shape in shapes.items()}
    part.train(whole.training)
    logits: torch.Tensor = torch.func.functional_call(part, first, (x,))
    return logits


Fjord = register(
    "fjord",
    "Ordered dropout: each client also trains narrower models nested in its own",
    "Horváth et al., NeurIPS 2021",
    WidthServer,
    FjordClient,
    Hyper,
    deployed="received",
)
