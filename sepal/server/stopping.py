"""Ends a run before its limit: when validation accuracy has stopped rising (``stop-after``), or when a caller asks.

The rule of ``stop-after = N``. A point is the mean validation accuracy over the clients of a round. The mean of the
last five points is followed. It has risen when it is more than half a percentage point above what it was at its last
rise; its first value counts as a rise. (Of a headline that is no share, such as RMSE: when it is better by more than
half a per cent of itself.) The run ends after the first point that is N or more rounds after the last rise. Five
points, because the sampled clients change each round; half a point, because smaller steps are mostly noise.

The points are in the received view for a method that deploys it, and otherwise in the trained view. They are those of
rounds that do not evaluate all clients, because in the others some methods tune the trained model further; of full
evaluations where there are no other rounds (``evaluate-sampled = false`` or ``evaluate-every = 1``). Rounds before the
method's last phase do not count: a method is not ended in the middle of its schedule, which is that of ``rounds``. A
round without validation accuracy is no point, so a run whose clients send none goes on to its limit.

All of this depends on the configuration and the records alone, so a resumed run ends after the same round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sepal.config import RunConfig
from sepal.method.interface import Method
from sepal.protocol.types import Plan
from sepal.server.accuracy import summed_figures, view_figures
from sepal.server.run_state import RoundRecord
from sepal.tasks.scoring import BY_ACCURACY, Scoring

POINTS = 5  # in the mean that is followed
RISE = 0.005  # accuracy, as a fraction


@dataclass(frozen=True)
class Stopped:
    """Why a run ended before its limit.

    Attributes:
        by: ``stop-after``, ``privacy.budget`` or ``should_stop``.
        reason: The same in words.
    """

    by: str
    reason: str


@dataclass(frozen=True)
class Stopping:
    """Whether the run ends after the records seen so far; see the module's text.

    Attributes:
        after: ``stop-after``; 0: never.
        view: View of the points.
        full: Whether points are full evaluations.
        first: The first round that counts.
        points: The last points, at most five.
        best: Their mean at the last rise.
        risen: Round of the last rise; 0 before the first.
        stopped: Why the run ends; None if it goes on.
        scoring: The metrics of the run's task.
    """

    after: int
    view: str
    full: bool
    first: int
    points: tuple[float, ...] = ()
    best: float = 0.0
    risen: int = 0
    stopped: Stopped | None = None
    scoring: Scoring = BY_ACCURACY

    @classmethod
    def of(
        cls, config: RunConfig, method: Method, plan: Callable[[int], Plan], scoring: Scoring = BY_ACCURACY
    ) -> Stopping:
        """Return the state before the first round.

        Args:
            config: The run's configuration.
            method: The method's record.
            plan: Returns the method's plan of a round.
            scoring: The metrics of the run's task.
        """
        first = config.rounds if config.stop_after else 1
        while first > 1 and plan(first - 1).phase == plan(config.rounds).phase:
            first -= 1
        view = "received" if method.deployed == "received" else "trained"
        full = config.evaluate_every == 1 or not config.evaluate_sampled
        return cls(config.stop_after, view, full, first, scoring=scoring)

    def plus(self, record: RoundRecord) -> Stopping:
        """Return the state after the next round."""
        if self.stopped or any(entry.purpose == "closing" for entry in record.ledger):
            return self
        if record.stopped:
            return self.stopped_by_caller()
        if not self.after or record.full is not self.full or record.round < self.first:
            return self
        metrics = [record.replies[name].figures for name in sorted(record.replies)]
        part = "validation-"
        summed = summed_figures(record.summed, self.view, part)
        figures = summed or view_figures(metrics, self.view, part, self.scoring)
        if figures is None:
            return self
        points = (*self.points, figures["mean"])[-POINTS:]
        mean = sum(points) / POINTS
        measure = self.scoring.measure
        gain = measure.sign * (mean - self.best)
        if len(points) < POINTS or (self.risen and gain <= measure.rise(RISE, self.best)):
            since = self.risen and record.round - self.risen >= self.after
            return replace(self, points=points, stopped=self._plateau() if since else None)
        return replace(self, points=points, best=mean, risen=record.round)

    def _plateau(self) -> Stopped:
        measure = self.scoring.measure
        last = f"since {measure.text(self.best)} in round {self.risen}"
        verb = "risen" if measure.higher else "fallen"
        words = f"validation {measure.name} ({self.view}, mean of {POINTS} points) has not {verb} {last}"
        return Stopped("stop-after", words)

    def stopped_by_budget(self, budget: float) -> Stopping:
        """Return the state after the last round within ``privacy.budget``; nothing if it is stopped already."""
        if self.stopped:
            return self
        reason = f"after another round ε would be above privacy.budget = {budget:g}"
        return replace(self, stopped=Stopped("privacy.budget", reason))

    def stopped_by_caller(self) -> Stopping:
        """Return the state after ``should_stop`` has ended the run."""
        return replace(self, stopped=Stopped("should_stop", "the caller of Strategy.start asked for it"))
