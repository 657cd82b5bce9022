"""FLASC: low-rank adapters, trained whole and sent sparse in both directions.

Kuo, Raje, Rajesh, Smith, "Federated LoRA with Sparse Communication", 2024 (https://arxiv.org/abs/2406.05233), and the
authors' code. The server sends the ``down`` largest entries of its adapters P, over all of them; the others arrive as
0. A client trains all entries from there, and sends the ``up`` largest entries of its change. The server takes
FedAdam's step with the mean change, in which entries that were not sent count as 0. *Received* is what was sent down; a
deployed client predicts with it.

Deviations: the mean is weighted by n_i; FedAdam's τ and β2 are those of ``fedadam`` (the authors take torch's AdamW);
nothing is sent in round 1, and clients start from the whole W_0, because B is 0 there and A would be cut at random.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sepal.layout import statistics, trained
from sepal.masks.flat import Flat
from sepal.masks.selection import count, top_k
from sepal.method import (
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    Uploads,
    Weights,
    dense,
    sparse_mean,
    weighted_mean,
)
from sepal.method.tensors import dense_specs
from sepal.strategies.baselines import fedopt
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient
from sepal.strategies.registration import register
from sepal.wire import rounded
from sepal.wire.tensors import SparseTensor, TensorSpec, Values


class Hyper(fedopt.Hyper):
    """FLASC's keys, and those of FedAdam's step. The paper's main density is 1/4 in both directions."""

    down: float = Field(0.25, gt=0, le=1, description="share of the adapters' entries that a download has")
    up: float = Field(0.25, gt=0, le=1, description="share of the entries of a client's change that it uploads")


class Sparse:
    """What both sides share: one vector of all trained entries, of which the largest are sent."""

    setup: RunSetup
    coding: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.flat, self.fixed = Flat(trained(self.setup.layout)), statistics(self.setup.layout)

    def largest(self, vector: Values, keep: float) -> SparseTensor:
        """Return the largest entries of a vector (d,)."""
        index = top_k(vector, count(keep, vector.size))
        return SparseTensor(vector.shape, index, rounded(vector[index], self.coding), coding=self.coding)

    def schema(self, name: str, keep: float) -> Schema:
        """Admit exactly so many entries, and the statistics."""
        k = count(keep, self.flat.size)
        return Schema({name: TensorSpec((self.flat.size,), min_count=k, max_count=k), **dense_specs(self.fixed)})


class FlascServer(Sparse, fedopt.FedAdamServer):
    """Sends its largest entries, and takes FedAdam's step with the mean change."""

    reads_uploads = "each client chooses its own entries"
    robust_means = True

    def download(self, state: Any, client: ClientInfo, plan: Plan) -> Payload:
        """Return the largest entries of P, and the statistics."""
        sent = self.largest(self.flat.join(state.weights), self.hyper.down)
        return Payload({"adapters": sent, **dense(state.weights, self.fixed, self.coding)})

    def upload_schema(self, state: Any, client: ClientInfo, plan: Plan) -> Schema:
        """Admit the largest entries of a change."""
        return self.schema("change", self.hyper.up)

    def reference(self, state: Any, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the statistics; all else in an upload is a difference."""
        return {p.name: state.weights[p.name] for p in self.fixed}

    def aggregate(self, state: Any, uploads: Uploads, plan: Plan) -> tuple[Any, Metrics]:
        """Take FedAdam's step with the mean change."""
        mean_change = sparse_mean(uploads, {"change": (self.flat.size,)}, self.weigh, self.robust)["change"]
        change: Any = self.flat.cut(mean_change)  # type: ignore[arg-type]  # float64, so that the step starts from the mean
        names = [p.name for p in self.fixed]
        mean: Any = weighted_mean(uploads, state.weights, names, self.weigh, robust=self.robust)
        mean |= {name: state.weights[name] + array for name, array in change.items()}
        return self.update(state, {p.name: mean[p.name] for p in self.layout}) if len(uploads) else state, {}


class FlascClient(Sparse, FedAvgClient):
    """Trains all entries from the received ones, and sends the largest of its change."""

    batched = True

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the largest entries of P; nothing in round 1, because W_0 is known."""
        return Schema() if plan.round == 1 else self.schema("adapters", self.hyper.down)

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the received model, 0 where nothing was sent."""
        if not download.tensors:
            return super().received_weights(state, download, plan)
        fixed = {p.name: download.tensors[p.name].dense() for p in self.fixed}
        return {**self.flat.cut(download.tensors["adapters"].dense()), **fixed}

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train from the received model; send the largest entries of the change."""
        start = self.received_weights(state, download, plan)
        after = self.fit(start, plan)
        change = self.largest(self.flat.join(after) - self.flat.join(start), self.hyper.up)
        return ClientState(after), Payload({"change": change, **dense(after, self.fixed, self.coding)})


Flasc = register(
    "flasc",
    "Low-rank adapters, sent sparse in both directions",
    "Kuo et al., 2024",
    FlascServer,
    FlascClient,
    Hyper,
    defaults={"lora.rank": 8},
    deployed="received",
)
