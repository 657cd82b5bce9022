"""The statistics of every table and figure: over seeds, paired over clients, and whether a curve is still rising.

Accuracies of one contender are a matrix float64 (seeds, clients), NaN where a client did not take part with that seed.
An interval of Student's t is over what was drawn (:func:`interval`): seeds, with their means over clients; clients,
with their means over seeds, as a guide; or both, where clients are the same people with every seed. Then the estimate's
variance is that of the seeds' means plus that of the people's, and the degrees of freedom are Satterthwaite's (1946).
Why not a bootstrap: docs/decisions/0025-intervals-of-t.md.

A curve's points are the mean validation accuracies of the rounds' clients, or test accuracies if there is no validation
data; in the received view for a method that deploys it, and otherwise in the trained view. Rounds that evaluate all
clients are left out where there are enough others: in these, some methods tune the trained model further. The mean of
the last tenth of the points is compared with that of the tenth before, of at least three points each. A curve is still
rising if the difference is above half a point (half a per cent of a metric that is no share; of one that falls as it
gets better, a rise is a fall) and above twice its standard error: that of the scatter within the two tenths, less what
a steady rise of this size puts there, as a steep curve is not a noisy one. Over several seeds, differences are
averaged. With fewer than six points there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from sepal.runs.json_lines import Line
from sepal.tasks.scoring import ACCURACY, Measure, headline, measure_of

LEAST_POINTS, PARTS = 3, 10
LEAST_RISE, ERRORS = 0.005, 2.0  # accuracy; standard errors
BySeed: TypeAlias = Mapping[int, Mapping[str, float]]  # seed → client → accuracy
Matrix: TypeAlias = NDArray[np.float64]
Drawn: TypeAlias = Literal["seeds", "clients", "both"]
LEVEL = 0.05
LEAST_DRAWN = 3  # below these, a :class:`Difference` has no interval
TIE = 0.005  # half a point
DIGITS = 9  # below these, a difference is one of rounding


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds.

    Attributes:
        spread: Standard deviation over seeds (ddof 1); None if there are too few values.
        count: Number of values that it is the mean of.
    """

    mean: float
    spread: float | None
    count: int

    def shown(self, measure: Measure, sign: str = "") -> str:
        """Return ``93.1 ± 0.4``, a metric's value as it is shown, without its unit."""
        mean = measure.number(self.mean, sign)
        return mean if self.spread is None else f"{mean} ± {measure.number(self.spread)}"

    def with_unit(self, measure: Measure) -> str:
        """Return the same with its unit."""
        return f"{self.shown(measure)} {measure.unit}".rstrip()

    def text(self, digits: int = 1, factor: float = 100.0, sign: str = "") -> str:
        """Return ``93.1 ± 0.4``: in per cent by default."""
        mean = f"{factor * self.mean:{sign}.{digits}f}"
        return mean if self.spread is None else f"{mean} ± {factor * self.spread:.{digits}f}"


class Difference(Estimate):
    """A difference over clients or seeds, written with the ends of its 95 % interval: ± is a standard deviation.

    Attributes:
        spread: Half the width of the interval, not a standard deviation; None with fewer than three values.
    """

    def shown(self, measure: Measure, sign: str = "") -> str:
        """Return ``+3.1 [+1.3, +4.9]``, as a metric's values are shown, without its unit."""
        return self._written(lambda value: measure.number(value, sign))

    def text(self, digits: int = 1, factor: float = 100.0, sign: str = "") -> str:
        """Return ``3.1 [1.3, 4.9]``: in points by default."""
        return self._written(lambda value: f"{factor * value:{sign}.{digits}f}")

    def _written(self, number: Callable[[float], str]) -> str:
        if self.spread is None:
            return number(self.mean)
        ends = (number(self.mean + side * self.spread) for side in (-1, 1))
        return f"{number(self.mean)} [{', '.join(ends)}]"


