"""FIARSE: each client trains the largest weights of the global model, as many as it can hold.

Wu, Wang, Wang, Liu, Su, Gao, "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction",
NeurIPS 2024 (https://arxiv.org/abs/2407.19389), and the authors' code (HarliWu/FIARSE, 281519c). A client of capacity γ
gets the γ·P entries of largest |W| of the P weights and biases, in each round anew. θ is the smallest magnitude that it
got. Its forward pass uses w where |w| ≥ θ and 0 elsewhere, looked at in every step; in the backward pass the gradient
of an entry that is on is multiplied by 1 + 2·θ·|w| / (|w| + θ)². An entry that falls below θ is off until the round
ends, keeps its value, and is uploaded with the others. The server takes the mean of each entry over the clients that
held it; an entry that nobody held stays. *Received* is the submodel of the client's own size, *trained* what is on in
it after the local epochs. A deployed client predicts with *received*; *kept* is *trained* of its last round.

Norms have no mask and come on top of γ·P, as do biases with ``biases = false``. Clients upload at the positions that
they got, which the server knows, so no position goes up.
NOTES.md says where the paper and its code differ, and what of it is a key. Deviations: an entry that is off stays as it
is with momentum and weight decay, too; running statistics are averaged as they are, not computed anew for each size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from sepal.config import Settings
from sepal.layout import Layout, Role
from sepal.masks.flat import Flat
from sepal.masks.packed import Mask, Masks, density, masked
from sepal.masks.selection import count
from sepal.method import (
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    ServerBase,
    Upload,
    Uploads,
    Weights,
)
from sepal.method.means import mean_of_holders
from sepal.method.tensors import at_masks, at_masks_specs, at_total_specs
from sepal.protocol.types import SpecLike
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, ServerState
from sepal.strategies.baselines.zero_weights import refuse_zero_weights
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective
from sepal.wire import rounded
from sepal.wire.tensors import SparseTensor, TensorSpec, Values


class Hyper(Settings):
    """FIARSE's keys. The defaults are those of the authors' CIFAR code, but for ``mean`` and ``importance``."""

    ranking: Literal["model", "layer"] = Field(
        "model", description="where a client's entries are the largest: in the whole model, or in each layer"
    )
    biases: bool = Field(True, description="whether biases are ranked with the weights; if not, all clients get them")
    mean: Literal["holders", "changed"] = Field(
        "holders",
        description="clients of an entry's mean: those that held it, or that changed it (authors' code)",
    )
    weights: Literal["equal", "examples"] = Field("equal", description="client's weight in the mean: 1, or n_i")
    importance: bool = Field(
        True, description="multiply gradients by the derivative of importance; the authors' code as it runs does not"
    )
    whole: Literal["smallest", "zero"] = Field(
        "smallest", description="threshold of a client that holds all entries: its smallest magnitude, or 0"
    )


class Ranked:
    """What both sides share: which entries a client of some capacity gets.

    Attributes:
        groups: The tensors that are ranked together, of weights and, unless ``biases`` says otherwise, biases.
        ranked: Their names.
    """

    setup: RunSetup

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hyper: Hyper = self.setup.hyper
        if hyper.ranking == "model":
            why = "among all weights of the model no client below capacity 1 would hold one that is 0"
            refuse_zero_weights(self.setup, why, "fiarse.ranking", "layer")
        self.groups = tuple(Flat(group) for group in groups(self.setup.layout, hyper.biases, hyper.ranking == "layer"))
        self.ranked = {p.name for flat in self.groups for p in flat.layout}

    def masks(self, weights: Weights, capacity: float) -> dict[str, Mask]:
        """Return for every tensor which of its entries a client gets; all of norms."""
        masks: dict[str, Mask] = {p.name: np.ones(p.shape, np.bool_) for p in self.setup.layout}
        for flat in self.groups:
            masks |= flat.largest(weights, count(capacity, flat.size))
        return masks

    def specs(self, capacity: float) -> dict[str, SpecLike]:
        """Return the specs of a submodel whose positions are not known: in each group exactly so many entries."""
        specs: dict[str, SpecLike] = {p.name: TensorSpec(p.shape, min_count=p.size) for p in self.setup.layout}
        for flat in self.groups:
            specs |= at_total_specs(flat.layout, count(capacity, flat.size))
        return specs


def groups(layout: Layout, biases: bool, by_layer: bool) -> list[Layout]:
    """Return the tensors that are ranked together; a layer's are its weight and what follows up to the next weight."""
    layers: list[Layout] = []
    for p in layout:
        if p.role is Role.WEIGHT or (biases and p.role is Role.BIAS):
            if (by_layer and p.role is Role.WEIGHT) or not layers:
                layers.append(())
            layers[-1] = (*layers[-1], p)
    return layers


