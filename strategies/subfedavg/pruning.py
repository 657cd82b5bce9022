"""Sub-FedAvg's arithmetic: one step of pruning, the distance of two masks, and the paper's bytes; see parts.py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sepal.masks.packed import Dense, Mask, Masks
from sepal.masks.selection import count, largest
from sepal.protocol.layout import Layout
from sepal.protocol.method import Weights


def distance(one: Masks, other: Masks, parts: Layout) -> float:
    """Return the Hamming distance: the share of all entries of ``parts`` in which two masks differ; 0 for no parts."""
    differing = sum(np.count_nonzero(one[p.name] != other[p.name]) for p in parts)
    return differing / max(1, sum(p.size for p in parts))


def paper_cost(parameters: int, pruned: float) -> float:
    """Return the bytes of one client's round by the paper's formula (section 4.2.2), as it reproduces Table 1.

    Download: the whole model at 32 bits. Upload: 32 bits for each remaining entry and 1 bit for every other one.
    """
    return parameters * (32 + 32 * (1 - pruned) + pruned) / 8


def floor(size: int, target: float) -> int:
    """Return how many of ``size`` entries are left at the target; at least 1."""
    return max(1, size - count(target, size))


def pruned_step(score: Weights | Dense, masks: Masks, least: Mapping[str, int], step: float) -> dict[str, Mask]:
    """Return masks after one step: prune ``step`` of each mask's entries, by smallest |score|, down to ``least``."""
    after = {}
    for name, mask in masks.items():
        left = int(mask.sum())
        removed = min(count(step, left), max(0, left - least[name]))
        after[name] = largest(score[name], left - removed, mask) if removed else mask
    return after