def over_seeds(values: Sequence[float]) -> Estimate | None:
    """Return mean and standard deviation over seeds; None without values."""
    if not values:
        return None
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), spread, len(values))


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval of Student's t, and the two-sided p-value of its being 0."""

    mean: float
    low: float
    high: float
    p: float

    def text(self) -> str:
        """Return ``+1.2 [+0.3, +2.1]``, in points."""
        values = (f"{100 * value:+.1f}" for value in (self.mean, self.low, self.high))
        centre, low, high = (value.replace("-", "−") for value in values)
        return f"{centre} [{low}, {high}]"


def mean(values: Matrix) -> float:
    """Return the mean over seeds of means over clients."""
    return float(np.nanmean(values, axis=1).mean())


def spread(values: Matrix) -> float | None:
    """Return the standard deviation (ddof 1) over seeds of the means over clients; None for one seed."""
    return float(np.nanmean(values, axis=1).std(ddof=1)) if len(values) > 1 else None


def interval(values: Matrix, over: Drawn) -> Interval | None:
    """Return the estimate of a contender's accuracies, or of paired differences of two contenders.

    Args:
        values: float64 (seeds, clients), NaN where there is none; no seed is empty.
        over: What was drawn. The estimate is the mean over seeds of means over clients; over clients alone, the mean
            over clients of means over seeds.

    Returns:
        None with fewer than two of what was drawn.
    """
    present = values[:, ~np.isnan(values).all(0)]
    axes = {"seeds": (1,), "clients": (0,), "both": (1, 0)}[over]
    drawn = [np.nanmean(present, axis=axis).round(DIGITS) for axis in axes]
    if min(map(len, drawn)) < 2:
        return None
    parts = np.array([units.var(ddof=1) / len(units) for units in drawn])  # of the estimate's variance
    centre, error = round(float(np.nanmean(present, axis=axes[0]).mean()), DIGITS), float(np.sqrt(parts.sum()))
    if error == 0:
        return Interval(centre, centre, centre, float(centre == 0))
    freedom = parts.sum() ** 2 / sum(part**2 / (len(units) - 1) for part, units in zip(parts, drawn, strict=True))
    half = float(special.stdtrit(freedom, 1 - LEVEL / 2) * error)
    return Interval(centre, centre - half, centre + half, float(2 * special.stdtr(freedom, -abs(centre) / error)))


def matrix(by_seed: BySeed, seeds: Sequence[int], names: Sequence[str]) -> Matrix:
    """Return seed → client → accuracy as a matrix with NaN for what is missing, float64 (seeds, clients)."""
    return np.array([[by_seed.get(seed, {}).get(name, np.nan) for name in names] for seed in seeds], np.float64)


def paired_matrix(accuracies: BySeed, rivals: BySeed) -> Matrix:
    """Return accuracies minus the rival's, float64 (seeds, clients), NaN where one of the two lacks the client.

    It has the seeds in which both have some client, and the clients that both have in one of these seeds.
    """
    both = [seed for seed in sorted(accuracies.keys() & rivals.keys()) if accuracies[seed].keys() & rivals[seed].keys()]
    names = sorted({name for seed in both for name in accuracies[seed].keys() & rivals[seed].keys()})
    return matrix(accuracies, both, names) - matrix(rivals, both, names)


def paired(accuracies: BySeed, rivals: BySeed) -> Difference | None:
    """Return the paired difference of accuracies to a rival's, with the 95 % interval of Student's t.

    Each client's difference is averaged over the seeds that both have. Clients of one federation are not independent,
    so the interval is a guide, not a test. With fewer than three clients there is no interval.
    """
    return _difference(paired_matrix(accuracies, rivals), "clients")


def paired_by_seed(accuracies: BySeed, rivals: BySeed) -> Difference | None:
    """Return the same difference with the interval over seeds: each seed counts once, with its mean over clients.

    It is for claims about other draws of the data and of W_0. With fewer than three seeds there is no interval.
    """
    return _difference(paired_matrix(accuracies, rivals), "seeds")


def _difference(values: Matrix, over: Literal["seeds", "clients"]) -> Difference | None:
    if not values.size:
        return None
    units = np.nanmean(values, axis=1 if over == "seeds" else 0)
    bounds = interval(values, over) if len(units) >= LEAST_DRAWN else None
    half = None if bounds is None else (bounds.high - bounds.low) / 2
    return Difference(float(np.mean(units)), half, len(units))


