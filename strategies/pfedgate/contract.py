"""What pFedGate's server and client share: keys, states, the gated model at a budget, messages.

Chen, Yao, Gao, Ding, Li: "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023,
Algorithm 1. The paper's symbols: θ_g → ``weights``; φ_i → ``gate``; s_i → ``keep``; s_min → ``least``; B → ``blocks``;
η → ``rate`` (η_g is the run's ``lr``); s' → ``share``; L → the number of blocks; d → the number of parameters.

A download is θ_g, dense. An upload has ``blocks``, the members of L that were on for any example since the round began,
and ``delta``, Δθ at all entries of these blocks, without positions: both sides compute the blocks from B and s_i. A
client that made no step sends an empty ``blocks``. φ_i, with the statistics of its norms, never travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from sepal.config import AUTO, PositiveOrAuto, Settings, ShareOrAuto, auto, renewed
from sepal.errors import ConfigError
from sepal.layout import trained
from sepal.masks.flat import Flat
from sepal.method import ClientInfo, RunSetup, Schema, Weights
from sepal.models.gated import GatedModule
from sepal.models.narrow import forward_multiply_adds
from sepal.models.weights import initial_weights
from sepal.strategies.pfedgate.blocks import Blocks, Mask, split
from sepal.strategies.pfedgate.knapsack import Knapsack
from sepal.wire.tensors import Index, SparseTensor, Support, Tensors, TensorSpec, ValueCoding, Values, members

SPARSE = 0.5  # s where neither a key nor a profile of capacities says it


class Hyper(Settings):
    """pFedGate's keys."""

    gating: Literal["sample", "batch", "client"] = Field(
        "sample", description="one sparse model per example, per batch (the authors' code), or per client"
    )
    # Half is the larger of the paper's two sparse budgets; at 1 the method is FedAvg until its gate moves.
    keep: ShareOrAuto = renewed(
        AUTO,
        0.0,
        "s, every client's budget as a share of the model; 0: its capacity; auto: its capacity with a "
        f"capacity.profile, else {SPARSE:g}, or a node's capacity if that is less",
    )
    # Table 7: 5 of 2, 5 and 10.
    blocks: int = Field(5, ge=2, le=100, description="B, number of blocks that each tensor is cut into")
    least: float = Field(0.0, ge=0, le=1, description="s_min, first block's share of a tensor; 0: 1/B; s/2 if s < 1/B")
    solver: Literal["exact", "greedy-value"] = Field(
        "exact", description="knapsack solver; greedy-value: the authors' code"
    )
    cost: Literal["weights", "multiply-adds"] = Field("weights", description="what the budget counts")
    paths: Literal[1, 2] = Field(
        2, description="number of paths in the gate; 1: the importance G is the weight M (authors' code)"
    )
    # Table 2.
    without: Literal["none", "pre-norm", "post-norm", "sigmoid"] = Field("none", description="ablation of the gate")
    # The paper's start halves the signal at each layer and is random by example; NOTES.md has the measurements.
    start: Literal["one", "half"] = Field(
        "one", description="where the gate's weight M starts; half: the paper's, near .5 and different by example"
    )
    norm_variance: Literal["biased", "unbiased"] = Field(
        "biased",
        description="variance in the gate's first norm; unbiased: over n - 1 values, the running one starts at 0 (the "
        "authors' code)",
    )
    shift: float = Field(0.0, ge=-10, le=10, description="added before the gate's sigmoid")
    # Table 4: .05 to 1.5 by data set and s; EMNIST .1 at s = 1 and .5.
    rate: PositiveOrAuto = auto(0.01, "η, learning rate of the gate; lr is that of the model")
    clip: float = Field(10.0, gt=0, description="maximum gradient norm, for the model and the gate separately")
    keep_optimizer: bool = Field(False, description="keep the optimizer state of model and gate between rounds")
    # Silent; as many as fedavg-ft.epochs.
    novel_epochs: int = Field(5, ge=1, description="epochs in which a novel client trains only its gate")


@dataclass(frozen=True)
class ServerState:
    """The server's state: θ_g, float32 by name."""

    weights: Weights


@dataclass(frozen=True)
class ClientState:
    """A client's state, float32 by name.

    Attributes:
        gate: φ_i with the statistics of its norms; empty before the first training: φ⁰.
        model: θ after the last local training; empty before. Evaluation reads it.
        optimizer: The optimizer's state after the last training; empty unless it is kept between rounds.
    """

    gate: Weights = field(default_factory=dict)
    model: Weights = field(default_factory=dict)
    optimizer: Weights = field(default_factory=dict)


