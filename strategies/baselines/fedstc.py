"""FedSTC: sparse ternary compression in both directions.

Sattler, Wiedemann, Müller, Samek, "Robust and Communication-Efficient Federated Learning from Non-IID Data", IEEE TNNLS
2019 (https://arxiv.org/abs/1903.02891): Algorithm 1 (STC: the k = p·d largest entries of the flattened update, each as
±μ, where μ is the mean of their magnitudes), Algorithm 2 (both directions, each with a residual), section V-B (a client
that missed rounds). Symbols: p_up = p_down → ``keep``; A_i, A → ``residual``; ΔW̃ → an update; P^(s), the sum of
the last s updates → what a client missed.

*Received* is the global model; *trained* is the client's model after its local epochs. A deployed client predicts with
the global model; *kept* is the client's model of its last local epochs.

When a client takes part, its base equals the server's model bit for bit. A sum of float32 updates would not ensure
this, because float addition is not associative. So a client that missed s updates gets the s ternary updates one by one
and adds them in the server's order, while s ≤ ``cache`` (the paper's bound H(P^(s)) ≤ s·H(P^(1)) is then what is sent).
Otherwise it gets the new values, fp32, of all entries that changed since. A newcomer missed all updates.

Deviations: the mean of updates is weighted by n_i, as in FedAvg; top-k and μ are over the whole model, as in the paper
(common implementations use each tensor separately); positions are sent in Sepal's wire format, not in Golomb code;
statistics of normalisation layers are averaged as values; a round without uploads sends no update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.client.algorithm import ClientBase
from sepal.client.training import Trainer
from sepal.config import Settings
from sepal.masks.flat import Flat
from sepal.masks.selection import count, top_k
from sepal.protocol.layout import statistics, trained
from sepal.protocol.means import sparse_mean
from sepal.protocol.method import ClientInfo, Metrics, Payload, Plan, Schema, SpecLike, Task, Uploads, Weights
from sepal.protocol.server_base import ServerBase
from sepal.protocol.tensors import dense, dense_specs
from sepal.strategies.registration import register
from sepal.wire import rounded
from sepal.wire.tensors import Index, SparseTensor, TensorSpec, ValueCoding, Values, at


class Hyper(Settings):
    """FedSTC's keys."""

    # The paper's p is 1/400 (also 1/25 and 1/100) with one step a round; with local epochs, FedPSE compares at .1.
    keep: float = Field(0.1, gt=0, le=1, description="p, fraction of entries sent, in both directions")
    ternary: bool = Field(True, description="send entries as ±μ; false: as values (FedAvg on updates if keep = 1)")
    # Our choice. Who missed more rounds gets the current value of each entry that has changed since.
    cache: int = Field(20, ge=1, description="past rounds whose updates the server keeps for clients that missed them")


@dataclass(frozen=True)
class ServerState:
    """The server's state; vectors have the entries of the flattened model without statistics, (d,).

    Attributes:
        weights: W, float32.
        residual: A, float32: accumulated entries that were not sent.
        changed: int32, the round in which each entry last changed; 0 if never.
        statistics: Averaged statistics of normalisation layers, by name.
        round: The last round included in ``weights``.
        history: Round to its update, for the last ``cache`` rounds.
        synced: Client name to the round of its base when its upload was last accepted.
    """

    weights: Values
    residual: Values
    changed: npt.NDArray[np.int32]
    statistics: Weights
    round: int = 0
    history: Mapping[str, SparseTensor] = field(default_factory=dict)
    synced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """A client's state.

    Attributes:
        base: W as of ``round``, float32 (d,).
        residual: A_i, float32 (d,): accumulated entries that were not sent.
        round: The last round included in ``base``.
        model: The model after the last local epochs, by name, only used for evaluation; empty before.
    """

    base: Values
    residual: Values
    round: int = 0
    model: Weights = field(default_factory=dict)


def stc(vector: Values, task: Task) -> SparseTensor:
    """Return the k largest entries of ``vector``, (d,), as ±μ (Algorithm 1); unchanged if not ``ternary``."""
    hyper: Hyper = task.hyper
    index = top_k(vector, count(hyper.keep, vector.size))
    if not hyper.ternary:
        coding = ValueCoding(task.config.values)
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