def wins(differences: Matrix, same_people: bool = False) -> tuple[int, int, int]:
    """Return how many clients are ahead, even and behind; even is half a point or less (``TIE``).

    Args:
        differences: float64 (seeds, clients), NaN where there is none.
        same_people: Whether a column is one person, who counts once, with the mean over seeds.
    """
    values = differences[:, ~np.isnan(differences).all(0)]
    values = np.nanmean(values, axis=0) if same_people else values[~np.isnan(values)]
    ahead, behind = int((values > TIE).sum()), int((values < -TIE).sum())
    return ahead, values.size - ahead - behind, behind


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method (1979), in the order given.

    The k-th smallest of m is multiplied by m - k + 1. Each is at least that of any smaller p-value, and at most 1.
    """
    corrected, least = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = least
    return corrected


@dataclass(frozen=True)
class Rise:
    """A rise of accuracy at the end of a curve.

    Attributes:
        mean: Mean of the last points minus that of as many before them, as a fraction.
        error: Its standard error by the scatter within the two windows, to which the rise itself adds.
        points: Number of points in each mean.
        least: What it must be above to count.
    """

    mean: float
    error: float
    points: int
    least: float = LEAST_RISE

    @property
    def noise(self) -> float:
        """The standard error without what a steady rise adds to the scatter.

        A line of slope s has in a window of n points the variance s² n (n + 1) / 12, and between the means of two
        windows the difference n s = mean. Two such variances, over n, are mean² (n + 1) / (6 n²).
        """
        return math.sqrt(max(0.0, self.error**2 - _of_a_line(self.mean, self.points)))

    @property
    def goes_on(self) -> bool:
        """Whether the curve counts as still rising."""
        return self.mean > self.least and self.mean > ERRORS * self.noise


def _of_a_line(mean: float, points: int) -> float:
    """Return what a steady rise by ``mean`` from one window to the next adds to the square of the error."""
    return mean**2 * (points + 1) / (6 * points**2)


def rise(lines: Sequence[Line], deployed: str) -> Rise | None:
    """Return the rise at the end of a run; None if it has too few points.

    Args:
        lines: Lines of metrics.jsonl.
        deployed: View of the model that the method deploys.
    """
    view = "received" if deployed == "received" else "trained"
    full = [line for line in lines if line["full"] or line["phase"] == "closing"]
    sampled = [line for line in lines if not (line["full"] or line["phase"] == "closing")]
    kinds = ("validation", "test")
    measure = measure_of(lines[0]) if lines else ACCURACY
    series = (_means(some, kind, view) for some in (sampled, full) for kind in kinds)
    values = next((means for means in series if len(means) >= 2 * LEAST_POINTS), None)
    if values is None:
        return None
    values = values if measure.higher else [-value for value in values]  # a rise is what is better
    points = max(LEAST_POINTS, len(values) // PARTS)
    last, before = values[-points:], values[-2 * points : -points]
    error = np.sqrt((np.var(last, ddof=1) + np.var(before, ddof=1)) / points)
    least = measure.rise(LEAST_RISE, float(np.mean(before)))
    return Rise(float(np.mean(last) - np.mean(before)), float(error), points, least)


def mean_rise(rises: Sequence[Rise | None]) -> Rise | None:
    """Return the mean rise over the runs that have one; None if there is none."""
    judged = [curve_rise for curve_rise in rises if curve_rise]
    if not judged:
        return None
    noise = math.sqrt(sum(curve_rise.noise**2 for curve_rise in judged)) / len(judged)
    mean, least = (
        float(np.mean(values))
        for values in zip(*((curve_rise.mean, curve_rise.least) for curve_rise in judged), strict=True)
    )
    points = max(curve_rise.points for curve_rise in judged)
    return Rise(mean, math.sqrt(noise**2 + _of_a_line(mean, points)), points, least)


def _means(lines: Sequence[Line], kind: str, view: str) -> list[float]:
    figures = ((headline(line) if kind == "test" else line.get(kind, {})).get(view) for line in lines)
    return [entry["mean"] for entry in figures if entry]
