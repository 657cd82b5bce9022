"""A run's state, and how a round changes it.

The record of a round holds what the server cannot compute itself: who joined, which replies were accepted or refused,
and timings. The next state is a pure function of the previous state, the record and the accepted uploads, so a resumed
run that replays its records reaches the same state bit for bit. Accuracy, bytes and seconds are computed from the
records by :mod:`sepal.server.report` and are not part of the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sepal.method.aggregation import aggregated
from sepal.method.algorithms import ForgetsEvicted, LearnsRoster, ServerAlgorithm
from sepal.protocol.messages import Reply
from sepal.protocol.types import ClientInfo, Metrics, Payload, Plan, Schema, Uploads
from sepal.server.ledger import LedgerEntry
from sepal.storage.serialize import SPARING


@dataclass(frozen=True)
class RunState:
    """Everything that is needed to continue after ``round``. A checkpoint holds exactly this.

    Attributes:
        run: UUID of the run.
        round: The last completed round; 0 before the first.
        server: The server algorithm's state.
        weights: Digest of W_0; a run can only be continued with the same model.
        versions: Client name to the version of its last accepted reply.
        stores: Client name to the identity of its state store.
        roster: Client name to roster entry, unordered; clients join between rounds.
        closed: Whether the closing round is done; no round may follow it.
        novel: Sorted names of the novel clients, which never train and join in the closing round.
        evicted: Sorted names of the clients that an operator has evicted; they take no further part.
        began: Client name to the number of training examples with which it began, of those whose data have changed
            (``data-changes = "accept"``); ``roster`` has the numbers of now.
        restarting: Sorted names of the clients that had lost the version of their state, and start again as newcomers
            in the next round.
        clip: With ``privacy.mode = "central"``, the largest norm of an update in the next round; 0 before round 1, and
            in other runs.
    """

    run: str
    round: int
    server: Any
    weights: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)
    roster: Mapping[str, ClientInfo] = field(default_factory=dict)
    closed: bool = False
    novel: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    began: Mapping[str, int] = field(default_factory=dict, metadata=SPARING)
    restarting: tuple[str, ...] = field(default=(), metadata=SPARING)
    clip: float = field(default=0.0, metadata=SPARING)

    @property
    def members(self) -> list[str]:
        """Names of the clients that were not evicted, sorted."""
        return sorted(self.roster.keys() - set(self.evicted))

    @property
    def participants(self) -> list[str]:
        """Names of the clients that train, sorted."""
        return sorted(self.roster.keys() - set(self.novel) - set(self.evicted))


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round: replies, messages and timings.

    Attributes:
        sampled: Names of the clients that were asked to train; in the closing round, of all clients.
        joined: Clients that joined the roster, sorted by name.
        stores: Identity of each new client's state store.
        replies: Accepted replies, by client name; their uploads are in the run store.
        ledger: Every message, including those that were refused or lost.
        full: Whether the whole roster was evaluated in all views.
        novel: Names of the novel clients; only set in the closing round.
        seconds: ``total`` until the last reply, ``train`` of the slowest client, and ``server`` for the server's own
            work since the previous round's last reply.
        evicted: All clients that had been evicted when the round ended, sorted.
        stopped: Whether ``should_stop`` ended the run after this round (:mod:`sepal.server.stopping`).
        diverged: Names of the clients whose training diverged, one for each time; those of undone attempts come first.
        halvings: How often the clients' learning rate was halved (:mod:`sepal.server.recovery`).
        lowered_until: The last round that is to have that learning rate.
        undone: Whether the round is to be repeated: the record then has what the undone attempts have cost, and no
            reply.
        restarted: Names of the clients that had lost the version of their state, and started again as newcomers.
        summed: With secure sums, the sums of all clients' figures by name (:mod:`sepal.protocol.summed`).
        void: With secure sums, why no update counts; the server's state is then as before. Empty if the sum counts.
        beyond_range: With secure sums, how many clients changed an entry by more than ``secure-range``, so that they
            count as unchanged.
        best_round: In the closing round of a run with ``final-model = "best"``, the round whose full evaluation was
            best: what it started from is evaluated again; else 0.
        releases: With ``privacy.mode = "central"``, how many different sums of this round were released, noised; 0
            where nothing was. With ``"distributed"`` 1 once masked inputs were asked for, whatever came of them.
        clip: With it, the largest norm of an update in the next round.
        simulated: With ``devices`` and ``oversample`` or ``deadline``, the seconds of simulated time that the round
            took, without attempts that were undone; else 0.
        late: Names of the clients whose uploads came too late in simulated time, sorted. Their replies are those of
            an evaluation: figures without an upload and a state.
    """

    round: int
    sampled: tuple[str, ...]
    joined: tuple[ClientInfo, ...]
    stores: Mapping[str, str]
    replies: Mapping[str, Reply]
    ledger: tuple[LedgerEntry, ...]
    full: bool
    seconds: Mapping[str, float]
    novel: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    stopped: bool = False
    diverged: tuple[str, ...] = field(default=(), metadata=SPARING)
    halvings: int = field(default=0, metadata=SPARING)
    lowered_until: int = field(default=0, metadata=SPARING)
    undone: bool = field(default=False, metadata=SPARING)
    best_round: int = field(default=0, metadata=SPARING)
    restarted: tuple[str, ...] = field(default=(), metadata=SPARING)
    summed: Mapping[str, float] = field(default_factory=dict, metadata=SPARING)
    void: str = field(default="", metadata=SPARING)
    beyond_range: int = field(default=0, metadata=SPARING)
    releases: int = field(default=0, metadata=SPARING)
    clip: float = field(default=0.0, metadata=SPARING)
    simulated: float = field(default=0.0, metadata=SPARING)
    late: tuple[str, ...] = field(default=(), metadata=SPARING)


