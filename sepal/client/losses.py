"""Losses of a batch: the task's own, or cross-entropy with class weights and label smoothing; and autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional

from sepal.protocol.tasks.learning import LearningTask


def mean_loss(
    learning: LearningTask,
    outputs: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
    smoothing: float,
) -> torch.Tensor:
    """Return the mean loss of a batch.

    Args:
        learning: The task, whose loss it is without weights and smoothing.
        outputs: (n, …), float32 or bfloat16.
        targets: Labels int64 (n,), or targets of another task.
        weights: The weight of each class, float32 (classes,); None: all alike.
        smoothing: ``label-smoothing``.
    """
    if weights is None and not smoothing:
        return learning.loss(_exact(outputs), targets)
    return functional.cross_entropy(_exact(outputs), targets, weight=weights, label_smoothing=smoothing)


def losses(
    learning: LearningTask,
    outputs: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor | None,
    smoothing: float,
) -> torch.Tensor:
    """Return the loss of each example (n,); arguments as in :func:`mean_loss`.

    Raises:
        ValueError: The task has no loss of an example.
    """
    if learning.loss_each is None:
        raise ValueError(f"a loss for each example, which {learning.name} lacks")
    outputs = _exact(outputs)
    if smoothing:
        return functional.cross_entropy(outputs, targets, weights, reduction="none", label_smoothing=smoothing)
    each = learning.loss_each(outputs, targets)
    return each if weights is None else each * weights[targets]


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return a context in which forward passes run in bfloat16 if ``precision`` is ``bf16``."""
    return nullcontext() if precision == "fp32" else torch.autocast(torch.device(device).type, torch.bfloat16)


def _exact(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.float() if outputs.dtype is torch.bfloat16 else outputs
