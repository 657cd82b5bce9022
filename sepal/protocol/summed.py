"""What a secure sum adds up: one vector of a client's changes, and its figures. Both sides build and read it here.

The format is in docs/secure-sums.md; the protocol itself, which knows neither tensors nor views, in
:mod:`sepal.secure`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.errors import ProtocolError
from sepal.protocol.payloads import delivered
from sepal.protocol.types import Payload, Weights
from sepal.secure.ring import MOST_FIGURE
from sepal.wire.tensors import Index, SparseTensor, Tensors, TensorSpec, ValueCoding, Values

UPDATE = "update"  # the scalar that has the commitment to an update
PARTS = ("", "validation-")
EACH = ("clients", "correct", "examples", "accuracy")  # figures of a view on one part of the data
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries that all clients of a sum send.

    Attributes:
        shapes: Shape of each tensor, by name, in the order of names.
        index: Positions of the entries present; None for all.
        reference: What the clients trained from, at these entries, float32; empty for 0.
    """

    shapes: Mapping[str, Shape]
    index: Mapping[str, Index | None]
    reference: Mapping[str, Values]

    @classmethod
    def of(cls, tensors: Mapping[str, SparseTensor | TensorSpec], download: Payload, first: Weights) -> Entries:
        """Return the entries of an upload, or of its specs.

        Args:
            tensors: Each with shape and index.
            download: What the upload answers, as decoded or as it will be.
            first: W_0, from which clients train where the download leaves a tensor out.
        """
        names = sorted(tensors)
        index = {name: tensors[name].index for name in names}
        reference = {}
        for name in names:
            start = _start(name, tensors[name].shape, download.tensors, first)
            flat = start if index[name] is None or not start.size else start[index[name]]
            reference[name] = flat
        return cls({name: tuple(tensors[name].shape) for name in names}, index, reference)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of entries of each tensor."""
        return {
            name: int(np.prod(shape, dtype=np.int64)) if self.index[name] is None else self.index[name].size  # type: ignore[union-attr]
            for name, shape in self.shapes.items()
        }

    @property
    def count(self) -> int:
        """How many there are, d."""
        return sum(self.sizes.values())

    def digest(self) -> str:
        """Return SHA-256 (hex) over names, shapes, positions and what the clients trained from."""
        sha = hashlib.sha256()
        for name, shape in self.shapes.items():
            index = self.index[name]
            sha.update(f"{name}|{list(shape)}|{'all' if index is None else index.size}|".encode())
            sha.update(b"" if index is None else np.asarray(index, "<i8").tobytes())
            sha.update(np.asarray(self.reference[name], "<f4").tobytes())
        return sha.hexdigest()

    def change(self, upload: Tensors) -> npt.NDArray[np.float32]:
        """Return what an upload with these entries changes, float32 (d,).

        Raises:
            ProtocolError: A tensor of it has no values.
        """
        parts = []
        for name in self.shapes:
            values, start = upload[name].values, self.reference[name]
            if values is None:
                raise ProtocolError(name, "values, which can be summed", "a mask")
            parts.append(np.asarray(values - start if start.size else values, np.float32))
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def tensors(self, mean: npt.NDArray[np.float64]) -> dict[str, SparseTensor]:
        """Return what the clients trained from, plus the mean of their changes, float64 (d,)."""
        tensors, at = {}, 0
        for name, size in self.sizes.items():
            part, start = mean[at : at + size], self.reference[name]
            values = (part + start if start.size else part).astype(np.float32)
            tensors[name] = SparseTensor(self.shapes[name], self.index[name], values)
            at += size
        return tensors


def _start(name: str, shape: Shape, download: Tensors, first: Weights) -> Values:
    """Return what a client trained from, flat; empty where there is nothing of this name and shape."""
    if (tensor := download.get(name)) is not None and tensor.values is not None and tensor.shape == tuple(shape):
        coded = tensor.coding in (ValueCoding.FP16, ValueCoding.BF16)
        values = delivered(tensor.values, tensor.coding) if coded else tensor.values
        return SparseTensor(tensor.shape, tensor.index, values).dense().reshape(-1)
    if not download and (array := first.get(name)) is not None and array.shape == tuple(shape):
        return np.asarray(array, np.float32).reshape(-1)
    return np.empty(0, np.float32)


def figure_names(views: Sequence[str]) -> list[str]:
    """Return the names of the figures that a sum has for ``views``, in order."""
    return [f"{view}.{part}{each}" for view in views for part in PARTS for each in EACH]


def figures_of(metrics: Mapping[str, Any], views: Sequence[str]) -> list[int | float]:
    """Return a client's figures in the order of :func:`figure_names`; zeros for a view that it lacks.

    Args:
        metrics: Its counts by name: ``VIEW.correct`` and ``VIEW.examples``.
        views: What the round asks for.
    """
    figures: list[int | float] = []
    for head in (f"{view}.{part}" for view in views for part in PARTS):
        correct, examples = int(metrics.get(f"{head}correct", 0)), int(metrics.get(f"{head}examples", 0))
        figures += [1, correct, examples, correct / examples] if examples > 0 else [0, 0, 0, 0.0]
    return figures


def figure_count(views: Sequence[str]) -> int:
    """Return m: the figures of ``views``, and 1 of a client whose update is beyond ``secure-range``, the last one."""
    return len(figure_names(views)) + 1


def beyond_range(figures: Sequence[int], clients: int) -> int:
    """Return how many clients are beyond ``secure-range``; 0 if the sum's last figure cannot be such a number.

    Args:
        figures: m integers of a sum.
        clients: In the sum, |U3|.
    """
    return figures[-1] if 0 <= figures[-1] <= clients else 0


def sums_of(figures: Sequence[int], views: Sequence[str], clients: int) -> dict[str, float]:
    """Return the sums of figures by name: counts, and the sum of accuracies.

    Of a view whose sums cannot be those of clients that are honest, all are 0, as if nobody had it: a client that lies
    can add any numbers.

    Args:
        figures: m integers of a sum.
        views: As in :func:`figures_of`.
        clients: |U1|.
    """
    unit = MOST_FIGURE // clients
    names, sums = figure_names(views), list[float]()
    for start in range(0, len(names), len(EACH)):
        having, correct, examples, accuracy = figures[start : start + len(EACH)]
        possible = 0 <= having <= min(clients, examples) and 0 <= correct <= examples and 0 <= accuracy <= having * unit
        sums += [having, correct, examples, accuracy / unit] if possible and having else [0] * len(EACH)
    return {name: float(value) for name, value in zip(names, sums, strict=True)}


def added_sums(sums: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return sums of several groups of clients as one."""
    names = dict.fromkeys(name for part in sums for name in part)
    return {name: sum(part.get(name, 0.0) for part in sums) for name in names}
