"""Dynamic masks: the schedule of the prune fraction, and a step of prune and regrow.

Sources: Dettmers & Zettlemoyer 2019 and Evci et al. 2020, "Rigging the Lottery" (cosine annealing, regrowth by
gradient); DM-PFL, section 3.3.2 (where a pruned weight may be regrown in the same step).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from sepal.errors import SepalError
from sepal.masks.selection import count, top_k

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cosine(first: float, step: int, steps: int) -> float:
    """Return the prune fraction at ``step``: ``first`` · (1 + cos(π · step / steps)) / 2, from ``first`` down to 0.

    Args:
        first: Fraction at step 0, 0 … 1.
        step: 0 … ``steps``; later steps give 0.
        steps: Length of the schedule, at least 1.

    Raises:
        SepalError: An argument is out of range.
    """
    if not 0 <= first <= 1:
        raise SepalError("first", "a fraction in 0 … 1", first)
    if steps < 1 or step < 0:
        raise SepalError("step", "0 ≤ step and 1 ≤ steps", f"step {step} of {steps}")
    return 0.0 if step >= steps else first * (1 + math.cos(math.pi * step / steps)) / 2


def prune_and_regrow(
    weights: NDArray[Any], gradient: NDArray[Any], mask: NDArray[np.bool_], fraction: float
) -> NDArray[np.bool_]:
    """Return the mask after pruning the smallest weights and regrowing as many entries with the largest gradients.

    Of n kept entries, the ``count(fraction, n)`` smallest |weight| are pruned (ties: highest index first). Then as many
    entries outside the mask, including those just pruned, are added by largest |gradient| (ties: lowest index first).
    The mask keeps n entries. Weights are not changed; the weight of a regrown entry should start at 0.

    Args:
        weights: Floating point, any shape.
        gradient: Gradient of the loss for all weights, kept or not; same shape.
        mask: True for kept entries; same shape.
        fraction: Fraction of the kept entries to prune, 0 … 1.

    Returns:
        bool, same shape.

    Raises:
        SepalError: Shapes differ, a NaN, or ``fraction`` is out of range.
    """
    if not weights.shape == gradient.shape == mask.shape:
        raise SepalError("mask", f"weights, gradient, mask of shape {weights.shape}", f"{gradient.shape}, {mask.shape}")
    pruned = prune(weights, mask, fraction)
    return regrow(gradient, pruned, int(mask.sum()) - int(pruned.sum()))


def prune(weights: NDArray[Any], mask: NDArray[np.bool_], fraction: float) -> NDArray[np.bool_]:
    """Return ``mask`` without the ``count(fraction, n)`` smallest |weight| of its n entries (ties: highest first)."""
    positions = np.flatnonzero(mask)
    new = np.zeros(mask.size, np.bool_)
    new[positions[top_k(np.ravel(weights)[positions], positions.size - count(fraction, positions.size))]] = True
    return new.reshape(mask.shape)


def regrow(gradient: NDArray[Any], mask: NDArray[np.bool_], entries: int) -> NDArray[np.bool_]:
    """Return ``mask`` with ``entries`` further entries, by largest |gradient| (ties: lowest index first)."""
    new = mask.reshape(-1).copy()
    outside = np.flatnonzero(~new)
    new[outside[top_k(np.ravel(gradient)[outside], entries)]] = True
    return new.reshape(mask.shape)
