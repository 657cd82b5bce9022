"""FedPSE, server algorithm: element-wise aggregation (Algorithm 2) and personalized downloads (Algorithm 3).

Zheng et al., "FedPSE: Personalized Sparsification with Element-wise Aggregation for Federated Learning", CIKM 2023.
Deviations: see NOTES.md.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sepal.layout import statistics, trained
from sepal.masks.flat import Flat
from sepal.masks.selection import count, random_subset, top_k
from sepal.method import (
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    ServerBase,
    Upload,
    Uploads,
    Weights,
    dense,
    weighted_mean,
)
from sepal.rng import derive
from sepal.strategies.fedpse.contract import ServerState, budget, by_layer, upload_schema
from sepal.wire.tensors import Array, Index, SparseTensor, Values

Members = npt.NDArray[np.bool_]


class FedPSEServer(ServerBase[ServerState]):
    """Keeps one pending update for each client, made from the client's last upload."""

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.flat = Flat(trained(setup.layout))

    def init(self) -> ServerState:
        """Start with Σ ΔŴ_s = 0 and no pending updates."""
        zeros = {p.name: np.zeros(p.shape, np.float32) for p in self.flat.layout}
        return ServerState(zeros, {p.name: self.setup.weights[p.name] for p in statistics(self.setup.layout)})

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the pending update of ``client``."""
        return Payload({**state.pending[client.name], **self._statistics(state)})

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return Σ ΔŴ_s, the sum of all updates."""
        total = self.flat.join(state.total)
        index = np.flatnonzero(total).astype(np.int64)
        return Payload({**self.flat.scatter(index, total[index], self.coding), **self._statistics(state)})

    def _statistics(self, state: ServerState) -> dict[str, SparseTensor]:
        return dense(state.statistics, statistics(self.layout), self.coding)

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit exactly k entries and the statistics."""
        return upload_schema(self.setup)

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the statistics; all else in an upload is a difference."""
        return state.statistics

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Apply EWA and the server's top-k, and compose an update for each participant (Algorithm 4, lines 7-13)."""
        update, sent = aggregate(uploads, self.flat, self.hyper.ewa)
        chosen = self._top_k(update, sent)
        values, is_chosen = update[chosen].astype(np.float64), members(chosen, update.size)
        pending, metrics = dict(state.pending), {}
        for upload in uploads:
            name = upload.client.name
            if self.hyper.listing:
                support, distance = self._listed_support(update, sent, upload, plan)
            else:
                support, distance = self._support(chosen, values, is_chosen, upload, plan)
            pending[name] = self.flat.scatter(support, update[support], self.coding)
            metrics[f"distance.{name}"] = distance
        distances = list(metrics.values())
        if distances:
            metrics |= {"distance-mean": float(np.mean(distances)), "distance-variance": float(np.var(distances))}
        update *= is_chosen  # from here on ΔŴ_s
        total = self.flat.cut(update)
        for name, before in state.total.items():
            total[name] += before
        averaged = weighted_mean(uploads, state.statistics)
        return ServerState(total, averaged, pending), metrics

    def _top_k(self, update: Values, sent: npt.NDArray[np.bool_]) -> Index:
        """Return the positions of ΔŴ_s: the k largest entries of ΔW_s among those that any client sent."""
        candidates = np.flatnonzero(sent).astype(np.int64)
        if not by_layer(self.hyper):
            return candidates[top_k(update[candidates], min(budget(self.setup), candidates.size))]
        chosen = []
        for begin, end in pairwise(self.flat.starts()):
            layer = candidates[np.searchsorted(candidates, begin) : np.searchsorted(candidates, end)]
            chosen.append(layer[top_k(update[layer], min(count(self.hyper.keep, int(end - begin)), layer.size))])
        return np.concatenate(chosen)

    def _support(
        self, chosen: Index, values: Array, is_chosen: Members, upload: Upload, plan: Plan
    ) -> tuple[Index, float]:
        index, sent = self.flat.gather(upload.payload.tensors)
        in_client, in_server = members(index, self.flat.size)[chosen], is_chosen[index]
        distance = correlation_distance(values, values[in_client], sent, sent[in_server])
        if not self.hyper.dps:
            return chosen, distance
        rng = derive(self.setup.config.seed, "dps", upload.client.name, plan.round)
        support = personal_support(index[in_server], index[~in_server], chosen[~in_client], distance, rng)
        return support, distance

    def _listed_support(self, update: Values, sent: Members, upload: Upload, plan: Plan) -> tuple[Index, float]:
        """Return M_{s,i} and the mean distance over tensors, as the listing of Appendix E draws it.

        Each tensor has its own distance, to the dense ΔW_s; M_s is every position that anybody sent, so it holds M_i.
        """
        index, values = self.flat.gather(upload.payload.tensors)
        is_own = members(index, self.flat.size)
        rng = derive(self.setup.config.seed, "dps", upload.client.name, plan.round)
        support, distances = [], []
        for begin, end in pairwise(self.flat.starts()):
            span, sent_span = slice(begin, end), slice(*np.searchsorted(index, (begin, end)))
            client_index, others = index[sent_span], begin + np.flatnonzero(sent[span] & ~is_own[span]).astype(np.int64)
            distance = correlation_distance(update[span], update[client_index], values[sent_span], values[sent_span])
            share = others.size if not self.hyper.dps else round((1 - distance) * others.size)
            support += [client_index, random_subset(others, share, rng)]
            distances.append(distance)
        return np.sort(np.concatenate(support)), float(np.mean(distances))

    def model(self, state: ServerState) -> Weights:
        """Return W_0 + Σ ΔŴ_s, the model of a newcomer; the clients' own bases differ from it."""
        weights = {name: self.setup.weights[name] + state.total[name] for name in state.total}
        return {p.name: weights[p.name] if p.name in weights else state.statistics[p.name] for p in self.setup.layout}


