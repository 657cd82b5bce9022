"""The contract of a task: what a run learns. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sepal.errors import DataError
from sepal.tasks.numbers import as_float32
from sepal.tasks.scoring import Scoring

if TYPE_CHECKING:
    import torch


CLASSIFICATION = "classification"
LABELS = "class labels"  # what methods may need, and not every task has
PER_EXAMPLE = "a loss for each example"
SHARE = "a metric from 0 to 1"


@dataclass(frozen=True)
class Targets:
    """What a target of one example looks like.

    Attributes:
        shape: Its shape; () for one number. A single number may also come as shape (1,).
        floating: Whether targets are float32; if not, int64.
        least: Least value of whole numbers.
        above: What whole numbers are below; 0: no limit.
    """

    shape: tuple[int, ...] = ()
    floating: bool = False
    least: int = 0
    above: int = 0

    def checked(self, key: str, values: npt.NDArray[Any], examples: int) -> npt.NDArray[Any]:
        """Return targets, int64 or float32 (n, *shape).

        Args:
            key: Name of the data in error messages.
            values: The targets as the user gives them.
            examples: n, number of inputs.

        Raises:
            DataError: They have another shape or type, or a value is out of range.
        """
        if values.shape[1:] in ((), (1,)) and self.shape in ((), (1,)):
            values = values.reshape(-1, *self.shape)
        if values.shape != (examples, *self.shape):
            raise DataError(key, f"shape {(examples, *self.shape)}, a target for each input", values.shape)
        if self.floating:
            if values.dtype.kind not in "fiu":
                raise DataError(key, "finite numbers", str(values.dtype))
            return as_float32(key, values)
        if values.dtype.kind == "f" and (values == np.floor(values)).all():
            values = values.astype(np.int64)  # a table's columns are floats
        if values.dtype.kind not in "iub":
            raise DataError(key, "whole numbers", str(values.dtype))
        values = values.astype(np.int64)
        if values.size and (values.min() < self.least or (self.above and values.max() >= self.above)):
            upper = f" to {self.above - 1}" if self.above else ""
            raise DataError(key, f"whole numbers from {self.least}{upper}", f"{values.min()} to {values.max()}")
        return values


@dataclass(frozen=True)
class Task:
    """A task: targets, loss, prediction and metrics.

    Attributes:
        name: ``classification``, …; of an own task, its ``package.module:NAME``.
        targets: What a target looks like.
        output: Shape of the model's output for one example.
        loss: Maps outputs (n, *output) and targets (n, *shape) to the mean loss, a scalar.
        scoring: Its metrics.
        predict: Maps outputs to predictions, (n, …): what `sepal predict` writes.
        loss_each: Maps outputs and targets to the loss of each example, (n,); None: the task has none, and methods that
            need one are refused.
        share: Name of the metric from 0 to 1, higher is better, that thresholds in methods refer to; empty: none.
        averages: Whether ``loss`` is the mean of ``loss_each``: clients can then train at once (docs/accelerators.md).
        recipe: The arguments of :func:`sepal.tasks.making.make_task` that make it again in another process, to
            which functions cannot be sent.
    """

    name: str
    targets: Targets
    output: tuple[int, ...]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    scoring: Scoring
    predict: Callable[[torch.Tensor], torch.Tensor]
    loss_each: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    share: str = ""
    averages: bool = False
    recipe: tuple[Any, ...] = field(default=(), compare=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        from sepal.tasks.making import make_task

        return (make_task, self.recipe) if self.recipe else super().__reduce_ex__(protocol)

    @property
    def classifies(self) -> bool:
        """Whether a target is the number of one class."""
        return self.name == CLASSIFICATION

    @property
    def offers(self) -> frozenset[str]:
        """What methods may need (:attr:`sepal.method.interface.Method.needs_of_task`)."""
        offered = {LABELS: self.classifies, PER_EXAMPLE: self.loss_each is not None, SHARE: bool(self.share)}
        return frozenset(name for name, present in offered.items() if present)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, ...]:
        """Return the sums of a batch (:mod:`sepal.tasks.scoring`)."""
        outputs, targets = outputs.detach().cpu(), targets.cpu()
        n = float(len(targets))
        loss = n * self.loss(outputs, targets) if self.loss_each is None else self.loss_each(outputs, targets).sum()
        parts = [[float(value) for value in metric.sums(outputs, targets)] for metric in self.scoring.metrics]
        return (n, float(loss), *(value for part in parts for value in part))
