"""Which trials a calibration needs: a grid of learning rates, then each of a method's own rates.

For each method on each data set:

1. The whole grid of learning rates with the first seed. While the best is at an edge, the grid grows there.
2. The three best with the other seeds. The smallest rate is chosen that the best is not ahead of by more than a
   standard error; see :meth:`Trials.pick`. While the chosen one is at an edge, the grid grows there, too.
3. The grid of each own key (``OWN``) at that rate, with all seeds. The first value is chosen that the best is not ahead
   of by more than a standard error. While it is at an edge, the grid grows there, at most ``GROWTH`` times, but not
   where runs are shortened: a value beyond the edge may be the best only because the runs are short. FedAdagrad on HAR
   had 9 points more with .009 than with .03 in 10 rounds, and 1.7 less in 30; the latter was seen on test data.

A trial is judged by validation accuracy alone, in the view that the method deploys.

**With a margin** (``Trials.margin``): trials clip gradients as runs do by default, and a rate is only eligible if no
client diverged with any seed, and if the next rate up does not collapse with any seed either: a rate at the edge of
divergence is one that another seed, or a processor that rounds otherwise, decides. Finalists have five seeds, and the
one with the highest mean minus its standard error is chosen; of an own key, the first value listed among equals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from referee.calibrate.settings import GROWTH, PINNED, SETTINGS, UNCLIPPED, Setting
from referee.checkout import RESULTS
from sepal.strategies.registry import former
from sepal.study.record import RunRecord, read, recorded
from sepal.study.search import beyond, choose, mean_of_trials, standard_error, two_digits

FILE = RESULTS / "calibration.ndjson"
SEEDS = (101, 102, 103)  # no results page uses them
MARGIN_SEEDS = (*SEEDS, 104, 105)
COLLAPSED = 2 / 3  # of the mean with the rate below: less is a collapse
CLIP = "clip-gradient"
FINALISTS = 3
LEAST, MOST = 1e-4, 30.0  # no rate beyond these is tried

Keys: TypeAlias = tuple[tuple[str, float], ...]  # run-config keys with values, sorted


@dataclass(frozen=True)
class RateTrial:
    """One run: a method on a data set at a rate, with a seed."""

    dataset: str
    method: str
    keys: Keys
    seed: int

    @property
    def config(self) -> dict[str, Any]:
        """The run's keys. An earlier search, which does not clip, ran with the defaults of its time."""
        before = PINNED.get(self.method, {}) if CLIP in dict(self.keys) else former(self.method)
        about = {"dataset": self.dataset, "method": self.method, "seed": self.seed}
        return {**before, **SETTINGS[self.dataset].run_keys(self.method), **dict(self.keys), **about}


def run_trial(trial: RateTrial, commit: str) -> RunRecord:
    """Run one trial; its record has no figure of the test data."""
    return recorded(trial.config, {}, commit, ())


