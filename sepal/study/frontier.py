"""A metric against MB: who is on the frontier, what of that is noise, and how few MB come close to FedAvg-FT.

:func:`frontier` and :func:`close` take entries from anywhere, such as stored rows; :func:`entries` makes those of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sepal.study.results import DIRECTIONS, LEAST_POINTS, Point, Variant
from sepal.study.statistics import Estimate, over_seeds, paired_by_seed
from sepal.tasks.scoring import ACCURACY, Measure

CLOSE_TO, POINT = "fedavg-ft", 0.01  # the yardstick, and what counts as close to it
SLACK = 1e-9  # a value that is a whole point below is still within it, whatever its last bits


class Step(NamedTuple):
    """An evaluation, mean over seeds.

    Attributes:
        completed: Rounds completed before.
        megabytes: MB sent and received in them.
        value: The metric: shares as fractions.
    """

    completed: int
    megabytes: float
    value: float


@dataclass(frozen=True)
class Entry:
    """What a method has sent, and what it has for that.

    Attributes:
        label: Its name.
        megabytes: MB sent and received during the run, mean over seeds: of all clients together, or of one.
        by_seed: Seed → the metric at the end, shares as fractions.
        curve: Its evaluations in order; only :func:`close` needs them.
        interval: Ends of an error bar; by default ± a standard deviation over seeds.
    """

    label: str
    megabytes: float
    by_seed: Mapping[int, float]
    curve: Sequence[Step] = ()
    interval: tuple[float, float] | None = None

    @cached_property
    def value(self) -> Estimate:
        """The metric at the end, over seeds."""
        values = list(self.by_seed.values())
        return over_seeds(values) or Estimate(float("nan"), None, 0)

    @property
    def bar(self) -> tuple[float, float]:
        """Ends of the error bar; with one seed, both are the value itself."""
        spread = self.value.spread or 0.0
        return self.interval or (self.value.mean - spread, self.value.mean + spread)


@dataclass(frozen=True)
class Place:
    """An entry's place among the others.

    Attributes:
        frontier: Whether no other has at most its MB and at least its value, one of them strictly. Equals share it.
        rival: Of those on the frontier: the best with at most its MB and a worse mean from which it differs by no more
            than the 95 % interval over seeds (:func:`~sepal.study.statistics.paired_by_seed`), so that it is there
            within the noise. Empty if there is none, and with fewer than three seeds, which have no interval.
    """

    entry: Entry
    frontier: bool
    rival: str = ""


class Reached(NamedTuple):
    """Where a curve came close.

    Attributes:
        megabytes: MB until then.
        at_most: Whether rounds just before were not evaluated, so that one of them may have been there.
    """

    megabytes: float
    at_most: bool


class Close(NamedTuple):
    """Who comes within one point of a yardstick.

    Attributes:
        label: The yardstick's.
        target: Its value at the end, less a point.
        reached: Label → where it was reached, None for never; without those that have too few evaluations.
    """

    label: str
    target: float
    reached: Mapping[str, Reached | None]


def frontier(found: Sequence[Entry], measure: Measure = ACCURACY) -> list[Place]:
    """Return the entries' places, by MB and then from the best value down."""

    def good(entry: Entry) -> float:
        return measure.sign * entry.value.mean

    def beaten(entry: Entry) -> bool:
        return any(
            other.megabytes <= entry.megabytes
            and good(other) >= good(entry)
            and (other.megabytes < entry.megabytes or good(other) > good(entry))
            for other in found
        )

    ranked, places = sorted(found, key=lambda each: -good(each)), []
    for entry in ranked:
        below = (each for each in ranked if each.megabytes <= entry.megabytes and good(each) < good(entry))
        rival = next((each.label for each in below if within_noise(entry, each)), "")
        on = not beaten(entry)
        places.append(Place(entry, on, rival if on else ""))
    return sorted(places, key=lambda each: each.entry.megabytes)


def within_noise(one: Entry, other: Entry) -> bool:
    """Return whether there is an interval of the difference over seeds, and 0 is in it."""
    found = paired_by_seed(*({seed: {"": value} for seed, value in each.by_seed.items()} for each in (one, other)))
    return found is not None and found.spread is not None and abs(found.mean) <= found.spread


def close(found: Sequence[Entry], yardstick: Entry, measure: Measure = ACCURACY) -> Close | None:
    """Return the MB after which each curve is within one point of the yardstick's end, and stays there to its own end.

    A curve that falls back has not arrived; a later return counts. Of a metric that is no share, a point is 1 % of the
    yardstick's value. None if no curve has :data:`~sepal.study.results.LEAST_POINTS` evaluations.
    """
    best = yardstick.value.mean
    target = best - measure.sign * measure.rise(POINT, best)
    reached = {each.label: _arrival(each.curve, target, measure) for each in found if len(each.curve) >= LEAST_POINTS}
    return Close(yardstick.label, target, reached) if reached else None


def _arrival(curve: Sequence[Step], target: float, measure: Measure) -> Reached | None:
    found, before = None, -1
    for step in curve:
        if measure.sign * (step.value - target) < -SLACK * max(1.0, abs(target)):
            found = None
        elif found is None:
            found = Reached(step.megabytes, step.completed - before > 1 and step.megabytes > 0)
        before = step.completed
    return found


def entries(variants: Sequence[Variant]) -> list[Entry]:
    """Return what a cell's variants have sent, over all clients, and the metric of their deployed models.

    Those that have no figure of deployed models yet are left out.
    """
    found = []
    for variant in variants:
        if by_seed := dict(_ends(variant)):
            curve = list(mean_curve([result.points(variant.deployed) for result in variant.results]))
            found.append(Entry(variant.label, sum(map(variant.megabytes, DIRECTIONS)), by_seed, curve))
    return found


def _ends(variant: Variant) -> Iterator[tuple[int, float]]:
    for result in variant.results:
        if found := result.accuracy(variant.deployed):
            yield result.seed, found["mean"]


def close_to(variants: Sequence[Variant]) -> Close | None:
    """Return :func:`close` with FedAvg-FT as yardstick: the variant of that name, else its best; None without."""
    found = {entry.label: entry for entry in entries(variants)}
    measure = variants[0].measure
    some = [found[each.label] for each in variants if each.method == CLOSE_TO and each.label in found]
    best = max(some, key=lambda each: (each.label == CLOSE_TO, measure.sign * each.value.mean), default=None)
    return close(list(found.values()), best, measure) if best else None


def mean_curve(curves: Sequence[Sequence[Point]]) -> Iterator[Step]:
    """Yield the mean over seeds at each evaluation that any seed has, once all have one.

    A seed without it, which has stopped before, counts with its last.
    """
    count, last = sum(map(bool, curves)), dict[int, Point]()
    ordered = [(point.completed, seed, point) for seed, curve in enumerate(curves) for point in curve]
    for at, found in groupby(sorted(ordered, key=itemgetter(0)), itemgetter(0)):
        last |= {seed: point for _, seed, point in found}
        if len(last) == count:
            means = [float(np.mean([getattr(each, key) for each in last.values()])) for key in ("megabytes", "mean")]
            yield Step(at, *means)
