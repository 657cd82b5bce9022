"""A run's figures for Prometheus, from the ServerApp's process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sepal.server.report import RunFigures
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.status import Status
from sepal.tasks.scoring import ACCURACY, headline, measure_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MOST_REASONS = 50  # clients choose some of the words; each would be a series of its own
OTHER = "other"
CLOSING, CLOSED = "closing", "closed"  # phases that no round of the user's has


class ServerFigures:
    """Counts what an :class:`sepal.server.observer.Observer` is told; a collector of prometheus-client.

    Args:
        status: Returns what the run is doing.
        certificates: Path to the time at which the certificate there expires, in seconds since 1970.
    """

    def __init__(self, status: Callable[[], Status], certificates: Mapping[str, float] | None = None) -> None:
        self._status, self._rounds, self._done = status, 0, 0
        self._certificates = certificates or {}
        self._last_round = time.time()  # until a round ends, when this process began
        self._uploads: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._sizes: dict[int, int] = {}  # round to the entries of its ledger that were counted
        self._seconds: dict[int, Mapping[str, float]] = {}
        self._diverged: dict[int, int] = {}
        self._headline: dict[str, float] = {}
        self._measure = ACCURACY

    def opened(self, progress: RunState, total: int) -> None:
        """Keep the number of rounds, and how many there are already."""
        self._rounds, self._done = total, min(progress.round, total)

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Count the round's messages."""
        self._last_round = time.time()
        if line["phase"] != CLOSING:
            self._done = record.round
        self._count(record, self._sizes.pop(record.round, 0))
        self._headline |= {view: figures["mean"] for view, figures in headline(line).items() if figures}
        self._measure = measure_of(line)

    def undone(self, progress: RunState, record: RoundRecord) -> None:
        """Count the messages of the round that failed; those of completed rounds that are undone were counted."""
        repeated = [round for round in self._sizes if round > progress.round]
        counted = sum(self._sizes.pop(round) for round in repeated)
        for round in repeated:
            del self._seconds[round], self._diverged[round]
        self._count(record, counted)

    def _count(self, record: RoundRecord, counted: int) -> None:
        """Count a record's figures, and the entries of its ledger but the first ``counted``."""
        for entry in record.ledger[counted:]:
            self._bytes[entry.direction, entry.purpose] += entry.message
            if entry.direction == "up":
                self._uploads[entry.status, self._reason(entry.status, entry.reason)] += 1
        self._sizes[record.round] = len(record.ledger)
        self._seconds[record.round], self._diverged[record.round] = record.seconds, len(record.diverged)

    def _reason(self, status: str, reason: str) -> str:
        word = reason.partition(": ")[0][:40] if status == "refused" else ""
        counted = (status, word) in self._uploads or len(self._uploads) < MOST_REASONS
        return word if counted else OTHER

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """Do nothing: the last round was counted."""

    def _number(self, now: Status) -> int:
        """Return the round under way; the closing evaluation has a number inside, but is none of the user's."""
        return self._done if now.phase in (CLOSING, CLOSED) else min(now.round, self._rounds or now.round)

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = self._status()
        yield GaugeMetricFamily("sepal_round", "Round under way, from 1; at the end the last one", self._number(now))
        yield GaugeMetricFamily("sepal_rounds", "Rounds of the run, without the closing one", self._rounds)
        yield GaugeMetricFamily(
            "sepal_last_round_timestamp_seconds", "When the last round ended, or the process began", self._last_round
        )
        expiry = GaugeMetricFamily(
            "sepal_certificate_expiry_seconds", "When a certificate of the server expires, since 1970", labels=["file"]
        )
        for file, end in self._certificates.items():
            expiry.add_metric([file], end)
        yield expiry
        phase = GaugeMetricFamily("sepal_phase", "1 for the phase under way", labels=["phase"])
        phase.add_metric([now.phase], 1)
        yield phase
        clients = GaugeMetricFamily("sepal_clients", "Clients", labels=["state"])
        for state in ("roster", "present", "asked", "working", "missing"):
            clients.add_metric([state], getattr(now, state))
        yield clients
        uploads = CounterMetricFamily("sepal_replies", "Replies by status and reason", labels=["status", "reason"])
        for labels, count in sorted(self._uploads.items()):
            uploads.add_metric(labels, count)
        yield uploads
        size = CounterMetricFamily("sepal_message_bytes", "Bytes of messages", labels=["direction", "purpose"])
        for labels, count in sorted(self._bytes.items()):
            size.add_metric(labels, count)
        yield size
        seconds = CounterMetricFamily("sepal_round_seconds", "Seconds of completed rounds", labels=["part"])
        total: Counter[str] = Counter()
        for spent in self._seconds.values():
            total.update(spent)
        for part, value in sorted(total.items()):
            seconds.add_metric([part], value)
        yield seconds
        diverged = CounterMetricFamily("sepal_diverged_trainings", "Trainings of clients that diverged")
        diverged.add_metric([], sum(self._diverged.values()))
        yield diverged
        accuracy = GaugeMetricFamily("sepal_accuracy", "Mean accuracy on test data, newest round", labels=["view"])
        headlines = GaugeMetricFamily(
            "sepal_headline", "Mean of another task's headline metric, newest round", labels=["view", "metric"]
        )
        for view, mean in sorted(self._headline.items()):
            if self._measure == ACCURACY:
                accuracy.add_metric([view], mean)
            else:
                headlines.add_metric([view, self._measure.name], mean)
        yield accuracy
        if self._measure != ACCURACY:
            yield headlines
