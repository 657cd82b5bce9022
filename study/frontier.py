"""Deployed accuracy against MB: which variants are on the frontier, and how few MB come close to a yardstick."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sepal.study.results import DIRECTIONS, LEAST_POINTS, Variant
from sepal.study.statistics import Estimate, over_seeds

CLOSE_TO, POINT = "fedavg-ft", 0.01  # the yardstick, and what counts as close to it


@dataclass(frozen=True)
class Place:
    """A variant's place.

    Attributes:
        megabytes: MB of training, up and down, over all clients, mean over seeds.
        accuracy: Of deployed models at the end, over seeds.
        frontier: Whether no other is at least as accurate with fewer MB.
    """

    variant: Variant
    megabytes: float
    accuracy: Estimate
    frontier: bool


def frontier(variants: Sequence[Variant]) -> list[Place]:
    """Return the places of a cell's variants by MB; without those that have no deployed accuracy yet."""
    found = [
        (sum(variant.megabytes(way) for way in DIRECTIONS), accuracy, variant)
        for variant in variants
        if (accuracy := variant.accuracy("deployed"))
    ]
    places, best = [], -math.inf
    for megabytes, accuracy, variant in sorted(found, key=lambda each: (each[0], -each[2].measure.sign * each[1].mean)):
        good = variant.measure.sign * accuracy.mean
        places.append(Place(variant, megabytes, accuracy, good > best))
        best = max(best, good)
    return places


def close(variants: Sequence[Variant]) -> tuple[float, list[tuple[Variant, Estimate | None]]] | None:
    """Return the accuracy one point below FedAvg-FT's at the end, and each variant's MB until it has that.

    Of a metric that is no share, what is 1 % worse.

    The MB are those at the first full evaluation that has it, a mean over the seeds that reach it; None if none does.
    The whole is None without FedAvg-FT, and with too few full evaluations to say when it was.
    """
    ends = [end for v in variants if v.method == CLOSE_TO and (end := v.accuracy("deployed"))]
    if not ends or min(variant.evaluations("deployed") for variant in variants) < LEAST_POINTS:
        return None
    measure = variants[0].measure
    best = max((end.mean for end in ends), key=lambda mean: measure.sign * mean)
    target = best - measure.sign * measure.rise(POINT, best)
    return target, [(variant, _until(variant, target)) for variant in variants]


def _until(variant: Variant, target: float) -> Estimate | None:
    return over_seeds(list(_megabytes(variant, target)))


def _megabytes(variant: Variant, target: float) -> Iterator[float]:
    for result in variant.results:
        if point := result.reached(variant.deployed, target):
            yield point.megabytes
