"""Compressed exchange around a method that exchanges one dense model: sparse updates in both directions.

Sattler, Wiedemann, Müller, Samek, "Robust and Communication-Efficient Federated Learning from Non-IID Data", IEEE TNNLS
2019 (https://arxiv.org/abs/1903.02891): Algorithm 1 (STC: the k = p·d largest entries of the flattened update, each as
±μ, where μ is the mean of their magnitudes), Algorithm 2 (both directions, each with a residual), section V-B (a client
that missed rounds). Without ``ternary``, the entries keep their values (top-k with error feedback).

Let M be the method's global model, and R the model that a client holds that has missed nothing; R starts at W_0, as M
does. In a round,

1. a client trains from R as the method says, which gives w_i, and sends Δ̃_i = compress(w_i - R + A_i). What was not
   sent is its residual A_i;
2. the method's server gets M + Δ̃_i from each client, so that its own step (a mean, momentum, Adam) is unchanged, and
   returns the new M;
3. all clients get compress(M - R), which is added to R. What was not sent stays in M - R: the server's residual.

With FedAvg this is the paper's Algorithm 2: there M - R is its A.

When a client takes part, its R equals the server's bit for bit. A sum of float32 updates would not ensure this, because
float addition is not associative. So a client that missed s updates gets the s updates one by one and adds them in the
server's order, while s ≤ ``cache`` (the paper's bound H(P^(s)) ≤ s·H(P^(1)) is then what is sent). Otherwise it gets
the new values, fp32, of all entries that changed since. A newcomer missed all updates.

Deviations: top-k and μ are over all exchanged tensors, as in the paper (common implementations use each tensor
separately); positions are sent in Sepal's wire format, not in Golomb code; statistics of normalisation layers are
exchanged as values; a round without uploads sends no update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sepal.masks.flat import Flat
from sepal.masks.selection import count, top_k
from sepal.protocol.layout import statistics, trained
from sepal.protocol.method import (
    ClientInfo,
    Compression,
    Method,
    Metrics,
    Payload,
    Plan,
    Predictor,
    Schema,
    SpecLike,
    Task,
    Upload,
    Uploads,
    Weights,
)
from sepal.protocol.tensors import dense, dense_specs
from sepal.wire import rounded
from sepal.wire.tensors import Index, SparseTensor, TensorSpec, ValueCoding, Values, at

if TYPE_CHECKING:
    from sepal.config import RunConfig

UPDATE, WEIGHTS = "update", "weights"  # names in a payload: an upload's update; new values instead of updates


def compress(vector: Values, how: Compression, coding: ValueCoding) -> SparseTensor:
    """Return the k largest entries of ``vector``, float32 (d,): as ±μ (Algorithm 1), or as values in ``coding``."""
    index = top_k(vector, count(how.keep, vector.size))
    if not how.ternary:
        return SparseTensor(vector.shape, index, rounded(vector[index], coding), coding=coding)
    mean = np.abs(vector[index]).mean(dtype=np.float64).astype(np.float32) if index.size else np.float32(0)
    index = index[vector[index] != 0]  # μ·sign(0) is 0, which ±μ cannot represent
    return SparseTensor(vector.shape, index, np.copysign(mean, vector[index]), coding=ValueCoding.SIGN)


def less(vector: Values, sent: SparseTensor) -> Values:
    """Return the residual: ``vector`` minus what was sent."""
    rest, index = vector.copy(), sent.positions()
    rest[index] -= sent.dense()[index]
    return rest


def without(vector: Values, index: Index) -> Values:
    """Return ``vector`` with 0 at the positions ``index``."""
    rest = vector.copy()
    rest[index] = 0
    return rest


def plus(vector: Values, update: SparseTensor) -> Values:
    """Return ``vector`` plus an update, in float32: the same bits on the server and on every client."""
    moved, index = vector.copy(), update.positions()
    moved[index] += update.dense()[index]
    return moved


@dataclass(frozen=True)
class ServerState:
    """What the server keeps beside the method's state, which is the field ``inner`` of a class derived from this one.

    Attributes:
        held: R, float32 (d,): the trained tensors that are exchanged, flattened.
        changed: int32 (d,), the round in which each entry last changed; 0 if never.
        round: The last round included in ``held``.
        history: Round to its update, for the last ``cache`` rounds.
        synced: Client name to the round of its R when its upload was last accepted.
    """

    held: Values
    changed: npt.NDArray[np.int32]
    round: int = 0
    history: Mapping[str, SparseTensor] = field(default_factory=dict)
    synced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """What a client keeps beside the method's state, which is the field ``inner`` of a class derived from this one.

    Attributes:
        held: R as of ``round``, float32 (d,).
        residual: A_i, float32 (d,): accumulated entries that were not sent.
        round: The last round included in ``held``.
    """

    held: Values
    residual: Values
    round: int = 0


@cache
def with_inner(kind: type, inner: type) -> type:
    """Return ``kind`` with a field ``inner`` of the type ``inner``; states are restored by their fields' types."""
    return make_dataclass(
        f"{kind.__name__}Of{inner.__name__}", [("inner", inner)], bases=(kind,), frozen=True, kw_only=True
    )


