"""Figures of a view, over rounds, clients and seeds, from run directories: the one place that computes them.

What is called accuracy here is the headline metric of the runs' task (:attr:`RunResult.measure`).

A point of a curve belongs to a round, counted as the user set them; the closing evaluation belongs to the last one. Its
bytes are those of the rounds completed before: *received* scores the server's model after them, *trained* and *pooled*
the models that clients make from it, and all three have cost the same bytes of training. Only full evaluations are
points (``evaluate-every``): a mean over sampled clients is a different figure (:meth:`RunResult.sampled`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from sepal.runs.claims import read_claims
from sepal.runs.devices import stored_devices
from sepal.runs.json_lines import Line, read_rows
from sepal.runs.stored_run import NOTHING, Allowed, StoredRun, read_run
from sepal.simulated_time import DeviceProfile
from sepal.study import statistics
from sepal.study.simulated_time import DRAWS, HOUR, RunTimes
from sepal.study.statistics import BySeed, Difference, Estimate, Rise
from sepal.tasks.scoring import Measure, headline

MEGA = 1e6  # bytes in a MB
LEAST_POINTS = 3  # full evaluations, below which the first of them that has an accuracy says little of when it came
DIRECTIONS = ("up", "down")


class TrainingCost(NamedTuple):
    """MB of training, up and down, over all clients, and seconds until some round."""

    megabytes: float
    seconds: float


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation, of all clients or of a round's.

    Attributes:
        round: The round, from 1; of the closing evaluation, the last round that trained.
        completed: Rounds completed before; in the closing evaluation all, otherwise one less than ``round``.
        megabytes: Payload bytes of training in them, up and down, over all clients, / 10⁶.
        seconds: Wall-clock time that they took.
        mean: Mean accuracy over clients.
        bottom_decile: Accuracy of the ⌊C/10⌋-th worst of C clients; NaN where only sums over clients are known.
    """

    round: int
    completed: int
    megabytes: float
    seconds: float
    mean: float
    bottom_decile: float


@dataclass(frozen=True)
class RunResult:
    """One run among those that are compared.

    Attributes:
        label: Its name among the others: that of its method or of a variant.
        cell: The swept values that it shares with others; empty if none are swept.
    """

    label: str
    cell: str
    seed: int
    stored: StoredRun

    @cached_property
    def lines(self) -> Sequence[Line]:
        """Lines of rounds that evaluated all clients, each with the model that a user of its method would get.

        In other rounds, *trained* is the model of the training itself, which some methods tune further for a user.
        """
        return [line for line in self.stored.lines if line["full"] or line["phase"] == "closing"]

    @cached_property
    def spent(self) -> Mapping[int, TrainingCost]:
        """Rounds completed → what they have taken."""
        spent, seconds = {0: TrainingCost(0.0, 0.0)}, 0.0
        for line in self.stored.lines:
            seconds += line["seconds"]["total"] + line["seconds"]["server"]
            spent[line["round"]] = TrainingCost((line["bytes"]["up"] + line["bytes"]["down"]) / MEGA, seconds)
        return spent

    def points(self, view: str) -> list[CurvePoint]:
        """Return the view's curve; empty if the method has no such view."""
        return self._points(self.lines, view)

    def sampled(self, view: str) -> list[CurvePoint]:
        """Return the view in the rounds between full evaluations, over each round's clients alone."""
        full = {line["round"] for line in self.lines}
        return self._points([line for line in self.stored.lines if line["round"] not in full], view)

    def _points(self, lines: Sequence[Line], view: str) -> list[CurvePoint]:
        return [
            CurvePoint(_round(line), done, *self.spent[done], figures["mean"], figures.get("bottom_decile", nan))
            for line in lines
            if (figures := headline(line).get(view))
            for done in [line["model_round"]]
        ]

    def accuracy(self, view: str) -> Mapping[str, float] | None:
        """Return the view's last figures over all clients; None if there are none."""
        return next((figures for line in reversed(self.lines) if (figures := headline(line).get(view))), None)

    def clients(self, view: str) -> dict[str, float]:
        """Return each client's last accuracy in a view, by name."""
        line = next((line for line in reversed(self.lines) if headline(line).get(view)), None)
        values = {c["name"]: c.get(view, c["further"].get(view)) for c in line["clients"]} if line else {}
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def processors(self) -> tuple[str, ...]:
        """The kinds of processor on which the run was made, also of jobs that another one continued."""
        versions = (self.stored.summary or {}).get("versions")
        of_summary = versions.get("cpu") if isinstance(versions, dict) else None
        kinds = [claim.processor for claim in read_claims(self.stored.path)]
        return tuple(dict.fromkeys(filter(None, (*kinds, str(of_summary or "")))))

    @cached_property
    def _ledger(self) -> Sequence[Mapping[str, Any]]:
        return read_rows(self.stored.path / "ledger.jsonl")

    @cached_property
    def sent(self) -> dict[str, dict[str, float]]:
        """Direction → client → MB of training payloads."""
        sums: dict[str, dict[str, float]] = {direction: {} for direction in DIRECTIONS}
        for row in self._ledger:
            if row["purpose"] == "training":
                sums[row["direction"]].setdefault(row["client"], 0.0)
                sums[row["direction"]][row["client"]] += row["payload"] / MEGA
        return sums

    @cached_property
    def times(self) -> RunTimes:
        """Its work, of which a profile of devices makes seconds."""
        return RunTimes(self.stored.lines, self._ledger, self.seed, self.devices)

    @cached_property
    def devices(self) -> DeviceProfile | None:
        """The profile of devices with which the run began; None for a run without."""
        return stored_devices(self.stored.path)

    @cached_property
    def multiply_adds(self) -> float:
        """Multiply-adds of the training that the server asked for, over all clients, without evaluation."""
        requested = {(row["round"], row["client"]) for row in self._ledger if row["purpose"] == "training"}
        done = ((line["round"], client) for line in self.stored.lines for client in line["clients"])
        return float(sum(c["metrics"].get("multiply-adds", 0.0) for n, c in done if (n, c["name"]) in requested))

    @cached_property
    def rounds(self) -> int:
        """The rounds of the run: those that it had if it has ended, and otherwise the most that it may have."""
        return int((self.stored.summary or {}).get("rounds", self.stored.config["rounds"]))

    def reached(self, view: str, target: float) -> CurvePoint | None:
        """Return the first point at which the view's mean is ``target`` or better."""
        return next((point for _, point in self._reached(view, target)), None)

    def between(self, view: str, target: float) -> bool:
        """Return whether rounds before that point were not fully evaluated, so that one of them may have reached it."""
        return any(point.completed - before > 1 for before, point in self._reached(view, target))

    def _reached(self, view: str, target: float) -> list[tuple[int, CurvePoint]]:
        """Return that point alone, with the rounds completed at the one before; nothing if there is none."""
        sign, before = self.measure.sign, -1
        for point in self.points(view):
            if sign * point.mean >= sign * target:
                return [(before, point)]
            before = point.completed
        return []

    @property
    def measure(self) -> Measure:
        """The metric that the figures are of."""
        return self.stored.measure


