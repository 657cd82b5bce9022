"""FedMask: weights keep their initial values, and each client learns which of them to use.

Li, Sun, Zeng, Zhang, Li, Chen, "FedMask: Joint Computation and Communication-Efficient Personalized Federated Learning
via Heterogeneous Masking", SenSys 2021. A client trains a real score for each weight of its masked layers through
σ(score) ≥ ½, with the straight-through gradient; binary masks are exchanged. After its first training it drops units
once and for all (one-shot pruning). The rest is its *structure*, and only scores inside it are trained from then on.
For each weight the server takes the mean of the masks of the clients whose structure holds it, rounded to a bit (.5:
on). Where structures do not overlap, a client gets its own bit back. *Received* are the weights under the received
mask, *trained* those under the client's own. A deployed client predicts with its own mask, which is *kept*.

The paper's text was not available. What is known of it: fixed weights, binary masks in both directions, a structure for
each client found in one shot, the mean where masks overlap. Our choices:

* Weights are ±√(4 / fan-in / keep) with W_0's signs, after the "signed Kaiming constant" of Ramanujan et al., "What's
  Hidden in a Randomly Weighted Neural Network?", CVPR 2020; √(2 / fan-in / keep) in the output layer. With W_0 itself
  (``weights = "drawn"``) hardly anything is learned.
* Scores start at N(0, .01²), drawn from the seed and the same for all clients, so half of the bits are on; they have a
  momentum of their own, and can have a learning rate of their own. If all start at 0, less is learned.
* A structure is the ``keep`` share of a layer's output units by mean score; the output layer has all of its output
  units or, if it alone is masked, a share of its input units. The server knows the structures, so a mask is sent as
  one bit for each held weight.
* A client that joins later, and has no structure yet, gets all of the server's bits and starts from them.
* If the server flips a bit, its score moves to the threshold, so one step may turn it back. Biases,
  norms and their statistics are W_0's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from sepal.config import Settings, renewed
from sepal.layout import Layout, Parameter, Role, layers
from sepal.masks.packed import Mask, Masks, Packed, pack, unpack
from sepal.masks.selection import count, largest
from sepal.method import (
    ClientBase,
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    ServerBase,
    Trainer,
    Uploads,
    Weights,
)
from sepal.protocol.types import SpecLike
from sepal.rng import derive
from sepal.strategies.registration import register
from sepal.training.hooks import frozen
from sepal.training.optimizers import ParameterGroup
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec, members

SPREAD = 0.01  # standard deviation of the first scores


class Hyper(Settings):
    """FedMask's keys."""

    # pFedGate's comparison masks the last layer of its 2-layer CNN and the last two of its 3-layer one.
    layers: int = Field(0, ge=0, description="number of last layers to mask, the others stay as they are; 0: all")
    # Our choices, as the docstring says; not searched.
    keep: float = Field(0.75, gt=0, le=1, description="share of a masked layer's units in each client's structure")
    lr: float = Field(0.0, ge=0, description="learning rate for the scores; 0: that of the run, lr")
    momentum: float = Field(0.8, ge=0, lt=1, description="momentum for the scores")
    weights: Literal["signed", "drawn"] = Field(
        "signed", description="fixed weights; signed: W_0's signs, one magnitude per layer; drawn: W_0"
    )
    entropy_coded: bool = renewed(True, False, "send bits in the coding `ans`, where that is the shortest")