@dataclass(frozen=True)
class Moved:
    """A round's uploads as the method would have got them: M plus each client's update, decoded one at a time."""

    uploads: Uploads
    model: Values
    flat: Flat
    fixed: Sequence[str]

    @property
    def clients(self) -> Sequence[ClientInfo]:
        """The clients that uploaded, sorted by name."""
        return self.uploads.clients

    def __len__(self) -> int:
        return len(self.uploads)

    def __iter__(self) -> Iterator[Upload]:
        for upload in self.uploads:
            tensors = upload.payload.tensors
            weights = self.flat.cut(plus(self.model, tensors[UPDATE]))
            whole = dense(weights, self.flat.layout, ValueCoding.FP32)
            whole |= {name: tensors[name] for name in self.fixed}
            yield Upload(upload.client, Payload(whole, upload.payload.scalars))


class CompressedServer:
    """A method's server algorithm with compressed exchange.

    Args:
        inner: The method's server algorithm, a :class:`sepal.protocol.server_base.ServerBase`.
        kind: Type of the state.
    """

    def __init__(self, inner: Any, task: Task, how: Compression, kind: type) -> None:
        self.inner, self.task, self.how, self.kind = inner, task, how, kind
        self.coding = ValueCoding(task.config.values)
        self.flat, self.fixed = Flat(trained(inner.shared())), statistics(inner.shared())

    def init(self) -> Any:
        """Start from W_0 without a residual."""
        held, inner = self.flat.join(self.task.weights), self.inner.init()
        return self.kind(held, np.zeros(held.size, np.int32), inner=inner)

    def plan(self, round: int) -> Plan:
        """Return the method's plan."""
        found: Plan = self.inner.plan(round)
        return found

    def download(self, state: Any, client: ClientInfo, plan: Plan) -> Payload:
        """Return what the client missed since its last accepted upload."""
        return self._missed(state, state.synced.get(client.name, 0))

    def newcomer(self, state: Any, client: ClientInfo, plan: Plan) -> Payload:
        """Return all updates: a newcomer missed all of them."""
        return self._missed(state, 0)

    def _missed(self, state: Any, since: int) -> Payload:
        if state.round - since <= self.how.cache:
            missed = {r: update for r, update in state.history.items() if int(r) > since}
        else:
            missed = {WEIGHTS: at(state.held, np.flatnonzero(state.changed > since).astype(np.int64))}
        return Payload({**missed, **dense(self.inner.model(state.inner), self.fixed, self.coding)})

    def upload_schema(self, state: Any, client: ClientInfo, plan: Plan) -> Schema:
        """Admit exactly k entries; at most k if they are ternary, because zeros are left out."""
        k = count(self.how.keep, self.flat.size)
        least = 0 if self.how.ternary else k
        update = TensorSpec((self.flat.size,), min_count=least, max_count=k)
        scalars = self.inner.upload_schema(state.inner, client, plan).scalars
        return Schema({UPDATE: update, **dense_specs(self.fixed)}, scalars)

    def reference(self, state: Any, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the statistics; all else in an upload is a difference."""
        model = self.inner.model(state.inner)
        return {p.name: model[p.name] for p in self.fixed}

    def aggregate(self, state: Any, uploads: Uploads, plan: Plan) -> tuple[Any, Metrics]:
        """Let the method aggregate M + Δ̃_i; send compress(M - R), and add it to R."""
        before = self.flat.join(self.inner.model(state.inner))
        moved = Moved(uploads, before, self.flat, [p.name for p in self.fixed])
        inner, metrics = self.inner.aggregate(state.inner, moved, plan)
        if not len(uploads):
            return replace(state, inner=inner, round=plan.round), metrics
        update = compress(self.flat.join(self.inner.model(inner)) - state.held, self.how, self.coding)
        changed = state.changed.copy()
        changed[update.positions()] = plan.round
        kept = {r: u for r, u in state.history.items() if int(r) > plan.round - self.how.cache}
        clients = [client.name for client in uploads.clients]
        after = replace(
            state,
            inner=inner,
            held=plus(state.held, update),
            changed=changed,
            round=plan.round,
            history={**kept, str(plan.round): update},
            synced={**state.synced, **dict.fromkeys(clients, state.round)},
        )
        missed = float(np.mean([state.round - state.synced.get(name, 0) for name in clients]))
        return after, {**metrics, "missed": missed}

    def model(self, state: Any) -> Weights:
        """Return R, the global model that clients hold, and the method's tensors that are not exchanged so."""
        return {**self.inner.model(state.inner), **self.flat.cut(state.held)}


class CompressedClient:
    """A method's client algorithm with compressed exchange.

    Args:
        inner: The method's client algorithm, a :class:`sepal.client.algorithm.ClientBase`; its uploads must not be
            clipped and noised, because this is done here, before entries are selected.
        kind: Type of the state.
    """

    def __init__(self, inner: Any, task: Task, trainer: Any, how: Compression, kind: type) -> None:
        self.inner, self.task, self.trainer, self.how, self.kind = inner, task, trainer, how, kind
        self.coding = ValueCoding(task.config.values)
        self.flat, self.fixed = Flat(trained(inner.shared())), statistics(inner.shared())

    def init(self) -> Any:
        """Start from W_0 with a residual of 0."""
        held = self.flat.join(self.task.weights)
        return self.kind(held, np.zeros(held.size, np.float32), inner=self.inner.init())

    def download_schema(self, state: Any, plan: Plan) -> Schema:
        """Admit the missed updates, or new values instead."""
        k = count(self.how.keep, self.flat.size)
        missed = range(max(state.round + 1, plan.round - self.how.cache), plan.round)
        update = TensorSpec((self.flat.size,), max_count=k, optional=True)
        specs: dict[str, SpecLike] = {str(round): update for round in missed}
        specs[WEIGHTS] = TensorSpec((self.flat.size,), optional=True)
        return Schema({**specs, **dense_specs(self.fixed)})

    def caught_up(self, state: Any, download: Payload) -> Values:
        """Return the server's R, from new values or from the missed updates in the server's order."""
        held: Values = state.held
        fixed = {parameter.name for parameter in self.fixed}
        for name, tensor in download.tensors.items():  # the schema ensures the order of rounds
            if name == WEIGHTS:
                held = np.where(tensor.mask(), tensor.dense(), held)
            elif name not in fixed:
                held = plus(held, tensor)
        return held

    def _given(self, held: Values, download: Payload) -> Payload:
        """Return the download that the method would have got."""
        weights = dense(self.flat.cut(held), self.flat.layout, ValueCoding.FP32)
        both = {**weights, **{p.name: download.tensors[p.name] for p in self.fixed}}
        return Payload({p.name: both[p.name] for p in self.inner.shared()}, download.scalars)

    def train(self, state: Any, download: Payload, plan: Plan) -> tuple[Any, Payload]:
        """Train from R as the method says, and send compress(w_i - R + A_i); the rest is the new A_i (Algorithm 2).

        With ``privacy.*``, w_i - R + A_i is clipped and noised before entries are selected. A_i is then the clipped
        part without noise, 0 at all entries that were sent.
        """
        held = self.caught_up(state, download)
        inner, upload = self.inner.train(state.inner, self._given(held, download), plan)
        trained_weights = self.flat.join({p.name: upload.tensors[p.name].dense() for p in self.flat.layout})
        found = self.trainer.release(trained_weights - held + state.residual, plan.round)
        update = compress(found.noised, self.how, self.coding)
        private = self.task.config.privacy.clip > 0
        rest = without(found.clipped, update.positions()) if private else less(found.noised, update)
        fixed = {p.name: upload.tensors[p.name] for p in self.fixed}
        after = replace(state, inner=inner, held=held, residual=rest, round=plan.round - 1)
        return after, Payload({UPDATE: update, **fixed}, upload.scalars)

    def adapt(self, state: Any, download: Payload, plan: Plan) -> Any:
        """Train as the method does without an upload; the residual does not change."""
        held = self.caught_up(state, download)
        inner = self.inner.adapt(state.inner, self._given(held, download), plan)
        return replace(state, inner=inner, held=held, round=plan.round - 1)

    def predictor(self, state: Any, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the method's predictor."""
        given = None if download is None else self._given(self.caught_up(state, download), download)
        found: Predictor | None = self.inner.predictor(state.inner, given, plan)
        return found


@dataclass(frozen=True)
class Compressed(Method):
    """The record of a method with compressed exchange.

    Attributes:
        inner: The method's own record.
        how: What is sent.
    """

    inner: Method = field(kw_only=True)
    how: Compression = field(kw_only=True)

    @property
    def server_state(self) -> type:
        """Type of the server algorithm's state."""
        return with_inner(ServerState, self.inner.server_state)

    @property
    def client_state(self) -> type:
        """Type of the client algorithm's state."""
        return with_inner(ClientState, self.inner.client_state)

    def make_server(self, task: Task) -> CompressedServer:
        """Return the server algorithm for ``task``."""
        return CompressedServer(self.inner.make_server(task), task, self.how, self.server_state)

    def make_client(self, task: Task, trainer: Any) -> CompressedClient:
        """Return the client algorithm for ``task``, over its own data."""
        open_privacy = type(task.config.privacy)()  # the update is clipped and noised once, here
        plain = replace(task, config=task.config.model_copy(update={"privacy": open_privacy}))
        return CompressedClient(self.inner.make_client(plain, trainer), task, trainer, self.how, self.client_state)


def with_compression(method: Method, config: RunConfig, hyper: Any) -> Method:
    """Return the method as it exchanges models in this run: compressed by ``compress.*`` or its own keys, or plain."""
    how = method.compression(hyper) if method.compression else None
    if config.compress.name != "none":
        how = Compression(config.compress.keep, config.compress.name == "stc", config.compress.cache)
    if how is None:
        return method
    record = {each.name: getattr(method, each.name) for each in fields(Method)}
    return Compressed(**record, inner=method, how=how)
