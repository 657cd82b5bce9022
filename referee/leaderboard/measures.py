"""Accuracies and differences of a block's contenders, from its stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from referee.leaderboard.blocks import Contender
from referee.leaderboard.design import HELD, Design
from sepal.study.record import RunRecord
from sepal.study.statistics import Estimate, Interval, Matrix, holm, interval, matrix, mean, paired_matrix, spread, wins

LEAST_SEEDS, LEAST_CLIENTS = 4, 3  # of a difference with a p-value: all seeds, and the clients of each
# Of the best seed's mean. In block b a model that always says a client's largest class has half of it
COLLAPSED = 2 / 3


@dataclass(frozen=True)
class AccuracyMeasure:
    """What is measured: a view of one population.

    Attributes:
        title: The column's.
        view: ``received``, ``trained``, ``kept``, one of them under shift, or ``deployed``: the method's own.
        novel: Whether of the clients that never trained, instead of those that did.
    """

    title: str
    view: str
    novel: bool = False


HOLDS = AccuracyMeasure("what a client holds", HELD)
NEWCOMER = AccuracyMeasure("what a newcomer gets", "received", novel=True)
VISIT = AccuracyMeasure("newcomer after one visit", HELD, novel=True)
DEPLOYED = AccuracyMeasure("deployed", "deployed")
KEPT = AccuracyMeasure("kept", "kept")
SHIFT = AccuracyMeasure("held, full shift", f"{HELD}-shift-100")
SENT_SHIFT = AccuracyMeasure("received, full shift", "received-shift-100")
Key: TypeAlias = tuple[str, str, AccuracyMeasure]  # block, contender, what is measured
ALL = (HOLDS, NEWCOMER, VISIT, DEPLOYED, KEPT, SHIFT, SENT_SHIFT)


@dataclass(frozen=True)
class SeedMean(Estimate):
    """A mean over seeds of means over clients, with its standard deviation over seeds; in [0, 1].

    Attributes:
        collapsed: Means of the seeds that have collapsed (:meth:`BlockResults.collapsed`).
        rest: The figure of the other seeds; None if no seed has collapsed.
    """

    collapsed: tuple[float, ...] = ()
    rest: SeedMean | None = None

    def words(self, unit: str = "") -> str:
        """Return the figure as text with a ``unit``, and which seeds have collapsed."""
        if self.rest is None:
            return self.text() + unit
        low = ", ".join(f"{100 * value:.1f}" for value in self.collapsed)
        count = f"{len(self.collapsed)} of {self.count} seeds collapsed"
        return f"{self.text()}{unit} ({count}: {low}; others {self.rest.text()})"


class BlockResults:
    """All figures of a block."""

    def __init__(self, design: Design) -> None:
        self.design, self.block = design, design.block

    def runs(self, contender: Contender, budget: float = 0.0) -> dict[int, RunRecord]:
        """Return seed → row of the stored reported runs; with a budget, of the runs within it.

        Empty if one of them ended with an error: the mean of the others would leave out just those seeds on which
        the contender fails.
        """
        rows = self._reported(contender, budget)
        return {} if any(row.error for row in rows.values()) else rows

    def failed(self, contender: Contender, budget: float = 0.0) -> str:
        """Return ``4 of 5 seeds`` if the run of the fifth ended with an error; empty if all ended well."""
        rows = self._reported(contender, budget)
        well = sum(not row.error for row in rows.values())
        return f"{well} of {len(self.block.seeds)} seeds" if well < len(rows) else ""

    def _reported(self, contender: Contender, budget: float) -> dict[int, RunRecord]:
        rows = {}
        for seed in self.block.seeds:
            design = self.design
            config = design.at_bytes(contender, budget, seed) if budget else design.reported(contender, seed)
            row = self.design.row(config) if config else None
            if row is not None:
                rows[seed] = row
        return rows

    def by_seed(
        self, contender: Contender, measure: AccuracyMeasure, budget: float = 0.0
    ) -> dict[int, dict[str, float]]:
        """Return seed → client → accuracy; without seeds in which nobody has the view."""
        accuracies = {seed: _clients(row, measure) for seed, row in self.runs(contender, budget).items()}
        return {seed: clients for seed, clients in accuracies.items() if clients}

    def values(self, contender: Contender, measure: AccuracyMeasure, budget: float = 0.0) -> Matrix:
        """Return the accuracies, float64 (seeds that are there, clients)."""
        accuracies = self.by_seed(contender, measure, budget)
        return matrix(
            accuracies, sorted(accuracies), sorted({name for clients in accuracies.values() for name in clients})
        )

    def figure(self, contender: Contender, measure: AccuracyMeasure, budget: float = 0.0) -> SeedMean | None:
        """Return a figure; None where nothing is there."""
        values = self.values(contender, measure, budget)
        if not values.size:
            return None
        all_rounds = not budget or self.design.bought(contender, budget) == self.block.rounds
        fell = self.collapsed(contender) if all_rounds else set()
        low = np.array([seed in fell for seed in sorted(self.by_seed(contender, measure, budget))])
        if not low.any() or low.all():
            return SeedMean(mean(values), spread(values), len(values))
        rest = values[~low]
        others = SeedMean(mean(rest), spread(rest), len(rest))
        return SeedMean(
            mean(values), spread(values), len(values), tuple(np.nanmean(values[low], axis=1).tolist()), others
        )

    def collapsed(self, contender: Contender) -> set[int]:
        """Return the seeds whose mean of what a client holds, in all rounds, is below two thirds of the best one's."""
        means = {seed: float(np.mean([*clients.values()])) for seed, clients in self.by_seed(contender, HOLDS).items()}
        return {seed for seed, value in means.items() if value < COLLAPSED * max(means.values())}

    def differences(self, contender: Contender, measure: AccuracyMeasure, budget: float = 0.0, to: str = "") -> Matrix:
        """Return a contender's accuracies minus another's (by default the yardstick's), where both have them."""
        reference = self.named(to or self.block.yardstick)
        return paired_matrix(*(self.by_seed(side, measure, budget) for side in (contender, reference)))

    def difference(
        self, contender: Contender, measure: AccuracyMeasure, budget: float = 0.0, to: str = ""
    ) -> Interval | None:
        """Return the difference to the yardstick, or another, with its interval; None with fewer than two seeds."""
        values = self.differences(contender, measure, budget, to)
        if not values.size or len(values) < 2 or contender.name == (to or self.block.yardstick):
            return None
        return interval(values, self.block.over)

    def without_collapsed(
        self, contender: Contender, reference: Contender, measure: AccuracyMeasure = HOLDS
    ) -> Interval | None:
        """Return the difference to another in a measure, of the seeds in which neither has collapsed."""
        fell = self.collapsed(contender) | self.collapsed(reference)
        sides = (
            {s: v for s, v in self.by_seed(side, measure).items() if s not in fell} for side in (contender, reference)
        )
        values = paired_matrix(*sides)
        return interval(values, self.block.over) if len(values) > 1 else None

    def between(
        self, contender: tuple[Contender, AccuracyMeasure], rival: tuple[Contender, AccuracyMeasure]
    ) -> Interval | None:
        """Return the difference of two contenders in a measure each; None with fewer than two seeds that have both."""
        values = paired_matrix(self.by_seed(*contender), self.by_seed(*rival))
        return interval(values, self.block.over) if len(values) > 1 else None

    def of_runs(self, run: tuple[Contender, float], rival_run: tuple[Contender, float]) -> Interval | None:
        """Return the difference in what a client holds of two contenders with a budget each (0: all rounds)."""
        values = paired_matrix(*(self.by_seed(contender, HOLDS, budget) for contender, budget in (run, rival_run)))
        same = run == rival_run or len(values) < 2
        return None if same else interval(values, self.block.over)

    def tested(self, contender: Contender, measure: AccuracyMeasure) -> bool:
        """Return whether a difference has a p-value: planned before the runs, with enough seeds and clients."""
        if measure not in (HOLDS, DEPLOYED) or contender.name not in self.block.tested:
            return False
        values = self.differences(contender, measure)
        return len(values) >= LEAST_SEEDS and int((~np.isnan(values)).sum(1).min()) >= LEAST_CLIENTS

    def wins(self, contender: Contender) -> tuple[int, int, int] | None:
        """Return the clients that hold a better, an equal and a worse model than with the yardstick."""
        values = self.differences(contender, HOLDS)
        if not values.size or contender.name == self.block.yardstick:
            return None
        return wins(values, self.block.same_people)

    @cached_property
    def yardstick(self) -> Contender:
        """The contender that all are compared with."""
        return self.named(self.block.yardstick)

    def named(self, name: str) -> Contender:
        """Return a contender by its name."""
        return next(contender for contender in self.block.everybody if contender.name == name)

    @cached_property
    def finished(self) -> bool:
        """Whether no run is missing."""
        return next(self.design.needed(), None) is None

    @property
    def compared(self) -> bool:
        """Whether all contenders' runs of all rounds have ended, well or not."""
        return all(len(self._reported(contender, 0.0)) == len(self.block.seeds) for contender in self.block.contenders)

    def whole(self, contender: Contender, reference: str = "") -> bool:
        """Return whether all seeds of a contender and of a reference, by default the yardstick, have runs."""
        both = (contender, self.named(reference or self.block.yardstick))
        return all(len(self.runs(side)) == len(self.block.seeds) for side in both)

    def megabytes(self, contender: Contender, budget: float = 0.0) -> float | None:
        """Return the MB of all clients, up and down, with the closing download, mean over seeds."""
        totals = [row.spent[-1] for row in self.runs(contender, budget).values()]
        return float(np.mean(totals)) if totals else None

    def over(self, contender: Contender, budget: float) -> float:
        """Return the largest share of a budget that a seed's run has spent; 0 if none has run."""
        limits = {seed: self.design.limit(budget, seed) for seed in self.block.seeds}
        spent = ((row.spent[-1], limits[seed]) for seed, row in self.runs(contender, budget).items())
        return max((total / limit for total, limit in spent if limit), default=0.0)

    def steps(self, contender: Contender) -> float | None:
        """Return the steps of a newcomer's one visit, mean over newcomers and seeds."""
        columns = [row.clients for row in self.runs(contender).values()]
        visit_steps = [
            s for c in columns for s, new in zip(c["steps"], c["novel"], strict=True) if new and s is not None
        ]
        return float(np.mean(visit_steps)) if visit_steps else None