def _round(line: Line) -> int:
    return int(line["model_round"] if line["phase"] == "closing" else line["round"])


def read_result(path: Path, label: str = "", cell: str = "", allowed: Allowed = NOTHING) -> RunResult:
    """Return the run in ``path``; without a label, it gets its method's name."""
    stored = read_run(path, allowed)
    return RunResult(label or str(stored.config["method"]), cell, int(stored.config["seed"]), stored)


@dataclass(frozen=True)
class Variant:
    """The runs of one variant in one cell, which differ in their seeds.

    Attributes:
        target: Accuracy that ``rounds_to`` and ``megabytes_to`` refer to.
        view: View in which it is to be reached.
        devices: The profile of devices by which hours are simulated, in place of that of the runs.
        draws: By how many draws of it.
    """

    label: str
    cell: str
    results: tuple[RunResult, ...]
    target: float
    view: str
    devices: DeviceProfile | None = None
    draws: int = DRAWS

    @property
    def measure(self) -> Measure:
        """The metric that the figures are of."""
        return self.results[0].measure

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.results[0].stored.config["method"])

    @property
    def deployed(self) -> str:
        """View of the model that a user of a deployed client predicts with; empty for a method not installed here."""
        return self.results[0].stored.deployed

    def view_of(self, view: str) -> str:
        """Return the view itself; for ``deployed``, the method's own deployed view."""
        return self.deployed if view == "deployed" else view

    @property
    def first(self) -> RunResult:
        """The run that figures of single clients show; with another seed, a client is a different client."""
        return min(self.results, key=lambda result: result.seed)

    def accuracy(self, view: str, figure: str = "mean") -> Estimate | None:
        """Return a figure of a view, or of ``deployed``, at the end, over seeds; None without such a view."""
        accuracies = [result.accuracy(self.view_of(view)) for result in self.results]
        return statistics.over_seeds([accuracy[figure] for accuracy in accuracies if accuracy and figure in accuracy])

    def by_seed(self, view: str) -> BySeed:
        """Return seed → client → last accuracy in a view, or in ``deployed``."""
        return {result.seed: result.clients(self.view_of(view)) for result in self.results}

    def difference(self, rival: Variant, view: str) -> Difference | None:
        """Return this variant's accuracy minus another's, with the interval over clients."""
        return statistics.paired(self.by_seed(view), rival.by_seed(view))

    def difference_by_seed(self, rival: Variant, view: str) -> Difference | None:
        """Return the same difference with the interval over seeds."""
        return statistics.paired_by_seed(self.by_seed(view), rival.by_seed(view))

    def accuracy_further(self, view: str) -> Estimate | None:
        """Return the mean of a view under shift or corruption, over seeds; None while no run with it has ended."""
        accuracies = [(result.stored.summary or {}).get("further", {}).get(view) for result in self.results]
        return statistics.over_seeds([accuracy["mean"] for accuracy in accuracies if accuracy])

    def megabytes(self, direction: str) -> float:
        """Return the MB of training in a direction, mean over seeds."""
        return float(sum(r.stored.bytes.get(direction, 0) for r in self.results) / len(self.results) / MEGA)

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of training in 10⁹, mean over seeds and clients."""
        shares = [
            result.multiply_adds / max(1, len(result.stored.lines[-1]["clients"]) if result.stored.lines else 1)
            for result in self.results
        ]
        return sum(shares) / len(shares) / 1e9

    def evaluations(self, view: str) -> int:
        """Return the full evaluations of a view, or of ``deployed``: of the seed that has fewest."""
        return min(len(result.points(self.view_of(view))) for result in self.results)

    @property
    def rounds_to(self) -> Estimate | None:
        """The round that reaches the target, over the seeds that do; None below :data:`LEAST_POINTS` evaluations."""
        return statistics.over_seeds([float(point.round) for point in self._at_target])

    @property
    def megabytes_to(self) -> Estimate | None:
        """MB to the target, over the seeds that reach it; None below :data:`LEAST_POINTS` evaluations."""
        return statistics.over_seeds([point.megabytes for point in self._at_target])

    @property
    def _at_target(self) -> list[CurvePoint]:
        if self.evaluations(self.view) < LEAST_POINTS:
            return []
        return [point for result in self.results if (point := result.reached(self.view, self.target))]

    @property
    def profile(self) -> DeviceProfile | None:
        """The profile of devices by which hours are simulated; None without one, or if its runs have several."""
        profiles = [result.devices for result in self.results]
        return self.devices or (profiles[0] if all(profile == profiles[0] for profile in profiles) else None)

    @property
    def why_no_hours(self) -> str:
        """Why its profile says nothing of these runs; empty if it does, or without one."""
        profile = self.profile
        return next((why for result in self.results if profile and (why := result.times.why_not(profile))), "")

    def simulated(self, points: Sequence[tuple[RunResult, str, int]], links: float = 1.0) -> Estimate | None:
        """Return the simulated hours until clients have the models of evaluations; None if they are not known.

        Args:
            points: A run, a view, and the rounds completed before the evaluation, of each seed.
            links: Factor on the bits a second of all links.

        Returns:
            The mean over seeds and draws of devices, with their standard deviation; ``count`` is that of the seeds.
        """
        profile = self.profile
        if profile is None or self.why_no_hours or not points:
            return None
        hours = [
            result.times.clock(draw, links).at(view, completed) / HOUR
            for result, view, completed in points
            for draw in profile.draws(self.draws)
        ]
        estimate = statistics.over_seeds(hours)
        return estimate and replace(estimate, count=len(points))

    @property
    def at_the_end(self) -> list[tuple[RunResult, str, int]]:
        """The last evaluation of all clients of each run, in its deployed view, for :meth:`simulated`."""
        view = self.deployed or "trained"
        by_result = [(result, result.points(view)) for result in self.results]
        return [(result, view, points[-1].completed) for result, points in by_result if points]

    @property
    def at_the_target(self) -> list[tuple[RunResult, str, int]]:
        """The evaluations that reach the target first, of the seeds that do, for :meth:`simulated`."""
        if self.evaluations(self.view) < LEAST_POINTS:
            return []
        reached = ((result, result.reached(self.view, self.target)) for result in self.results)
        return [(result, self.view, point.completed) for result, point in reached if point]

    @property
    def hours(self) -> Estimate | None:
        """Simulated hours to the end of the runs, the delivery of the deployed models included."""
        return self.simulated(self.at_the_end) if self.profile else None

    @property
    def hours_to(self) -> Estimate | None:
        """Simulated hours to the target, over the seeds that reach it; None below :data:`LEAST_POINTS` evaluations."""
        return self.simulated(self.at_the_target) if self.profile else None

    @property
    def at_most(self) -> bool:
        """Whether a seed may have reached the target in a round that was not fully evaluated."""
        return any(result.between(self.view, self.target) for result in self.results)

    @property
    def rounds(self) -> float:
        """Rounds, mean over seeds: with ``stop-after``, seeds may differ."""
        mean = sum(result.rounds for result in self.results) / len(self.results)
        return int(mean) if mean.is_integer() else mean

    @property
    def stopped(self) -> bool:
        """Whether a run ended before its limit."""
        return any((result.stored.summary or {}).get("stopped") for result in self.results)

    @property
    def rising(self) -> Rise | None:
        """The rise at the end if the curves are still rising: the runs have not converged."""
        ended = [result for result in self.results if result.stored.summary is not None]
        mean_rise = statistics.mean_rise([statistics.rise(result.stored.lines, self.deployed) for result in ended])
        return mean_rise if mean_rise and mean_rise.goes_on else None

    def reached(self, estimate: Estimate | None, digits: int) -> str:
        """Return ``≤ 18.0 (1 of 2)``: a figure for the target, and how many seeds reach it if not all do."""
        if estimate is None:
            return "not reached" if self.evaluations(self.view) >= LEAST_POINTS else "–"
        some = f" ({estimate.count} of {len(self.results)})" if estimate.count < len(self.results) else ""
        return "≤ " * (self.at_most and estimate.mean > 0) + estimate.text(digits, 1.0) + some