class MaskedParts:
    """What server and client share: which weights have masks, and how masks are sent.

    Attributes:
        masked: The weights that have masks.
        units: For each weight whose units may be dropped, a parameter with one entry per unit.
        weights: All tensors of the model, before any mask.
        first: The first scores, float32 by weight.
    """

    def __init__(self, setup: RunSetup) -> None:
        self.hyper: Hyper = setup.hyper
        masked = layers(setup.layout, self.hyper.layers)[1] if self.hyper.layers else setup.layout
        self.masked: Layout = tuple(p for p in masked if p.role is Role.WEIGHT)
        self.axis = {p.name: 0 for p in self.masked[:-1]} or {self.masked[-1].name: 1}
        self.units: Layout = tuple(
            Parameter(p.name, (p.shape[self.axis[p.name]],), p.role) for p in self.masked if p.name in self.axis
        )
        seed = setup.config.seed
        self.first: Weights = {
            p.name: derive(seed, "fedmask", p.name).standard_normal(p.shape, np.float32) * np.float32(SPREAD)
            for p in self.masked
        }
        self.weights = dict(setup.weights)
        if self.hyper.weights == "signed":
            for p in self.masked:
                gain = 1 if p is self.masked[-1] else 2  # no ReLU follows the output layer
                size = np.float32(math.sqrt(2 * gain / self.hyper.keep / math.prod(p.shape[1:])))
                self.weights[p.name] = np.where(setup.weights[p.name] < 0, -size, size).astype(np.float32)

    def entries(self, structure: Packed) -> dict[str, Mask]:
        """Return the entries of a structure, bool by weight; all entries if there is no structure."""
        units, entries = unpack(structure, self.units), {}
        for p in self.masked:
            shape = [-1 if axis == self.axis.get(p.name) else 1 for axis in range(len(p.shape))]
            unit_mask = units[p.name].reshape(shape) if p.name in units else np.ones((), np.bool_)
            entries[p.name] = np.broadcast_to(unit_mask, p.shape)
        return entries

    def chosen(self, scores: Weights) -> Packed:
        """Return the structure: in each layer the units with the largest mean scores."""
        units = {}
        for p in self.units:
            score = np.moveaxis(scores[p.name], self.axis[p.name], 0).reshape(p.size, -1).mean(1)
            units[p.name] = largest(score - score.min(), count(self.hyper.keep, p.size))
        return pack(units, self.units)

    def model(self, masks: Masks) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights under masks."""
        return {**self.weights, **{name: self.weights[name] * mask for name, mask in masks.items()}}

    def bits(self, masks: Masks, structure: Packed) -> dict[str, SparseTensor]:
        """Return masks as they are sent: one bit for each entry of a structure."""
        agreed = self.hyper.entropy_coded
        return {name: members(masks[name][entries], agreed) for name, entries in self.entries(structure).items()}

    def specs(self, whole: bool = False) -> dict[str, SpecLike]:
        """Return the specs of :meth:`bits`, of any structure, as all have the same number of units; or of all bits."""
        sizes = {p.name: p.size for p in self.masked}
        for p in () if whole else self.units:
            sizes[p.name] = sizes[p.name] // p.size * count(self.hyper.keep, p.size)
        agreed = self.hyper.entropy_coded
        return {name: TensorSpec((size,), values=False, entropy_coded=agreed) for name, size in sizes.items()}

    def read(self, tensors: Tensors, structure: Packed) -> dict[str, Mask]:
        """Return the masks from :meth:`bits`, bool by weight; off outside the structure."""
        masks = {}
        for name, entries in self.entries(structure).items():
            masks[name] = np.zeros(entries.shape, np.bool_)
            masks[name][entries] = tensors[name].mask()
        return masks


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        masks: The mean of the masks, rounded, by weight, as bits.
        structures: Units that each client holds, by name and weight, as bits.
    """

    masks: Packed
    structures: Mapping[str, Packed] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """The units that the client holds, as bits, and its scores, float32; by weight, both empty before it trained."""

    structure: Packed = field(default_factory=dict)
    scores: Weights = field(default_factory=dict)


class FedMaskServer(ServerBase[ServerState]):
    """Averages the clients' masks."""

    reads_uploads = "the structure of each client makes its download"

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.parts = MaskedParts(setup)

    def init(self) -> ServerState:
        """Start with the bits of the first scores, and without structures."""
        return ServerState(pack({name: score >= 0 for name, score in self.parts.first.items()}, self.parts.masked))

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the bits of the client's structure."""
        return Payload(self.parts.bits(unpack(state.masks, self.parts.masked), state.structures[client.name]))

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return all bits, for a client that has no structure yet; in round 1 it knows them from the seed."""
        return Payload() if plan.round == 1 else Payload(self.parts.bits(unpack(state.masks, self.parts.masked), {}))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit bits, and before them the structure of a client that has none yet."""
        new = () if client.name in state.structures else self.parts.units
        sizes = {p.name: count(self.parts.hyper.keep, p.size) for p in new}
        first: dict[str, SpecLike] = {
            f"{p.name}/units": TensorSpec(p.shape, values=False, min_count=sizes[p.name], max_count=sizes[p.name])
            for p in new
        }
        return Schema({**first, **self.parts.specs()})

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Set each bit to its rounded mean over the clients that hold it; a bit that no client holds is kept."""
        masks, structures = unpack(state.masks, self.parts.masked), dict(state.structures)
        votes = {p.name: np.zeros(p.shape, np.int32) for p in self.parts.masked}
        holders = {p.name: np.zeros(p.shape, np.int32) for p in self.parts.masked}
        for upload in uploads:
            name, tensors = upload.client.name, upload.payload.tensors
            if name not in structures:
                structures[name] = pack(
                    {p.name: tensors[f"{p.name}/units"].mask() for p in self.parts.units}, self.parts.units
                )
            for weight, mask in self.parts.read(tensors, structures[name]).items():
                votes[weight] += mask
            for weight, entries in self.parts.entries(structures[name]).items():
                holders[weight] += entries
        after = {name: np.where(holders[name] > 0, 2 * votes[name] >= holders[name], masks[name]) for name in masks}
        return ServerState(pack(after, self.parts.masked), structures), {}

    def model(self, state: ServerState) -> Weights:
        """Return the weights under the server's masks."""
        return self.parts.model(unpack(state.masks, self.parts.masked))