@dataclass
class Trials:
    """The results of one method on one data set.

    Attributes:
        accuracies: Keys → seed → validation accuracy in [0, 1].
        growth: How often the grid of an own key may grow.
        clip: ``clip-gradient`` of the trials, which are then judged with a margin; None for an earlier search.
        diverged: Keys → seed → trainings of clients that diverged.
    """

    dataset: str
    method: str
    grid: tuple[float, ...]
    accuracies: dict[Keys, dict[int, float]] = field(default_factory=dict)
    own_values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    growth: int = GROWTH
    clip: float | None = None
    diverged: dict[Keys, dict[int, int]] = field(default_factory=dict)

    @property
    def margin(self) -> bool:
        """Whether trials are judged with a margin."""
        return self.clip is not None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of finalists."""
        return MARGIN_SEEDS if self.margin else SEEDS

    def needed(self) -> list[RateTrial]:
        """Return the trials that are needed next; none once all is chosen. Ask again when these have ended."""
        first = self._missing(self.grid_keys(), SEEDS[:1])
        if first:
            return first
        finalists = self.finalists()
        missing = self._missing(finalists, self.seeds)
        if self.margin and not missing:
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
        return _keys({**dict(keys), "lr": min((rate for rate in rates if rate > lr), default=two_digits(2 * lr))})

    def eligible(self, keys: Keys) -> bool:
        """Return whether nothing that has run speaks against ``keys``: no diverged client, no collapse just above."""
        if any(self.diverged.get(keys, {}).values()):
            return False
        above = self.above(keys)
        least = COLLAPSED * mean_of_trials(self.accuracies[keys].values())
        ended = self.accuracies.get(above, {}).values()
        return not any(self.diverged.get(above, {}).values()) and all(value >= least for value in ended)

    def own_grids(self) -> Iterator[tuple[str, list[Keys]]]:
        """Yield each own key with its grid, at the keys chosen before it. Its trials must end before the next one."""
        chosen = self.pick(self.finalists())
        for name, values in self.own_values.items():
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
            new = beyond(dict(self.pick(grid))[key], values)
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
                rates.insert(0, two_digits(rates[0] / 2))
            elif rates[-1] in ends and rates[-1] * 2 <= MOST:
                rates.append(two_digits(rates[-1] * 2))
            else:
                break
        return rates

    def finalists(self) -> list[Keys]:
        """Return the keys of the best rates with the first seed, the smallest rate first.

        With a margin, of the eligible ones, or of all if there are none.
        """
        grid = self.grid_keys()
        sound = [keys for keys in grid if self.eligible(keys)] if self.margin else []
        return self._best(sound or grid)

    def _best(self, grid: Sequence[Keys], count: int = FINALISTS) -> list[Keys]:
        ranked = sorted(grid, key=lambda keys: (-self.accuracies[keys][SEEDS[0]], keys))
        return sorted(ranked[:count], key=lambda keys: dict(keys)["lr"])

    def pick(self, grid: Sequence[Keys]) -> Keys:
        """Return the first keys of ``grid`` that the best ones are not ahead of by more than a standard error.

        The standard error is that of the difference over seeds. So a smaller rate, or the paper's own value, is kept
        where the choice makes no difference; the best of a noisy grid is often close to divergence. With a margin it is
        the highest mean minus its standard error; those with a diverged client come last.
        """
        if self.margin:
            return choose(grid, lambda keys: (not any(self.diverged.get(keys, {}).values()), self._assured(keys)))
        return choose(grid, lambda keys: mean_of_trials(self.accuracies[keys].values()), close=self._close)

    def _close(self, best: Keys, keys: Keys) -> bool:
        gaps = [self.accuracies[best][seed] - self.accuracies[keys][seed] for seed in SEEDS]
        return mean_of_trials(gaps) <= (standard_error(gaps) or 0.0)

    def _assured(self, keys: Keys) -> float:
        values = [self.accuracies[keys][seed] for seed in self.seeds]
        return round(mean_of_trials(values) - (standard_error(values) or 0.0), 9)

    def _keys(self, rate: float) -> Keys:
        first_values = {f"{self.method}.{name}": values[0] for name, values in self.own_values.items()}
        return _keys({"lr": rate, **({} if self.clip is None else {CLIP: self.clip}), **first_values})

    def _missing(self, grid: Sequence[Keys], seeds: Sequence[int]) -> list[RateTrial]:
        return [
            RateTrial(self.dataset, self.method, keys, seed)
            for seed in seeds
            for keys in grid
            if seed not in self.accuracies.get(keys, {})
        ]


class Evidence:
    """All stored trials, by search.

    Attributes:
        records: The trials.
    """

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records: list[RunRecord] = []
        self._results: dict[
            tuple[str, str, float | None, bool], tuple[dict[Keys, dict[int, float]], dict[Keys, dict[int, int]]]
        ] = {}
        for record in records:
            self.add(record)

    @classmethod
    def read(cls) -> Evidence:
        """Return the stored trials."""
        return cls(read(FILE))

    def trials(
        self, dataset: str, method: str, setting: Setting, clip: float | None = None, *, pinned: bool = True
    ) -> Trials:
        """Return a search; trials that are added later are in it, too.

        Args:
            dataset: The data set.
            method: The method.
            setting: The data set's federation.
            clip: ``clip-gradient`` of its trials, which then have a margin; None for an earlier search.
            pinned: Whether it is the search with the method's pinned keys; without it, the one before they were pinned.
        """
        accuracies, diverged = self._results.setdefault((dataset, method, clip, pinned), ({}, {}))
        return Trials(
            dataset, method, setting.rates(method), accuracies, setting.own_keys(method), setting.growth, clip, diverged
        )

    def add(self, record: RunRecord) -> None:
        """Add a trial. Keys that all trials of its search share do not tell it apart, and are left out."""
        self.records.append(record)
        shared_keys = RateTrial(record.dataset, record.method, (), record.seed).config
        pinned_keys = PINNED.get(record.method, {}) if record.config.get(CLIP) else {}
        pinned = all(record.config.get(key) == value for key, value in pinned_keys.items())
        shared_keys |= pinned_keys
        keys = _keys(
            {key: value for key, value in record.config.items() if key == CLIP or shared_keys.get(key) != value}
        )
        if record.method not in UNCLIPPED:  # an earlier search
            keys = tuple(pair for pair in keys if pair != (CLIP, 0.0))
        accuracies, diverged = self._results.setdefault(
            (record.dataset, record.method, dict(keys).get(CLIP), pinned), ({}, {})
        )
        accuracies.setdefault(keys, {})[record.seed] = record.held_out
        diverged.setdefault(keys, {})[record.seed] = record.diverged


def pinned_by_default(method: str) -> bool:
    """Return whether a method's pinned keys have become its defaults, so that the search with them counts."""
    return PINNED.get(method, {}).keys() <= former(method).keys()


def _keys(values: Mapping[str, Any]) -> Keys:
    return tuple(sorted((key, float(value)) for key, value in values.items()))
