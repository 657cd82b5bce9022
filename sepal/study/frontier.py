"""A metric against MB: the methods on the frontier, those there perhaps by noise, and the MB to come near FedAvg-FT.

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

from sepal.study.results import DIRECTIONS, LEAST_POINTS, CurvePoint, Variant
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
class FrontierEntry:
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
class Standing:
    """How an entry stands among the others.

    Attributes:
        frontier: Whether the entry is on the frontier: no other entry sends at most as many MB and has at least as good
            a value, with one of the two strictly better. Entries with equal MB and values are on it together.
        rival: An entry that sends no more and has a worse mean, which may be worse by chance: the 95 % interval of the
            difference over seeds (:func:`~sepal.study.statistics.paired_by_seed`) includes 0. Of several such entries,
            the one with the best mean. Empty if there is none, if the entry is not on the frontier, and with fewer than
            three seeds, which have no interval.
    """

    entry: FrontierEntry
    frontier: bool
    rival: str = ""


class Arrival(NamedTuple):
    """Where a curve came close.

    Attributes:
        megabytes: MB until then.
        at_most: Whether the rounds just before were not evaluated; the curve may have come close in one of them.
    """

    megabytes: float
    at_most: bool


class YardstickArrivals(NamedTuple):
    """After how many MB each method comes within one point of a yardstick.

    Attributes:
        label: The yardstick's.
        target: Its value at the end, less a point.
        reached: Label → where the target was reached, None for never. Methods with too few evaluations are left out.
    """

    label: str
    target: float
    reached: Mapping[str, Arrival | None]


def frontier(candidates: Sequence[FrontierEntry], measure: Measure = ACCURACY) -> list[Standing]:
    """Return how the entries stand, by MB and then from the best value down."""

    def good(entry: FrontierEntry) -> float:
        return measure.sign * entry.value.mean

    def beaten(entry: FrontierEntry) -> bool:
        return any(
            competitor.megabytes <= entry.megabytes
            and good(competitor) >= good(entry)
            and (competitor.megabytes < entry.megabytes or good(competitor) > good(entry))
            for competitor in candidates
        )

    ranked, standings = sorted(candidates, key=lambda entry: -good(entry)), []
    for entry in ranked:
        below = (lower for lower in ranked if lower.megabytes <= entry.megabytes and good(lower) < good(entry))
        rival = next((lower.label for lower in below if within_noise(entry, lower)), "")
        on = not beaten(entry)
        standings.append(Standing(entry, on, rival if on else ""))
    return sorted(standings, key=lambda standing: standing.entry.megabytes)


def within_noise(entry: FrontierEntry, rival: FrontierEntry) -> bool:
    """Return whether the interval of the difference over seeds includes 0; False if there are too few seeds for one."""
    difference = paired_by_seed(
        *({seed: {"": value} for seed, value in side.by_seed.items()} for side in (entry, rival))
    )
    return difference is not None and difference.spread is not None and abs(difference.mean) <= difference.spread


def close(
    candidates: Sequence[FrontierEntry], yardstick: FrontierEntry, measure: Measure = ACCURACY
) -> YardstickArrivals | None:
    """Return the MB after which each curve is within one point of the yardstick's end, and stays there to its own end.

    A curve that falls back again does not count until it returns for good. For a metric that is not a share, a point is
    1 % of the yardstick's value. None if no curve has :data:`~sepal.study.results.LEAST_POINTS` evaluations.
    """
    best = yardstick.value.mean
    target = best - measure.sign * measure.rise(POINT, best)
    reached = {
        entry.label: _arrival(entry.curve, target, measure) for entry in candidates if len(entry.curve) >= LEAST_POINTS
    }
    return YardstickArrivals(yardstick.label, target, reached) if reached else None


def _arrival(curve: Sequence[Step], target: float, measure: Measure) -> Arrival | None:
    arrival, before = None, -1
    for step in curve:
        if measure.sign * (step.value - target) < -SLACK * max(1.0, abs(target)):
            arrival = None
        elif arrival is None:
            arrival = Arrival(step.megabytes, step.completed - before > 1 and step.megabytes > 0)
        before = step.completed
    return arrival


def entries(variants: Sequence[Variant]) -> list[FrontierEntry]:
    """Return what a cell's variants have sent, over all clients, and the metric of their deployed models.

    Variants whose deployed models have no figure yet are left out.
    """
    cell_entries = []
    for variant in variants:
        if by_seed := dict(_ends(variant)):
            curve = list(mean_curve([result.points(variant.deployed) for result in variant.results]))
            cell_entries.append(FrontierEntry(variant.label, sum(map(variant.megabytes, DIRECTIONS)), by_seed, curve))
    return cell_entries


def _ends(variant: Variant) -> Iterator[tuple[int, float]]:
    for result in variant.results:
        if figures := result.accuracy(variant.deployed):
            yield result.seed, figures["mean"]


def close_to(variants: Sequence[Variant]) -> YardstickArrivals | None:
    """Return :func:`close` with FedAvg-FT as yardstick: the variant of that name, else its best; None without."""
    by_label = {entry.label: entry for entry in entries(variants)}
    measure = variants[0].measure
    some = [by_label[variant.label] for variant in variants if variant.method == CLOSE_TO and variant.label in by_label]
    best = max(some, key=lambda entry: (entry.label == CLOSE_TO, measure.sign * entry.value.mean), default=None)
    return close(list(by_label.values()), best, measure) if best else None


def mean_curve(curves: Sequence[Sequence[CurvePoint]]) -> Iterator[Step]:
    """Yield the mean over seeds at each evaluation of any seed, from the first round after which all seeds have one.

    A seed that lacks an evaluation, for example because it stopped earlier, counts with its last one.
    """
    count, last = sum(map(bool, curves)), dict[int, CurvePoint]()
    ordered = [(point.completed, seed, point) for seed, curve in enumerate(curves) for point in curve]
    for at, points in groupby(sorted(ordered, key=itemgetter(0)), itemgetter(0)):
        last |= {seed: point for _, seed, point in points}
        if len(last) == count:
            means = [float(np.mean([getattr(point, key) for point in last.values()])) for key in ("megabytes", "mean")]
            yield Step(at, *means)
