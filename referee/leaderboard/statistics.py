"""The statistics of the leaderboard: Student's t over seeds, or over seeds and people, wins and losses, and Holm.

All are functions of NumPy arrays. Accuracies of one contender are a matrix float64 (seeds, clients), NaN where a client
did not take part with that seed. An estimate is a mean over seeds of means over clients.

Where a seed changes the split, what counts is a seed's mean over clients: k of them, and a t of k - 1 degrees of
freedom. Where clients are the same people with every seed, both were drawn: the estimate's variance is that of the
seeds' means plus that of the people's, and the degrees of freedom are Satterthwaite's (1946). Why not a bootstrap:
docs/decisions/0025-intervals-of-t.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Matrix = NDArray[np.float64]
LEVEL = 0.05
TIE = 0.005  # half a point
DIGITS = 9  # below these, a difference is one of rounding


def mean(values: Matrix) -> float:
    """Return the estimate itself: the mean over seeds of means over clients."""
    return float(np.nanmean(values, axis=1).mean())


def spread(values: Matrix) -> float | None:
    """Return the standard deviation (ddof 1) over seeds of the means over clients; None for one seed."""
    return float(np.nanmean(values, axis=1).std(ddof=1)) if len(values) > 1 else None


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


def interval(values: Matrix, same_people: bool) -> Interval | None:
    """Return the estimate of a contender's accuracies, or of paired differences of two contenders.

    Args:
        values: float64 (seeds, clients), NaN where there is none; no seed is empty.
        same_people: Whether a column is one person in all seeds: then people count as drawn, too.

    Returns:
        None with fewer than two seeds, or two people.
    """
    there = values[:, ~np.isnan(values).all(0)]
    drawn = [np.nanmean(there, axis=axis).round(DIGITS) for axis in ((1, 0) if same_people else (1,))]
    if min(map(len, drawn)) < 2:
        return None
    parts = np.array([units.var(ddof=1) / len(units) for units in drawn])  # of the estimate's variance
    centre, error = round(mean(values), DIGITS), float(np.sqrt(parts.sum()))
    if error == 0:
        return Interval(centre, centre, centre, float(centre == 0))
    freedom = parts.sum() ** 2 / sum(part**2 / (len(units) - 1) for part, units in zip(parts, drawn, strict=True))
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom) * error)
    return Interval(centre, centre - half, centre + half, float(2 * stats.t.sf(abs(centre) / error, freedom)))


def wins(differences: Matrix, same_people: bool = False) -> tuple[int, int, int]:
    """Return how many clients are ahead, even and behind; even is half a point or less (``TIE``).

    Args:
        differences: float64 (seeds, clients), NaN where there is none.
        same_people: Whether a column is one person, who counts once, with the mean over seeds.
    """
    each = differences[:, ~np.isnan(differences).all(0)]
    each = np.nanmean(each, axis=0) if same_people else each[~np.isnan(each)]
    ahead, behind = int((each > TIE).sum()), int((each < -TIE).sum())
    return ahead, each.size - ahead - behind, behind


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method (1979), in the order given.

    The k-th smallest of m is multiplied by m - k + 1; none is below a smaller one's, and none above 1.
    """
    corrected, least = [0.0] * len(p), 0.0
    for place, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, (len(p) - place) * p[index]))
        corrected[index] = least
    return corrected


def matrix(by_seed: Mapping[int, Mapping[str, float]], seeds: Sequence[int], names: Sequence[str]) -> Matrix:
    """Return seed → client → accuracy as a matrix with NaN for what is missing, float64 (seeds, clients)."""
    return np.array([[by_seed.get(seed, {}).get(name, np.nan) for name in names] for seed in seeds], np.float64)
