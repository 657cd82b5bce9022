"""A model's tensors as one flat vector and back, for methods that select entries over the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.layout import Layout
from sepal.masks.packed import Mask
from sepal.masks.selection import top_k
from sepal.wire.tensors import Index, SparseTensor, Tensors, ValueCoding, Values


@dataclass(frozen=True)
class Flat:
    """The tensors of ``layout`` concatenated in order, each in C order."""

    layout: Layout

    @property
    def size(self) -> int:
        """Return d, the total number of entries."""
        return sum(parameter.size for parameter in self.layout)

    def starts(self) -> npt.NDArray[np.int64]:
        """Return the start of each tensor and the end, int64 (tensors + 1,)."""
        return np.cumsum([0, *(parameter.size for parameter in self.layout)], dtype=np.int64)

    def join(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> Values:
        """Return the tensors as one vector, float32 (d,); names that are not in the layout are ignored."""
        parts = [np.asarray(arrays[p.name], np.float32).reshape(-1) for p in self.layout]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def cut(self, vector: Values) -> dict[str, Values]:
        """Return a vector, float32 (d,), as tensors by name; the inverse of :meth:`join`."""
        starts = self.starts()
        pieces = zip(self.layout, starts, starts[1:], strict=False)
        return {p.name: vector[begin:end].reshape(p.shape) for p, begin, end in pieces}

    def largest(self, arrays: Mapping[str, npt.NDArray[np.float32]], k: int) -> dict[str, Mask]:
        """Return masks of the k entries that are largest of all tensors together, ties by the lowest position."""
        chosen: Any = np.zeros(self.size, np.bool_)
        chosen[top_k(self.join(arrays), k)] = True
        masks: Any = self.cut(chosen)  # it cuts arrays of any type
        return dict(masks)

    def gather(self, tensors: Tensors) -> tuple[Index, Values]:
        """Return sparse tensors as (increasing positions in the flat vector, values)."""
        starts = self.starts()
        index = [tensors[p.name].positions() + begin for p, begin in zip(self.layout, starts, strict=False)]
        values = [_values(tensors[p.name]) for p in self.layout]
        if not index:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return np.concatenate(index), np.concatenate(values)

    def scatter(self, index: Index, values: Values, coding: ValueCoding = ValueCoding.FP32) -> dict[str, SparseTensor]:
        """Return sparse tensors by name, from increasing flat positions ``index`` and their ``values``."""
        starts = self.starts()
        cuts = np.searchsorted(index, starts)
        return {
            p.name: SparseTensor(
                p.shape,
                index[cuts[i] : cuts[i + 1]] - starts[i],
                np.ascontiguousarray(values[cuts[i] : cuts[i + 1]], np.float32),
                coding=coding,
            )
            for i, p in enumerate(self.layout)
        }


def _values(tensor: SparseTensor) -> Values:
    return np.ones(tensor.nnz, np.float32) if tensor.values is None else tensor.values
