"""Which runs a block needs next: trials, then reported seeds, then equal bytes.

Trials, 15 for each contender, and more where step 4 or 5 says so, over the full rounds with the schedule of these:

1. The five rates with the first tuning seed, at the first value of its own key.
2. The two other values of that key at the best rate. A contender without one has two more rates instead.
3. Two rates around the best point at its value of the key: its neighbours where they are new, else the middle, on a
   logarithmic scale, between it and them. Beyond the ends the grid goes on with its last factor, so that nobody's best
   is at an edge that others do not have.
4. The three best points with the two other seeds. Where these have one rate, that rate was judged by one seed alone: so
   the three best points of other rates get the two other seeds, too. Of the block's ``doubted``, all points get them.
   The best mean is chosen; of equal ones, the smaller rate.
5. Where its own key is at an end of its three values, one value beyond that end, at its rate, with all three seeds. It
   is chosen if its mean is better.
6. Where the block widens the search (``also``, ``widened``), each further key in turn: its values at the point chosen
   so far, with all three seeds. One is chosen if its mean is better.

A trial is judged by validation accuracy of what a client holds after the closing round. One that ends with an error has
0. Reported seeds go round the contenders, so that a block that is not finished is balanced. A run at equal bytes has as
many rounds as its budget buys with every seed, but no more than the block's; with these, it is the reported run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from referee.leaderboard.blocks import BUDGETS, TUNING, Config, Contender, LeaderboardBlock, text
from sepal.errors import ConfigError
from sepal.study.record import RunRecord
from sepal.study.search import beyond, choose, two_digits

FINALISTS = 3
TRIALS = 9 + FINALISTS * (len(TUNING) - 1)  # the least that a contender has
HELD = "trained"  # the view of what a client holds after the closing round
ALIKE = 2e-6  # means that differ by no more are equal: stored accuracies are rounded to six digits


@dataclass(frozen=True)
class BlockRun:
    """One run that a block needs.

    Attributes:
        kind: ``trial``, ``rounds`` (as many as all others have) or ``bytes``.
    """

    block: str
    contender: str
    kind: str
    config: Config = field(hash=False)


class Design:
    """A block and its stored rows. A design does not change: a further row needs a new one.

    Args:
        block: The block.
        rows: Its rows.
    """

    def __init__(self, block: LeaderboardBlock, rows: Sequence[RunRecord]) -> None:
        self.block = block
        self.rows = {text(row.config): row for row in rows}
        self._points: dict[str, list[Config]] = {}
        self._chosen: dict[str, Config | None] = {}

    def row(self, config: Config) -> RunRecord | None:
        """Return the row of a run; None while it is missing."""
        return self.rows.get(text(config))

    def needed(self) -> Iterator[BlockRun]:
        """Yield the runs that can be run now and are missing, in their order."""
        return (run for run in self.planned_runs() if self.row(run.config) is None)

    def counted(self) -> list[RunRecord]:
        """Return the rows of this design, without those of an earlier one."""
        configs = {text(run.config) for run in self.planned_runs()}
        return [row for config, row in self.rows.items() if config in configs]

    def planned_runs(self) -> Iterator[BlockRun]:
        """Yield the runs that are known to belong to the block, in their order; some twice."""
        name = self.block.name
        for contender in self.block.contenders:
            for keys, seed in self.trials(contender):
                yield BlockRun(name, contender.name, "trial", self.block.config(contender, keys, seed))
        for seed in self.block.seeds:
            for contender in self.block.everybody:
                if (config := self.reported(contender, seed)) is not None:
                    yield BlockRun(name, contender.name, "rounds", config)
        for seed in self.block.seeds:
            for contender in self.block.contenders:
                for budget in BUDGETS:
                    if config := self.at_bytes(contender, budget, seed):
                        yield BlockRun(name, contender.name, "bytes", config)

    def reported(self, contender: Contender, seed: int) -> Config | None:
        """Return the keys of a run with the block's number of rounds; None until its trials have ended."""
        keys = self.chosen(contender)
        return None if keys is None else self.block.config(contender, keys, seed)

    def at_bytes(self, contender: Contender, budget: float, seed: int) -> Config | None:
        """Return the keys of a run within a budget; None if the budget buys no round, or if that is not known yet."""
        rounds, keys = self.bought(contender, budget), self.chosen(contender)
        return self.block.config(contender, keys, seed, rounds) if rounds and keys else None

    def bought(self, contender: Contender, budget: float) -> int | None:
        """Return the rounds that a share of dense FedAvg's bytes buys, at most the block's; None if not known yet.

        It is the least over all seeds of two counts: the rounds that the contender's reported run ended within the
        budget, and the rounds that the budget buys at that run's mean bytes a round. Some methods send less at the
        beginning, and others at the end. The closing download is paid from the budget, too. The first round counts as
        it was: it has no download, because clients draw the first model themselves.
        """
        rounds_by_seed = [self._bought(contender, budget, seed) for seed in self.block.seeds]
        bought = [rounds for rounds in rounds_by_seed if rounds is not None]
        return min(bought) if len(bought) == len(rounds_by_seed) else None

    def _bought(self, contender: Contender, budget: float, seed: int) -> int | None:
        reported, limit = self._reported_row(contender, seed), self.limit(budget, seed)
        if not reported or not reported.spent or limit is None:
            return None
        spent, limit = reported.spent, limit * (1 + 1e-9)
        later = (spent[-1] - spent[0]) / max(1, len(spent) - 1)
        at_mean = 1 + int(max(0.0, limit - spent[0]) / later) if later else self.block.rounds
        return min(sum(1 for so_far in spent if so_far <= limit), at_mean)

    def limit(self, budget: float, seed: int) -> float | None:
        """Return the MB of a share of what dense FedAvg spends with a seed; None if not known yet."""
        dense = next(contender for contender in self.block.contenders if contender.name == self.block.dense)
        whole = self._reported_row(dense, seed)
        return budget * whole.spent[-1] if whole and whole.spent else None

    def _reported_row(self, contender: Contender, seed: int) -> RunRecord | None:
        config = self.reported(contender, seed)
        return self.row(config) if config else None

    def chosen(self, contender: Contender) -> Config | None:
        """Return the rate and the own key that its trials have chosen; None until they have ended."""
        if contender.tuned_as:
            tuned = next(tuned for tuned in self.block.contenders if tuned.name == contender.tuned_as)
            return self._at_value(contender, tuned) if contender.rate_at_value else self.chosen(tuned)
        if contender.name not in self._chosen:
            self._chosen[contender.name] = self._choose(contender)
        return self._chosen[contender.name]

    def _at_value(self, contender: Contender, tuned: Contender) -> Config | None:
        """Return the keys chosen for another contender with the best rate at this one's value of the own key.

        The best mean over the tuning seeds counts; where no rate has all seeds at that value, the first seed's value.
        """
        chosen, key = self.chosen(tuned), tuned.own_key
        if chosen is None or chosen[key] == contender.keys[key]:
            return chosen
        points = [keys for keys in self.points(tuned) if keys[key] == contender.keys[key]]
        whole = [keys for keys in points if self.mean(tuned, keys) is not None]
        pairs = (
            [(keys, self.mean(tuned, keys) or 0.0) for keys in whole]
            if whole
            else [(keys, self.validation(tuned, keys, TUNING[0]) or 0.0) for keys in points]
        )
        if not pairs:
            raise ConfigError(
                f"contenders.{contender.name}", f"a value of {key} that {tuned.name} tries", contender.keys[key]
            )
        return {**chosen, **choose(pairs, itemgetter(1), lambda pair: pair[0]["lr"])[0]}

    def _choose(self, contender: Contender) -> Config | None:
        return self._widened(contender)[1]

    def _widened(self, contender: Contender) -> tuple[list[Config], Config | None]:
        """Return the points of the further keys that are known, and the choice; None until their trials have ended."""
        best, further = self._best_mean(contender, self.finalists(contender)), self.further(contender)
        best, tried = self._best_mean(contender, [best, further]) if best and further else best, list[Config]()
        for key, values in self.block.further_keys(contender).items():
            if best is not None:
                points = [{**best, key: value} for value in values]
                tried, best = tried + points, self._best_mean(contender, [best, *points])
        return tried, best

    def further(self, contender: Contender) -> Config | None:
        """Return the point beyond the end of its own key at which the best finalist is; None without, or not yet."""
        best, key = self._best_mean(contender, self.finalists(contender)), contender.own_key
        if best is None or not key:
            return None
        values = contender.own[key]
        end = "low" if best[key] == min(values) else "high" if best[key] == max(values) else ""
        return {**best, key: contender.beyond[end]} if end in contender.beyond else None

    def _best_mean(self, contender: Contender, points: Sequence[Config]) -> Config | None:
        pairs = [(keys, mean) for keys in points if (mean := self.mean(contender, keys)) is not None]
        if not pairs or len(pairs) < len(points):
            return None
        chosen = choose(pairs, itemgetter(1), lambda pair: pair[0]["lr"], lambda best, pair: pair[1] >= best[1] - ALIKE)
        return chosen[0]

    def mean(self, contender: Contender, keys: Config) -> float | None:
        """Return the mean validation accuracy over the tuning seeds; None if one is missing."""
        values = [self.validation(contender, keys, seed) for seed in TUNING]
        accuracies = [value for value in values if value is not None]
        return sum(accuracies) / len(accuracies) if len(accuracies) == len(values) else None

    def finalists(self, contender: Contender) -> list[Config]:
        """Return the best points with the first seed, the best first; empty until all have ended.

        These are three, and three more with other rates if the first three share one rate. Of a contender whose search
        the block doubts, they are all points.
        """
        points = self.points(contender)
        values = {text(keys): self.validation(contender, keys, TUNING[0]) for keys in points}
        if len(points) < TRIALS - FINALISTS * (len(TUNING) - 1) or None in values.values():
            return []
        ranked = sorted(points, key=lambda keys: (-(values[text(keys)] or 0.0), keys["lr"]))
        if contender.name in self.block.doubted:
            return ranked
        best, rates = ranked[:FINALISTS], {keys["lr"] for keys in ranked[:FINALISTS]}
        others = [keys for keys in ranked if keys["lr"] not in rates] if len(rates) == 1 else []
        return [*best, *others[:FINALISTS]]

    def trials(self, contender: Contender) -> Iterator[tuple[Config, int]]:
        """Yield keys and seed of the trials that are known so far."""
        yield from ((keys, TUNING[0]) for keys in self.points(contender))
        yield from ((keys, seed) for seed in TUNING[1:] for keys in self.finalists(contender))
        if further := self.further(contender):
            yield from ((further, seed) for seed in TUNING)
        yield from ((keys, seed) for keys in self._widened(contender)[0] for seed in TUNING)

    def tried(self, contender: Contender) -> int:
        """Return how many trials it has, as far as is known."""
        return 0 if contender.tuned_as else max(TRIALS, len(list(self.trials(contender))))

    def all_points(self, contender: Contender) -> list[Config]:
        """Return all points that the first seed has tried or will try, as far as they are known."""
        further = self.further(contender)
        return [*self.points(contender), *([further] if further else []), *self._widened(contender)[0]]

    def points(self, contender: Contender) -> list[Config]:
        """Return the points of the first seed as far as they are known."""
        if contender.name not in self._points:
            self._points[contender.name] = self._find_points(contender)
        return self._points[contender.name]

    def _find_points(self, contender: Contender) -> list[Config]:
        start = {key: values[0] for key, values in contender.own.items()}
        points: list[Config] = [{"lr": rate, **start} for rate in self.block.rates]
        others = [{key: value} for key, values in contender.own.items() for value in values[1:]]
        best = self._best(contender, points)
        if best is None:
            return points
        points += [{**best, **own_value} for own_value in others] if others else self._around(best, points)
        best = self._best(contender, points)
        return points if best is None else points + self._around(best, points)

    def _best(self, contender: Contender, points: Sequence[Config]) -> Config | None:
        values = [self.validation(contender, keys, TUNING[0]) for keys in points]
        if None in values:
            return None
        pairs = [(value or 0.0, keys) for value, keys in zip(values, points, strict=True)]
        return choose(pairs, itemgetter(0), lambda pair: pair[1]["lr"])[1]

    def _around(self, best: Config, points: Sequence[Config]) -> list[Config]:
        tried = {text(keys) for keys in points}
        grid = sorted({*self.block.rates, *(keys["lr"] for keys in points)})
        index = grid.index(best["lr"])
        lower = grid[index - 1] if index else beyond(grid[0], grid) or grid[0]
        upper = grid[index + 1] if index + 1 < len(grid) else beyond(grid[-1], grid) or grid[-1]
        nearby = []
        for rate in (lower, upper):
            near = {**best, "lr": rate}
            middle = {**best, "lr": two_digits(math.sqrt(rate * best["lr"]))}
            nearby.append(middle if text(near) in tried else near)
        return nearby

    def validation(self, contender: Contender, keys: Config, seed: int) -> float | None:
        """Return a trial's validation accuracy, 0 if it ended with an error; None while it is missing."""
        row = self.row(self.block.config(contender, keys, seed))
        return None if row is None else row.validation.get(HELD, 0.0)