class Masked(nn.Module):
    """A frozen model whose weights are used where σ(score) ≥ ½."""

    def __init__(self, model: nn.Module, masked: Layout) -> None:
        """Take ``model``; its weights ``masked`` get a score each, 0."""
        super().__init__()
        self.model = model.requires_grad_(False)
        self.scores = nn.ParameterDict({key(p.name): nn.Parameter(torch.zeros(p.shape)) for p in masked})
        self.names = {key(p.name): p.name for p in masked}

    def train(self, mode: bool = True) -> Masked:
        """Leave the inner modules in their mode: norms use W_0's statistics even in training."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs to logits; the gradient passes through σ as if there were no threshold."""
        weights = {}
        for at, score in self.scores.items():
            soft = torch.sigmoid(score)
            weights[self.names[at]] = self.model.get_parameter(self.names[at]) * ((score >= 0) + soft - soft.detach())
        logits: torch.Tensor = functional_call(self.model, weights, (x,))
        return logits


def key(name: str) -> str:
    """Return the key of a tensor's scores in :class:`Masked`; dots are not allowed there."""
    return name.replace(".", "/")


class FedMaskClient(ClientBase[ClientState]):
    """Keeps its structure and its scores."""

    fixed_keys = MappingProxyType({"max-update-norm": "whose uploads are bits, without a norm"})

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.parts = MaskedParts(setup)

    def init(self) -> ClientState:
        """Start without a structure."""
        return ClientState()

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit bits of the structure, or all bits before there is one; in round 1 an empty payload."""
        if not state.structure and plan.round == 1:
            return Schema()
        return Schema(self.parts.specs(whole=not state.structure))

    def masks(self, state: ClientState) -> dict[str, Mask]:
        """Return the client's own masks: where it holds an entry and its score is at least 0."""
        entries = self.parts.entries(state.structure)
        return {name: entries[name] & (score >= 0) for name, score in state.scores.items()}

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the weights under the received masks; under the first ones in round 1."""
        if not download.tensors:
            return self.parts.model({name: score >= 0 for name, score in self.parts.first.items()})
        return self.parts.model(self.parts.read(download.tensors, state.structure))

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the weights under the client's masks."""
        return self.parts.model(self.masks(state)) if state.scores else {}

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train the scores; the first time, choose a structure, which is uploaded too."""
        after = self.adapt(state, download, plan)
        units = {} if state.structure else unpack(after.structure, self.parts.units)
        first = {f"{name}/units": members(mask) for name, mask in units.items()}
        return after, Payload({**first, **self.parts.bits(self.masks(after), after.structure)})

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Take over the received bits and train the scores; after the first training, choose the structure."""
        scores = dict(self.parts.first)
        if download.tensors:
            bits = self.parts.read(download.tensors, state.structure)
            scores = {name: signed(score, bits[name]) for name, score in (state.scores or scores).items()}
        trained = self.fit_scores(scores, self.parts.entries(state.structure), plan)
        return ClientState(state.structure or self.parts.chosen(trained), trained)

    def fit_scores(self, scores: Weights, entries: Masks, plan: Plan) -> dict[str, npt.NDArray[np.float32]]:
        """Return the scores after E epochs; only those at ``entries`` move."""
        network = self.trainer.network("fedmask", lambda: Masked(self.trainer.make(), self.parts.masked))
        start = {f"model.{name}": array for name, array in self.parts.weights.items()}
        named = {f"scores.{key(name)}": name for name in scores}
        network.load({**start, **{at: scores[name] for at, name in named.items()}})
        free = {name: np.ones(array.shape, np.bool_) for name, array in start.items()}
        hooks = frozen(network, {**free, **{at: entries[name] for at, name in named.items()}})
        group = ParameterGroup(
            list(cast("Masked", network.module).scores.parameters()), self.hyper.lr or None, self.hyper.momentum
        )
        self.trainer.fit(network.module, plan.round, hooks, parameters=[group])
        weights = network.read()
        return {name: weights[at] for at, name in named.items()}


def signed(score: npt.NDArray[np.float32], on: Mask) -> npt.NDArray[np.float32]:
    """Return the nearest scores that are at least 0 where ``on`` and below 0 elsewhere."""
    return np.where(on, np.maximum(score, 0), np.minimum(score, np.float32(-1e-6))).astype(np.float32)


FedMask = register(
    "fedmask",
    "Personal binary masks over fixed random weights",
    "Li et al., SenSys 2021",
    FedMaskServer,
    FedMaskClient,
    Hyper,
)
