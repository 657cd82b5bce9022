"""Predictions of an exported model for files or arrays, as a table: ``sepal predict`` and ``run.predict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sepal.client_app.portable import Loaded, Origin
from sepal.data.sources.images import Look
from sepal.data.sources.inputs import read_inputs
from sepal.errors import DataError
from sepal.protocol.tasks.learning import CLASSIFICATION


@dataclass(frozen=True)
class Predictions:
    """A model's outputs for examples.

    Attributes:
        names: Of the examples: of their files, or their numbers.
        outputs: Logits float32 (n, classes), or another task's outputs.
        truth: The targets, where the data has some.
        notes: What the data has that was left out, for the user.
    """

    found: Loaded
    names: Sequence[str]
    outputs: npt.NDArray[np.float32]
    truth: npt.NDArray[Any] | None
    notes: Sequence[str]

    @property
    def predicted(self) -> npt.NDArray[Any]:
        """Predictions (n, …), as the task makes them of the outputs."""
        return self.found.learning.predict(torch.from_numpy(self.outputs)).numpy()

    def table(self) -> tuple[list[str], list[list[Any]]] | None:
        """Return heads and a row for each example; None where a prediction is more than a row of numbers.

        Of classes: ``example, label, name, probability``. Of other tasks: probabilities of labels, numbers, or tokens.
        """
        origin, learning = self.found.origin, self.found.learning
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
        if learning.name == "multilabel":
            cells, heads = np.round(1 / (1 + np.exp(-self.outputs)), 4), [f"{head} probability" for head in heads]
        if learning.name == "regression" and cells.shape[1] == 1:
            heads = ["prediction"]
        if learning.name == "tokens":
            heads, cells = ["tokens"], np.array([[" ".join(map(str, row))] for row in cells])
        return ["example", *heads], [[name, *row] for name, row in zip(self.names, cells.tolist(), strict=True)]

    def right(self) -> int:
        """Return how many classes are predicted right."""
        return int((self.outputs.argmax(1) == self.truth).sum())

    def metrics(self) -> dict[str, float]:
        """Return the task's metrics over all examples, shares as fractions."""
        learning = self.found.learning
        targets = torch.from_numpy(learning.targets.checked("data y", np.asarray(self.truth), len(self.outputs)))
        return dict(learning.scoring.values(learning.sums(torch.from_numpy(self.outputs), targets)))


def _array(origin: Origin, data: Any) -> npt.NDArray[Any]:
    """Return examples as an array; of a data frame the model's columns, in the model's order."""
    if origin.columns and hasattr(data, "columns"):
        if missing := [name for name in origin.columns if name not in data.columns]:
            raise DataError("data", f"the columns {', '.join(origin.columns)}", f"none called {', '.join(missing)}")
        data = data[list(origin.columns)]
    x = np.asarray(data)
    if x.dtype.kind not in "fiub":
        raise DataError("data", "an array of numbers", str(x.dtype))
    return x.astype(np.float32) if x.dtype == np.uint8 and len(origin.shape) == 1 else x


def predictions(found: Loaded, data: Path | Any) -> Predictions:
    """Return a model's predictions.

    Args:
        found: The model.
        data: A file or directory that :func:`sepal.data.sources.inputs.read_inputs` reads; or examples (n, …): bytes of
            images (n, H, W[, C]), rows of a table as in its file or a data frame of them, or what the module takes.

    Raises:
        DataError: It cannot be read, or has a number that is not finite.
    """
    origin = found.origin
    if isinstance(data, Path):
        size = (origin.shape[-2], origin.shape[-1]) if origin.resize and len(origin.shape) == 3 else None
        channels: Any = origin.shape[0] if origin.channels and origin.shape[0] in (1, 3) else "auto"
        names, x, truth, notes = read_inputs(
            data,
            origin.class_names,
            origin.shape,
            Look(size, channels),
            origin.columns,
            origin.task != CLASSIFICATION,
            origin.fill,
        )
    else:
        x, truth, notes = _array(origin, data), None, ()
        names = [str(number) for number in range(len(x))]
    if x.dtype.kind == "f" and not (np.isfinite(x) | (origin.fill & np.isnan(x))).all():
        raise DataError("data", "finite numbers", "NaN or infinity")
    outputs = found(np.asarray(found.prepare(x), np.float32 if not origin.vocabulary else np.int64))
    return Predictions(found, names, outputs, truth, notes)
