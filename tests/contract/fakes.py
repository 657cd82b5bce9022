"""Five fakes, one for each kind of method that the contract must carry.

Each is the smallest thing with that kind's difficulty. "Training" is arithmetic that depends on the client's state,
its name and the round, so that a message applied twice, or not at all, shows in the numbers. Each fake's server keeps
account of what it believes of its clients, and `agrees` compares that with what the clients really hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from sepal.method.interface import Method, RunSetup
from sepal.protocol.types import ClientInfo, Metrics, Payload, Plan, Schema, Uploads
from sepal.wire.tensors import Support, TensorSpec, at, members, whole

Vector = npt.NDArray[np.float32]
SIZE = 6


class NoKeys(BaseModel):
    pass


def step(vector: Vector, name: str, plan: Plan) -> Vector:
    """What "training" adds: a function of where it starts, who trains and when, and of the learning rate."""
    push = np.sin(np.arange(vector.size) * (1 + sum(map(ord, name)) % 7) + plan.round)
    return ((0.5 * push - 0.1 * vector) * 0.5**plan.halvings).astype(np.float32)


def largest(vector: Vector, count: int) -> npt.NDArray[np.int64]:
    return np.sort(np.argsort(-np.abs(vector), kind="stable")[:count]).astype(np.int64)


@dataclass(frozen=True)
class Held:
    """State of most fakes' clients."""

    w: Vector
    extra: Vector
    rounds: int = 0


class FakeServer:
    def __init__(self, setup: RunSetup) -> None:
        self.start = setup.weights["w"]

    def plan(self, round: int) -> Plan:
        return Plan(round)

    def newcomer(self, state, client: ClientInfo, plan: Plan) -> Payload:
        return self.download(state, client, plan)

    def model(self, state) -> Mapping[str, Vector]:
        return {"w": state.w}


class FakeClient:
    def __init__(self, setup: RunSetup, work) -> None:
        self.start, self.name, self.capacity = setup.weights["w"], work.name, work.capacity

    def init(self) -> Held:
        return Held(self.start, np.zeros(SIZE, np.float32))

    def predictor(self, state, download, plan):
        return None


# 1. Queue: deltas prepared for each client wait until its next upload is accepted (FedPSE)


@dataclass(frozen=True)
class QueueState:
    w: Vector
    pending: Mapping[str, Vector]
    believed: Mapping[str, Vector]  # each client's base, as far as its uploads were accepted


class QueueServer(FakeServer):
    uses_capacity = True

    def init(self) -> QueueState:
        return QueueState(self.start, {}, {})

    def download(self, state: QueueState, client: ClientInfo, plan: Plan) -> Payload:
        delta = state.pending[client.name]
        return Payload({"delta": at(delta, np.flatnonzero(delta).astype(np.int64))})

    def newcomer(self, state: QueueState, client: ClientInfo, plan: Plan) -> Payload:
        return Payload({"delta": whole(state.w - self.start)})

    def upload_schema(self, state, client, plan) -> Schema:
        return Schema({"delta": TensorSpec((SIZE,), min_count=2, max_count=2)})

    def aggregate(self, state: QueueState, uploads: Uploads, plan: Plan) -> tuple[QueueState, Metrics]:
        total, senders, supports = np.zeros(SIZE), np.zeros(SIZE), {}
        for upload in uploads:
            delta = upload.payload.tensors["delta"]
            supports[upload.client.name] = delta.mask()
            total, senders = total + delta.dense(), senders + delta.mask()
        mean = np.divide(total, senders, out=np.zeros(SIZE), where=senders > 0).astype(np.float32)
        believed = dict(state.believed)
        for name in supports:
            delivered = state.pending[name] if name in state.pending else state.w - self.start
            believed[name] = believed.get(name, self.start) + delivered
        pending = {**state.pending, **{name: mean * mask for name, mask in supports.items()}}
        return QueueState(state.w + mean, pending, believed), {}


