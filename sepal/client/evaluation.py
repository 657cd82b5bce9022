"""Evaluates a predictor. Results are counts rather than ratios, so that any mean over clients can be computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch.nn import functional

from sepal.protocol.method import Predictor
from sepal.protocol.views import degree

Examples: TypeAlias = tuple[torch.Tensor, torch.Tensor]
BATCH = 512


@dataclass(frozen=True)
class Shift:
    """Test-time shift of one client: its test examples are replaced, one by one, by examples of all clients.

    Attributes:
        order: int64 (n,), the order in which the client's own test examples are replaced.
        others: Their replacements in that order, drawn without replacement from the test data of all clients.
    """

    order: torch.Tensor
    others: Examples


def no_examples() -> Examples:
    """Return no examples."""
    return torch.empty(0), torch.empty(0, dtype=torch.int64)


@dataclass
class Evaluator:
    """Evaluates the views of one client.

    Attributes:
        test: Inputs and labels of the client's test part.
        validation: Inputs and labels of its validation part, on which best rounds are chosen.
        pooled: Returns the test data of all clients; empty if clients' data is private.
        shift: Returns the test-time shift; None if clients' data is private.
        corrupted: Returns the corrupted test part.
    """

    test: Examples
    validation: Examples
    pooled: Callable[[], Examples] = no_examples
    shift: Callable[[], Shift | None] = lambda: None
    corrupted: Callable[[], Examples] = no_examples
    _last: tuple[Predictor, torch.Tensor, torch.Tensor] | None = field(default=None, init=False)

    def __call__(self, predictor: Predictor, view: str) -> Mapping[str, float]:
        """Return ``correct``, ``examples`` and the summed ``loss`` for ``view``.

        The views ``received``, ``trained`` and ``kept`` also have these counts on validation data, with the prefix
        ``validation-``. Other views are ``pooled``, and these three with ``-shift-PERCENT`` or ``-corrupted``.
        """
        percent = degree(view)
        if percent is not None:
            return self._shifted(predictor, percent)
        if view.endswith("-corrupted"):
            return score(predictor, *self.corrupted())
        if view == "pooled":
            return score(predictor, *self.pooled())
        validation = score(predictor, *self.validation)
        return {**score(predictor, *self.test), **{f"validation-{key}": value for key, value in validation.items()}}

    def _shifted(self, predictor: Predictor, percent: int) -> Mapping[str, float]:
        """Count with ``percent`` % of the test examples replaced. Predictions are reused for all percentages."""
        if self._last is None or self._last[0] is not predictor:
            shift = self.shift()
            if shift is None or not len(self.test[1]):
                return {}
            own = correct(predictor, *self.test)[shift.order]
            self._last = predictor, own, correct(predictor, *shift.others)
        _, own, others = self._last
        replaced = min(round(len(own) * percent / 100), len(others))
        right = int(own[replaced:].sum()) + int(others[:replaced].sum())
        return {"correct": float(right), "examples": float(len(own))}


def correct(predictor: Predictor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return bool (n,): which predictions for inputs (n, …) are correct."""
    with torch.no_grad():
        parts = [predictor(inputs).argmax(1) for inputs in torch.split(x, BATCH)]
    return torch.cat(parts) == y


def score(predictor: Predictor, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Return the numbers of correct predictions and examples and the summed cross-entropy; empty without examples.

    Args:
        predictor: From inputs (n, …) to logits (n, classes).
        x: Inputs (n, …).
        y: int64 labels (n,).
    """
    if not len(y):
        return {}
    right, loss = 0, 0.0
    with torch.no_grad():
        for inputs, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
            logits = predictor(inputs)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return {"correct": float(right), "examples": float(len(y)), "loss": loss}
