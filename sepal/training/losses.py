"""Losses of a batch: the task's own, or cross-entropy with class weights and label smoothing; and autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from sepal.tasks.learning import Task


@dataclass(frozen=True)
class Losses:
    """What a client's batches cost.

    Attributes:
        task: The task, whose loss it is without weights and smoothing.
        weights: The weight of each class, float32 (classes,); None: all alike.
        smoothing: ``label-smoothing``.
    """

    task: Task
    weights: torch.Tensor | None
    smoothing: float

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of outputs (n, …), float32 or bfloat16, for labels int64 (n,) or a task's targets."""
        if self.weights is None and not self.smoothing:
            return self.task.loss(_exact(outputs), targets)
        return functional.cross_entropy(_exact(outputs), targets, weight=self.weights, label_smoothing=self.smoothing)

    def by_example(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each example (n,).

        Raises:
            ValueError: The task has no loss of an example.
        """
        if self.task.loss_each is None:
            raise ValueError(f"a loss for each example, which {self.task.name} lacks")
        outputs = _exact(outputs)
        if self.smoothing:
            return functional.cross_entropy(
                outputs, targets, self.weights, reduction="none", label_smoothing=self.smoothing
            )
        losses = self.task.loss_each(outputs, targets)
        return losses if self.weights is None else losses * self.weights[targets]


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return a context in which forward passes run in bfloat16 if ``precision`` is ``bf16``."""
    return nullcontext() if precision == "fp32" else torch.autocast(torch.device(device).type, torch.bfloat16)


def _exact(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.float() if outputs.dtype is torch.bfloat16 else outputs