class QueueClient(FakeClient):
    def download_schema(self, state, plan) -> Schema:
        return Schema({"delta": TensorSpec((SIZE,))})

    def train(self, state: Held, download: Payload, plan: Plan) -> tuple[Held, Payload]:
        base = state.w + download.tensors["delta"].dense()
        merged = step(base, self.name, plan) + state.extra
        sent = at(merged, largest(merged, 2))
        return Held(base, merged - sent.dense(), plan.round), Payload({"delta": sent})

    def adapt(self, state: Held, download: Payload, plan: Plan) -> Held:
        return replace(state, w=state.w + download.tensors["delta"].dense())


def queue_agrees(server: QueueState, clients: Mapping[str, Held], closed: bool) -> bool:
    expected = dict(server.believed)
    if closed:  # the closing round delivered what was pending
        expected = {n: w + server.pending[n] for n, w in expected.items()}
    return all(np.array_equal(clients[name].w, w) for name, w in expected.items())


# 2. Phases: rounds without any message, and rounds in which nothing goes up and a download comes once (DM-PFL)


@dataclass(frozen=True)
class PhaseState:
    w: Vector
    delivered: Mapping[str, int]  # the cycle whose weights each client holds
    held: Mapping[str, Vector]


class PhaseServer(FakeServer):
    uses_capacity = True

    def init(self) -> PhaseState:
        return PhaseState(self.start, {}, {})

    def plan(self, round: int) -> Plan:
        phase = ("share", "rest", "alone", "alone")[(round - 1) % 4]
        return Plan(round, phase, "none" if phase == "rest" else "sampled", {"cycle": (round - 1) // 4})

    def download(self, state: PhaseState, client: ClientInfo, plan: Plan) -> Payload:
        if plan.phase == "alone" and state.delivered.get(client.name) == plan.scalars["cycle"]:
            return Payload()
        return Payload({"w": whole(state.w)})

    def upload_schema(self, state, client, plan) -> Schema:
        return Schema({"w": TensorSpec((SIZE,))}) if plan.phase == "share" else Schema()

    def aggregate(self, state: PhaseState, uploads: Uploads, plan: Plan) -> tuple[PhaseState, Metrics]:
        arrived = [(u.client.name, u.payload) for u in uploads]
        if plan.phase == "share" and arrived:
            mean = np.mean([p.tensors["w"].dense() for _, p in arrived], axis=0, dtype=np.float64)
            return replace(state, w=mean.astype(np.float32)), {}
        cycle = int(plan.scalars["cycle"])
        fresh = [name for name, _ in arrived if state.delivered.get(name) != cycle]
        return PhaseState(
            state.w,
            {**state.delivered, **dict.fromkeys(fresh, cycle)},
            {**state.held, **dict.fromkeys(fresh, state.w)},
        ), {}


class PhaseClient(FakeClient):
    def download_schema(self, state, plan) -> Schema:
        return Schema({"w": TensorSpec((SIZE,), optional=plan.phase == "alone")})

    def train(self, state: Held, download: Payload, plan: Plan) -> tuple[Held, Payload]:
        start = download.tensors["w"].dense() if "w" in download.tensors else state.w
        extra = state.extra + step(start, self.name, plan)
        sends = plan.phase == "share"
        return Held(state.w if sends else start, extra, plan.round), Payload({"w": whole(extra)} if sends else {})

    def adapt(self, state: Held, download: Payload, plan: Plan) -> Held:
        return replace(state, rounds=plan.round)


def phase_agrees(server: PhaseState, clients: Mapping[str, Held], closed: bool) -> bool:
    return all(np.array_equal(clients[name].w, w) for name, w in server.held.items())


# 3. Shapes: the upload's second tensor has the shape that the mask before it says (Sub-FedAvg, hybrid)


@dataclass(frozen=True)
class ShapeState:
    w: Vector
    masks: Mapping[str, npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Pruned:
    mask: npt.NDArray[np.bool_]
    w: Vector


def compact(decoded) -> TensorSpec:
    return TensorSpec((decoded["mask"].nnz,))


class ShapeServer(FakeServer):
    uses_capacity = True

    def init(self) -> ShapeState:
        return ShapeState(self.start, {})

    def _mask(self, state: ShapeState, client: ClientInfo) -> npt.NDArray[np.bool_]:
        return state.masks.get(client.name, np.ones(SIZE, bool))

    def download(self, state: ShapeState, client: ClientInfo, plan: Plan) -> Payload:
        return Payload({"kept": whole(state.w[self._mask(state, client)])})

    def upload_schema(self, state, client, plan) -> Schema:
        return Schema({"mask": TensorSpec((SIZE,), values=False), "kept": compact})

    def aggregate(self, state: ShapeState, uploads: Uploads, plan: Plan) -> tuple[ShapeState, Metrics]:
        total, holders, masks = np.zeros(SIZE), np.zeros(SIZE), dict(state.masks)
        for upload in uploads:
            mask = masks[upload.client.name] = upload.payload.tensors["mask"].mask()
            total[mask] += upload.payload.tensors["kept"].dense()
            holders += mask
        return ShapeState(np.where(holders > 0, total / np.maximum(holders, 1), state.w).astype(np.float32), masks), {}


class ShapeClient(FakeClient):
    def init(self) -> Pruned:
        return Pruned(np.ones(SIZE, bool), self.start)

    def download_schema(self, state: Pruned, plan) -> Schema:
        return Schema({"kept": TensorSpec((int(state.mask.sum()),))})

    def train(self, state: Pruned, download: Payload, plan: Plan) -> tuple[Pruned, Payload]:
        entries = download.tensors["kept"].dense()
        full = np.zeros(SIZE, np.float32)
        full[state.mask] = entries + step(entries, self.name, plan)
        mask = state.mask.copy()
        if mask.sum() > 2:
            alive = np.flatnonzero(mask)
            mask[alive[np.argmin(np.abs(full[alive]))]] = False
        return Pruned(mask, full * mask), Payload({"mask": members(mask), "kept": whole(full[mask])})

    def adapt(self, state: Pruned, download: Payload, plan: Plan) -> Pruned:
        full = np.zeros(SIZE, np.float32)
        full[state.mask] = download.tensors["kept"].dense()
        return replace(state, w=full)


def shape_agrees(server: ShapeState, clients: Mapping[str, Pruned], closed: bool) -> bool:
    return all(np.array_equal(clients[name].mask, mask) for name, mask in server.masks.items())


# 4. Generated: what a client receives is made for it, cut to its width (Pa3dFL)


@dataclass(frozen=True)
class GeneratedState:
    w: Vector
    embeddings: Mapping[str, float]
    trained: Mapping[str, int]


class GeneratedServer(FakeServer):
    uses_capacity = True

    def init(self) -> GeneratedState:
        return GeneratedState(self.start, {}, {})

    def _generate(self, state: GeneratedState, client: ClientInfo) -> Vector:
        return (state.w * np.float32(1 + state.embeddings.get(client.name, 0.0)))[: width(client.capacity)]

    def download(self, state: GeneratedState, client: ClientInfo, plan: Plan) -> Payload:
        index = np.arange(width(client.capacity), dtype=np.int64)
        full = np.zeros(SIZE, np.float32)
        full[index] = self._generate(state, client)
        return Payload({"v": replace(at(full, index), support=Support.DERIVED)}, {"width": width(client.capacity)})

    def upload_schema(self, state, client, plan) -> Schema:
        return Schema({"v": TensorSpec((SIZE,), Support.SAME)}, {"examples": (int, 0, 10**6)})

    def aggregate(self, state: GeneratedState, uploads: Uploads, plan: Plan) -> tuple[GeneratedState, Metrics]:
        embeddings, trained, w = dict(state.embeddings), dict(state.trained), state.w.astype(np.float64)
        for upload in uploads:
            name, new = upload.client.name, upload.payload.tensors["v"].dense()[: width(upload.client.capacity)]
            change = new - self._generate(state, upload.client)
            embeddings[name] = embeddings.get(name, 0.0) + 0.1 * float(change.mean(dtype=np.float64))
            w[: new.size] += change / 10
            trained[name] = plan.round
        return GeneratedState(w.astype(np.float32), embeddings, trained), {"clients": float(len(uploads))}


def width(capacity: float) -> int:
    return max(1, int(capacity * SIZE))


class GeneratedClient(FakeClient):
    def download_schema(self, state, plan) -> Schema:
        index = np.arange(width(self.capacity), dtype=np.int64)
        return Schema({"v": TensorSpec((SIZE,), Support.DERIVED, index=index)}, {"width": (int, 1, SIZE)})

    def train(self, state: Held, download: Payload, plan: Plan) -> tuple[Held, Payload]:
        received = download.tensors["v"]
        new = received.dense() + step(received.dense(), self.name, plan)
        sent = replace(at(new, received.positions()), support=Support.SAME)
        return Held(sent.dense(), state.extra, plan.round), Payload({"v": sent}, {"examples": 10})

    def adapt(self, state: Held, download: Payload, plan: Plan) -> Held:
        return replace(state, w=download.tensors["v"].dense())


def generated_agrees(server: GeneratedState, clients: Mapping[str, Held], closed: bool) -> bool:
    return all(clients[name].rounds == round for name, round in server.trained.items())


# 5. Lag: one delta for all, but a client that was away needs the sum of those it missed (FedSTC)


@dataclass(frozen=True)
class LagState:
    w: Vector
    synced: Mapping[str, Vector]  # the global model that each client last held


class LagServer(FakeServer):
    uses_capacity = True

    def init(self) -> LagState:
        return LagState(self.start, {})

    def download(self, state: LagState, client: ClientInfo, plan: Plan) -> Payload:
        missed = state.w - state.synced.get(client.name, self.start)
        return Payload({"delta": at(missed, np.flatnonzero(missed).astype(np.int64))})

    def upload_schema(self, state, client, plan) -> Schema:
        return Schema({"delta": TensorSpec((SIZE,), max_count=2)})

    def aggregate(self, state: LagState, uploads: Uploads, plan: Plan) -> tuple[LagState, Metrics]:
        total, names = np.zeros(SIZE), []
        for upload in uploads:
            total += upload.payload.tensors["delta"].dense()
            names.append(upload.client.name)
        exact = (np.round((total / max(1, len(names))) * 64) / 64).astype(np.float32)  # sums of these are exact
        return LagState(state.w + exact, {**state.synced, **dict.fromkeys(names, state.w)}), {}


class LagClient(FakeClient):
    def download_schema(self, state, plan) -> Schema:
        return Schema({"delta": TensorSpec((SIZE,))})

    def train(self, state: Held, download: Payload, plan: Plan) -> tuple[Held, Payload]:
        w = state.w + download.tensors["delta"].dense()
        merged = step(w, self.name, plan) + state.extra
        sent = at(merged, largest(merged, 2))
        return Held(w, merged - sent.dense(), plan.round), Payload({"delta": sent})

    def adapt(self, state: Held, download: Payload, plan: Plan) -> Held:
        return replace(state, w=state.w + download.tensors["delta"].dense())


def lag_agrees(server: LagState, clients: Mapping[str, Held], closed: bool) -> bool:
    return all(np.array_equal(clients[n].w, server.w if closed else w) for n, w in server.synced.items())


def fake(name: str, server: type, client: type) -> Method:
    return Method(name, name, "a fake", NoKeys, server, client)


FAKES = {
    "queue": (fake("queue", QueueServer, QueueClient), queue_agrees),
    "phase": (fake("phase", PhaseServer, PhaseClient), phase_agrees),
    "shape": (fake("shape", ShapeServer, ShapeClient), shape_agrees),
    "generated": (fake("generated", GeneratedServer, GeneratedClient), generated_agrees),
    "lag": (fake("lag", LagServer, LagClient), lag_agrees),
}
