"""Predictions of an exported model for files or arrays, as a table: ``sepal predict`` and ``run.predict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sepal.export.portable import Loaded
from sepal.export.preparing import prepared, read
from sepal.tasks.learning import CLASSIFICATION


@dataclass(frozen=True)
class Predictions:
    """A model's outputs for examples.

    Attributes:
        names: Of the examples: of their files, or their numbers.
        outputs: Logits float32 (n, classes), or another task's outputs.
        truth: The targets, where the data has some.
        notes: What the data has that was left out, for the user.
    """

    model: Loaded
    names: Sequence[str]
    outputs: npt.NDArray[np.float32]
    truth: npt.NDArray[Any] | None
    notes: Sequence[str]

    @property
    def predicted(self) -> npt.NDArray[Any]:
        """Predictions (n, …), as the task makes them of the outputs."""
        return self.model.task.predict(torch.from_numpy(self.outputs)).numpy()

    def table(self) -> tuple[list[str], list[list[Any]]] | None:
        """Return heads and a row for each example; None where a prediction is more than a row of numbers.

        Of classes: ``example, label, name, probability``. Of other tasks: probabilities of labels, numbers, or tokens.
        """
        origin, task = self.model.origin, self.model.task
        if origin.task == CLASSIFICATION:
            shifted = np.exp(self.outputs - self.outputs.max(1, keepdims=True))
            chances, labels = shifted / shifted.sum(1, keepdims=True), self.outputs.argmax(1)
            classes = origin.class_names or tuple(map(str, range(self.outputs.shape[1])))
            rows = zip(self.names, labels.tolist(), chances[np.arange(len(labels)), labels].tolist(), strict=True)
            heads = ["example", "label", "name", "probability"]
            return heads, [[name, label, classes[label], round(chance, 4)] for name, label, chance in rows]
        predicted = self.predicted
        if predicted.ndim > 2:
            return None
        cells = predicted.reshape(len(predicted), -1)
        heads = list(origin.class_names) or [str(number) for number in range(cells.shape[1])]
        if task.name == "multilabel":
            cells, heads = np.round(1 / (1 + np.exp(-self.outputs)), 4), [f"{head} probability" for head in heads]
        if task.name == "regression" and cells.shape[1] == 1:
            heads = ["prediction"]
        if task.name == "tokens":
            heads, cells = ["tokens"], np.array([[" ".join(map(str, row))] for row in cells])
        return ["example", *heads], [[name, *row] for name, row in zip(self.names, cells.tolist(), strict=True)]

    def right(self) -> int:
        """Return how many classes are predicted right."""
        return int((self.outputs.argmax(1) == self.truth).sum())

    def metrics(self) -> dict[str, float]:
        """Return the task's metrics over all examples, shares as fractions."""
        task = self.model.task
        targets = torch.from_numpy(task.targets.checked("data y", np.asarray(self.truth), len(self.outputs)))
        return dict(task.scoring.values(task.sums(torch.from_numpy(self.outputs), targets)))


def predictions(model: Loaded, data: Any) -> Predictions:
    """Return a model's predictions.

    Args:
        model: The model.
        data: As for :func:`sepal.export.preparing.read`.

    Raises:
        DataError: It cannot be read, or has a number that is not finite.
    """
    names, x, truth, notes = read(model.origin, data)
    return Predictions(model, names, model(prepared(model.origin, x)), truth, notes)
