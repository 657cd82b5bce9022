"""What the rows say: collapses, and differences between kinds of arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy import stats

from sepal.study.statistics import holm
from referee.stability.runs import Row

COLLAPSED = 2 / 3  # of the method's best run on the data: less is a collapse, as on the leaderboard
MOST_DIFFERENCE = 0.01  # between kinds, in [0, 1]; a larger one must not be established
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """Two kinds of arithmetic, paired over seeds.

    Attributes:
        kinds: Their names.
        mean: Mean of the first minus the second.
        largest: Largest difference of a seed, without its sign.
        p: p-value of a paired t, not corrected; 1 for fewer than two seeds or no difference at all.
    """

    kinds: tuple[str, str]
    mean: float
    largest: float
    p: float


@dataclass(frozen=True)
class Cell:
    """All runs of one method on one data set.

    Attributes:
        dataset: The data set.
        method: The method.
        rows: The runs.
    """

    dataset: str
    method: str
    rows: Sequence[Row]

    def by_kind(self) -> dict[str, dict[int, float]]:
        """Return kind → seed → accuracy; a run that ended with an error has 0."""
        found: dict[str, dict[int, float]] = {}
        for row in self.rows:
            found.setdefault(row.kind, {})[row.seed] = row.accuracy or 0.0
        return found

    def collapsed(self) -> list[Row]:
        """Return the runs with less than two thirds of the best one's accuracy, or none."""
        best = max((row.accuracy or 0.0 for row in self.rows), default=0.0)
        return [row for row in self.rows if (row.accuracy or 0.0) < COLLAPSED * best or row.accuracy is None]

    def over_seeds(self) -> float | None:
        """Return the standard deviation over seeds, mean over kinds; None with fewer than two seeds."""
        spreads = [statistics.stdev(by_seed.values()) for by_seed in self.by_kind().values() if len(by_seed) > 1]
        return statistics.mean(spreads) if spreads else None

    def over_kinds(self) -> float | None:
        """Return the standard deviation over kinds of a seed's run, mean over seeds; None without two kinds."""
        by_kind = self.by_kind()
        seeds = set.intersection(*(set(by_seed) for by_seed in by_kind.values())) if len(by_kind) > 1 else set()
        spreads = [statistics.stdev(by_seed[seed] for by_seed in by_kind.values()) for seed in sorted(seeds)]
        return statistics.mean(spreads) if spreads else None

    def differences(self) -> list[Difference]:
        """Return the differences of each two kinds, over the seeds that both have."""
        found = []
        for (one, ours), (other, theirs) in combinations(self.by_kind().items(), 2):
            gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
            if not gaps:
                continue
            moves = len(gaps) > 1 and statistics.stdev(gaps) > 0
            p = float(stats.ttest_1samp(gaps, 0.0).pvalue) if moves else 1.0
            found.append(Difference((one, other), statistics.mean(gaps), max(map(abs, gaps)), p))
        return found


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Return the rows by data set and method, in their order."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.dataset, row.method), []).append(row)
    return [Cell(dataset, method, found) for (dataset, method), found in grouped.items()]


def established(found: Sequence[Cell]) -> Mapping[tuple[str, str], list[Difference]]:
    """Return the differences above a point that remain after Holm's correction over all cells and pairs of kinds."""
    tested = [(cell, difference) for cell in found for difference in cell.differences()]
    corrected = holm([difference.p for _, difference in tested])
    bad: dict[tuple[str, str], list[Difference]] = {}
    for (cell, difference), p in zip(tested, corrected, strict=True):
        if p < LEVEL and abs(difference.mean) > MOST_DIFFERENCE:
            bad.setdefault((cell.dataset, cell.method), []).append(difference)
    return bad
