"""Scoring a predictor: counts, not ratios, so that any mean over clients can be made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn import functional

from sepal.method import Predictor

Examples: TypeAlias = tuple[torch.Tensor, torch.Tensor]
BATCH = 512


@dataclass
class Evaluator:
    """Scores the three views of one client.

    Attributes:
        test: Inputs and labels of the client's test part.
        validation: Of its validation part; best rounds are chosen on it, never on the test part.
        pooled: Gives the test data of all clients when it is needed; empty where that cannot be had.
    """

    test: Examples
    validation: Examples
    pooled: Callable[[], Examples]

    def __call__(self, predictor: Predictor, view: str) -> Mapping[str, float]:
        """Return ``correct``, ``examples`` and ``loss`` (a sum) for ``view``, and the same on validation data."""
        if view == "pooled":
            return score(predictor, *self.pooled())
        validation = score(predictor, *self.validation)
        return {**score(predictor, *self.test), **{f"validation-{key}": value for key, value in validation.items()}}


def score(predictor: Predictor, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Return the number of correct predictions, of examples, and the summed cross-entropy; empty for no examples.

    Args:
        predictor: From inputs (n, …) to logits (n, classes).
        x: Inputs (n, …).
        y: int64 labels (n,).
    """
    if not len(y):
        return {}
    correct, loss = 0, 0.0
    with torch.no_grad():
        for inputs, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
            logits = predictor(inputs)
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return {"correct": float(correct), "examples": float(len(y)), "loss": loss}
