"""Sparse updates of a vector: selected, subtracted from what was to be sent, and added to what is held."""

from __future__ import annotations

import numpy as np

from sepal.masks.selection import count, top_k
from sepal.method.interface import Compression
from sepal.wire import rounded
from sepal.wire.tensors import Index, SparseTensor, ValueCoding, Values

UPDATE, WEIGHTS = "update", "weights"  # names in a payload: an upload's update; new values instead of updates


def compress(vector: Values, how: Compression, coding: ValueCoding) -> SparseTensor:
    """Return the k largest entries of ``vector``, float32 (d,): as ±μ (Algorithm 1), or as values in ``coding``."""
    index = top_k(vector, count(how.keep, vector.size))
    if not how.ternary:
        return SparseTensor(vector.shape, index, rounded(vector[index], coding), coding=coding)
    mean = np.abs(vector[index]).mean(dtype=np.float64).astype(np.float32) if index.size else np.float32(0)
    index = index[vector[index] != 0]  # μ·sign(0) is 0, which ±μ cannot represent
    return SparseTensor(vector.shape, index, np.copysign(mean, vector[index]), coding=ValueCoding.SIGN)


def less(vector: Values, sent: SparseTensor) -> Values:
    """Return the residual: ``vector`` minus what was sent."""
    rest, index = vector.copy(), sent.positions()
    rest[index] -= sent.dense()[index]
    return rest


def without(vector: Values, index: Index) -> Values:
    """Return ``vector`` with 0 at the positions ``index``."""
    rest = vector.copy()
    rest[index] = 0
    return rest


def plus(vector: Values, update: SparseTensor) -> Values:
    """Return ``vector`` plus an update, in float32: the same bits on the server and on every client."""
    updated, index = vector.copy(), update.positions()
    updated[index] += update.dense()[index]
    return updated
