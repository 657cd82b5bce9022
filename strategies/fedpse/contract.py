"""What FedPSE's server and client share: keys, schemas and states.

Paper's symbols: p, the sparsity → ``keep`` = 1 - p; d → ``Flat.size``; k = (1-p)·d → ``budget``; ΔŴ_i → the upload's
tensors; ΔŴ_{s,i} → the download's; e_i → ``residual``; W_i → ``base``; W_i^T → ``model``.

Every trained tensor is sent under its own name, sparse; an upload has exactly k entries in total. Statistics of
normalisation layers are sent as values, dense, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from sepal.config import Settings
from sepal.layout import Layout, statistics, trained
from sepal.masks.flat import Flat
from sepal.masks.selection import count
from sepal.method import RunSetup, Schema, Weights
from sepal.method.tensors import dense_specs
from sepal.protocol.types import SpecLike
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec


class Hyper(Settings):
    """FedPSE's keys."""

    # p = .9 in the headline tables (sweep .1 … .9 in Figure 4).
    keep: float = Field(0.1, gt=0, le=1, description="1 - p, fraction of entries sent; 1 is FedAvg on updates")
    per_layer: bool = Field(False, description="top-k per tensor instead of over the whole model; all else unchanged")
    listing: bool = Field(False, description="follow the listing of Appendix E instead of Algorithms 1-4; see NOTES.md")
    ewa: bool = Field(True, description="element-wise aggregation; false: the naive mean (ablation)")
    dps: bool = Field(True, description="personalized downloads; false: the server's top-k for all clients (ablation)")


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        total: Σ ΔŴ_s over the rounds, float32 by name, trained tensors only; a newcomer starts from W_0 plus this sum.
        statistics: Averaged statistics of normalisation layers, float32 by name.
        pending: Client name to the update composed for it in its last accepted round; kept until its next upload is
            accepted.
    """

    total: Weights
    statistics: Weights
    pending: Mapping[str, Mapping[str, SparseTensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """A client's state, float32 by name.

    Attributes:
        base: W_i, changed by downloads only.
        residual: e_i, accumulated entries that were not sent; trained tensors only.
        model: W_i^T, the model after local training; empty before the first round.
        optimizer: With ``listing``: the optimizer's state after the last round. Empty otherwise.
    """

    base: Weights
    residual: Weights
    model: Weights = field(default_factory=dict)
    optimizer: Weights = field(default_factory=dict)


def by_layer(hyper: Hyper) -> bool:
    """Return whether top-k is taken in each tensor."""
    return hyper.per_layer or hyper.listing


def budget(setup: RunSetup) -> int:
    """Return k, the number of uploaded entries of the whole model."""
    hyper: Hyper = setup.hyper
    parts = trained(setup.layout)
    if by_layer(hyper):
        return sum(count(hyper.keep, parameter.size) for parameter in parts)
    return count(hyper.keep, Flat(parts).size)


def upload_schema(setup: RunSetup) -> Schema:
    """Return the upload's schema: ``budget`` entries in total, then the statistics.

    With ``per_layer`` and ``listing`` each tensor has its own share of the budget.
    """
    hyper: Hyper = setup.hyper
    parts, k = trained(setup.layout), budget(setup)
    specs: dict[str, SpecLike] = {}
    for position, parameter in enumerate(parts):
        if by_layer(hyper):
            share = count(hyper.keep, parameter.size)
            specs[parameter.name] = TensorSpec(parameter.shape, min_count=share, max_count=share)
        else:
            specs[parameter.name] = _remaining(parts, position, k)
    return Schema({**specs, **dense_specs(statistics(setup.layout))})


def _remaining(parts: Layout, position: int, k: int) -> SpecLike:
    """Return the spec of the tensor at ``position``: its count must allow exactly ``k`` entries in total."""
    parameter = parts[position]
    later = sum(following.size for following in parts[position + 1 :])

    def spec(decoded: Mapping[str, SparseTensor]) -> TensorSpec:
        entries_left = k - sum(tensor.nnz for tensor in decoded.values())
        least, most = max(0, entries_left - later), max(0, min(parameter.size, entries_left))
        return TensorSpec(parameter.shape, min_count=least, max_count=most)

    return spec


def download_schema(setup: RunSetup) -> Schema:
    """Return the download's schema: any support (a newcomer gets the sum of all updates), then the statistics."""
    return Schema(
        {**{p.name: TensorSpec(p.shape) for p in trained(setup.layout)}, **dense_specs(statistics(setup.layout))}
    )


def updated(base: Weights, tensors: Tensors, layout: Layout) -> Weights:
    """Return ``base`` with a download applied: updates are added, statistics replaced."""
    fixed = {p.name for p in statistics(layout)}
    return {
        p.name: tensors[p.name].dense() if p.name in fixed else base[p.name] + tensors[p.name].dense() for p in layout
    }
