"""Sparse tensors, whose entries are present or absent, and specs to check them.

An entry that was selected is present even if its value is 0. Uses NumPy only, so that the wire format can be read
without torch and Flower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.storage.serialize import SPARING

Array: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[np.float32]


class Support(Enum):
    """How the receiver learns which entries are present."""

    EXPLICIT = "explicit"  # positions are sent (dense, bitmap, rows, gaps or ans, whichever is smallest)
    DERIVED = "derived"  # both sides derive it, for example from a width or a round; no positions are sent
    SAME = "same"  # the support of the same tensor in the download that this upload answers


class ValueCoding(Enum):
    """How values are encoded. All codings decode to float32."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    SIGN = "sign"  # one bit per value and a float32 scale: value = ±scale (scale 0 if all values are 0)
    NONE = "none"  # no values: a mask


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """A tensor of which only some entries are present.

    Attributes:
        shape: Shape of the whole tensor; ``()`` is a scalar with one entry.
        index: int64 (nnz,), strictly increasing flat C-order positions of the entries present; None if all are.
        values: float32 (nnz,) in the order of ``index``; None for a mask.
        support: How the receiver learns the index.
        coding: How values are encoded; NONE if and only if ``values`` is None.
        entropy_coded: Whether an explicit support may travel in the coding ANS, where it is the shortest.
    """

    shape: tuple[int, ...]
    index: Index | None
    values: Values | None
    support: Support = Support.EXPLICIT
    coding: ValueCoding = ValueCoding.FP32
    entropy_coded: bool = field(default=False, metadata=SPARING)

    @property
    def size(self) -> int:
        """Number of entries of the whole tensor, present or not."""
        return math.prod(self.shape)

    @property
    def nnz(self) -> int:
        """Number of entries present."""
        return self.size if self.index is None else int(self.index.size)

    def positions(self) -> Index:
        """Return the flat positions of the entries present, int64 (nnz,)."""
        return np.arange(self.size, dtype=np.int64) if self.index is None else self.index

    def dense(self, fill: float = 0.0) -> Values:
        """Return a dense float32 array of ``shape``, with ``fill`` for absent entries; the values of a mask are 1."""
        values = np.ones(self.nnz, np.float32) if self.values is None else self.values
        if self.index is None:
            return values.astype(np.float32).reshape(self.shape)
        out = np.full(self.size, fill, np.float32)
        out[self.index] = values
        return out.reshape(self.shape)

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return a bool array of ``shape``, True for entries present."""
        out = np.zeros(self.size, np.bool_)
        out[self.positions()] = True
        return out.reshape(self.shape)


Tensors: TypeAlias = Mapping[str, SparseTensor]


def whole(array: Array, coding: ValueCoding = ValueCoding.FP32) -> SparseTensor:
    """Return ``array`` as a sparse tensor with all entries present."""
    values = np.asarray(array, np.float32, order="C")
    return SparseTensor(values.shape, None, values.reshape(-1), coding=coding)


def at(array: Array, index: Index, coding: ValueCoding = ValueCoding.FP32) -> SparseTensor:
    """Return the entries of ``array`` at the flat positions ``index`` (int64, strictly increasing)."""
    values = np.asarray(array, np.float32, order="C")
    return SparseTensor(values.shape, index, values.reshape(-1)[index], coding=coding)


def members(mask: npt.NDArray[np.bool_], entropy_coded: bool = False) -> SparseTensor:
    """Return ``mask`` as a sparse tensor without values, which the coding ANS may make shorter if ``entropy_coded``."""
    index = np.flatnonzero(mask).astype(np.int64)
    return SparseTensor(mask.shape, index, None, coding=ValueCoding.NONE, entropy_coded=entropy_coded)


@dataclass(frozen=True)
class TensorSpec:
    """What a receiver accepts for one tensor; checked before anything is allocated.

    Attributes:
        shape: Shape of the whole tensor.
        support: The accepted support. EXPLICIT also admits a dense tensor, and with ``index`` a DERIVED one.
        values: True for values, False for a mask (coding NONE).
        min_count: Fewest entries allowed.
        max_count: Most entries allowed; None is the tensor's size.
        index: The known positions, int64 (nnz,), strictly increasing. With DERIVED or SAME, None means that all entries
            are present. With EXPLICIT, the tensor may be sent with new positions (limited by min_count and max_count)
            or as DERIVED with these positions.
        optional: Whether the tensor may be missing from the payload.
        entropy_coded: Whether positions may be sent in the coding ANS.
    """

    shape: tuple[int, ...]
    support: Support = Support.EXPLICIT
    values: bool = True
    min_count: int = 0
    max_count: int | None = None
    index: Index | None = None
    optional: bool = False
    entropy_coded: bool = False

    @property
    def size(self) -> int:
        """Number of entries of the whole tensor."""
        return math.prod(self.shape)