class FiarseServer(Ranked, ServerBase[ServerState]):
    """Sends each client the largest entries, and averages each entry over the clients that held it."""

    reads_uploads = "which entries a client holds depends on its capacity"
    uses_capacity = True

    def init(self) -> ServerState:
        """Start from W_0."""
        return ServerState(dict(self.setup.weights))

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the client's largest entries, and norms."""
        return Payload(at_masks(state.weights, self.masks(state.weights, client.capacity), self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit weights at the positions that the client was sent."""
        masks = self.masks(state.weights, client.capacity)
        sizes = {name: int(mask.sum()) for name, mask in masks.items()}
        return Schema(at_masks_specs(self.layout, sizes, masks, fresh=False))

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Average each entry over the clients that held it, or moved it; an entry without any does not change."""
        shapes = {p.name: p.shape for p in self.layout}
        if self.hyper.mean == "holders":
            return ServerState(mean_of_holders(uploads, shapes, self.weigh).over(state.weights)), {}
        moved = (self.moved(state, upload) for upload in uploads)
        return ServerState(mean_of_holders(moved, shapes, self.weigh).over(state.weights)), {}

    def moved(self, state: ServerState, upload: Upload) -> Upload:
        """Return an upload without the entries that are as they were sent down."""
        tensors = {}
        for name, tensor in upload.payload.tensors.items():
            positions, values = tensor.positions(), tensor.dense().reshape(-1)
            before = rounded(state.weights[name].reshape(-1)[positions], self.coding)
            moved = positions[values[positions] != before]
            tensors[name] = SparseTensor(tensor.shape, moved, values[moved], coding=tensor.coding)
        return replace(upload, payload=Payload(tensors))

    def weigh(self, upload: Upload) -> float:
        """Return 1, or n_i with ``fiarse.weights = examples``."""
        return 1 if self.hyper.weights == "equal" else super().weigh(upload)

    def model(self, state: ServerState) -> Weights:
        """Return W."""
        return state.weights


def thresholded(
    weight: torch.Tensor, held: torch.Tensor, threshold: torch.Tensor, importance: bool = True
) -> torch.Tensor:
    """Return w where it is held and |w| ≥ θ, and 0 elsewhere; the gradient has the factor of the importance, if asked.

    Args:
        weight: float32, any shape.
        held: bool, the same shape.
        threshold: θ, float32 ().
        importance: Whether the gradient of an entry that is on is multiplied by 1 + 2·θ·|w| / (|w| + θ)².
    """
    size = weight.detach().abs()
    on = torch.where(held & (size >= threshold), weight, torch.zeros_like(weight))
    if importance and on.requires_grad:
        both = (size + threshold).clamp_min(torch.finfo(weight.dtype).tiny)  # 0/0 at θ = w = 0 is 0
        factor = 1 + 2 * (threshold / both) * (size / both)
        on.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
    return on


@dataclass(frozen=True)
class ThresholdedLoss(Capturable):
    """The loss of the model with :func:`thresholded` weights; all by name."""

    TENSORS: ClassVar[tuple[str, ...]] = ("held", "thresholds")
    held: Mapping[str, torch.Tensor]
    thresholds: Mapping[str, torch.Tensor]
    importance: bool
    objective: Objective

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        parameters = dict(module.named_parameters())
        weights = {
            name: thresholded(parameters[name], held, self.thresholds[name], self.importance)
            for name, held in self.held.items()
        }
        return self.objective(functional_call(module, weights, (x,)), y)


@dataclass(frozen=True)
class StayOff(Capturable):
    """Puts entries back that were off in the step, and that momentum or weight decay has moved.

    ``before`` has the weights before the step, and afterwards those before the next.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ("held", "thresholds", "before")
    CHANGED: ClassVar[tuple[str, ...]] = ("before",)
    OF_NETWORK: ClassVar[tuple[str, ...]] = ("network_tensors",)
    held: Mapping[str, torch.Tensor]
    thresholds: Mapping[str, torch.Tensor]
    before: Mapping[str, torch.Tensor]
    network_tensors: Mapping[str, torch.Tensor]

    def __call__(self, module: nn.Module) -> None:
        """Put them back."""
        with torch.no_grad():
            for name, before in self.before.items():
                on = self.held[name] & (before.abs() >= self.thresholds[name])
                self.network_tensors[name].copy_(torch.where(on, self.network_tensors[name], before))
                before.copy_(self.network_tensors[name])


class FiarseClient(Ranked, FedAvgClient):
    """Trains the entries that it got, as far as they stay above its threshold."""

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit as many entries as the client can hold; nothing in round 1, because W_0 is known."""
        return Schema() if plan.round == 1 else Schema(self.specs(self.trainer.client.capacity))

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the client's submodel, 0 where nothing was sent."""
        weights = super().received_weights(state, download, plan)
        return weights if download.tensors else masked(weights, self.held(download))

    def held(self, download: Payload) -> dict[str, Mask]:
        """Return which entries the client has got."""
        if not download.tensors:
            return self.masks(self.setup.weights, self.trainer.client.capacity)
        return {name: tensor.mask() for name, tensor in download.tensors.items()}

    def thresholds(self, received: Weights, held: Masks) -> dict[str, np.float32]:
        """Return θ for each ranked tensor: the smallest magnitude that its group has got."""
        thresholds: dict[str, np.float32] = {}
        for flat in self.groups:
            entries: Any = np.concatenate([np.abs(received[p.name][held[p.name]]) for p in flat.layout])
            none = not entries.size or (self.hyper.whole == "zero" and entries.size == flat.size)
            thresholds |= dict.fromkeys((p.name for p in flat.layout), np.float32(0) if none else entries.min())
        return thresholds

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the submodel for E epochs."""
        return self._trained(state, download, plan)[0]

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train the submodel; upload all entries that were received, also those that are off by now."""
        after, weights, held = self._trained(state, download, plan)
        return after, Payload(at_masks(weights, held, self.coding, derived=True))

    def _trained(
        self, state: ClientState, download: Payload, plan: Plan
    ) -> tuple[ClientState, dict[str, Values], dict[str, Mask]]:
        """Return what is on after E epochs, all weights, and which entries are held."""
        received, held = self.received_weights(state, download, plan), self.held(download)
        thresholds, device = self.thresholds(received, held), self.trainer.device
        network = self.trainer.network()
        network.load(received)
        masks = {name: torch.from_numpy(held[name]).to(device) for name in thresholds}
        least = {name: torch.tensor(value, device=device) for name, value in thresholds.items()}
        before = {name: network.tensors[name].detach().clone() for name in thresholds}
        loss = ThresholdedLoss(masks, least, self.hyper.importance, self.trainer.loss)
        hooks = Hooks(loss, after_step=StayOff(masks, least, before, network.tensors))
        self.trainer.fit(network.module, plan.round, hooks, density=density({n: held[n] for n in thresholds}))
        weights = network.read()
        on: dict[str, npt.NDArray[np.bool_]] = {
            name: held[name] & (np.abs(weights[name]) >= threshold) for name, threshold in thresholds.items()
        }
        entries = sum(int(held[name].sum()) for name in on)
        self.trainer.report("still-on", sum(int(mask.sum()) for mask in on.values()) / max(entries, 1))
        return ClientState(masked(weights, on)), weights, held


Fiarse = register(
    "fiarse",
    "The largest weights of one model, as many as each client can hold",
    "Wu et al., NeurIPS 2024",
    FiarseServer,
    FiarseClient,
    Hyper,
    deployed="received",
)
