"""Evaluates a predictor. Results are counts and sums, not ratios, so that any mean over clients can be computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch.nn import functional

from sepal.protocol.types import Predictor
from sepal.protocol.views import degree
from sepal.tasks.builtin import BY_CLASS
from sepal.tasks.learning import Task
from sepal.tasks.scoring import added
from sepal.training.columns import BATCH, Part, split
from sepal.training.target_scale import TargetScale

Examples: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Figure: TypeAlias = float | Sequence[float]


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


def unseeded(view: str) -> AbstractContextManager[None]:
    """Return what evaluation runs in where nothing draws random numbers."""
    return nullcontext()


@dataclass(frozen=True, eq=False)
class ByBatch:
    """A predictor whose outputs depend on which examples come together, and in which order.

    Under test-time shift, each share of replaced examples is a test set of its own: an own example and the one that
    replaces it have the same place in it. Predictions for one share are not those for another.
    """

    predict: Predictor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for inputs (n, …), which come together."""
        return self.predict(x)


@dataclass
class Evaluator:
    """Evaluates the views of one client.

    Attributes:
        test: Inputs and labels of the client's test part.
        validation: Inputs and labels of its validation part, on which best rounds are chosen.
        pooled: Returns the test data of all clients; empty if clients' data is private.
        shift: Returns the test-time shift; None if clients' data is private.
        corrupted: Returns the corrupted test part.
        task: Says how outputs are scored.
        scale: How the client's targets are standardised in training; the examples here have them in their unit.
        randomness: Returns what the evaluation of a view runs in; see :meth:`Trainer.randomness`.
    """

    test: tuple[Part, Part]
    validation: tuple[Part, Part]
    pooled: Callable[[], Examples] = no_examples
    shift: Callable[[], Shift | None] = lambda: None
    corrupted: Callable[[], Examples] = no_examples
    task: Task = BY_CLASS
    scale: TargetScale | None = None
    randomness: Callable[[str], AbstractContextManager[None]] = unseeded
    _last: tuple[Predictor, torch.Tensor, torch.Tensor, Examples] | None = field(default=None, init=False)

    def __call__(self, predictor: Predictor, view: str) -> Mapping[str, Figure]:
        """Return ``correct``, ``examples`` and the summed ``loss`` for ``view``, or the ``sums`` of another headline.

        The views ``received``, ``trained`` and ``kept`` also have these on validation data, with the prefix
        ``validation-``. Other views are ``pooled``, and these three with ``-shift-PERCENT`` or ``-corrupted``.
        """
        with self.randomness(view):
            return self._evaluated(predictor, view)

    def _evaluated(self, predictor: Predictor, view: str) -> Mapping[str, Figure]:
        percent = degree(view)
        if percent is not None:
            return self._shifted(predictor, percent)
        if view.endswith("-corrupted"):
            return self._score(predictor, *self.corrupted())
        if view == "pooled":
            return self._score(predictor, *self.pooled())
        test, validation = (self._score(predictor, *part) for part in (self.test, self.validation))
        return {**test, **{f"validation-{key}": value for key, value in validation.items()}}

    def _score(self, predictor: Predictor, x: Part, y: Part) -> Mapping[str, Figure]:
        if self.task.scoring.counted:
            return score(predictor, x, y)
        sums = total(self.task, self._in_unit(predictor), x, y)
        return {"sums": sums} if sums else {}

    def _in_unit(self, predictor: Predictor) -> Predictor:
        """Return a predictor whose outputs are in the targets' unit."""
        scale = self.scale
        return predictor if scale is None else lambda x: scale.undone(predictor(x))

    def _shifted(self, predictor: Predictor, percent: int) -> Mapping[str, Figure]:
        """Count with ``percent`` % of the test examples replaced.

        Predictions are reused for all percentages, except those of a predictor :class:`ByBatch`.
        """
        if isinstance(predictor, ByBatch):
            return self._replaced(predictor, percent)
        if self._last is None or self._last[0] is not predictor:
            shift = self.shift()
            if shift is None or not len(self.test[1]):
                return {}
            x, y = (column[:] for column in self.test)
            truth = y[shift.order], shift.others[1]
            if self.task.scoring.counted:
                original = correct(predictor, x, y)[shift.order]
                self._last = predictor, original, correct(predictor, *shift.others), truth
            else:
                in_unit = self._in_unit(predictor)
                original = outputs(in_unit, x)[shift.order]
                self._last = predictor, original, outputs(in_unit, shift.others[0]), truth
        _, original, others, (original_truth, others_truth) = self._last
        replaced = min(round(len(original) * percent / 100), len(others))
        if not self.task.scoring.counted:
            pairs = ((original[replaced:], original_truth[replaced:]), (others[:replaced], others_truth[:replaced]))
            return {"sums": added([self.task.sums(*pair) for pair in pairs if len(pair[1])])}
        right = int(original[replaced:].sum()) + int(others[:replaced].sum())
        return {"correct": float(right), "examples": float(len(original))}

    def _replaced(self, predictor: Predictor, percent: int) -> Mapping[str, Figure]:
        """Predict the test part as it is with ``percent`` % of its examples replaced."""
        shift = self.shift()
        if shift is None or not len(self.test[1]):
            return {}
        x, y = (column[:].clone() for column in self.test)
        count = min(round(len(y) * percent / 100), len(shift.others[1]))
        places = shift.order[:count]
        x[places], y[places] = shift.others[0][:count], shift.others[1][:count]
        if not self.task.scoring.counted:
            return {"sums": total(self.task, self._in_unit(predictor), x, y)}
        return {"correct": float(correct(predictor, x, y).sum()), "examples": float(len(y))}