def aggregate(uploads: Uploads, flat: Flat, ewa: bool = True) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Return ΔW_s, float32 (d,), and the entries that any client sent, bool (d,) (Algorithm 2).

    ΔW_s = Σ n_i·ΔŴ_i ⊘ Σ n_i·1[index sent by i]; an entry that no client sent is 0. ``ewa=False`` divides by Σ n_i
    instead, the naive mean of Appendix A. An entry sent with the value 0 counts.
    """
    sums, counts, total = np.zeros(flat.size), np.zeros(flat.size, np.uint32), 0
    for upload in uploads:
        n = upload.client.examples
        total += n
        if total >= 2**32:
            counts = counts.astype(np.uint64, copy=False)
        for begin, parameter in zip(flat.starts(), flat.layout, strict=False):
            tensor, span = upload.payload.tensors[parameter.name], slice(begin, begin + parameter.size)
            if tensor.values is not None:  # add.at is nearly twice as fast as indexed +=, which copies twice
                np.add.at(sums[span], tensor.positions(), np.multiply(tensor.values, n, dtype=np.float64))
                np.add.at(counts[span], tensor.positions(), counts.dtype.type(n))
    sent = counts > 0
    np.divide(sums, np.maximum(counts, 1, out=counts) if ewa else max(total, 1), out=sums)  # n_i is 1 or more
    return sums.astype(np.float32), sent


def correlation_distance(a: Array, a_shared: Array, b: Array, b_shared: Array) -> float:
    """Return .5 - .5·cos of two sparse vectors (Algorithm 3, lines 1-4); .5 if one of them is all zeros.

    Args:
        a: All values of the first vector, float32 or float64 (n,).
        a_shared: Its values at positions that both vectors have, in increasing order of position.
        b: All values of the second vector.
        b_shared: Its values at positions that both vectors have, in the same order.
    """
    norms = math.sqrt(_dot(a, a)) * math.sqrt(_dot(b, b))
    if not norms:
        return 0.5
    cosine = _dot(a_shared, b_shared) / norms
    return 0.5 - 0.5 * max(-1.0, min(1.0, cosine))


def _dot(a: Array, b: Array) -> float:
    return float(np.dot(a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)))


def members(index: Index, size: int) -> Members:
    """Return bool (size,), True at the positions ``index``. A lookup is ten times as fast as sorting two indices."""
    table = np.zeros(size, np.bool_)
    table[index] = True
    return table


def personal_support(
    shared: Index, only_client: Index, only_server: Index, distance: float, rng: np.random.Generator
) -> Index:
    """Return M_{s,i}, increasing positions (Algorithm 3, lines 6-14).

    The intersection, then a share ``distance`` of the remaining k - k_in from the client's own support and the rest
    from the server's. The client's share is rounded half up and clamped to what it has, so exactly
    min(k, |M_i ∪ M_s|) entries go down, where k = |M_s|.

    Args:
        shared: M_i ∩ M_s; this and the following int64 (n,), strictly increasing.
        only_client: M_i without M_s.
        only_server: M_s without M_i.
        distance: The correlation distance.
        rng: Generator; draws from the client's own positions first, then from the server's.
    """
    missing = only_server.size
    share = min(math.floor(distance * missing + 0.5), only_client.size)
    drawn = [random_subset(only_client, share, rng), random_subset(only_server, missing - share, rng)]
    support = np.concatenate([shared, *drawn])
    support.sort(kind="stable")  # merges three sorted arrays
    return support
