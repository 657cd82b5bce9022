"""TailorFL's choice of filters: by norm, by importance, and by what similar clients have."""

from __future__ import annotations

import math
import typing

import numpy as np
import numpy.typing as npt

from sepal.masks.cuts import ChannelGroup, Index
from sepal.method import Weights


def norms(group: ChannelGroup, weights: Weights) -> npt.NDArray[np.float64]:
    """Return the squared norm of each channel of a layer, including its bias, float64 (channels,)."""
    tensors = [weights[axis.tensor] for axis in group.axes if axis.tensor.rpartition(".")[0] == group.name]
    squares = [np.square(w.reshape(group.size, -1), dtype=np.float64).sum(1) for w in tensors]
    return typing.cast("npt.NDArray[np.float64]", np.sum(squares, axis=0))


def top(score: npt.NDArray[np.float64], count: int) -> Index:
    """Return the positions of the ``count`` greatest scores, increasing; ties by the lowest position."""
    return np.sort(np.argsort(-score, kind="stable")[:count]).astype(np.int64)


def correlations(vectors: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
    """Return Pearson's correlations of vectors (n,), float64 (vectors, vectors); 0 where one is constant."""
    centred = np.array(vectors, np.float64)
    centred -= centred.mean(1, keepdims=True)
    length = np.sqrt(np.square(centred).sum(1, keepdims=True))
    unit = np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
    return typing.cast("npt.NDArray[np.float64]", unit @ unit.T)


def tuned(filters: list[Index], similar: npt.NDArray[np.float64], units: int, alpha: float) -> list[Index]:
    """Return each client's filters of a layer after some moved towards similar clients'.

    Client i should share similar[i, j]·min(k_i, k_j) of its k_i filters with client j; the number it lacks is added to
    the score of each of j's filters. Its filter of least score is exchanged for the other of greatest score as long as
    this is greater, at most max(1, ⌊alpha·min(k_i, units - k_i)⌋) times. All clients start from the same filters.

    Args:
        filters: By client, increasing.
        similar: float64 (clients, clients).
        units: Number of filters of the layer.
        alpha: Share that may move.
    """
    masks = np.zeros((len(filters), units), np.bool_)
    for row, chosen in zip(masks, filters, strict=True):
        row[chosen] = True
    counts, after = masks.sum(1), []
    for i, start in enumerate(masks):
        mask, count = start.copy(), int(counts[i])
        for _ in range(max(1, math.floor(alpha * min(count, units - count))) if count < units else 0):
            lacking = similar[i] * np.minimum(count, counts) - (masks & mask).sum(1)
            lacking[i] = 0
            weight = lacking @ masks
            least = int(np.where(mask, weight, np.inf).argmin())
            most = int(np.where(mask, -np.inf, weight).argmax())
            if weight[most] <= weight[least]:
                break
            mask[[least, most]] = False, True
        after.append(np.flatnonzero(mask).astype(np.int64))
    return after
