"""The figures of a run: accuracy (or another headline), bytes and seconds, from the records of its rounds.

None of this is needed to continue a run. A resumed run computes its report from the records of the rounds up to its
checkpoint, so adding a figure does not change the format of checkpoints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sepal.protocol.types import Kind, Metrics, Plan
from sepal.protocol.views import CLOSING_VIEWS, MODELS
from sepal.server.accounting import Spent
from sepal.server.accuracy import Figures, capacity_group, client_accuracy, merged, summed_figures, view_figures
from sepal.server.ledger import Totals
from sepal.server.run_state import RoundRecord
from sepal.server.stopping import Stopped
from sepal.tasks.scoring import BY_ACCURACY, Measure, Scoring


@dataclass(frozen=True)
class Best:
    """The best round so far of one view: chosen on validation accuracy, reported as test accuracy."""

    round: int
    mean: float
    validation: float


@dataclass(frozen=True)
class RoundFigures:
    """Accuracy, or the task's other headline, over the clients of one round.

    Attributes:
        test: View to figures on the participants' test data; None if no client has the view. Views under shift and
            corruption come last.
        validation: The same on validation data, for received, trained and kept.
        novel: The same as ``test`` for the novel clients; empty if there are none.
        metrics: View to the task's metrics over the participants' test examples together; empty for a classification by
            accuracy.
        classes: View to the counts ``tp``, ``fp`` and ``fn`` of each class over the same examples; empty where
            ``metrics`` is, and for a task without classes.
    """

    test: Mapping[str, Figures | None]
    validation: Mapping[str, Figures | None]
    novel: Mapping[str, Figures | None]
    metrics: Mapping[str, Figures] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, record: RoundRecord, scoring: Scoring = BY_ACCURACY) -> RoundFigures:
        """Return the figures of a round."""
        names = sorted(record.replies)
        metrics = [record.replies[name].figures for name in names if name not in record.novel]
        novel = [record.replies[name].figures for name in names if name in record.novel]
        named = {key.partition(".")[0] for counts in (*metrics, *novel) for key in counts} - set(CLOSING_VIEWS)
        views = (*CLOSING_VIEWS, *sorted(name for name in named if name.partition("-")[0] in MODELS))
        if record.summed:
            views = (*CLOSING_VIEWS, *sorted({key.partition(".")[0] for key in record.summed} - set(CLOSING_VIEWS)))
        together = {view: sums for view in views if (sums := merged(metrics, view))}

        def of_view(view: str, part: str) -> Figures | None:
            if record.summed:
                return summed_figures(record.summed, view, part)
            return view_figures(metrics, view, part, scoring)

        return cls(
            {view: of_view(view, "") for view in views},
            {view: of_view(view, "validation-") for view in MODELS},
            {view: view_figures(novel, view, "", scoring) for view in views} if novel else {},
            {view: scoring.values(sums) for view, sums in together.items()},
            {view: counts for view, sums in together.items() if (counts := scoring.by_class(sums))},
        )

    def novel_clients(self, key: str = "accuracy") -> dict[str, Any] | None:
        """Return the novel clients' figures, under ``key``, and the gap to the participants' mean; None without any."""
        if not self.novel:
            return None
        pairs = {view: (self.test[view], novel_figures) for view, novel_figures in self.novel.items()}
        gap = {view: trained["mean"] - novel["mean"] for view, (trained, novel) in pairs.items() if trained and novel}
        return {key: dict(self.novel), "gap": gap}


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run so far. The summary is made from them.

    Attributes:
        totals: Bytes of all messages, by purpose.
        best: View to its best full evaluation.
        accuracy: View to the figures of the last full evaluation.
        accuracy_round: The round of that evaluation; 0 before the first.
        seconds: Sums of the rounds' ``total``, ``train`` and ``server``.
        digests: Client name to the digest of its last kept state; complete after the closing round.
        unseen: Number of clients in the last full evaluation whose test part has labels missing from their training
            part.
        novel: The novel clients' accuracy and its gap to the participants', after the closing round; else None.
        by_capacity: Quarter of the capacities to view to the figures of the last full evaluation, of the participants;
            empty where all have the same capacity.
        uploads: Client name to phase to the number of uploads in training that the server has seen, also those that it
            refused or that came too late.
        stopped: Why the run ended before its limit, or in the last round of it; else None.
        metrics: View to the task's metrics in the last full evaluation, over all examples of the participants.
        classes: View to counts by class of the same examples.
        diverged: Number of trainings of clients that diverged, also in rounds that were undone.
        undone: Number of rounds that were repeated (:mod:`sepal.server.recovery`).
        best_round: The round whose models the closing round has evaluated again; 0: those of the last round.
        trained: Number of uploads that count.
        refusal: Why the last upload that does not count was refused; empty if none was.
        scoring: The metrics of the run's task.
        released: With central noise, what has been released.
    """

    totals: Totals = field(default_factory=Totals)
    best: Mapping[str, Best] = field(default_factory=dict)
    accuracy: Mapping[str, Figures] = field(default_factory=dict)
    accuracy_round: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    unseen: int = 0
    novel: Mapping[str, Any] | None = None
    by_capacity: Mapping[str, Mapping[str, Figures]] = field(default_factory=dict)
    uploads: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    stopped: Stopped | None = None
    metrics: Mapping[str, Figures] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    diverged: int = 0
    undone: int = 0
    best_round: int = 0
    trained: int = 0
    refusal: str = ""
    scoring: Scoring = BY_ACCURACY
    released: Spent = field(default_factory=Spent)

    def plus(self, record: RoundRecord, phase: str = "") -> RunFigures:
        """Return the report with the next round added; ``phase`` is that of the round's plan."""
        digests = {name: reply.state for name, reply in record.replies.items() if reply.state}
        spent = {key: self.seconds.get(key, 0.0) + value for key, value in record.seconds.items()}
        after = replace(
            self,
            totals=self.totals.plus(record.ledger),
            seconds={**self.seconds, **spent},
            digests={**self.digests, **digests},
            uploads=_with_uploads(self.uploads, record, phase),
            diverged=self.diverged + len(record.diverged),
            undone=self.undone + any(entry.status == "undone" for entry in record.ledger),
            trained=self.trained + sum(reply.kind is Kind.TRAIN for reply in record.replies.values()),
            refusal=_refusal(record) or self.refusal,
            released=self.released.plus(record.releases, record.sampled),
        )
        if not record.full:
            return after
        figures = RoundFigures.of(record, self.scoring)
        unseen = [reply for reply in record.replies.values() if reply.metrics.get("unseen-test-labels", 0) > 0]
        return replace(
            after,
            best=_best(self.best, record.round, figures, self.scoring.measure),
            accuracy={view: view_values for view, view_values in figures.test.items() if view_values},
            accuracy_round=record.round,
            unseen=len(unseen),
            novel=figures.novel_clients(key_of(self.scoring)),
            by_capacity=capacity_groups(record, self.scoring),
            metrics=figures.metrics,
            classes=figures.classes,
            best_round=record.best_round,
        )


