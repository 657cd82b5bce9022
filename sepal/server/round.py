"""One round: sends orders to clients, checks their replies, and produces the round's record.

A round changes nothing but the store of accepted uploads, so a round that fails leaves the run's state as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeAlias

from flwr.app import RecordDict

from sepal.errors import (
    ChangedDataError,
    DeviceMemoryError,
    DivergedError,
    FailedError,
    ProtocolError,
    RoundError,
    SepalError,
    causes_of,
)
from sepal.method.algorithms import ChoosesParticipants, KeepsTime
from sepal.method.interface import RunSetup
from sepal.protocol.client_errors import AWAY
from sepal.protocol.messages import (
    DIVERGED,
    WITHIN_CLIP,
    Content,
    Enclosed,
    Reply,
    error_word,
    read_reply,
    sums_up,
    write_order,
)
from sepal.protocol.types import ClientInfo, Kind
from sepal.secure.keys import halves
from sepal.server.accounting import Spent, is_over_budget
from sepal.server.answers import Growth, attributed, check_other_keys, check_reply, keys_of
from sepal.server.central_noise import CentralNoise
from sepal.server.downloads import Downloads, most_message_bytes, room
from sepal.server.exchange import Compose, Take
from sepal.server.guard import Guard
from sepal.server.ledger import check_size, message_bytes
from sepal.server.outcome import Outcome, aggregate, aggregate_released, aggregate_sum, too_large
from sepal.server.recovery import NORM_FACTOR, most_diverged
from sepal.server.released_mean import Release, ReleasedMean, released
from sepal.server.requests import Request, is_full, plan_requests
from sepal.server.round_ledger import RoundLedger
from sepal.server.run_state import RoundRecord, RoundStart
from sepal.server.run_store import RunStore
from sepal.server.secure_round import SecureRound
from sepal.server.simulated_rounds import SimulatedRounds
from sepal.server.step_messages import FAILED, AskClients, StepMessages
from sepal.server.summed_uploads import SummedUploads, reading, summed_uploads, sums_by_name
from sepal.server.uploads import RoundUploads
from sepal.simulated_time import RoundEnd
from sepal.storage.serialize import flatten, restore

log = logging.getLogger("sepal")

Deliver: TypeAlias = Callable[[Sequence[int], Compose, Take], Mapping[int, str]]

ADVICE = "an upload may have been poisoned: go back with --from-round, and set max-update-norm"
NOTHING = Spent()
NO_REST = 0.0, 0.0  # may be asked at once
MOST_FAILED = 3  # failures before a client is given up; a held lock may be temporary
FIRST_REST, MOST_REST = 1.0, 30.0  # seconds before a client that cannot write is asked again; they grow


class Round:
    """Composes a round's messages and collects its replies.

    Args:
        start: What the round starts from.
        setup: Configuration and model layout.
        store: Stores the accepted uploads.
        joined: Clients that join the roster in this round.
        stores: Identity of each new client's state store.
        evicted: Clients that are not asked.
        drawn: Who trains, if it was drawn already (:func:`sepal.server.requests.plan_requests`).
        local: Whether the clients are in this process or its workers: messages are not written, and ``oversample`` and
            ``deadline`` do not apply, by which a round goes on without the late; but with ``simulated``.
        lowered_until: The last round that is to have the learning rate of this one, if that is halved.
        central: Adds noise to the mean of the round's uploads; None in a run without ``privacy.mode = "central"``.
        released: With it, what the rounds before have released.
        simulated: Judges the replies by simulated time; None in a run without.
    """

    def __init__(
        self,
        start: RoundStart,
        setup: RunSetup,
        store: RunStore,
        joined: Sequence[ClientInfo] = (),
        stores: Mapping[str, str] | None = None,
        evicted: Collection[str] = (),
        drawn: Sequence[str] | None = None,
        local: bool = True,
        lowered_until: int = 0,
        central: CentralNoise | None = None,
        released: Spent = NOTHING,
        simulated: SimulatedRounds | None = None,
    ) -> None:
        self._start, self._store, self._config = start, store, setup.config
        self._plan, self._joined, self._stores = start.plan, joined, stores or {}
        self._setup = setup
        self._downloads = Downloads(start, room(setup))
        self._decoded = RoundUploads(start, self._downloads, partial(store.read, start.plan.round), room(setup))
        self.uploads: RoundUploads | SummedUploads | ReleasedMean = self._decoded
        self._central = None if start.closing else central
        self._release: Release | None = None
        self._released_before = released
        self._counted_as_zero: set[str] = set()  # with central noise, whose refused uploads count as a change of zero
        self._most_bytes = most_message_bytes(setup)
        self._digests: dict[str, str] = {}
        self._began_at = time.monotonic()
        self._replies: dict[str, Reply] = {}
        self._failed: dict[str, SepalError] = {}
        self._failures: dict[str, int] = {}
        self._noted_absent: set[str] = set()  # which the ledger says of a client once in a round
        self._unable: dict[str, SepalError] = {}
        self._client_rests: dict[str, tuple[float, float]] = {}  # client to when it is asked again, and its next rest
        self._node_rests: dict[int, tuple[float, float]] = {}  # the same of nodes that answer with an error
        self._not_connected: set[str] = set()  # when the server last sent
        self._simulated = None if start.closing else simulated
        self._simulated_end: RoundEnd | None = None
        self._local, self._oversamples = local, not local and not start.closing and self._simulated is None
        self._late: dict[str, str] = {}
        self._settled = False
        self.full = is_full(start, setup.config)
        durable, best = store.durable(), store.best_versions()
        self._requests, self._spare = plan_requests(
            start,
            setup.config,
            durable,
            best,
            drawn,
            oversampled=self._oversamples,
            simulated=self._simulated is not None,
        )
        self._secure = setup.config.secure != "off"
        self._dense = 4 * sum(parameter.size for parameter in setup.layout)
        self._ledger = RoundLedger(start.plan.round, self._dense, self._secure)
        self._advertised: dict[str, Content] = {}
        self._public_keys: set[bytes] = set()
        self._summed: Mapping[str, float] = {}
        self._void, self._beyond_range, self._charged = "", 0, 0
        self.waiting = set(self._requests)
        self._guard = Guard(start.algorithm, setup, start.state.server, start.plan.clip)
        self._undone = store.undone(start.plan.round)  # the attempts at this round before
        self._lowered_until, self._taken_up = lowered_until, False
        self._norm_factor = setup.config.max_update_norm or (NORM_FACTOR if start.plan.halvings else 0.0)
        self._norms: dict[str, float] = {}
        self._diverged: dict[str, str] = {}
        self.outcome: Outcome | None = None
        self.spoilt = ""
        self._evicted: set[str] = set()
        self.evict(evicted)

    @property
    def number(self) -> int:
        """The round's number, from 1."""
        return self._plan.round

    @property
    def phase(self) -> str:
        """The phase of its plan, or ``closing``."""
        return "closing" if self._start.closing else self._plan.phase

    @property
    def request_count(self) -> int:
        """How many clients it asks."""
        return len(self._requests)

    @property
    def absent(self) -> set[str]:
        """Those that it waits for and that were not connected when it last looked; other threads may ask."""
        return self._not_connected.intersection(list(self.waiting))

    def evict(self, names: Collection[str]) -> None:
        """Stop waiting for the clients ``names``; an upload that was accepted before counts."""
        self._evicted.update(names)
        self.waiting -= self._evicted
        for name in self._evicted & set(self._failed):
            del self._failed[name]

    def _compose(self, name: str) -> tuple[Kind, RecordDict]:
        """Return the message to client ``name``, and write it to the ledger."""
        request, content = self._requests[name], self._downloads.get(name).content
        if name not in self._digests:
            self._digests[name] = content.digest()
        enclosed = Enclosed(request.order, content)
        self._ledger.sent(request, content, message_bytes(enclosed))
        return request.order.kind, enclosed if self._local else write_order(request.order, content)

    def send(self, nodes: Mapping[str, int], deliver: Deliver) -> None:
        """Send orders to the clients that have not answered, and accept or refuse each reply as it arrives.

        Args:
            nodes: Client name to node id, for the connected clients.
            deliver: Sends a message to each node and passes on the replies; returns node id to reason for the nodes
                that did not reply.
        """
        now = time.monotonic()
        rested = {
            name
            for name in self.waiting & set(nodes)
            if max(self._client_rests.get(name, NO_REST)[0], self._node_rests.get(nodes[name], NO_REST)[0]) <= now
        }
        present = sorted(rested, key=lambda name: (name in self._spare, name))
        names = {nodes[name]: name for name in present}
        absent = sorted(self.waiting - set(nodes))
        self._not_connected = set(absent)
        missing: Mapping[int, str] = {}
        if names:

            def take(node: int, records: RecordDict) -> None:
                self.accept(names[node], records)

            missing = deliver(list(names), lambda node: self._compose(names[node]), take)
        for node, reason in missing.items():
            self.lose(names[node], reason)
            if reason.startswith("error "):  # an answer at once, each of which costs a message and two entries
                # The first one is a restart, as a rule.
                self._node_rests[node] = _rest_again(self._node_rests.get(node), 0.0)
        for name in absent:
            if name not in self._noted_absent:  # one entry a round
                self._ledger.missing(self._requests[name], "not connected")
        self._noted_absent.update(absent)

    def lose(self, name: str, reason: str) -> None:
        """Note that a client of the round has not answered."""
        self._late.pop(name, None)  # this says more
        self._ledger.missing(self._requests[name], reason)
        if reason.startswith(FAILED):
            self._count_failure(name, RoundError(name, "an answer", reason.partition(": ")[2]))

    def _count_failure(self, name: str, reason: SepalError) -> None:
        """Count a failure; after ``MOST_FAILED`` the client is not asked again in this round."""
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] == MOST_FAILED:
            self.waiting.discard(name)
            self._failed[name] = reason

    def settle(self, overdue: bool = False) -> bool:
        """Stop waiting for the late if the replies suffice, and return whether nobody is waited for any more.

        The first replies to arrive count. Which ones did is in the round's record, so that a replay takes the same.

        Args:
            overdue: Whether ``deadline`` has passed.
        """
        if self.waiting and self._oversamples:
            counted, needed = self._counted(), len(self._requests) - len(self._spare)
            reason = f"the first {needed} replies made the round" if self._spare and counted >= needed else ""
            if overdue and not reason and counted >= self._config.min_replies:
                reason = f"expected a reply within {self._config.deadline:g} s (deadline)"
            if reason:
                self._late, self._settled = dict.fromkeys(sorted(self.waiting), reason), True
                self.waiting.clear()
        return not self.waiting

    def _counted(self) -> int:
        """Return how many clients that were asked for more than an evaluation have an accepted reply that counts."""
        late = self._simulated_end.late if self._simulated_end else ()
        return sum(self._trains(name) and name not in late for name in self._replies)

    def note_late(
        self, name: str, records: RecordDict | None, reason: str = "a second reply, or one to a round that had ended"
    ) -> None:
        """Write a reply that nobody waited for to the ledger; ``records`` is None if it has not come."""
        self._ledger.late(name, message_bytes(records) if records is not None else 0, reason)

    def accept(self, name: str, records: RecordDict) -> None:
        """Check a reply against its order and the method's schema. Store its upload, or record why it was refused."""
        request = self._requests.get(name)
        if name in self._late:
            self.note_late(name, records, self._late.pop(name))
        if request is None or name not in self.waiting:
            return
        content, size = Content(), message_bytes(records)
        try:
            check_size(size, self._most_bytes)
            reply, content = read_reply(records, keys_of(self._setup))
            self._check_reply(request, reply, content)
        except SepalError as reason:
            self._note_refused(request, records, content, size, reason)
            return
        self.waiting.discard(name)
        self._keep_upload(request, content)
        self._downloads.drop(name)
        self._replies[name] = reply
        self._note_able(name)
        if reply.metrics.get(DIVERGED):
            self._diverged[name] = "its model is not finite after training"
        self._ledger.accepted(request, content, size)
        self.settle()

    def _check_reply(self, request: Request, reply: Reply, content: Content) -> None:
        """Check a reply, and its upload as far as it can be seen."""
        name, secure = request.client, self._secure
        client, scoring = self._start.state.roster[name], self._setup.task.scoring
        check_reply(request.order, client, self._digests[name], reply, content, scoring, self._growth(client), secure)
        if secure and sums_up(request.order):
            check_other_keys(content, self._public_keys)
        if request.order.kind is Kind.TRAIN and secure:
            self._start.upload_schema(name)  # refuses a client that the method cannot have
        elif request.order.kind is Kind.TRAIN:
            self._decoded.check(name, content)
            if self._config.privacy.quantile and reply.metrics.get(WITHIN_CLIP) not in (0.0, 1.0):
                raise ProtocolError(WITHIN_CLIP, "0 or 1", reply.metrics.get(WITHIN_CLIP, "nothing"))
            if self._central:  # which clips it: nobody's change is too large
                return
            if refused := self._guard.refused_change(self._decoded.changes(name, content)):
                raise DivergedError("upload", *refused)

    def _keep_upload(self, request: Request, content: Content) -> None:
        """Keep an upload that counts; with secure sums, the keys that came in its place."""
        name = request.client
        if self._secure:
            if sums_up(request.order):
                self._advertised[name] = content
                self._public_keys.update(halves(content.data))
        elif request.order.kind is Kind.TRAIN:
            if self._norm_factor:
                self._norms[name] = self._decoded.norm(name, content)
            replays = self._store.replays and not self._central  # then by the noised mean
            if replays or not self._decoded.holds(name):
                self._store.spool(self._plan.round, name, content)
            self._decoded.accept(name)

    def _growth(self, client: ClientInfo) -> Growth | None:
        """Return how far a client's data may have changed; None if they may not."""
        if self._config.data_changes != "accept":
            return None
        return Growth(self._start.state.began.get(client.name, client.examples), self._config.data_growth)

    def _note_refused(
        self, request: Request, records: RecordDict, content: Content, size: int, reason: SepalError
    ) -> None:
        """Record why a reply was refused, and stop waiting for the client if it would fail again.

        Args:
            request: What it answers.
            records: The reply.
            content: Its content, as far as it was read.
            size: Bytes of its message.
            reason: Why it does not count.
        """
        name, reported = request.client, "error" in records
        if isinstance(reason, ChangedDataError):  # it costs this client's round; in the next one it is asked again
            reason = ChangedDataError.of(name) if reported else reason
            log.warning("round %d goes on without a client: %s", self._plan.round, reason)
        elif reported and (named := attributed(name, reason)) is not reason:
            reason = named
        elif error_word(records) in AWAY:
            self._note_unable(request, content, size, reason)
            return
        self._ledger.refused(request, content, size, str(reason))
        if reported and not isinstance(reason, ChangedDataError | DivergedError | DeviceMemoryError):
            self._count_failure(name, reason)
            return
        self.waiting.discard(name)  # asked again, it would fail again
        if self._config.privacy.central and self._trains(name):
            self._counted_as_zero.add(name)
        if isinstance(reason, DivergedError):
            self._diverged[name] = str(reason)

    def _note_unable(self, request: Request, content: Content, size: int, reason: SepalError) -> None:
        """Note that a client cannot work for now, as one with a full disk: it is away, and asked again and again.

        The log and the ledger say so once in a round for each reason. From one time to the next, the client rests
        longer before it is asked again, because it may have trained in vain.
        """
        name = request.client
        if name not in self._unable or self._unable[name].key != reason.key:
            self._unable[name] = reason
            self._ledger.refused(request, content, size, str(reason))
            goes_on = "asked again" if self._config.on_missing == "retry" else "the round goes on without it"
            log.warning("round %d: %s; %s", self._plan.round, reason, goes_on)
        self._client_rests[name] = _rest_again(self._client_rests.get(name), FIRST_REST)

    def _note_able(self, name: str) -> None:
        """Say that a client has answered that could not write before."""
        if self._unable.pop(name, None):
            log.warning("round %d: %s can write again", self._plan.round, name)

    def _refuse(self, name: str, reason: str) -> None:
        """Refuse an upload that was accepted before."""
        self._decoded.refuse(name)
        del self._replies[name]
        self._ledger.revoke(name, reason)

    def _check_complete(self) -> None:
        key, config = f"round {self._plan.round}", self._config
        if self._failed and config.on_missing == "retry" and not self._settled:
            who = f"{key}: {len(self._failed)} of {len(self._requests)} clients"
            raise FailedError(who, "take part", causes_of(self._failed.values()))
        if self.waiting and config.on_missing == "retry":
            unable = causes_of(self._unable[name] for name in sorted(self.waiting & self._unable.keys()))
            got = "; ".join([_missing(sorted(self.waiting)), *([unable] if unable else [])])
            raise RoundError(key, f"a reply of every client within {config.timeout:g} s", got)
        counted = self._counted() + len(self._counted_as_zero)
        if self._plan.round > 1 and counted < config.min_replies and self.unstable:  # on-divergence = "keep"
            few = "no client" if not counted else "too few clients"
            log.warning("%s: %s could train from its model, which is kept; %s", key, few, ADVICE)
            for client in list(self._decoded.clients):  # too few to count
                self._refuse(client.name, f"upload: expected at least {config.min_replies} replies, got {counted}")
        elif self._requests and counted < self._least_replies and config.privacy.sampling != "poisson":
            replies = "1 reply" if config.min_replies == 1 else f"{config.min_replies} replies"
            raise RoundError(key, f"at least {replies}", f"{counted}: {self._ledger.causes}")

    @property
    def _least_replies(self) -> int:
        """How many replies make the round; none where the method has chosen nobody, or only clients evicted since.

        It would choose these again, as long as no record says that they are gone.
        """
        chooses = isinstance(self._start.algorithm, ChoosesParticipants) and not self._start.closing
        return 0 if chooses and self._evicted.issuperset(self._asked_to_train) else self._config.min_replies

    @property
    def unstable(self) -> bool:
        """Whether most of the clients that answered could not train from what they got.

        Never with central noise: an honest client does not say so there, and no others are to end the run.
        """
        if self._config.privacy.central:
            return False
        diverged = sum(self._trains(name) for name in self._diverged)
        well = sum(name not in self._diverged for name in self._replies if self._trains(name))
        return most_diverged(well, diverged, self._config.min_replies)

    @property
    def _asked_to_train(self) -> tuple[str, ...]:
        return tuple(name for name in self._requests if self._trains(name))

    def _trains(self, name: str) -> bool:
        """Return whether a client was asked for more than an evaluation."""
        return self._requests[name].purpose != "evaluation"

    def record(self, server_seconds: float = 0.0) -> RoundRecord:
        """Return the round's record.

        Args:
            server_seconds: Seconds of the server's own work since the previous round's last reply.

        The round's result is computed here (:attr:`outcome`), because it decides which uploads count.

        Raises:
            RoundError: Too few replies. The round does not count, and the run can be resumed.
        """
        total = time.monotonic() - self._began_at
        self._discard_late()
        for name, reason in too_large(self._norms, self._norm_factor).items():
            self._refuse(name, reason)
        if not self._secure:  # then it was checked before the steps of the sum
            self._check_complete()
        for name, reason in self._late.items():
            self.note_late(name, None, reason)
        if self._secure:
            self._aggregate_sum()
        elif self._central:
            self._add_noise(self._central)
        elif not self._start.closing:
            result = aggregate(self._start, self._guard, self._decoded)
            self.outcome, self.spoilt = result.outcome, result.spoilt
            for name, reason in result.refused.items():
                self._refuse(name, reason)
        return self._record(total, server_seconds)

    def _discard_late(self) -> None:
        """Leave the uploads out that came too late in simulated time; what their clients evaluated counts."""
        if self._simulated is None or (end := self._find_simulated_end()) is None:
            return
        self._simulated_end = end
        for name in end.late:
            self._decoded.refuse(name)
            self._norms.pop(name, None)
            self._replies[name] = replace(self._replies[name], kind=Kind.ADAPT, version="")
            self._ledger.revoke(name, self._simulated.reason(end), "late")

    def _find_simulated_end(self) -> RoundEnd | None:
        """Return when the round ended in simulated time; None if nobody was asked to train."""
        trained = [name for name, request in self._requests.items() if request.order.kind is Kind.TRAIN]
        if self._simulated is None or not trained:
            return None
        may_come = sum(name in self._replies or name in self.waiting for name in trained)  # others have refused
        needed = min(len(trained) - len(self._spare), may_come)
        return self._simulated.end(self._ledger.entries, self._replies, needed)

    @property
    def _simulated_seconds(self) -> float:
        """Seconds of simulated time that the round took, if that decided something in it; else 0."""
        algorithm, outcome = self._start.algorithm, self.outcome
        if outcome is not None and isinstance(algorithm, KeepsTime):
            return algorithm.clock(outcome[0]) - algorithm.clock(self._start.state.server)
        return self._simulated_end.seconds if self._simulated_end else 0.0

    def secure_sums(self, ask: AskClients) -> None:
        """Take the steps of the round's secure sums, if it has any, with the clients that have trained.

        Args:
            ask: Sends the messages of a step, again and again within its time.

        Raises:
            RoundError: Too few replies.
        """
        if not self._secure:
            return
        if not self._taken_up:
            self._check_complete()
            if not self._advertised:
                return
            train = [name for name in self._advertised if self._requests[name].order.kind is Kind.TRAIN]
            rest = self._advertised.keys() - set(train)
            groups = {
                trains: {n: self._advertised[n] for n in names} for trains, names in ((True, train), (False, rest))
            }
            self._steps.open(groups, self._views)
        sums = self._steps.sums(partial(self._ask, ask))
        with reading(self._plan.round, "its sum") if self._taken_up else nullcontext():
            self._summed = sums_by_name(sums, self._views)
            self.uploads = summed_uploads(self._start, self._downloads, self._setup, sums)
            self._beyond_range = sum(part.beyond for part in sums)
        if self._beyond_range:
            text = "round %d: %d of %d clients changed an entry by more than secure-range, or to no number"
            log.warning(f"{text}: they count as unchanged", self._plan.round, self._beyond_range, len(self.uploads))
        for part in (part for part in sums if part.trains):
            self._void = part.void
            self._charged = int(self._config.privacy.distributed and part.asked)
            for name in part.lost.keys() & self._replies.keys():
                self._refuse(name, f"upload: not in the sum: {part.lost[name]}")

    def take_up(self) -> bool:
        """Go on with a round whose clients had trained when the server was killed; return whether there is one."""
        if not self._secure or (head := self._steps.resume()) is None:
            return False
        record: RoundRecord = restore(RoundRecord, {}, head)
        self._replies, self._taken_up = dict(record.replies), True
        self._ledger = RoundLedger(self._plan.round, self._dense, True, record.ledger)
        self._undone = None  # what they have cost is in that record
        self._diverged = dict.fromkeys(record.diverged, "its training diverged before the server was restarted")
        self.waiting.clear()
        return True

    @cached_property
    def _steps(self) -> SecureRound:
        def snapshot() -> Any:
            """Return what the round has so far, for a server that is killed between two steps."""
            return flatten(self._record(time.monotonic() - self._began_at, 0.0))[1]

        return SecureRound(self._start, self._setup, self._store, self._downloads, snapshot)

    @property
    def _views(self) -> tuple[str, ...]:
        return next((request.order.views for request in self._requests.values()), ())

    def _ask(
        self, ask: AskClients, kind: Kind, questions: Mapping[str, Content], take: Callable[[str, Content], None]
    ) -> None:
        waiting = set(questions) - self._evicted
        ask(
            StepMessages(
                kind, questions, take, self._start, self._setup, self._requests, self._ledger, self._local, waiting
            )
        )

    def _aggregate_sum(self) -> None:
        """Compute the round's result from its sum; a void round leaves the model as it is."""
        trained = any(request.order.kind is Kind.TRAIN for request in self._requests.values())
        if self._start.closing or not (trained or self._plan.who == "none"):
            return
        self.outcome, why = aggregate_sum(self._start, self._guard, self.uploads, self._void)
        if why and not self._void:
            for client in self.uploads.clients:
                self._refuse(client.name, f"upload: {why}")
            self.uploads = SummedUploads([], None)
            log.warning("round %d is void: %s", self._plan.round, why)
        self._void = why

    def _add_noise(self, central: CentralNoise) -> None:
        """Compute the round's result from the noised mean of its uploads; a void round leaves the model as it is."""
        spent, asked = self._released_before, self._asked_to_train

        def fits(count: int) -> bool:
            """Return whether so many releases, with those of the rounds before, stay within the budget."""
            return not is_over_budget(self._config, spent.plus(count, asked))

        self._release = released(
            central, self._start, self._downloads, self._setup, self._decoded, self._replies, self._store, fits
        )
        self._replies = {name: _without_clip_bit(reply) for name, reply in self._replies.items()}
        if self._release.uploads is None:
            self.uploads, self._void = SummedUploads([], None), self._release.void
        else:
            self.uploads = self._release.uploads
            self.outcome, self._void = aggregate_released(self._start, self._guard, self.uploads)
        if self._void:
            log.warning("round %d is void: %s", self._plan.round, self._void)

    def failed(self, server_seconds: float = 0.0) -> RoundRecord:
        """Return what the round has cost although it does not count; its replies are of no use."""
        return replace(self._record(time.monotonic() - self._began_at, server_seconds), replies={}, late=())

    def _record(self, total: float, server_seconds: float) -> RoundRecord:
        before, lowered = self._undone, self._plan.halvings
        trained = [reply.metrics.get("seconds", 0.0) for reply in self._replies.values()]
        spent = {"total": total, "train": max(trained, default=0.0), "server": server_seconds}
        return RoundRecord(
            round=self._plan.round,
            sampled=self._asked_to_train,
            joined=tuple(self._joined),
            stores={name: self._stores[name] for name in sorted(self._stores)},
            replies={name: self._replies[name] for name in sorted(self._replies)},
            ledger=(*(before.ledger if before else ()), *self._ledger.entries),
            full=self.full and bool(self._requests),
            seconds={key: value + (before.seconds.get(key, 0.0) if before else 0.0) for key, value in spent.items()},
            novel=tuple(n for n in self._start.state.novel if n in self._requests) if self._start.closing else (),
            evicted=tuple(sorted(self._evicted)),
            diverged=(*(before.diverged if before else ()), *sorted(self._diverged)),
            halvings=lowered,
            lowered_until=self._lowered_until if lowered else 0,
            best_round=self._start.best_round,
            summed=self._summed,
            void=self._void,
            beyond_range=self._beyond_range,
            releases=self._release.count if self._release else self._charged,
            clip=self._release.clip if self._release else 0.0,
            simulated=self._simulated_seconds,  # without attempts before it
            late=self._simulated_end.late if self._simulated_end else (),
            restarted=tuple(sorted({*(before.restarted if before else ()), *self._start.state.restarting})),
        )


def _without_clip_bit(reply: Reply) -> Reply:
    """Return a reply as it is stored: a client's bit has no noise, and only the noised sum of bits may leave."""
    return replace(reply, metrics={key: value for key, value in reply.metrics.items() if key != WITHIN_CLIP})


def _rest_again(rest: tuple[float, float] | None, first: float) -> tuple[float, float]:
    """Return until when a client rests, and for how many seconds: twice as long as before, or ``first``."""
    seconds = first if rest is None else min(MOST_REST, max(2 * rest[1], FIRST_REST))
    return time.monotonic() + seconds, seconds


def _missing(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") + " missing"
