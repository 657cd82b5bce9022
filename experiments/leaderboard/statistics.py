"""The statistics of the comparison: a bootstrap of seeds and clients, wins and losses, and Holm's correction.

All are functions of NumPy arrays. Accuracies of one contender are a matrix float64 (seeds, clients), NaN where a client
did not take part with that seed.

The bootstrap draws seeds with replacement, and clients with replacement (Davison and Hinkley 1997, section 3.8; for the
same people with every seed, Owen 2007, "The pigeonhole bootstrap"). An estimate is a mean over seeds of means over
clients. The same draws serve all contenders of a block, so that differences are paired. With k seeds and n clients a
seed, the variance between seeds is understated by (k - 1) / k, and that within by (n - 1) / n, as in every bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
DRAWS, SEED, LEVEL = 10_000, 37, 0.05
TIE = 0.005  # half a point


@dataclass(frozen=True)
class Draws:
    """How often each bootstrap draw has each seed and each client.

    Attributes:
        seeds: float64 (draws, seeds).
        clients: float64 (draws, seeds, clients): over all times that a draw has the seed. With the same people
            everywhere, a draw's seeds have equal rows.
    """

    seeds: Matrix
    clients: Matrix

    @cached_property
    def sizes(self) -> Matrix:
        """How many clients a draw has of each seed, float64 (draws, seeds)."""
        return np.asarray(self.clients.sum(2))


def draws_for(values: Matrix, same_people: bool) -> Draws:
    """Return the draws for a matrix; those of equal gaps are the same, so that contenders are compared on them."""
    there = ~np.isnan(values)
    return _drawn(there.tobytes(), there.shape, same_people)


@lru_cache(maxsize=8)
def _drawn(there: bytes, shape: tuple[int, int], same_people: bool) -> Draws:
    return draw(np.frombuffer(there, np.bool_).reshape(shape), same_people)


def draw(there: NDArray[np.bool_], same_people: bool = False, count: int = DRAWS, seed: int = SEED) -> Draws:
    """Draw seeds, then clients.

    Args:
        there: bool (seeds, clients): who took part.
        same_people: Whether a column is one person in all seeds: then people are drawn once for all seeds.
        count: Number of draws.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)
    seeds, clients = there.shape
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), count).astype(np.float64)
    if same_people:
        people = rng.multinomial(clients, np.full(clients, 1 / clients), count)
        return Draws(of_seeds, np.where(there, people[:, None, :], 0).astype(np.float64))
    # A seed that is drawn m times has m draws of its n clients; their sum is one of m·n.
    times = of_seeds.astype(np.int64).T
    each = [rng.multinomial(m * row.sum(), row / row.sum()) for m, row in zip(times, there, strict=True)]
    return Draws(of_seeds, np.stack(each, axis=1).astype(np.float64))


def means(values: Matrix, draws: Draws) -> Matrix:
    """Return the estimate in each draw, float64 (draws,): a mean over seeds of means over clients.

    The draws must be of those who are there. A seed of whose people none was drawn is left out of that draw.
    """
    sums, sizes = np.einsum("dsc,sc->ds", draws.clients, np.nan_to_num(values)), draws.sizes
    seeds = np.where(sizes > 0, draws.seeds, 0.0)
    each = np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((seeds * each).sum(1) / seeds.sum(1))


def mean(values: Matrix) -> float:
    """Return the estimate itself: the mean over seeds of means over clients."""
    return float(np.nanmean(values, axis=1).mean())


def spread(values: Matrix) -> float | None:
    """Return the standard deviation (ddof 1) over seeds of the means over clients; None for one seed."""
    return float(np.nanmean(values, axis=1).std(ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile interval, and the two-sided p-value of its being 0."""

    mean: float
    low: float
    high: float
    p: float

    def text(self, sign: str = "+") -> str:
        """Return ``+1.2 [0.3, 2.1]``, in points."""
        values = (f"{100 * value:{sign}.1f}" for value in (self.mean, self.low, self.high))
        centre, low, high = (value.replace("-", "−") for value in values)
        return f"{centre} [{low}, {high}]"


def interval(values: Matrix, draws: Draws, level: float = LEVEL) -> Interval:
    """Return the estimate of a contender's accuracies, or of paired differences of two contenders.

    p is twice the smaller share of draws on either side of 0, counting one more draw on each side.
    """
    found = means(values, draws)
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, (level / 2, 1 - level / 2))
    tail = min(int((found <= 0).sum()), int((found >= 0).sum()))
    return Interval(mean(values), float(low), float(high), min(1.0, 2 * (tail + 1) / (len(found) + 1)))


def wins(differences: Matrix, same_people: bool = False, tie: float = TIE) -> tuple[int, int, int]:
    """Return how many clients are ahead, even and behind, ``tie`` or less being even.

    Args:
        differences: float64 (seeds, clients), NaN where there is none.
        same_people: Whether a column is one person, who counts once, with the mean over seeds.
        tie: As a fraction.
    """
    each = differences[:, ~np.isnan(differences).all(0)]
    each = np.nanmean(each, axis=0) if same_people else each[~np.isnan(each)]
    ahead, behind = int((each > tie).sum()), int((each < -tie).sum())
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