def _clients(row: RunRecord, measure: AccuracyMeasure) -> dict[str, float]:
    return row.of_clients(row.deployed if measure.view == "deployed" else measure.view, measure.novel)


def corrected(
    all_results: Sequence[BlockResults], to_dense: bool = False, ranked: AccuracyMeasure = HOLDS
) -> dict[Key, tuple[Interval, float | None]]:
    """Return (block, contender, measure) → difference and p by Holm, of all that have all seeds.

    Those with a p (:meth:`BlockResults.tested`) are one family over all blocks; of the others p is None. It has as many
    members as were planned before the runs: one without a difference yet counts with p = 1, so that no p rises when it
    has one.

    Args:
        all_results: All blocks of the family.
        to_dense: Differences to dense FedAvg instead of those to the yardstick.
        ranked: What the family compares: what a client holds, or what both sides deploy.
    """
    differences = {
        (results.block.name, contender.name, measure): (difference, results.tested(contender, measure))
        for results in all_results
        for contender in results.block.contenders
        if results.whole(contender, to := results.block.dense if to_dense else results.block.yardstick)
        for measure in (ranked, NEWCOMER)
        if (difference := results.difference(contender, measure, to=to))
    }
    family = {key: difference.p for key, (difference, tested) in differences.items() if tested}
    planned = sum(len(results.block.tested) for results in all_results)
    values = holm([*family.values(), *[1.0] * (planned - len(family))])
    corrected_ps = dict(zip(family, values, strict=False))
    return {key: (difference, corrected_ps.get(key)) for key, (difference, _) in differences.items()}