def outputs(predictor: Predictor, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs for inputs (n, …)."""
    with torch.no_grad():
        return torch.cat([predictor(inputs) for inputs in torch.split(x, BATCH)])


def total(task: Task, predictor: Predictor, x: Part, y: Part) -> tuple[float, ...]:
    """Return the sums of all examples under a task (:mod:`sepal.tasks.scoring`); nothing without examples.

    Args:
        task: The task.
        predictor: From inputs (n, …) to outputs.
        x: Inputs (n, …).
        y: Targets.
    """
    with torch.no_grad():
        return added([task.sums(predictor(inputs), targets) for inputs, targets in split(x, y) if len(targets)])


def correct(predictor: Predictor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return bool (n,): which predictions for inputs (n, …) are correct."""
    with torch.no_grad():
        parts = [predictor(inputs).argmax(1) for inputs in torch.split(x, BATCH)]
    return torch.cat(parts) == y


def score(predictor: Predictor, x: Part, y: Part) -> dict[str, float]:
    """Return the numbers of correct predictions and examples and the summed cross-entropy; empty without examples.

    Args:
        predictor: From inputs (n, …) to logits (n, classes).
        x: Inputs (n, …).
        y: int64 labels (n,).
    """
    if not len(y):
        return {}
    correct, loss = 0, 0.0
    with torch.no_grad():
        for inputs, labels in split(x, y):
            logits = predictor(inputs)
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return {"correct": float(correct), "examples": float(len(y)), "loss": loss}


def share(task: Task, predictor: Predictor, x: Part, y: Part) -> float:
    """Return a metric from 0 to 1, to which methods' thresholds refer; 0 without examples or without a value.

    It is the accuracy of a classification, R² of a regression, Dice of a segmentation
    (:attr:`sepal.tasks.learning.Task.share`). Arguments as for :func:`total`.
    """
    if task.classifies:
        counts = score(predictor, x, y)
        return counts["correct"] / counts["examples"] if counts else 0.0
    sums = total(task, predictor, x, y)
    return (task.scoring.value(sums, task.share) if sums else None) or 0.0