class FedSTCServer(ServerBase[ServerState]):
    """Computes one update a round, and sends each client the updates that it missed."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.flat, self.fixed = Flat(trained(task.layout)), statistics(task.layout)

    def init(self) -> ServerState:
        """Start from W_0 with a residual of 0."""
        zeros = np.zeros(self.flat.size, np.float32)
        fixed = {p.name: self.task.weights[p.name] for p in self.fixed}
        return ServerState(self.flat.join(self.task.weights), zeros, zeros.astype(np.int32), fixed)

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return what the client missed since its last accepted upload."""
        since = state.synced.get(client.name, 0)
        if state.round - since <= self.hyper.cache:
            missed = {r: update for r, update in state.history.items() if int(r) > since}
        else:
            missed = {"weights": at(state.weights, np.flatnonzero(state.changed > since).astype(np.int64))}
        return Payload({**missed, **dense(state.statistics, self.fixed, self.coding)})

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return all updates: a newcomer missed all of them."""
        return self.download(state, client, plan)

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit exactly k entries; at most k if they are ternary, because zeros are left out."""
        k = count(self.hyper.keep, self.flat.size)
        least = 0 if self.hyper.ternary else k
        update = TensorSpec((self.flat.size,), min_count=least, max_count=k)
        return Schema({"update": update, **dense_specs(self.fixed)})

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the statistics; all else in an upload is a difference."""
        return state.statistics

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update ΔW = mean + A; ΔW̃ = STC(ΔW); A = ΔW - ΔW̃; W = W + ΔW̃."""
        if not len(uploads):
            return replace(state, round=plan.round), {}
        shapes = {"update": (self.flat.size,), **{p.name: p.shape for p in self.fixed}}
        mean = sparse_mean(uploads, shapes, self.weigh, self.robust)
        total = (mean["update"] + state.residual).astype(np.float32)
        update = stc(total, self.task)
        changed = state.changed.copy()
        changed[update.positions()] = plan.round
        kept = {r: u for r, u in state.history.items() if int(r) > plan.round - self.hyper.cache}
        clients = [client.name for client in uploads.clients]
        after = ServerState(
            plus(state.weights, update),
            less(total, update),
            changed,
            {p.name: mean[p.name].astype(np.float32) for p in self.fixed},
            plan.round,
            {**kept, str(plan.round): update},
            {**state.synced, **dict.fromkeys(clients, state.round)},
        )
        return after, {"missed": float(np.mean([state.round - state.synced.get(name, 0) for name in clients]))}

    def model(self, state: ServerState) -> Weights:
        """Return the global model."""
        return {**self.flat.cut(state.weights), **state.statistics}


class FedSTCClient(ClientBase[ClientState]):
    """Applies the missed updates, trains, and sends the ternary part of its update plus residual."""

    def __init__(self, task: Task, trainer: Trainer) -> None:
        super().__init__(task, trainer)
        self.flat, self.fixed = Flat(trained(task.layout)), statistics(task.layout)

    def init(self) -> ClientState:
        """Start from W_0 with a residual of 0."""
        return ClientState(self.flat.join(self.task.weights), np.zeros(self.flat.size, np.float32))

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the missed updates, or new values instead."""
        k = count(self.hyper.keep, self.flat.size)
        missed = range(max(state.round + 1, plan.round - self.hyper.cache), plan.round)
        update = TensorSpec((self.flat.size,), max_count=k, optional=True)
        specs: dict[str, SpecLike] = {str(round): update for round in missed}
        specs["weights"] = TensorSpec((self.flat.size,), optional=True)
        return Schema({**specs, **dense_specs(self.fixed)})

    def caught_up(self, state: ClientState, download: Payload) -> Values:
        """Return the server's W, from new values or from the missed updates in the server's order."""
        base, fixed = state.base, {parameter.name for parameter in self.fixed}
        for name, tensor in download.tensors.items():  # the schema ensures the order of rounds
            if name == "weights":
                base = np.where(tensor.mask(), tensor.dense(), base)
            elif name not in fixed:
                base = plus(base, tensor)
        return base

    def arrived(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the global model."""
        fixed = {p.name: download.tensors[p.name].dense() for p in self.fixed}
        return {**self.flat.cut(self.caught_up(state, download)), **fixed}

    def own(self, state: ClientState) -> Weights:
        """Return the locally trained model."""
        return state.model

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Compute ΔW_i = A_i + SGD(W) - W and send STC(ΔW_i); the rest is the new A_i (Algorithm 2).

        With ``privacy.*``, ΔW_i is clipped and noised before STC selects. A_i is then the clipped part without noise,
        0 at all entries that were sent.
        """
        after = self.adapt(state, download, plan)
        found = self.trainer.release(self.flat.join(after.model) - after.base + state.residual, plan.round)
        update = stc(found.noised, self.task)
        rest = without(found.clipped, update.positions()) if self.private else less(found.noised, update)
        fixed = dense(after.model, self.fixed, self.coding)
        return replace(after, residual=rest), Payload({"update": update, **fixed})

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload; the residual does not change."""
        model = self.fit(self.arrived(state, download, plan), plan)
        return ClientState(self.caught_up(state, download), state.residual, plan.round - 1, model)


FedSTC = register(
    "fedstc",
    "Sparse ternary compression, both ways",
    "Sattler et al., TNNLS 2019",
    FedSTCServer,
    FedSTCClient,
    Hyper,
    private=("",),
    deployed="received",
    robust=True,
)
