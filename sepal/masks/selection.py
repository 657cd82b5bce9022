"""Selection of the k largest entries; ties go to the lowest index, so the result is the same on every machine."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from sepal.errors import DivergedError, SepalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def count(keep: float, size: int) -> int:
    """Return ``keep`` · ``size``, rounded half up, and at least 1 if both are above 0.

    ``keep`` is treated as a decimal number: .29 of 50 is 14.5 and gives 15, although the float .29 is slightly smaller.

    Raises:
        SepalError: ``keep`` is not in 0 … 1, or ``size`` is negative.
    """
    if not 0 <= keep <= 1:
        raise SepalError("keep", "a fraction in 0 … 1", keep)
    if size < 0:
        raise SepalError("size", "at least 0 entries", size)
    if keep == 0 or size == 0:
        return 0
    return max(1, int((Decimal(repr(float(keep))) * size).to_integral_value(ROUND_HALF_UP)))


def top_k(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the positions of the k entries that are largest in absolute value, ties by the lowest index.

    Args:
        values: Floating point, (n,). Infinities are allowed; zeros may be selected.
        k: 0 … n.

    Returns:
        int64 (k,), strictly increasing.

    Raises:
        SepalError: ``values`` is not one-dimensional or has a NaN (DivergedError), or ``k`` is out of range.
    """
    if values.ndim != 1:
        raise SepalError("values", "one axis", f"shape {values.shape}")
    if not 0 <= k <= values.size:
        raise SepalError("k", f"0 … {values.size}", k)
    magnitude = np.abs(values)
    if magnitude.size and np.isnan(magnitude.max()):
        raise DivergedError("values", "numbers", f"{np.count_nonzero(np.isnan(magnitude))} NaN of {values.size}")
    if k == 0:
        return np.empty(0, np.int64)
    least = np.partition(magnitude, values.size - k)[values.size - k]
    chosen = magnitude > least
    ties = np.flatnonzero(magnitude == least)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen).astype(np.int64, copy=False)


def largest(values: NDArray[Any], k: int, among: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Return the mask of the k entries that are largest in absolute value, ties by the lowest index.

    Args:
        values: Floating point, any shape.
        k: 0 … the number of candidates.
        among: Mask of the candidates, same shape; None for all.

    Returns:
        bool, same shape.

    Raises:
        SepalError: A NaN among the candidates, or ``k`` out of range.
    """
    flat, mask = values.reshape(-1), np.zeros(values.size, np.bool_)
    places = np.arange(values.size) if among is None else np.flatnonzero(among)
    mask[places[top_k(flat[places], k)]] = True
    return mask.reshape(values.shape)


def per_layer_top_k(tensors: Mapping[str, NDArray[Any]], keep: float) -> dict[str, NDArray[np.int64]]:
    """Select the ``count(keep, size)`` largest entries of each tensor separately.

    Returns:
        For each name, in the same order: int64 (count,), strictly increasing positions in the flat tensor.

    Raises:
        SepalError: A NaN, or ``keep`` not in 0 … 1.
    """
    return {name: top_k(np.ravel(tensor), count(keep, tensor.size)) for name, tensor in tensors.items()}


def random_subset(index: NDArray[np.int64], k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a uniformly random subset of k entries of ``index``, in increasing order.

    Args:
        index: int64 (n,), strictly increasing.
        k: 0 … n.
        rng: The generator; see ``sepal.rng``.

    Raises:
        SepalError: ``k`` is out of range.
    """
    if not 0 <= k <= index.size:
        raise SepalError("k", f"0 … {index.size}", k)
    chosen = np.zeros(index.size, np.bool_)
    chosen[rng.choice(index.size, k, replace=False, shuffle=False)] = True
    return index[np.flatnonzero(chosen)]  # several times as fast as sorting