class GatedModels:
    """The gated models of a run, by budget, and what is sent of them."""

    def __init__(self, setup: RunSetup) -> None:
        """Check the keys and the model.

        Raises:
            ConfigError: ``batch-size`` does not fit, or s_min is above the budget.
            ModelError: The model has layers that cannot be gated, as text models do.
        """
        self.setup, self.flat = setup, Flat(trained(setup.layout))
        self.hyper: Hyper = setup.hyper
        if setup.config.batch_size < 2:
            raise ConfigError("batch-size", "at least 2: the gate normalises over the batch", setup.config.batch_size)
        module, example = self.module(self.keep(ClientInfo("", 0))).eval(), torch.zeros(1, *setup.input_shape)
        module.pool([example])
        with torch.no_grad():
            module(example)  # refuses what only a forward pass shows, before the run

    def keep(self, client: ClientInfo) -> float:
        """Return s_i."""
        if self.hyper.keep == AUTO:
            ideal = self.setup.config.capacity.profile == "ideal"
            return min(SPARSE, client.capacity) if ideal else client.capacity
        return float(self.hyper.keep) or client.capacity

    def blocks(self, keep: float) -> Blocks:
        """Return the blocks at a budget.

        Raises:
            ConfigError: s_min is above it.
        """
        return split(self.setup.layout, self.hyper.blocks, keep, self.hyper.least)

    def module(self, keep: float) -> GatedModule:
        """Return a new model with its gate, at a budget."""
        blocks, hyper = self.blocks(keep), self.hyper
        module = GatedModule(
            self.setup.make(),
            self.setup.input_shape,
            blocks.by_tensor(),
            lambda importance: np.ones(importance.shape, np.bool_),
            gating=hyper.gating,
            paths=hyper.paths,
            start=hyper.start,
            shift=hyper.shift,
            without=hyper.without,
            variance=hyper.norm_variance,
        )
        costs = None if hyper.cost == "weights" else blocks.costs(self.multiply_adds)  # of a model that can be gated
        module.choose = Knapsack(blocks, keep, hyper.solver, costs)
        return module

    def first_gate(self, keep: float) -> Weights:
        """Return φ⁰, drawn from the seed: the same for all clients with the same number of blocks.

        It is read from a new module, because a norm's initial values are what it was built with. Where M starts at one,
        the last layer before the sigmoid is 0: M is 1 for every example, and G is the same for all blocks.
        """
        gate = self.module(keep).gate
        first = initial_weights(gate, self.setup.config.seed)
        if self.hyper.start == "one":
            first |= {f"{gate.last}.{part}": np.zeros_like(first[f"{gate.last}.{part}"]) for part in ("weight", "bias")}
        return first

    @cached_property
    def multiply_adds(self) -> Mapping[str, int]:
        """One example's multiply-adds through the plain model, forward, by name of weight."""
        return forward_multiply_adds(self.setup.make(), torch.zeros(1, *self.setup.input_shape))

    # Messages

    def update(self, start: Weights, model: Weights, on: Mask, keep: float, coding: ValueCoding) -> Tensors:
        """Return the upload.

        Args:
            start: θ_g as received.
            model: θ after training.
            on: bool (L,): blocks that were on; none where the client made no step.
            keep: s_i.
            coding: How values are encoded.
        """
        index = self.positions(on, keep)
        delta: Values = self.flat.join(model) - self.flat.join(start)
        values = delta if index is None else delta[index]
        return {"blocks": members(on), "delta": SparseTensor(delta.shape, index, values, Support.DERIVED, coding)}

    def upload_schema(self, keep: float) -> Schema:
        """Admit blocks, the first ones among them, or none; then the values at their entries."""

        def delta(tensors: Tensors) -> TensorSpec:
            return TensorSpec((self.flat.size,), Support.DERIVED, index=self.positions(tensors["blocks"].mask(), keep))

        return Schema({"blocks": TensorSpec((len(self.blocks(keep).names),), values=False), "delta": delta})

    def positions(self, on: Mask, keep: float) -> Index | None:
        """Return the entries of the blocks ``on``, int64, increasing; None for all of the model.

        Raises:
            ProtocolError: A first block is missing, and ``on`` is not empty.
        """
        if on.all():
            return None
        return self.blocks(keep).positions(on) if on.any() else np.empty(0, np.int64)
