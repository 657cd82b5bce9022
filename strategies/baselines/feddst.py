"""FedDST: federated dynamic sparse training of one sparse global model.

Bibikar, Vikalo, Wang, Chen, "Federated Dynamic Sparse Training: Computing Less, Communicating Less, Yet Learning
Better", AAAI 2022, Algorithm 1 (https://arxiv.org/abs/2112.09824). Layer weights are masked to an ERK budget; biases
and norms are dense. Clients train with the global mask. Every ΔR-th round they prune the smallest fraction α of each
layer's weights, regrow as many with the largest gradients, and send mask and weights. The server averages each weight
over the clients that kept it, and prunes the union of the masks to the budget by magnitude. *Received* is the global
sparse model, *trained* the client's model after its local epochs. A deployed client predicts with the global sparse
model; *kept* is the client's model of its last local epochs.

Where the paper is silent, this follows the authors' code: the first mask has the largest |W_0|; α is constant (their
cosine schedule only determines when readjusting ends); masks are readjusted in rounds 2, 2 + ΔR, … up to the middle of
the run; the gradient is that of the last batch after the last step; regrown weights start at 0.

One choice is ours. The authors' code readjusts after the last local epoch, so regrown weights are uploaded as 0, and
the server prunes them again: the global mask hardly changes. Here ``train-after`` = 1 epoch follows the readjustment if
E allows it; 0 is the authors' choice.

Deviations: budgets are met exactly (sepal.masks), by standard ERK (the authors scale sparsities instead, which is
closer to uniform); only entries outside the pruned mask are regrown; the mask is sent with every download (at most one
bit per weight), and uploaded in readjusting rounds only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from sepal.config import Settings
from sepal.layout import Layout, Role
from sepal.masks.budgets import erk, uniform
from sepal.masks.packed import Mask, Masks, density, masked
from sepal.masks.schedules import prune, regrow
from sepal.masks.selection import largest
from sepal.method import ClientInfo, Hooks, Metrics, Payload, Plan, RunSetup, Schema, ServerBase, Uploads, Weights
from sepal.method.means import mean_of_holders
from sepal.method.tensors import at_masks, at_masks_specs
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective
from sepal.training.network import read_gradients


class Hyper(Settings):
    """FedDST's keys."""

    # The authors' examples: keep .2, ΔR 15 (CIFAR-10); keep .5, ΔR 10 (CIFAR-100); α .01. DM-PFL: .5, 10, .01.
    keep: float = Field(0.2, gt=0, le=1, description="1 - S, fraction of weights kept; 1 is FedAvg")
    budgets: Literal["erk", "uniform"] = Field("erk", description="how the budget is distributed over layers")
    fraction: float = Field(0.01, ge=0, le=1, description="α, fraction of a layer's kept weights to prune and regrow")
    train_after: int = Field(1, ge=0, description="local epochs after readjusting, at most E - 1; 0: authors' code")
    readjust_every: int = Field(10, ge=1, description="ΔR, rounds between readjustments")
    until: int = Field(0, ge=0, description="last round in which masks are readjusted; 0: the middle of the run")


@dataclass(frozen=True)
class ServerState:
    """The global model, float32 by name, 0 where it is pruned; and the masks of tensors with a budget."""

    weights: Weights
    masks: Masks


def budgets(setup: RunSetup) -> dict[str, int]:
    """Return how many entries are kept, for every tensor that has a mask."""
    shapes = {p.name: p.shape for p in setup.layout if p.role is Role.WEIGHT}
    return (erk if setup.hyper.budgets == "erk" else uniform)(shapes, setup.hyper.keep)


def sizes(setup: RunSetup) -> dict[str, int]:
    """Return the number of entries of each tensor that are sent."""
    return {**{p.name: p.size for p in setup.layout}, **budgets(setup)}


def first_masks(setup: RunSetup) -> dict[str, Mask]:
    """Return the masks of the largest |W_0| in each layer; both sides derive them."""
    return {name: largest(setup.weights[name], k) for name, k in budgets(setup).items()}


def everywhere(masks: Masks, layout: Layout) -> dict[str, Mask]:
    """Return a mask for every tensor of ``layout``, in order; all True for tensors without a budget."""
    return {p.name: masks[p.name] if p.name in masks else np.ones(p.shape, np.bool_) for p in layout}


