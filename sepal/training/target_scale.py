"""Standardises the targets of a regression by one client's training part, as the columns of a table are.

The client trains on standardised targets, so that a step has the same size whatever unit they have. Its figures, its
exported model and its predictions are in the targets' own unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from sepal.config import RunConfig
from sepal.data import ClientData
from sepal.data.scaling import Scale
from sepal.data.streams import Stream


@dataclass(frozen=True)
class TargetScale:
    """Mean and spread of a client's training targets, one of each for every number that is predicted.

    Attributes:
        mean: What is added to the model's outputs, in the targets' unit.
        spread: Standard deviation, by which the outputs are multiplied first; 0 where all targets are alike: what is
            predicted there is their mean.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, targets: npt.NDArray[Any]) -> TargetScale:
        """Return the scale of a client's training targets, (n, numbers), n at least 1."""
        scale = Scale.of(targets)
        spread = [1 / factor if factor else 0.0 for factor in scale.factor.tolist()]
        return cls(tuple(scale.mean.tolist()), tuple(spread))

    def standardized(self, targets: torch.Tensor) -> torch.Tensor:
        """Return targets float32 (n, numbers) in the unit of the model's outputs; 0 where all training targets are."""
        wide = targets.cpu().double()
        factor = torch.tensor([1 / spread if spread else 0.0 for spread in self.spread], dtype=torch.float64)
        return ((wide - torch.tensor(self.mean, dtype=torch.float64)) * factor).float().to(targets.device)

    def undone(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return a model's outputs float32 (n, numbers) in the targets' unit."""
        return in_unit(outputs, outputs.new_tensor(self.mean), outputs.new_tensor(self.spread))


class InUnit(torch.nn.Module):
    """A module whose outputs are in the targets' unit, as those of an exported model."""

    mean: torch.Tensor
    spread: torch.Tensor

    def __init__(self, module: torch.nn.Module, mean: Sequence[float], spread: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("spread", torch.tensor(spread))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers (n, numbers) for inputs (n, …)."""
        return in_unit(self.module(x), self.mean, self.spread)


def in_unit(outputs: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Return standardised outputs (n, numbers) in the unit that ``mean`` and ``spread``, (numbers,), have."""
    return outputs * spread + mean


def target_scale(config: RunConfig, data: ClientData) -> TargetScale | None:
    """Return how a client's targets are standardised; None if they are not, or are those of a Dataset."""
    if config.target_scale != "client" or isinstance(data.train, Stream):
        return None
    return TargetScale.of(data.train.y)
