"""Sparse updates of a vector: selected, subtracted from what was to be sent, and added to what is held."""

from __future__ import annotations

import numpy as np

from sepal.masks.selection import count, top_k
from sepal.method.interface import Compression
from sepal.rng import derive
from sepal.wire import rounded
from sepal.wire.tensors import Index, SparseTensor, Support, TensorSpec, ValueCoding, Values

UPDATE, WEIGHTS = "update", "weights"  # names in a payload: an upload's update; new values instead of updates


def drawn_support(seed: int, round: int, size: int, keep: float) -> Index:
    """Return the entries of a round, int64 (k,), increasing: k of ``size``, drawn from the run's seed for all alike."""
    chosen = derive(seed, "compress-support", round).choice(size, count(keep, size), replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)


def compress(vector: Values, how: Compression, coding: ValueCoding, drawn: Index | None = None) -> SparseTensor:
    """Return k entries of ``vector``, float32 (d,): the largest as ±μ (Algorithm 1) or as values in ``coding``.

    Args:
        vector: What is compressed.
        how: How many entries, and as what.
        coding: Of values.
        drawn: The entries, where all know them; their values are returned.
    """
    if drawn is not None:
        return SparseTensor(vector.shape, drawn, rounded(vector[drawn], coding), Support.DERIVED, coding)
    index = top_k(vector, count(how.keep, vector.size))
    if not how.ternary:
        return SparseTensor(vector.shape, index, rounded(vector[index], coding), coding=coding)
    mean = np.abs(vector[index]).mean(dtype=np.float64).astype(np.float32) if index.size else np.float32(0)
    index = index[vector[index] != 0]  # μ·sign(0) is 0, which ±μ cannot represent
    return SparseTensor(vector.shape, index, np.copysign(mean, vector[index]), coding=ValueCoding.SIGN)


class Supports:
    """Which entries of the flattened update a round sends, as far as both sides know them.

    Args:
        how: The exchange.
        seed: The run's.
        size: d.
    """

    def __init__(self, how: Compression, seed: int, size: int) -> None:
        self._how, self._seed, self.size = how, seed, size

    def of(self, round: int) -> Index | None:
        """Return the entries of ``round``; None if the sender chooses them."""
        return drawn_support(self._seed, round, self.size, self._how.keep) if self._how.drawn else None

    def spec(self, round: int, least: int = 0, optional: bool = False) -> TensorSpec:
        """Return what a receiver accepts as the update of ``round``."""
        k, index = count(self._how.keep, self.size), self.of(round)
        if index is not None:
            return TensorSpec((self.size,), Support.DERIVED, True, k, k, index, optional)
        return TensorSpec((self.size,), min_count=least, max_count=k, optional=optional)


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