class FedDSTServer(ServerBase[ServerState]):
    """Averages each weight over the clients that kept it, and prunes the mean to the budget."""

    reads_uploads = "the masks of each client, in rounds that readjust"
    depends_on_rounds = True

    def init(self) -> ServerState:
        """Start from W_0, masked to its largest entries in each layer."""
        masks = first_masks(self.setup)
        return ServerState(masked(self.setup.weights, masks), masks)

    def plan(self, round: int) -> Plan:
        """Readjust in rounds 2, 2 + ΔR, … up to round ``until``."""
        until = self.hyper.until or self.setup.config.rounds // 2
        due = 2 <= round <= until and (round - 2) % self.hyper.readjust_every == 0
        return Plan(round, scalars={"fraction": self.hyper.fraction if due else 0.0})

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the global model and its masks."""
        return Payload(at_masks(state.weights, everywhere(state.masks, self.layout), self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit weights at the global masks; in a readjusting round, at the client's own masks."""
        moving = bool(plan.scalars["fraction"])
        global_masks = everywhere(state.masks, self.layout)
        return Schema(at_masks_specs(self.layout, sizes(self.setup), None if moving else global_masks, fresh=moving))

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Compute Σ n_i·w_i·m_i ⊘ Σ n_i·m_i; when readjusting, keep the largest of each layer that any client kept."""
        covered = mean_of_holders(uploads, {p.name: p.shape for p in self.layout}, self.weigh)
        if not len(uploads):
            return state, {}
        masks = dict(state.masks)
        if plan.scalars["fraction"]:
            counts = budgets(self.setup)
            masks = {name: largest(covered.mean[name], k, covered.holders[name] > 0) for name, k in counts.items()}
        weights = {name: mean.astype(np.float32) for name, mean in covered.mean.items()}
        grown = sum(int((masks[name] & ~state.masks[name]).sum()) for name in masks)
        return ServerState(masked(weights, masks), masks), {"grown": float(grown)}

    def model(self, state: ServerState) -> Weights:
        """Return the sparse global model."""
        return state.weights


@dataclass(frozen=True)
class LastBatchLoss(Capturable):
    """The loss, which keeps the inputs and targets of the last batch in ``batch``."""

    OF_NETWORK: ClassVar[tuple[str, ...]] = ("batch",)
    objective: Objective
    batch: list[torch.Tensor]

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        self.batch[:] = x, y
        return self.objective(module(x), y)

    def captured(self, tensors: Any, objective: Objective, optimizer: Any) -> Callable[..., Any]:
        """Return the loss alone: the tensors of a captured step are those of every batch."""
        return lambda module, x, y: objective(module(x), y)

    def ended(self, batches: Sequence[int], last: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Keep the last batch."""
        self.batch[:] = last()


@dataclass(frozen=True)
class ApplyMasks(Capturable):
    """Multiplies weights by their masks, bool by name."""

    TENSORS: ClassVar[tuple[str, ...]] = ("masks",)
    OF_NETWORK: ClassVar[tuple[str, ...]] = ("network_tensors",)
    masks: Mapping[str, torch.Tensor]
    network_tensors: Mapping[str, torch.Tensor]

    def __call__(self, module: nn.Module) -> None:
        """Apply the masks."""
        with torch.no_grad():
            for name, mask in self.masks.items():
                self.network_tensors[name].mul_(mask)


class FedDSTClient(FedAvgClient):
    """Trains with a mask, and readjusts it if the plan says so."""

    def first_masks(self) -> Masks:
        """Return the masks of round 1."""
        return first_masks(self.setup)

    def download_schema(self, state: object, plan: Plan) -> Schema:
        """Admit the global model and its masks; in round 1 an empty payload, because both follow from W_0."""
        return Schema() if plan.round == 1 else Schema(at_masks_specs(self.layout, sizes(self.setup)))

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the sparse global model."""
        weights = super().received_weights(state, download, plan)
        return weights if download.tensors else masked(weights, self.first_masks())

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train with the received masks, readjust them if the plan says so, and upload weights and new masks."""
        masks, fraction = self._masks(download), float(plan.scalars["fraction"])
        start, epochs = self.received_weights(state, download, plan), self.setup.config.local_epochs
        if fraction:
            after = min(self.hyper.train_after, epochs - 1)
            model, gradient = self._fit(start, masks, plan, epochs - after)
            pruned = {name: prune(model[name], mask, fraction) for name, mask in masks.items()}
            grown = {n: int(mask.sum()) - int(pruned[n].sum()) for n, mask in masks.items()}
            masks = {name: regrow(gradient[name], mask, grown[name]) for name, mask in pruned.items()}
            model = masked(model, pruned)
            if after:
                model, _ = self._fit(model, masks, plan, after, "after", gradient=False)
        else:
            model, _ = self._fit(start, masks, plan, epochs)
        sent = at_masks(model, everywhere(masks, self.layout), self.coding, derived=not fraction)
        return ClientState(model), Payload(sent)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train with the received masks."""
        start, epochs = self.received_weights(state, download, plan), self.setup.config.local_epochs
        return ClientState(self._fit(start, self._masks(download), plan, epochs, gradient=False)[0])

    def _masks(self, download: Payload) -> Masks:
        tensors = download.tensors
        return {name: tensors[name].mask() for name in budgets(self.setup)} if tensors else self.first_masks()

    def _fit(
        self, start: Weights, masks: Masks, plan: Plan, epochs: int, purpose: str = "train", gradient: bool = True
    ) -> tuple[Weights, Weights]:
        """Return the model after ``epochs`` with ``masks``, and the gradient of the last batch at that model.

        Where there was no batch, as with one example and batch normalisation, the gradient is 0. It is empty in rounds
        that do not change masks, and without ``gradient``.
        """
        network = self.trainer.network()
        network.load(start)
        factors = {name: torch.from_numpy(mask).to(self.trainer.device) for name, mask in masks.items()}
        batch: list[torch.Tensor] = []
        hooks = Hooks(LastBatchLoss(self.trainer.loss, batch), after_step=ApplyMasks(factors, network.tensors))
        share = density(masks)
        self.trainer.fit(network.module, plan.round, hooks, epochs=epochs, purpose=purpose, density=share)
        model = network.read()
        if not (gradient and plan.scalars["fraction"]):
            return model, {}
        if not batch:
            return model, {name: np.zeros_like(model[name]) for name in masks}
        network.module.zero_grad(set_to_none=True)
        with self.trainer.randomness(plan.round, "gradient"):
            self.trainer.loss_of(network.module, *batch).backward()  # type: ignore[no-untyped-call]
        self.trainer.account(network.module, len(batch[1]))
        return model, read_gradients(network.module)


FedDST = register(
    "feddst",
    "Dynamic sparse training of one global model",
    "Bibikar et al., AAAI 2022",
    FedDSTServer,
    FedDSTClient,
    Hyper,
    deployed="received",
)