@dataclass(frozen=True)
class RoundStart:
    """The inputs of a round.

    Attributes:
        algorithm: The server algorithm.
        state: The run's state, including the clients that join in this round.
        plan: The method's plan of this round.
        closing: Whether this is the closing round: all clients receive their last download and are evaluated in all
            views, and keep their state.
        best_round: As in :class:`RoundRecord`.
    """

    algorithm: ServerAlgorithm[Any]
    state: RunState
    plan: Plan
    closing: bool = False
    best_round: int = 0

    def download(self, name: str) -> Payload:
        """Return the download of client ``name``; the newcomer's if none of its uploads was ever accepted."""
        make = self.algorithm.download if self.state.versions.get(name) else self.algorithm.newcomer
        return make(self.state.server, self.state.roster[name], self.plan_of(name))

    def plan_of(self, name: str) -> Plan:
        """Return the plan that is sent to client ``name``."""
        return replace(self.plan, novel=True) if name in self.state.novel else self.plan

    def upload_schema(self, name: str) -> Schema:
        """Return the schema of client ``name``'s upload."""
        return self.algorithm.upload_schema(self.state.server, self.state.roster[name], self.plan)


def admit(
    algorithm: ServerAlgorithm[Any], state: RunState, joined: Sequence[ClientInfo], stores: Mapping[str, str]
) -> RunState:
    """Return ``state`` with new clients in its roster, and tell the server algorithm about those that are not novel.

    A client without training examples is novel: it cannot train.

    Args:
        algorithm: The server algorithm.
        state: The state between two rounds.
        joined: The new clients, sorted by name.
        stores: Identity of each new client's state store.
    """
    if not joined:
        return state
    roster = {**state.roster, **{client.name: client for client in joined}}
    novel = tuple(sorted({*state.novel, *(client.name for client in joined if not client.examples)}))
    after = replace(state, roster=roster, stores={**state.stores, **stores}, novel=novel)
    return _tell(algorithm, after, [client for client in joined if client.name not in novel])


def start_round(
    algorithm: ServerAlgorithm[Any],
    state: RunState,
    plan: Plan,
    closing: bool,
    joined: Sequence[ClientInfo],
    stores: Mapping[str, str],
) -> RoundStart:
    """Admit the new clients and return the inputs of the round; novel clients join before the closing round."""
    after = admit(algorithm, state, joined, stores)
    if closing and getattr(algorithm, "learns_novel", True):
        after = _tell(algorithm, after, [state.roster[name] for name in state.novel])
    return RoundStart(algorithm, after, plan, closing)


def from_best(algorithm: ServerAlgorithm[Any], last: RunState, best: RunState) -> RunState:
    """Return the state from which the closing round evaluates an earlier round's models.

    Server and clients go back together, because both are kept by version; who takes part is as after the last round.

    Args:
        algorithm: The server algorithm.
        last: The run's state after the last round.
        best: Its state before the round whose full evaluation was best.
    """
    server, gone = best.server, sorted(set(last.evicted) - set(best.evicted))
    if gone and isinstance(algorithm, ForgetsEvicted):
        server = algorithm.evicted(server, gone)
    return replace(last, server=server, versions=best.versions)


def _tell(algorithm: ServerAlgorithm[Any], state: RunState, clients: Sequence[ClientInfo]) -> RunState:
    if not clients or not isinstance(algorithm, LearnsRoster):
        return state
    return replace(state, server=algorithm.joined(state.server, clients))


def advance(
    start: RoundStart, record: RoundRecord, uploads: Uploads, outcome: tuple[Any, Metrics] | None = None
) -> tuple[RunState, Metrics]:
    """Return the state after the round, and figures from the server algorithm.

    Args:
        start: The inputs of the round.
        record: The record of the round.
        uploads: The accepted uploads.
        outcome: What ``aggregate`` returns for them, if it is known.
    """
    state: Any = start.state.server
    metrics: Metrics = {}
    if not start.closing and not record.void:
        state, metrics = outcome or aggregated(start.algorithm, state, uploads, start.plan)
    gone = sorted(set(record.evicted) - set(start.state.evicted))
    if gone and isinstance(start.algorithm, ForgetsEvicted):
        state = start.algorithm.evicted(state, gone)
    versions = {name: reply.version for name, reply in record.replies.items() if reply.version}
    roster = start.state.roster
    changed = {name: reply.client for name, reply in record.replies.items() if reply.client != roster[name]}
    after = replace(
        start.state,
        roster={**roster, **changed} if changed else roster,  # so their weights are those of the next round
        began={**{name: roster[name].examples for name in changed}, **start.state.began},
        round=record.round,
        server=state,
        versions={**start.state.versions, **versions},
        closed=start.closing,
        evicted=record.evicted,
        restarting=(),
        clip=record.clip or start.state.clip,
    )
    return after, metrics
