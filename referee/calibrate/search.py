"""Which trials a calibration needs: a grid of learning rates, then each of a method's own rates.

For each method on each data set:

1. The whole grid of learning rates with the first seed. While the best is at an edge, the grid grows there.
2. The three best with the other seeds. The smallest rate is chosen that the best is not ahead of by more than a
   standard error; see :meth:`Trials.pick`. While the chosen one is at an edge, the grid grows there, too.
3. The grid of each own key (``OWN``) at that rate, with all seeds. The first value is chosen that the best is not ahead
   of by more than a standard error. While it is at an edge, the grid grows there, at most ``GROWTH`` times, but not
   where runs are shortened: what they want beyond an edge may be their shortness alone. FedAdagrad on HAR had 9 points
   more with .009 than with .03 in 10 rounds, and 1.7 less in 30; the latter was seen on test data.

A trial is judged by validation accuracy alone, in the view that the method deploys.

**With a margin** (``Trials.clip``): trials clip gradients as runs do by default, and a rate is only eligible if no
client diverged with any seed, and if the next rate up does not collapse with any seed either: a rate at the edge of
divergence is one that another seed, or a processor that rounds otherwise, decides. Finalists have five seeds, and the
one with the highest mean minus its standard error is chosen; of an own key, the first value listed among equals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

SEEDS = (101, 102, 103)  # no results page uses them
MARGIN_SEEDS = (*SEEDS, 104, 105)
COLLAPSED = 2 / 3  # of the mean with the rate below: less is a collapse
CLIP = "clip-gradient"
SGD = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0)
SHORT = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # grows where its best is at an edge
ADAM = (0.0003, 0.001, 0.003, 0.01, 0.03)
FINALISTS = 3
LEAST, MOST = 1e-4, 30.0  # no rate beyond these is tried
GROWTH = 2
# Own keys that are searched after the rate, and their values. The first, the paper's or its authors', is used while the
# rate is searched, and preferred.
OWN: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "apfl": {"alpha": (0.5, 0.25, 0.75)},  # where α starts; the paper's three
    "ditto": {"lambda": (1.0, 0.1, 0.3, 3.0)},
    # Unpublished. How often masks are readjusted is, too, but a short run says nothing of that in a long one.
    "dmpfl": {"alpha": (0.5, 0.3, 0.1)},
    "fedprox": {"mu": (0.01, 0.001, 0.1, 1.0)},
    "fedadagrad": {"rate": (0.1, 0.03, 0.3)},
    "fedadam": {"rate": (0.01, 0.003, 0.03, 0.1)},
    "fedyogi": {"rate": (0.01, 0.003, 0.03, 0.1)},
    # The paper searches the server's rate for each task. .01 is too little for adapters of a network drawn at random.
    "flasc": {"rate": (0.1, 0.01, 0.03, 0.3)},
    "mtl": {"lambda": (0.0, 0.001, 0.01, 0.1)},
    "pa3dfl": {"rate": (0.1, 0.01, 1.0)},
    # The paper's λ of 15 and η of .005 want 800 rounds. At η·λ = 1 the local w moves onto θ after each batch.
    "pfedme": {"lambda": (5.0, 15.0, 1.0), "rate": (0.2, 0.05, 0.005)},
    "pfedgate": {"rate": (0.01, 0.003, 0.1)},
    # The authors' .01 is for one client a step. Here all clients of a round step, each along a gradient at the round's
    # start: of ten clients on digits the best is .003, and of 30 on HAR no run survives .01.
    "pfedhn": {"rate": (0.001, 0.003, 0.01)},
}

Keys: TypeAlias = tuple[tuple[str, float], ...]  # run-config keys with values, sorted


@dataclass(frozen=True)
class Trial:
    """One run: a method on a data set at a rate, with a seed."""

    dataset: str
    method: str
    keys: Keys
    seed: int


@dataclass(frozen=True)
class Result:
    """What a trial has given.

    Attributes:
        validation: Validation accuracy in the method's deployed view, in [0, 1]; 0 for a run that ended with an error.
        rounds: The run's rounds.
        seconds: Wall time.
        diverged: Trainings of clients that diverged; 1 for a run that ended with an error.
    """

    validation: float
    rounds: int
    seconds: float
    diverged: int = 0


@dataclass
class Trials:
    """The results of one method on one data set.

    Attributes:
        found: Keys → seed → validation accuracy in [0, 1].
        growth: How often the grid of an own key may grow.
        clip: ``clip-gradient`` of the trials, which are then judged with a margin; 0 for a search of before.
        diverged: Keys → seed → trainings of clients that diverged.
    """

    dataset: str
    method: str
    grid: tuple[float, ...]
    found: dict[Keys, dict[int, float]] = field(default_factory=dict)
    own: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    growth: int = GROWTH
    clip: float = 0.0
    diverged: dict[Keys, dict[int, int]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of finalists."""
        return MARGIN_SEEDS if self.clip else SEEDS

    def needed(self) -> list[Trial]:
        """Return the trials that are needed next; none once all is chosen. Ask again when these have ended."""
        first = self._missing(self.grid_keys(), SEEDS[:1])
        if first:
            return first
        finalists = self.finalists()
        missing = self._missing(finalists, self.seeds)
        if self.clip and not missing:
            missing = self._missing([self.above(keys) for keys in finalists], self.seeds)
        if missing:
            return missing
        for _, grid in self.own_grids():
            missing = self._missing(grid, self.seeds)
            if missing:
                return missing
        return []

    def above(self, keys: Keys) -> Keys:
        """Return the keys with the next rate up."""
        lr, rates = dict(keys)["lr"], self.rates()
        return _keys({**dict(keys), "lr": min((rate for rate in rates if rate > lr), default=_round(2 * lr))})

    def eligible(self, keys: Keys) -> bool:
        """Return whether nothing that has run speaks against ``keys``: no diverged client, no collapse just above."""
        if any(self.diverged.get(keys, {}).values()):
            return False
        above = self.above(keys)
        least = COLLAPSED * mean(self.found[keys].values())
        ended = self.found.get(above, {}).values()
        return not any(self.diverged.get(above, {}).values()) and all(value >= least for value in ended)

    def own_grids(self) -> Iterator[tuple[str, list[Keys]]]:
        """Yield each own key with its grid, at the keys chosen before it. Its trials must end before the next one."""
        chosen = self.pick(self.finalists())
        for name, values in self.own.items():
            key = f"{self.method}.{name}"
            grid = self._grown([_keys({**dict(chosen), key: value}) for value in values], key)
            yield key, grid
            chosen = self.pick(grid)

    def _grown(self, grid: list[Keys], key: str) -> list[Keys]:
        """Return the grid of an own key, with further values where the chosen one is at an edge."""
        for _ in range(self.growth):
            if self._missing(grid, self.seeds):
                break
            values = sorted(dict(keys)[key] for keys in grid)
            new = _beyond(dict(self.pick(grid))[key], values)
            if new is None or (key.endswith(".alpha") and new > 1):  # a share
                break
            grid = [*grid, _keys({**dict(grid[0]), key: new})]
        return grid

    def chosen(self) -> Keys:
        """Return the chosen keys. All needed trials must have ended."""
        grids = [grid for _, grid in self.own_grids()]
        return self.pick(grids[-1] if grids else self.finalists())

    def grid_keys(self) -> list[Keys]:
        """Return the keys of the grid of rates, before any own key was searched."""
        return [self._keys(rate) for rate in self.rates()]

    def rates(self) -> list[float]:
        """Return the grid of rates, extended where its best or its chosen one is at an edge."""
        rates = sorted(self.grid)
        while not self._missing([self._keys(rate) for rate in rates], SEEDS[:1]):
            finalists = self._best([self._keys(rate) for rate in rates])
            ends = [dict(self._best([self._keys(rate) for rate in rates], 1)[0])["lr"]]
            ends += [] if self._missing(finalists, self.seeds) else [dict(self.pick(finalists))["lr"]]
            if rates[0] in ends and rates[0] / 2 >= LEAST:
                rates.insert(0, _round(rates[0] / 2))
            elif rates[-1] in ends and rates[-1] * 2 <= MOST:
                rates.append(_round(rates[-1] * 2))
            else:
                break
        return rates

    def finalists(self) -> list[Keys]:
        """Return the keys of the best rates with the first seed, the smallest rate first.

        With a margin, of the eligible ones, or of all if there are none.
        """
        grid = self.grid_keys()
        sound = [keys for keys in grid if self.eligible(keys)] if self.clip else []
        return self._best(sound or grid)

    def _best(self, grid: Sequence[Keys], count: int = FINALISTS) -> list[Keys]:
        ranked = sorted(grid, key=lambda keys: (-self.found[keys][SEEDS[0]], keys))
        return sorted(ranked[:count], key=lambda keys: dict(keys)["lr"])

    def pick(self, grid: Sequence[Keys]) -> Keys:
        """Return the first keys of ``grid`` that the best ones are not ahead of by more than a standard error.

        The standard error is that of the difference over seeds. So a smaller rate, or the paper's own value, is kept
        where the choice makes no difference; the best of a noisy grid is often close to divergence. With a margin it is
        the highest mean minus its standard error; those with a diverged client come last.
        """
        if self.clip:
            return max(grid, key=lambda keys: (not any(self.diverged.get(keys, {}).values()), self._assured(keys)))
        best = max(grid, key=lambda keys: mean(self.found[keys].values()))
        for keys in grid:
            gaps = [self.found[best][seed] - self.found[keys][seed] for seed in SEEDS]
            if mean(gaps) <= (standard_error(gaps) or 0.0):
                return keys
        return best

    def _assured(self, keys: Keys) -> float:
        values = [self.found[keys][seed] for seed in self.seeds]
        return round(mean(values) - (standard_error(values) or 0.0), 9)

    def _keys(self, rate: float) -> Keys:
        own = {f"{self.method}.{name}": values[0] for name, values in self.own.items()}
        return _keys({"lr": rate, **({CLIP: self.clip} if self.clip else {}), **own})

    def _missing(self, grid: Sequence[Keys], seeds: Sequence[int]) -> list[Trial]:
        return [
            Trial(self.dataset, self.method, keys, seed)
            for seed in seeds
            for keys in grid
            if seed not in self.found.get(keys, {})
        ]


def mean(values: Iterable[float]) -> float:
    """Return the mean, rounded: sums of the same accuracies in another order must tie."""
    listed = list(values)
    return round(sum(listed) / len(listed), 9)


def standard_error(values: Iterable[float]) -> float | None:
    """Return the standard error of the mean over seeds; None for a single one."""
    listed = list(values)
    if len(listed) < 2:
        return None
    centre = sum(listed) / len(listed)
    return math.sqrt(sum((value - centre) ** 2 for value in listed) / (len(listed) - 1) / len(listed))


def _beyond(value: float, values: Sequence[float]) -> float | None:
    """Return the next value beyond the end of ascending ``values`` at which ``value`` is; None if at none, or at 0."""
    if value == values[0] and value > 0:
        return _round(value * value / values[1])
    return _round(value * value / values[-2]) if value == values[-1] and values[-2] > 0 else None


def _keys(values: Mapping[str, Any]) -> Keys:
    return tuple(sorted((key, float(value)) for key, value in values.items()))


def _round(rate: float) -> float:
    return float(f"{rate:.2g}")
