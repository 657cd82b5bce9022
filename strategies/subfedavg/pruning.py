"""Sub-FedAvg's arithmetic: one step of pruning, the distance of two masks, and the paper's bytes; see prunable.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.layout import Layout
from sepal.masks.packed import Dense, Mask, Masks
from sepal.masks.selection import count, largest
from sepal.method import Weights

AT_ONCE = 0.45  # share of a convolution's channels that the authors cut in one step
StepBy: TypeAlias = Literal["count", "percentile"]


def distance(first: Masks, second: Masks, parts: Layout) -> float:
    """Return the Hamming distance: the share of all entries of ``parts`` in which two masks differ; 0 for no parts."""
    differing = sum(np.count_nonzero(first[p.name] != second[p.name]) for p in parts)
    return differing / max(1, sum(p.size for p in parts))


def paper_cost(parameters: int, pruned: float) -> float:
    """Return the bytes of one client's round by the paper's formula (section 4.2.2), as it reproduces Table 1.

    Download: the whole model at 32 bits. Upload: 32 bits for each remaining entry and 1 bit for every other one.
    """
    return parameters * (32 + 32 * (1 - pruned) + pruned) / 8


def floor(size: int, target: float) -> int:
    """Return how many of ``size`` entries are left at the target; at least 1."""
    return max(1, size - count(target, size))


def pruned_step(
    score: Weights | Dense, masks: Masks, least: Mapping[str, int], step: float, by: StepBy = "count"
) -> dict[str, Mask]:
    """Return masks after one step: prune ``step`` of each mask's entries, by smallest |score|, down to ``least``.

    Args:
        score: Values by name, of the masks' shapes.
        masks: The entries that are left.
        least: How many entries of each mask stay at least.
        step: A share in (0, 1].
        by: ``count``: so many entries, rounded half up. ``percentile``, the authors' code: all whose size is below that
            percentile of the sizes that are left, interpolated as NumPy does.
    """
    after = {}
    for name, mask in masks.items():
        entries_left = int(mask.sum())
        several = count(step, entries_left) if by == "count" else _below_percentile(np.abs(score[name])[mask], step)
        removed = min(several, max(0, entries_left - least[name]))
        after[name] = largest(score[name], entries_left - removed, mask) if removed else mask
    return after


def _below_percentile(sizes: npt.NDArray[np.float32], share: float) -> int:
    return int(np.count_nonzero(sizes < np.percentile(sizes, 100 * share))) if sizes.size else 0


def cut_at_once(score: npt.NDArray[np.float32], mask: Mask, least: int) -> Mask:
    """Return a convolution's channels after the authors' cut: without those up to the 45th percentile of |γ|.

    Their threshold is the entry at ⌊.45·n⌋ of the n sizes in order, and only what is above it stays, so ⌊.45·n⌋ + 1 go.

    Args:
        score: γ, (channels,).
        mask: bool (channels,): the channels that are left.
        least: How many stay at least.
    """
    entries_left = int(mask.sum())
    removed = min(int(AT_ONCE * entries_left) + 1, entries_left - least)
    return largest(score, entries_left - removed, mask) if removed > 0 else mask
