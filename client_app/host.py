"""A client in a run: answers the server's messages with the method's client algorithm.

The host loads the version of the state that the server names, runs the algorithm, stores the new state with the reply,
and sends the reply. A repeated message gets the stored reply.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt
from flwr.app import RecordDict

from sepal.client_app.clipped_uploads import ClippedUploads
from sepal.client_app.secure_sums import NO_UPDATE, SecureSums, Summand
from sepal.client_app.state_store import StateStore, Stored, VersionOrigin
from sepal.errors import ChangedDataError, DivergedError, ProtocolError, SepalError, StateError, WireError
from sepal.method.algorithms import ClientAlgorithm
from sepal.protocol.fields import GREATEST
from sepal.protocol.messages import (
    DIVERGED,
    MOST_VERSIONS,
    WITHIN_CLIP,
    Content,
    Enclosed,
    Order,
    Reply,
    read_order,
    sums_up,
    version,
    version_round,
    write_error,
    write_reply,
)
from sepal.protocol.payloads import check_sendable, seal, unseal
from sepal.protocol.summed import figures_of
from sepal.protocol.types import STEPS, ClientInfo, Kind, Payload, Predictor
from sepal.protocol.views import needs_training
from sepal.storage.serialize import digest, not_finite

log = logging.getLogger("sepal")

# The only figures of a client that sends no accuracies, or whose figures go into a secure sum. Others, such as what a
# method chose on validation data, may depend on labels that its training does not reveal; so may multiply-adds, with
# which FedALA's would tell when the client's own loss had converged.
COSTS = frozenset({"seconds", "steps"})

Figures: TypeAlias = dict[str, float | Sequence[float]]  # counts and costs; sums of metrics
Local: TypeAlias = Mapping[str, npt.NDArray[Any]]  # buffers that stay with the client
Evaluate: TypeAlias = Callable[[Predictor, str], Mapping[str, float | Sequence[float]]]


class WorkDone(NamedTuple):
    """What a client has done for an order.

    Attributes:
        after: The client algorithm's state after it.
        upload: What it sends, before it is encoded.
        within_clip: Of a client that clips, whether the upload needed no clipping; else None.
        summand: What the client adds to a secure sum.
    """

    after: Any
    upload: Payload = Payload()
    within_clip: bool | None = None
    summand: Summand = NO_UPDATE


@dataclass(frozen=True)
class ClientHost:
    """One client in one run.

    Attributes:
        run: UUID of the run; if empty, messages of any run are accepted.
        info: The client's roster entry.
        algorithm: The method's client algorithm.
        store: The client's states in this run.
        evaluate: Evaluates a predictor for a view and returns counts by name.
        facts: Text about the client, for the roster.
        spent: Returns the figures of the last work (seconds, multiply-adds, …) and resets them.
        figures: Numbers about the client that every reply includes.
        noised: Phases whose uploads have noise that the server cannot remove; empty in a run without such noise.
            With it, a state holds an update without noise, so no digest of a state is sent, and whatever goes wrong
            once training has begun gives the same error.
        begin: Called before the client trains, with the digest of the request and how often the learning rate is
            halved in this round.
        accuracies: Whether the client evaluates models and sends the counts. If not, a reply has no figures but its
            costs, whatever the server asks for.
        machine: The run config's keys about the machine, where the server writes them. They change the bits of an
            update, as the number of threads does.
        spend: Called with the run and the request of an upload with noise before training, and with a name of each
            upload before it is stored and sent; see :meth:`sepal.client_app.upload_count.UploadCount.spend`.
        deliver: Called in the closing round with each view and its predictor, whatever is evaluated.
        tells_divergence: Whether a state that is not finite after training is an error. Not in a run with noise, which
            also hides that an update is not finite; the engines must agree on it, with a secret or without. With secure
            sums it never comes to that: such a state does not count.
        data_bytes: Bytes of the client's data that are in memory with it.
        take_up: Called before each message's work with its round and the buffers that stay with the client
            (:attr:`sepal.client_app.state_store.Stored.local`).
        local: Returns those buffers after the work.
        changes: Whether the client's data may change in the run (``data-changes = "accept"``).
        secure: The client's secure sums; None in a run without. With it, updates and figures wait here for the steps
            of a sum, and no digest of a state is sent.
        clips: Clips uploads before they are sent; None in a run without ``privacy.mode = "central"``. With it, no
            digest of a state is sent, either.
    """

    run: str
    info: ClientInfo
    algorithm: ClientAlgorithm[Any]
    store: StateStore
    evaluate: Evaluate
    facts: Mapping[str, str]
    spent: Callable[[], Mapping[str, float]] = dict
    figures: Mapping[str, float] = field(default_factory=dict)
    noised: Collection[str] = ()
    begin: Callable[[bytes, int], None] = lambda request, halvings: None
    accuracies: bool = True
    machine: str = ""
    spend: Callable[[str], None] = lambda upload: None
    deliver: Callable[[str, Predictor | None], None] = lambda view, predictor: None
    tells_divergence: bool = True
    data_bytes: int = 0
    take_up: Callable[[int, Local], None] = lambda round, local: None
    local: Callable[[], Local] = dict
    changes: bool = False
    secure: SecureSums | None = None
    clips: ClippedUploads | None = None

    def handle(self, records: RecordDict) -> RecordDict:
        """Answer one message. A SepalError becomes an error reply with all details; other exceptions are raised."""
        try:
            return self.answer(records)
        except SepalError as error:
            return write_error(error, self.info.name)

    def answer(self, records: RecordDict) -> RecordDict:
        """Answer one message.

        Raises:
            SepalError: The message cannot be answered.
        """
        order, content = read_order(records)
        if self.run and order.run != self.run:
            raise ProtocolError("run", self.run, order.run)
        if version_round(order.durable) > version_round(order.base):
            raise ProtocolError("durable", f"a version no newer than base, {order.base or 'none'}", order.durable)
        reply, answer = self._answer(order, content)
        return Enclosed(reply, answer) if isinstance(records, Enclosed) else write_reply(reply, answer)

    def _answer(self, order: Order, content: Content) -> tuple[Reply, Content]:
        plan, kind = order.plan, order.kind
        if kind is Kind.QUERY:
            reply = Reply(order.run, plan.round, kind, self.info, order.base)
            return replace(reply, facts={**self.facts, **self._facts_of_store()}), Content()
        if kind in STEPS:
            return self._step(order, content)
        summed_views = order.views if self.secure and sums_up(order) else None
        if kind is Kind.TRAIN and plan.phase and "" in self.noised:  # it would be noised, but not charged beforehand
            raise ProtocolError("phase", "none: all rounds of this method are alike", plan.phase)
        state, before, local, began = self._load(order.base)
        work = self._request_digest(order, content.digest(), before)
        request = f"{work}|{order.keep}|{','.join(order.views)}"
        if not self.accuracies:
            order = replace(order, views=())
            request += "|no accuracies"  # so that a stored reply with accuracies is not sent
        stored = self.store.answered(plan.round, request)
        if stored:
            return stored.reply, stored.content
        self._check_data(kind, began)
        if self.secure and summed_views is not None:
            self.secure.check(order)
        download = unseal(content, self.algorithm.download_schema(state, plan))
        self.take_up(plan.round, local)
        charge = ""
        if kind is Kind.TRAIN and plan.phase in self.noised:
            self._check_forward(plan.round)
            charge = f"{order.run} {hashlib.sha256(request.encode()).hexdigest()}"
            self.spend(charge)
        try:
            return self._answered(order, state, download, request, charge, content, summed_views)
        except Exception as error:
            if not self.noised:
                raise
            log.error("%s: no answer to round %d", self.info.name, plan.round, exc_info=error)
        # Out of the except block: an error that hangs on another one would be told by the other one's word.
        raise SepalError("training", "an answer", "none; the node's own log says why")

    def _check_data(self, kind: Kind, began: str) -> None:
        """Check that the client has the data that it began with, or may have others; ``began`` is their digest.

        Raises:
            ChangedDataError: It has others, or none to train with.
        """
        # Before a first accepted reply, the server compares.
        if not self.changes and began and self.info.data and began != self.info.data:
            raise ChangedDataError.of(self.info.name, began, self.info.data)
        if self.changes and kind is Kind.TRAIN and not self.info.examples:
            raise ChangedDataError(f"{self.info.name}: data", "training examples", "none any more")

    def _step(self, order: Order, content: Content) -> tuple[Reply, Content]:
        """Answer one step of a secure sum."""
        if self.secure is None:
            raise ProtocolError("kind", "query, train or adapt, in a run without secure sums", order.kind.value)
        reply = Reply(order.run, order.plan.round, order.kind, self.info, download=content.digest())
        return reply, self.secure.answer(order, content)

    def _uploaded(self, upload: Content, work: str) -> str:
        """Return what stands for an upload in the name of its version; ``work`` is the digest of what was ordered."""
        return self.secure.digest(upload, work) if self.secure else upload.digest()

    def _check_forward(self, round: int) -> None:
        """Check that an upload of ``round`` that was never sent is of no round before those that were answered.

        Raises:
            StateError: It is: the server's count of uploads is that of a copy, and would leave out what came after it.
        """
        newest = max((version_round(version) for version in self.store.versions() or ()), default=0)
        if round < newest:
            why = "the server has gone back to an older copy: its ε would leave out a second upload of an earlier round"
            raise StateError("round", f"a round from {newest} on, because {why}", round)

    def _facts_of_store(self) -> dict[str, str]:
        versions = self.store.versions()
        listed = {} if versions is None else {"versions": "\n".join(versions[:MOST_VERSIONS])}
        return {"store": self.store.identity, **listed}

    def _answered(
        self,
        order: Order,
        state: Any,
        download: Payload,
        request: str,
        charge: str,
        content: Content,
        summed_views: tuple[str, ...] | None = None,
    ) -> tuple[Reply, Content]:
        plan, kind, download_digest = order.plan, order.kind, content.digest()
        algorithm, work = self.algorithm, request.partition("|")[0]
        metrics: Figures = self._score("received", order, lambda: algorithm.predictor(state, download, plan))
        metrics |= self._score("kept", order, lambda: algorithm.predictor(state, None, plan))
        self.spent()
        if kind is Kind.ADAPT and not (self.info.examples and (order.keep or needs_training(order.views))):
            done = WorkDone(state)  # nothing to adapt with, or nobody asks for it
        else:
            done = self._work(order, state, download, work)
        after, upload = done.after, done.upload
        diverged = not_finite(after) if self.tells_divergence else ""
        if diverged and kind is Kind.TRAIN:
            raise DivergedError(f"state{diverged}", "finite numbers after training", "others: it diverged")
        trained_predictor = partial(algorithm.predictor, after, None, plan)
        metrics |= {
            **self.figures,
            **self.spent(),
            **({DIVERGED: 1.0} if diverged else {}),
            **(self._score("trained", order, trained_predictor) if self.info.examples else {}),
        }
        sane, sums = _sane(metrics)
        figures = sane if self.accuracies else {}
        if not self.accuracies or self.secure:
            sane, sums = {name: value for name, value in sane.items() if name in COSTS}, {}
        if done.within_clip is not None and self.clips and self.clips.tells:
            sane[WITHIN_CLIP] = float(done.within_clip)
        reply = Reply(order.run, plan.round, kind, self.info, order.base, download_digest, metrics=sane, sums=sums)
        check_sendable(upload)
        try:
            answer = seal(upload)
        except WireError as reason:
            where = f"{reason.key}, in the upload of {type(algorithm).__name__}"
            raise WireError(where, reason.expected, reason.got) from None
        uploaded, uploads = self._uploaded(answer, work), bool(answer.data or answer.scalars)
        if self.secure and summed_views is not None:
            summed = figures_of(figures, summed_views)
            answer = self.secure.begin(order, request, done.summand, uploaded, summed)
        if kind is Kind.TRAIN or (kind is Kind.ADAPT and order.keep):
            name = version(plan.round, order.base, download_digest, uploaded)
            local = self.local()
            reply = replace(reply, version=name)
            if order.keep and not (self.noised or self.secure or self.clips):
                state = digest(after)
                reply = replace(reply, state=digest({"state": state, "local": local}) if local else state)
            if uploads:
                self.spend(f"{charge or order.run} {name}")
            self.store.save(name, Stored(request, after, reply, answer, local), VersionOrigin(order, content))
            self.store.prune(order.durable, order.best)
        return reply, answer

    def _load(self, base: str) -> tuple[Any, str, Local, str]:
        """Return a version, the digest of all that the server chose on the way to it, the client's buffers, its data.

        These are as a digest, that of the reply that led to the version, which the server has accepted; empty if there
        is none.
        """
        if not base:
            return self.algorithm.init(), "", {}, ""
        stored = self.store.load(base)
        if stored is None:
            return self._load_again(base)
        return stored.state, stored.request.partition("|")[0], stored.local, stored.reply.client.data

    def _load_again(self, base: str) -> tuple[Any, str, Local, str]:
        """Rebuild a damaged version by repeating its round from the previous version and the stored message.

        Raises:
            StateError: The message is missing too, or the round gives a different result.
        """
        origin = self.store.origin(base)
        if origin is None:
            raise StateError("base", f"the state of version {base}", "none: it was lost, or is of another directory")
        order, content = origin.order, origin.content
        log.warning("%s: version %s is damaged; made again from %s", self.info.name, base, order.base or "the start")
        state, before, local, _ = self._load(order.base)
        self.take_up(order.plan.round, local)
        download = unseal(content, self.algorithm.download_schema(state, order.plan))
        answered = content.digest()
        work = self._request_digest(order, answered, before)
        done = self._work(order, state, download, work)
        after, upload = done.after, done.upload
        answer = seal(upload)
        if version(order.plan.round, order.base, answered, self._uploaded(answer, work)) != base:
            raise StateError("base", f"the state of version {base}", "another: its round cannot be repeated here")
        reply = Reply(order.run, order.plan.round, order.kind, self.info, order.base, answered, base)
        local = self.local()
        content = Content() if self.secure else answer  # nobody gets it: it answers no request
        self.store.save(base, Stored(f"{work}|made again", after, reply, content, local), origin)
        return after, work, local, self.info.data

    def _work(self, order: Order, state: Any, download: Payload, work: str) -> WorkDone:
        """Do what the server orders."""
        # The run is not part of it: in a deployment each run has its own secret, and engines must agree on the bits.
        self.begin(bytes.fromhex(work), order.plan.halvings)
        if order.kind is Kind.TRAIN:
            local = self.local() if self.secure else {}
            after, upload = self.algorithm.train(state, download, order.plan)
            if self.secure:  # before anything that would be an error for some updates and not for others
                finite = not (not_finite(after) or not_finite(dict(self.local())))
                if not finite:
                    after = state
                    self.take_up(order.plan.round, local)
                summand = self.secure.countable(download, upload, finite)
                return WorkDone(after, summand.upload, summand=summand)
            if self.clips:
                return WorkDone(after, *self.clips.clipped(upload, download, order.plan))
            return WorkDone(after, upload)
        if order.kind is Kind.ADAPT:
            return WorkDone(self.algorithm.adapt(state, download, order.plan))
        return WorkDone(state)

    def _score(self, view: str, order: Order, make_predictor: Callable[[], Predictor | None]) -> Figures:
        """Evaluate a model for the requested views of it; ``pooled`` is of the trained model.

        Its predictor is only made where a view or the closing round asks for it: it takes a copy of all weights.
        """
        # for example trained-shift-40 and trained-corrupted are views of the trained model
        views = [
            requested
            for requested in order.views
            if requested == view or requested.startswith(f"{view}-") or (view, requested) == ("trained", "pooled")
        ]
        closing = order.kind is Kind.ADAPT and order.keep
        if not views and not closing:
            return {}
        predictor = make_predictor()
        if closing:
            self.deliver(view, predictor)
        scores: Figures = {}
        if predictor is None:
            return scores
        for requested in views:
            scores |= {f"{requested}.{name}": value for name, value in self.evaluate(predictor, requested).items()}
        return scores

    def _request_digest(self, order: Order, download: str, before: str) -> str:
        """Return a digest of the work that the server orders, without the views that it wants evaluated.

        The run config is part of it, because a server may change it under one run id: two configurations with equal
        updates would show by equal noise that they are equal. For the same reason ``before`` is, the digest of the work
        that led to the base: versions without an upload have one name, whatever the configuration was.
        """
        plan, config = order.plan, self.facts.get("config", "")
        parts: list[object] = [
            order.kind.value,
            plan.round,
            plan.phase,
            dict(plan.scalars),
            plan.novel,
            order.base,
            before,
            download,
        ]
        parts += [plan.halvings] if plan.halvings else []
        parts += [plan.clip] if plan.clip else []
        return hashlib.sha256(json.dumps([*parts, config, self.machine], sort_keys=True).encode()).hexdigest()


def _sane(figures: Figures) -> tuple[dict[str, float], dict[str, tuple[float, ...]]]:
    """Return the counts and costs, and the sums, that a server accepts: finite and not too large."""
    sane, sums = dict[str, float](), dict[str, tuple[float, ...]]()
    for name, value in figures.items():
        if isinstance(value, Sequence):
            if all(abs(number) <= GREATEST for number in value):
                sums[name] = tuple(value)
        elif 0 <= value <= GREATEST:  # leaves out NaN and infinity
            sane[name] = value
    return sane, sums
