"""FedSCR: clients send whole structures of their updates, and accumulate the others.

Wu, Yao, Wang, "FedSCR: Structure-Based Communication Reduction for Federated Learning", IEEE TPDS 2020
(https://doi.org/10.1109/TPDS.2020.3046250). A client adds its residual to its update, aggregates the magnitudes over
each structure, sends the structures whose aggregate reaches a threshold, and keeps the rest as the new residual.
Downloads are those of FedAvg. *Received* is the global model, *trained* the client's model after its local epochs. A
deployed client predicts with the global model; *kept* is the client's model of its last local epochs.

Simplified against the paper:

- A structure is a row along axis 0: a convolution's filter, a linear layer's unit, one entry of a bias. The paper also
  drops channels (axis 1); the positions of rows take one bit each.
- The aggregate is the mean magnitude, Σ|u| / entries, not the sum, so that one threshold fits structures of all sizes.
- Adaptive FedSCR derives each client's threshold from its weight divergence, the significance of its update and the
  distribution of its data. Here the threshold follows from a budget: a client sends the structures with the largest
  aggregates that together have at most a fraction ``keep`` of the entries. ``threshold`` > 0 is plain FedSCR with a
  fixed threshold.
- Statistics of normalisation layers are averaged as values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import Settings
from sepal.errors import SepalError
from sepal.layout import Layout, statistics, trained
from sepal.masks.selection import count
from sepal.method import (
    ClientBase,
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    Trainer,
    Uploads,
    Weights,
    dense,
    sparse_mean,
    weighted_mean,
)
from sepal.method.tensors import dense_specs
from sepal.protocol.types import SpecLike
from sepal.strategies.baselines.fedavg import FedAvgServer, ServerState
from sepal.strategies.registration import register
from sepal.wire import rounded
from sepal.wire.tensors import Index, SparseTensor, TensorSpec


class Hyper(Settings):
    """FedSCR's keys."""

    # The paper's ResNet18 sends half at the only threshold that keeps accuracy (θ = .3); FedPSE compares at .1.
    keep: float = Field(0.5, gt=0, le=1, description="fraction of entries sent, in whole structures; 1 is FedAvg")
    threshold: float = Field(0.0, ge=0, description="fixed threshold on the mean magnitude, replaces keep; 0: use keep")


@dataclass(frozen=True)
class ClientState:
    """A client's state, float32 by name.

    Attributes:
        residual: Accumulated entries that were not sent; trained tensors only.
        model: The model after the last local epochs, only used for evaluation; empty before.
    """

    residual: Weights
    model: Weights = field(default_factory=dict)


def rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (number of structures, entries in each): rows along axis 0; a scalar is one structure."""
    structures = shape[0] if shape else 1
    return structures, int(np.prod(shape[1:], dtype=np.int64))


def budget(parts: Layout, keep: float) -> int:
    """Return the maximum number of uploaded entries: ``keep`` of all, and at least the largest structure."""
    return max(count(keep, sum(p.size for p in parts)), *(rows(p.shape)[1] for p in parts))


def select(update: Weights, parts: Layout, hyper: Hyper) -> dict[str, Index]:
    """Return the positions of the uploaded entries by name: int64, increasing, whole structures only."""
    scores = np.concatenate([np.abs(update[p.name]).reshape(rows(p.shape)).mean(1, dtype=np.float64) for p in parts])
    if not np.isfinite(scores).all():
        raise SepalError("update", "finite numbers", "NaN or infinity: training diverged")
    sizes = np.concatenate([np.full(rows(p.shape)[0], rows(p.shape)[1]) for p in parts])
    if hyper.threshold:
        chosen: npt.NDArray[np.bool_] = scores >= hyper.threshold
    else:
        order = np.argsort(-scores, kind="stable")
        chosen = np.zeros(scores.size, np.bool_)
        chosen[order[np.cumsum(sizes[order]) <= budget(parts, hyper.keep)]] = True
    starts = np.cumsum([0, *(rows(p.shape)[0] for p in parts)])
    pieces = zip(parts, starts, starts[1:], strict=False)
    return {p.name: np.flatnonzero(np.repeat(chosen[a:b], rows(p.shape)[1])).astype(np.int64) for p, a, b in pieces}


class FedSCRServer(FedAvgServer):
    """FedAvg's server for sparse updates."""

    robust_means = True

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit any entries within the budget, then the statistics."""
        hyper: Hyper = self.setup.hyper
        parts = trained(self.setup.layout)
        most = sum(p.size for p in parts) if hyper.threshold else budget(parts, hyper.keep)
        specs: dict[str, SpecLike] = {p.name: _within(p.shape, p.size, most) for p in parts}
        return Schema({**specs, **dense_specs(statistics(self.layout))})

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the statistics; all else in an upload is a difference."""
        return {p.name: state.weights[p.name] for p in statistics(self.layout)}

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update W ← W + Σ n_i·u_i / Σ n_i."""
        parts = trained(self.setup.layout)
        mean = sparse_mean(uploads, {p.name: p.shape for p in parts}, self.weigh, self.robust)
        new_weights = {p.name: (state.weights[p.name] + mean[p.name]).astype(np.float32) for p in parts}
        fixed = weighted_mean(
            uploads, state.weights, [p.name for p in statistics(self.setup.layout)], robust=self.robust
        )
        return ServerState({p.name: {**new_weights, **fixed}[p.name] for p in self.setup.layout}), {}


def _within(shape: tuple[int, ...], size: int, most: int) -> SpecLike:
    def spec(decoded: Mapping[str, SparseTensor]) -> TensorSpec:
        entries_left = most - sum(tensor.nnz for tensor in decoded.values())
        return TensorSpec(shape, max_count=max(0, min(size, entries_left)))

    return spec


class FedSCRClient(ClientBase[ClientState]):
    """Sends the largest structures of its update, and keeps the others as residual."""

    batched = True

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.parts = trained(setup.layout)

    def init(self) -> ClientState:
        """Start with a residual of 0."""
        return ClientState({p.name: np.zeros(p.shape, np.float32) for p in self.parts})

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the locally trained model."""
        return state.model

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Send the large structures of u = w_i - W + residual; the others become the new residual."""
        received = self.received_weights(state, download, plan)
        model = self.fit(received, plan)
        update = {p.name: model[p.name] - received[p.name] + state.residual[p.name] for p in self.parts}
        upload, owed = {}, {}
        for name, index in select(update, self.parts, self.hyper).items():
            flat = update[name].reshape(-1)
            sent = rounded(flat[index], self.coding)
            upload[name] = SparseTensor(update[name].shape, index, sent, coding=self.coding)
            rest = flat.copy()
            rest[index] -= sent
            owed[name] = rest.reshape(update[name].shape)
        fixed = dense(model, statistics(self.layout), self.coding)
        return ClientState(owed, model), Payload({**upload, **fixed})

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload; the residual does not change."""
        return replace(state, model=self.fit(self.received_weights(state, download, plan), plan))


FedSCR = register(
    "fedscr",
    "Structured updates above a threshold",
    "Wu et al., TPDS 2020",
    FedSCRServer,
    FedSCRClient,
    Hyper,
    deployed="received",
    one_model=True,
)
