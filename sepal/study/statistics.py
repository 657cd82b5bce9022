"""The statistics of every table and figure: over seeds, paired over clients, and whether a curve is still rising.

A curve's points are the mean validation accuracies of the rounds' clients, or test accuracies if there is no validation
data; in the received view for a method that deploys it, and otherwise in the trained view. Rounds that evaluate all
clients are left out where there are enough others: in these, some methods tune the trained model further. The mean of
the last tenth of the points is compared with that of the tenth before, of at least three points each. A curve is still
rising if the difference is above half a point (half a per cent of a metric that is no share; of one that falls as it
gets better, a rise is a fall) and above twice its standard error, which comes from the scatter within
the two tenths. Over several seeds, differences are averaged. With fewer than six points there is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from sepal.runs.json_lines import Line
from sepal.tasks.scoring import ACCURACY, Measure, headline, measure_of

LEAST_POINTS, PARTS = 3, 10
LEAST_RISE, ERRORS = 0.005, 2.0  # accuracy; standard errors
BySeed = Mapping[int, Mapping[str, float]]  # seed → client → accuracy


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

    def told(self, measure: Measure) -> str:
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


def paired(ours: BySeed, theirs: BySeed) -> Difference | None:
    """Return the paired difference of accuracies, ours minus theirs, with the 95 % interval of Student's t.

    Each client's difference is averaged over the seeds that both have. Clients of one federation are not independent,
    so the interval is a guide, not a test. With fewer than three clients there is no interval.
    """
    pairs: dict[str, list[float]] = {}
    for differences in _differences(ours, theirs).values():
        for name, value in differences.items():
            pairs.setdefault(name, []).append(value)
    return _with_interval([float(np.mean(found)) for found in pairs.values()])


def paired_by_seed(ours: BySeed, theirs: BySeed) -> Difference | None:
    """Return the same difference with the interval over seeds: each seed counts once, with its mean over clients.

    It is for claims about other draws of the data and of W_0. With fewer than three seeds there is no interval.
    """
    return _with_interval([float(np.mean([*found.values()])) for found in _differences(ours, theirs).values() if found])


def _differences(ours: BySeed, theirs: BySeed) -> BySeed:
    """Return seed → client → difference, for what both have."""
    return {
        seed: {name: clients[name] - theirs[seed][name] for name in clients if name in theirs[seed]}
        for seed, clients in ours.items()
        if seed in theirs
    }


def _with_interval(values: Sequence[float]) -> Difference | None:
    if len(values) < 3:
        return Difference(float(np.mean(values)), None, len(values)) if len(values) else None
    half = special.stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values))
    return Difference(float(np.mean(values)), float(half), len(values))


@dataclass(frozen=True)
class Rise:
    """A rise of accuracy at the end of a curve.

    Attributes:
        mean: Mean of the last points minus that of as many before them, as a fraction.
        error: Its standard error.
        points: Number of points in each mean.
        least: What it must be above to count.
    """

    mean: float
    error: float
    points: int
    least: float = LEAST_RISE

    @property
    def goes_on(self) -> bool:
        """Whether the curve counts as still rising."""
        return self.mean > self.least and self.mean > ERRORS * self.error


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


def mean_rise(found: Sequence[Rise | None]) -> Rise | None:
    """Return the mean rise over the runs that have one; None if there is none."""
    there = [each for each in found if each]
    if not there:
        return None
    error = np.sqrt(sum(each.error**2 for each in there)) / len(there)
    mean, least = (float(np.mean(values)) for values in zip(*((each.mean, each.least) for each in there), strict=True))
    return Rise(mean, float(error), max(each.points for each in there), least)


def _means(lines: Sequence[Line], kind: str, view: str) -> list[float]:
    figures = ((headline(line) if kind == "test" else line.get(kind, {})).get(view) for line in lines)
    return [found["mean"] for found in figures if found]