def _refusal(record: RoundRecord) -> str:
    """Return why the round's first refused upload was refused; empty if none was."""
    return next((f"{entry.client}: {entry.reason}" for entry in record.ledger if entry.status == "refused"), "")


def _with_uploads(
    before: Mapping[str, Mapping[str, int]], record: RoundRecord, phase: str
) -> dict[str, Mapping[str, int]]:
    """Count the round's uploads. A refused message counts, unless nothing came, because its content is unknown."""
    after = dict(before)
    for entry in record.ledger:
        unread = entry.status in ("refused", "late") and entry.message
        sends = entry.step in ("", "mask") and (entry.payload or unread)
        if entry.purpose == "training" and entry.direction == "up" and sends:
            counts = after.get(entry.client, {})
            after[entry.client] = {**counts, phase: counts.get(phase, 0) + 1}
    return after


def capacity_groups(record: RoundRecord, scoring: Scoring = BY_ACCURACY) -> dict[str, dict[str, Figures]]:
    """Return the participants' figures by quarter of the capacities and view; empty where all have the same one."""
    replies = [record.replies[name] for name in sorted(record.replies) if name not in record.novel]
    if len({reply.client.capacity for reply in replies}) < 2:
        return {}
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for reply in sorted(replies, key=lambda reply: reply.client.capacity):
        groups[capacity_group(reply.client.capacity)].append(reply.figures)
    by_group = {
        name: {view: view_figures(metrics, view, "", scoring) for view in CLOSING_VIEWS}
        for name, metrics in groups.items()
    }
    shown = {name: {view: figures for view, figures in views.items() if figures} for name, views in by_group.items()}
    return {name: views for name, views in shown.items() if views}


