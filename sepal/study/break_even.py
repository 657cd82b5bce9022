"""How fast links would have to be for two variants to take the same simulated time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log, sqrt
from typing import NamedTuple

from sepal.study.results import Variant

GRID = tuple(10.0**power for power in range(-3, 4))  # factors on all links
HALVINGS = 12  # of a factor of ten, on a logarithmic scale: to .06 %


class BreakEven(NamedTuple):
    """Where two variants change places.

    Attributes:
        links: Factor on the bits a second of all links at which both take the same time; None if there is none in
            :data:`GRID`.
        slower_links: The variant that is sooner with slower links than that; without a factor, with all.
        to_target: Whether it is about the time to the target; otherwise to the end.
    """

    links: float | None
    slower_links: Variant
    to_target: bool


def break_even(one: Variant, other: Variant) -> BreakEven | None:
    """Return where two variants change places, the place nearest to the links of the profile.

    It is about the time to the target if all seeds of both reach it, and otherwise to the end. Both have the same
    profile. None if hours are not known, or the profile has decided which uploads count: other links would have made
    other runs.
    """
    if any(result.times.acted for variant in (one, other) for result in variant.results):
        return None
    both = one.at_the_target, other.at_the_target
    to_target = len(both[0]) == len(one.results) and len(both[1]) == len(other.results)
    if not to_target:
        both = one.at_the_end, other.at_the_end
    if one.simulated(both[0]) is None or other.simulated(both[1]) is None:
        return None

    def ahead(links: float) -> float:
        """Return the hours by which the first variant is later."""
        first, second = one.simulated(both[0], links), other.simulated(both[1], links)
        return first.mean - second.mean if first and second else 0.0

    by_links = {links: ahead(links) for links in GRID}
    if not any(by_links.values()):  # twins
        return None
    changes = [(low, high) for low, high in pairwise(GRID) if by_links[low] * by_links[high] < 0]
    if not changes:
        return BreakEven(None, one if by_links[GRID[0]] < 0 else other, to_target)
    low, high = min(changes, key=lambda pair: abs(log(pair[0] * pair[1])))
    return BreakEven(_zero(ahead, low, high), one if by_links[low] < 0 else other, to_target)


def _zero(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function that changes its sign between two positive numbers is 0."""
    sign = function(low) < 0
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if (function(middle) < 0) == sign else (low, middle)
    return sqrt(low * high)
