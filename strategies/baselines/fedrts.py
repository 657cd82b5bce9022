"""FedRTS: which entries one sparse global model has is drawn from Beta posteriors (Thompson sampling).

Huang, Yang, Chen, Ye, Wu, "FedRTS: Federated Robust Pruning via Combinatorial Thompson Sampling", NeurIPS 2025
(https://arxiv.org/abs/2501.19122). Layer weights have a mask m with K entries in each layer, by an ERK budget that
never changes; biases and norms are dense. The server keeps α and β for each entry, 1 at first. Symbols: λ → the weight
of a round's outcome; p_n → n_n/Σn; κ = K - k, where k is the share of a layer's entries that may move, which falls as
a cosine.

Clients train with m, and the server averages. In each round, α += λ·X and β += λ·(1 - X) at the entries of m, where X
is ``aggregate``·h + (1 - ``aggregate``)·Σ p_n·h_n, and h (h_n) is 1 for the κ largest entries of the mean (of the
client's upload) in the layer. In rounds that adjust, clients also send the positions of the k largest gradients of
their last batch among the entries that are off; of entries off, X is ``aggregate``·½ + (1 - ``aggregate``)·Σ p_n·1(sent
by n). Then a number is drawn from Beta(α, β) for every entry of a layer, and m has the K largest. Entries that are new
start from 0. *Received* is the global sparse model, *trained* the client's after its local epochs. A deployed client
predicts with *received*; *kept* is the client's model of its last local epochs.

What was read of the code is not the authors' release: NOTES.md says what, and where paper and code differ. Deviations:
numbers are drawn from the run's seed, where the code seeds them by the round alone; rounds count from 1 here; the
client that has the mean written into its upload by the code has a vote of its own; if they are not set, T_end is the
middle of the run and ΔT at most a quarter of that; k is 0 from T_end on, where the cosine would rise again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import Settings
from sepal.errors import ConfigError
from sepal.masks.packed import Mask, Masks, masked
from sepal.masks.schedules import cosine
from sepal.masks.selection import largest
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
    sparse_mean,
)
from sepal.method.tensors import at_masks, at_masks_specs
from sepal.protocol.types import SpecLike
from sepal.rng import derive
from sepal.strategies.baselines.fedavg import ClientState
from sepal.strategies.baselines.feddst import FedDSTClient, budgets, everywhere, sizes
from sepal.strategies.registration import register
from sepal.wire.tensors import TensorSpec, members

SHORTEST = 4  # rounds in which masks are adjusted by default; shorter runs are trials
Scores = Mapping[str, npt.NDArray[np.float64]]


class Hyper(Settings):
    """FedRTS's keys. λ, γ and α_adj are the paper's; the density is one of its two."""

    keep: float = Field(0.5, gt=0, le=1, description="fraction of weights kept; 1 is FedAvg")
    budgets: Literal["erk", "uniform"] = Field("erk", description="how the budget is distributed over layers")
    first: Literal["largest", "drawn"] = Field("largest", description="first mask: the largest of W_0, or drawn")
    strength: float = Field(10.0, gt=0, description="λ, weight of a round's outcome in α and β")
    aggregate: float = Field(0.5, ge=0, le=1, description="γ, weight of the mean's outcome beside the clients'")
    fraction: float = Field(0.4, ge=0, le=1, description="α_adj, share of a layer's entries that may move, at first")
    adjust_every: int = Field(
        0, ge=0, description="ΔT, rounds between adjustments; 0: 10, or a quarter of T_end where that is less"
    )
    until: int = Field(0, ge=0, description="T_end, last round that may adjust; 0: the middle of the run")
    draw: Literal["sample", "mean"] = Field("sample", description="draw from Beta(α, β), or take its mean")


@dataclass(frozen=True)
class ServerState:
    """The server's state, by name.

    Attributes:
        weights: The global model, float32, 0 where it is off.
        masks: The masks of tensors with a budget.
        alpha, beta: Parameters of the posterior of each of their entries, float64.
    """

    weights: Weights
    masks: Masks
    alpha: Scores
    beta: Scores


def first_masks(setup: RunSetup) -> dict[str, Mask]:
    """Return the masks of round 1; both sides derive them."""
    counts = budgets(setup)
    if setup.hyper.first == "largest":
        return {name: largest(setup.weights[name], entries) for name, entries in counts.items()}
    rng = derive(setup.config.seed, "fedrts-first")
    return {name: largest(rng.random(setup.weights[name].shape), entries) for name, entries in counts.items()}


def moving(masks: Masks, fraction: float) -> dict[str, int]:
    """Return k of each layer: the share ``fraction`` of its entries, rounded down, and no more than are off."""
    return {n: min(int(fraction * int(m.sum())), m.size - int(m.sum())) for n, m in masks.items()}


class FedRTSServer(ServerBase[ServerState]):
    """Averages the clients' models, counts what they say of entries, and draws masks."""

    reads_uploads = "which entries are large in each upload"
    depends_on_rounds = True
    unbounded: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        keys, rounds = (self.hyper.until, self.hyper.adjust_every), self.setup.config.rounds
        never = self.every > min(rounds, self.last - 1)
        if never and any(keys) and self.hyper.keep < 1 and rounds >= SHORTEST:
            key, value = ("adjust-every", keys[1]) if keys[1] else ("until", keys[0])
            expected = (
                f"one with an adjustment at k > 0, that is before T_end, and T_end is {self.last} of {rounds} rounds"
            )
            raise ConfigError(f"fedrts.{key}", expected, value)

    def init(self) -> ServerState:
        """Start from W_0 at the first masks, with α = β = 1."""
        masks = first_masks(self.setup)
        ones = {name: np.ones(mask.shape) for name, mask in masks.items()}
        return ServerState(masked(self.setup.weights, masks), masks, ones, dict(ones))

    @property
    def last(self) -> int:
        """T_end."""
        return int(self.hyper.until or self.setup.config.rounds // 2)

    @property
    def every(self) -> int:
        """ΔT; if it is not set, there are at least four adjustments in all runs that are long enough."""
        return int(self.hyper.adjust_every or min(10, max(min(self.last, self.setup.config.rounds) // 4, 1)))

    def adjusts(self, round: int) -> bool:
        """Return whether masks are drawn after a round."""
        return round <= self.last and round % self.every == 0

    def fraction(self, round: int) -> float:
        """Return the share of a layer's entries that may move."""
        return cosine(self.hyper.fraction, round, max(self.last, 1))

    def plan(self, round: int) -> Plan:
        """Say which share of entries clients report; 0 where they report none."""
        return Plan(round, scalars={"fraction": self.fraction(round) if self.adjusts(round) else 0.0})

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the global model and its masks."""
        return Payload(at_masks(state.weights, everywhere(state.masks, self.layout), self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit weights at the masks, and in adjusting rounds which k of the entries that are off."""
        specs: dict[str, SpecLike] = {}
        for name, entries in moving(state.masks, float(plan.scalars["fraction"])).items():
            if entries:
                off = (state.masks[name].size - int(state.masks[name].sum()),)
                specs[f"{name}/grow"] = TensorSpec(off, values=False, min_count=entries, max_count=entries)
        known = everywhere(state.masks, self.layout)
        return Schema({**specs, **at_masks_specs(self.layout, sizes(self.setup), known, fresh=False)})

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Average, add what mean and clients say to α and β, and in adjusting rounds draw masks."""
        if not len(uploads):
            return state, {}
        kept = {n: int(m.sum()) - k for n, (m, k) in self._moving(state, plan).items()}
        votes = {name: np.zeros(mask.shape) for name, mask in state.masks.items()}
        total = 0.0

        def note(upload: Upload) -> float:
            nonlocal total
            weight, tensors = self.weigh(upload), upload.payload.tensors
            for name, mask in state.masks.items():
                votes[name][largest(tensors[name].dense(), kept[name], mask)] += weight
                if f"{name}/grow" in tensors:
                    votes[name][~mask] += weight * tensors[f"{name}/grow"].mask()
            total += weight
            return weight

        mean = sparse_mean(uploads, {p.name: p.shape for p in self.layout}, note)
        weights: dict[str, npt.NDArray[np.float32]] = {n: array.astype(np.float32) for n, array in mean.items()}
        if not total:
            return state, {}
        alpha, beta, masks = dict(state.alpha), dict(state.beta), dict(state.masks)
        for name, mask in state.masks.items():
            outcome = np.where(mask, largest(weights[name], kept[name], mask), 0.5)
            x = self.hyper.aggregate * outcome + (1 - self.hyper.aggregate) * votes[name] / total
            seen = self.hyper.strength * (mask | self.adjusts(plan.round))
            alpha[name], beta[name] = alpha[name] + seen * x, beta[name] + seen * (1 - x)
        if self.adjusts(plan.round):
            masks = self.drawn(alpha, beta, plan.round)
        grown = sum(int((masks[name] & ~state.masks[name]).sum()) for name in masks)
        return ServerState(masked(weights, masks), masks, alpha, beta), {"grown": float(grown)}

    def _moving(self, state: ServerState, plan: Plan) -> dict[str, tuple[Mask, int]]:
        counts = moving(state.masks, self.fraction(plan.round))
        return {name: (mask, counts[name]) for name, mask in state.masks.items()}

    def drawn(self, alpha: Scores, beta: Scores, round: int) -> dict[str, Mask]:
        """Return the masks of the largest numbers of each layer."""
        rng = derive(self.setup.config.seed, "fedrts", round)
        masks = {}
        for name, entries in budgets(self.setup).items():
            a, b = alpha[name], beta[name]
            masks[name] = largest(a / (a + b) if self.hyper.draw == "mean" else rng.beta(a, b), entries)
        return masks

    def model(self, state: ServerState) -> Weights:
        """Return the sparse global model."""
        return state.weights


class FedRTSClient(FedDSTClient):
    """Trains with the received mask, and says where its gradients are largest outside it."""

    def first_masks(self) -> Masks:
        """Return the masks of round 1."""
        return first_masks(self.setup)

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train with the received masks, and upload weights and, in adjusting rounds, positions."""
        masks, start = self._masks(download), self.received_weights(state, download, plan)
        model, gradient = self._fit(start, masks, plan, self.setup.config.local_epochs)
        sent = at_masks(model, everywhere(masks, self.layout), self.coding, derived=True)
        counts = moving(masks, float(plan.scalars["fraction"]))
        grow: dict[str, Any] = {
            f"{name}/grow": members(largest(gradient[name][~masks[name]], entries))
            for name, entries in counts.items()
            if entries
        }
        return ClientState(model), Payload({**grow, **sent})


FedRTS = register(
    "fedrts",
    "A sparse global model whose entries are drawn from posteriors",
    "Huang et al., NeurIPS 2025",
    FedRTSServer,
    FedRTSClient,
    Hyper,
    deployed="received",
    one_model=True,
)
