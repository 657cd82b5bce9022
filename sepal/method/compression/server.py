"""The server's side of a compressed exchange: what it holds, and what it sends to a client that missed updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.layout import Layout, statistics, trained
from sepal.masks.flat import Flat
from sepal.masks.selection import count
from sepal.method.aggregation import aggregated
from sepal.method.compression.updates import UPDATE, WEIGHTS, Supports, compress, plus
from sepal.method.interface import Compression, RunSetup
from sepal.method.tensors import dense, dense_specs
from sepal.protocol.types import ClientInfo, Metrics, Payload, Plan, Schema, Upload, Uploads, Weights
from sepal.wire.tensors import SparseTensor, ValueCoding, Values, at


@dataclass(frozen=True)
class ServerState:
    """The server's state besides the method's, which is the field ``inner`` of a class derived from this one.

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
class AppliedUploads:
    """A round's uploads as models, which the method expects: M plus each client's update, decoded one at a time."""

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
        inner: The method's server algorithm, a :class:`sepal.method.server_base.ServerBase`.
        kind: Type of the state.
    """

    def __init__(self, inner: Any, setup: RunSetup, how: Compression, kind: type) -> None:
        self.inner, self.setup, self.how, self.kind = inner, setup, how, kind
        self.coding = ValueCoding(setup.config.values)
        self.flat, self.fixed = Flat(trained(inner.shared())), statistics(inner.shared())
        self.supports = Supports(how, setup.config.seed, self.flat.size)

    def init(self) -> Any:
        """Start from W_0 without a residual."""
        model, inner = self.flat.join(self.setup.weights), self.inner.init()
        return self.kind(model, np.zeros(model.size, np.int32), inner=inner)

    def shared(self) -> Layout:
        """Return the tensors that the method exchanges, of which a part of the entries is sent."""
        layout: Layout = self.inner.shared()
        return layout

    def plan(self, round: int) -> Plan:
        """Return the method's plan."""
        plan: Plan = self.inner.plan(round)
        return plan

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
        least = 0 if self.how.ternary else count(self.how.keep, self.flat.size)
        update = self.supports.spec(plan.round, least)
        scalars = self.inner.upload_schema(state.inner, client, plan).scalars
        return Schema({UPDATE: update, **dense_specs(self.fixed)}, scalars)

    def reference(self, state: Any, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the statistics; all else in an upload is a difference."""
        model = self.inner.model(state.inner)
        return {p.name: model[p.name] for p in self.fixed}

    def weigh(self, upload: Upload) -> float:
        """Return the method's weight of an upload in a mean."""
        weight: float = self.inner.weigh(upload)
        return weight

    def aggregate(self, state: Any, uploads: Uploads, plan: Plan) -> tuple[Any, Metrics]:
        """Let the method aggregate M + Δ̃_i; send compress(M - R), and add it to R."""
        before = self.flat.join(self.inner.model(state.inner))
        applied = AppliedUploads(uploads, before, self.flat, [p.name for p in self.fixed])
        inner, metrics = aggregated(self.inner, state.inner, applied, plan)
        if not len(uploads):
            return replace(state, inner=inner, round=plan.round), metrics
        change = self.flat.join(self.inner.model(inner)) - state.held
        update = compress(change, self.how, self.coding, self.supports.of(plan.round))
        changed = state.changed.copy()
        changed[update.positions()] = plan.round
        cached_updates = {r: u for r, u in state.history.items() if int(r) > plan.round - self.how.cache}
        clients = [client.name for client in uploads.clients]
        after = replace(
            state,
            inner=inner,
            held=plus(state.held, update),
            changed=changed,
            round=plan.round,
            history={**cached_updates, str(plan.round): update},
            synced={**state.synced, **dict.fromkeys(clients, state.round)},
        )
        missed = float(np.mean([state.round - state.synced.get(name, 0) for name in clients]))
        return after, {**metrics, "missed": missed}

    def model(self, state: Any) -> Weights:
        """Return R, the global model that clients hold, and the method's tensors that are not exchanged so."""
        return {**self.inner.model(state.inner), **self.flat.cut(state.held)}