def _best(best: Mapping[str, Best], round: int, figures: RoundFigures, measure: Measure) -> dict[str, Best]:
    """Keep the round with the best validation mean; the pooled view uses the trained model's."""
    copied = dict(best)
    for view in CLOSING_VIEWS:
        chosen, test = figures.validation["trained" if view == "pooled" else view], figures.test[view]
        if chosen and test and (view not in copied or measure.better(chosen["mean"], copied[view].validation)):
            copied[view] = Best(round, test["mean"], chosen["mean"])
    return copied


def populations(clients: int, novel: int) -> dict[str, int]:
    """Return how many of ``clients`` are participants, and how many are novel."""
    return {"participants": clients - novel, "novel": novel}


def key_of(scoring: Scoring) -> str:
    """Return the key under which files have the headline: its figures were called accuracy before there were tasks."""
    return "accuracy" if scoring.counted else "headline"


def described(scoring: Scoring) -> dict[str, Any]:
    """Return what files say of the headline; nothing of accuracy (:func:`sepal.tasks.scoring.measure_of`)."""
    return {} if scoring.counted else {"metric": asdict(scoring.measure)}


def metrics_line(
    record: RoundRecord,
    plan: Plan,
    closing: bool,
    method: Metrics,
    totals: Totals,
    scoring: Scoring = BY_ACCURACY,
) -> dict[str, Any]:
    """Return a round's line of metrics.jsonl (``docs/run-directory.md``).

    Args:
        record: The round.
        plan: The method's plan of the round.
        closing: Whether it was the closing round.
        method: Figures from the server algorithm.
        totals: Bytes up to and including this round.
        scoring: The metrics of the run's task.
    """
    figures = RoundFigures.of(record, scoring)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for entry in record.ledger:
        sizes[entry.client, entry.direction] += entry.payload
    refusals = [entry for entry in record.ledger if entry.status != "accepted"]
    return {
        "round": record.round,
        "phase": "closing" if closing else plan.phase,
        "model_round": record.round - 1,
        **({"best_round": record.best_round} if record.best_round else {}),
        "population": len(record.replies),
        "populations": populations(len(record.replies), sum(name in record.novel for name in record.replies)),
        "full": record.full,
        **described(scoring),
        key_of(scoring): figures.test,
        **({} if scoring.counted else {"metrics": figures.metrics}),
        "validation": figures.validation,
        "novel": figures.novel_clients(key_of(scoring)),
        "bytes": {key: value for key, value in totals.summary().items() if key != "purposes"},
        "seconds": dict(record.seconds),
        "diverged": len(record.diverged),
        "halvings": record.halvings,
        **({"void": record.void} if record.void else {}),
        **({"beyond_range": record.beyond_range} if record.beyond_range else {}),
        **_simulated(record),
        **({"restarted": list(record.restarted)} if record.restarted else {}),
        "method": dict(method),
        "clients": [_client(record, name, sizes, figures, scoring) for name in sorted(record.replies)],
        "not_accepted": [{"client": e.client, "status": e.status, "reason": e.reason} for e in refusals],
    }


def _simulated(record: RoundRecord) -> dict[str, Any]:
    """Return what a line says of simulated time; nothing in a run that it does not concern."""
    if not (record.simulated or record.late):
        return {}
    return {"simulated": {"seconds": record.simulated, "late": list(record.late)}}


def _client(
    record: RoundRecord,
    name: str,
    sizes: Mapping[tuple[str, str], int],
    figures: RoundFigures,
    scoring: Scoring,
) -> dict[str, Any]:
    reply = record.replies[name]
    metrics = reply.metrics
    return {
        "name": name,
        "novel": name in record.novel,
        **{view: client_accuracy(reply.figures, view, scoring) for view in CLOSING_VIEWS},
        "further": {
            view: client_accuracy(reply.figures, view, scoring) for view in figures.test if view not in CLOSING_VIEWS
        },
        "examples": reply.client.examples,
        "capacity": reply.client.capacity,
        "up": sizes[name, "up"],
        "down": sizes[name, "down"],
        "metrics": {key: value for key, value in metrics.items() if "." not in key},
    }
