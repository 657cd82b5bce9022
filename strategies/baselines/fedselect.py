"""FedSelect: each client keeps a growing set of entries for itself, those that its training moves most.

Tamirisa, Xie, Bao, Zhou, Arel, Shamsian, "FedSelect: Personalized Federated Learning with Customized Selection of
Parameters for Fine-Tuning", CVPR 2024 (https://arxiv.org/abs/2404.02478), and the authors' code (lapisrocks/fedselect,
0949f8a). A client's entries are shared at first. In each epoch it trains its own entries in a pass over its data, then
the shared ones in a second pass. It uploads the shared entries; the server takes the mean of each over the clients that
share it, and keeps the last one of an entry that none of them shares. In every ``every``-th round, after training, the
client takes for itself the ``growth`` share of each tensor's shared entries that have moved most, until ``limit`` of
the tensor is its own. *Received* is the client's model with the means put in; *trained*, which is *kept* and deployed,
is after its local epochs.

Both sides keep a client's mask, so values travel without positions; those of new entries go up as a mask over the
entries that were shared. Weights and scales of norms may become personal, biases never; running statistics always are.
NOTES.md says where the paper and its code differ, and what of it is a key. Deviations: rounds count from 1 here, so
clients select in rounds 1 + ``every``, 1 + 2·``every``, …, also those that were not in every round; a client without
entries of its own trains for E passes, because the others would move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import Settings
from sepal.layout import Layout, Role, trained
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
    Upload,
    Uploads,
    Weights,
)
from sepal.method.means import mean_of_holders
from sepal.method.tensors import at_masks, at_masks_specs
from sepal.protocol.types import SpecLike
from sepal.strategies.registration import register
from sepal.training.hooks import frozen
from sepal.wire.tensors import TensorSpec, members

Arrays = dict[str, npt.NDArray[np.float32]]


class Hyper(Settings):
    """FedSelect's keys. The first three defaults are those of the authors' code."""

    growth: float = Field(0.25, gt=0, le=1, description="p, share of a tensor's shared entries that becomes personal")
    limit: float = Field(0.8, ge=0, le=1, description="α, largest personal share of a tensor")
    every: int = Field(3, ge=1, description="L, rounds between selections")
    beyond: bool = Field(False, description="let the last step pass the limit (authors' code)")
    since: Literal["round", "selection"] = Field(
        "round", description="over what an entry moves: the round's training, or since the last selection (their code)"
    )
    first_value: Literal["own", "mean"] = Field(
        "own", description="what a new personal entry starts from: its trained value, or the mean (authors' code)"
    )
    weights: Literal["equal", "examples"] = Field("equal", description="client's weight in the mean: 1, or n_i")


@dataclass(frozen=True)
class ServerState:
    """The server's state. Masks are True where an entry is shared; a tensor without a personal entry has none.

    Attributes:
        weights: The last mean of each entry, float32 by name.
        shared: Each client's masks.
        before: Those in use before its last upload, where it changed them, with ``first-value = mean``.
    """

    weights: Weights
    shared: Mapping[str, Packed] = field(default_factory=dict)
    before: Mapping[str, Packed] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """A client's state. Masks are those of :class:`ServerState`.

    Attributes:
        model: All tensors, float32 by name; empty before the first training.
        shared: Where entries are shared.
        before: Where the next download has values, with ``first-value = mean``.
        selected: The model at the last selection, with ``since = selection``.
    """

    model: Weights = field(default_factory=dict)
    shared: Packed = field(default_factory=dict)
    before: Packed = field(default_factory=dict)
    selected: Weights = field(default_factory=dict)


class Selecting:
    """What both sides share: what is exchanged, and how many entries a client takes for itself."""

    setup: RunSetup

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.exchanged = trained(self.setup.layout)
        self.selectable = tuple(p for p in self.exchanged if p.role is Role.WEIGHT or _is_scale(p.name, p.role))

    def shared(self) -> Layout:
        """Return all tensors but running statistics."""
        return self.exchanged

    def masks(self, packed: Packed) -> dict[str, Mask]:
        """Return a mask for every exchanged tensor."""
        return unpack(packed, self.exchanged)

    def packed(self, masks: Masks) -> Packed:
        """Return the masks as bits, without those of tensors that are wholly shared."""
        return pack(masks, tuple(p for p in self.exchanged if not masks[p.name].all()))

    def selects(self, plan: Plan) -> bool:
        """Return whether clients select in a round."""
        return plan.round > 1 and (plan.round - 1) % self.setup.hyper.every == 0

    def new(self, shared: Masks) -> dict[str, int]:
        """Return how many entries of each tensor become personal, without those of which none does."""
        hyper: Hyper = self.setup.hyper
        new = {}
        for p in self.selectable:
            shared_count = int(shared[p.name].sum())
            step = count(hyper.growth, shared_count)
            room = math.floor(hyper.limit * p.size + 1e-9) - (p.size - shared_count)
            entries = step * (room >= 0) if hyper.beyond else min(step, room)
            if entries > 0:
                new[p.name] = entries
        return new

    def value_specs(self, shared: Masks) -> dict[str, SpecLike]:
        """Return the specs of values at masks that both sides know."""
        sizes = {name: int(mask.sum()) for name, mask in shared.items()}
        return at_masks_specs(self.exchanged, sizes, shared, fresh=False)


def _is_scale(name: str, role: Role) -> bool:
    return role is Role.NORM and name.rpartition(".")[2] == "weight"


def without(shared: Mask, taken: Mask) -> Mask:
    """Return a mask without the entries that are True in ``taken``, which has one bit for each of its entries."""
    still_shared = shared.copy()
    still_shared[shared] = ~taken
    return still_shared


class FedSelectServer(Selecting, ServerBase[ServerState]):
    """Averages each entry over the clients that share it."""

    reads_uploads = "each client chooses the entries that it shares"

    def init(self) -> ServerState:
        """Start from W_0."""
        return ServerState({p.name: self.setup.weights[p.name] for p in self.exchanged})

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the means at the client's mask, which it knows."""
        packed_masks = state.shared.get(client.name, {})
        if self.hyper.first_value == "mean":
            packed_masks = state.before.get(client.name, packed_masks)
        return Payload(at_masks(state.weights, self.masks(packed_masks), self.coding, derived=True))

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return all means; of a client that starts again those at its mask, with the mask."""
        if plan.round == 1:
            return Payload()
        return Payload(at_masks(state.weights, self.masks(state.shared.get(client.name, {})), self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit values at the client's mask, and in a selecting round which entries become its own."""
        shared = self.masks(state.shared.get(client.name, {}))
        specs: dict[str, SpecLike] = {}
        for name, entries in self.new(shared).items() if self.selects(plan) else ():
            size = (int(shared[name].sum()),)
            specs[f"{name}/new"] = TensorSpec(size, values=False, min_count=entries, max_count=entries)
        return Schema({**specs, **self.value_specs(shared)})

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Average each entry over the clients that share it, then take over their new masks."""
        shared, before, shares = dict(state.shared), dict(state.before), list[float]()
        size = max(sum(p.size for p in self.exchanged), 1)

        def note(upload: Upload) -> float:
            name, tensors = upload.client.name, upload.payload.tensors
            masks = self.masks(state.shared.get(name, {}))
            new = {n: without(m, tensors[f"{n}/new"].mask()) for n, m in masks.items() if f"{n}/new" in tensors}
            before.pop(name, None)
            if new:
                before[name] = state.shared.get(name, {})
            shared[name] = self.packed({**masks, **new})
            shares.append(1 - sum(int(mask.sum()) for mask in {**masks, **new}.values()) / size)
            return self.weigh(upload)

        mean = mean_of_holders(uploads, {p.name: p.shape for p in self.exchanged}, note).over(state.weights)
        if self.hyper.first_value != "mean":
            before = {}
        return ServerState(mean, shared, before), {"personal": float(np.mean(shares))} if shares else {}

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Forget the masks of clients that an operator has removed."""
        shared, before = ({n: m for n, m in masks.items() if n not in names} for masks in (state.shared, state.before))
        return replace(state, shared=shared, before=before)

    def weigh(self, upload: Upload) -> float:
        """Return 1, or n_i with ``fedselect.weights = examples``."""
        return 1 if self.hyper.weights == "equal" else super().weigh(upload)

    def model(self, state: ServerState) -> Weights:
        """Return the last mean of each entry."""
        return state.weights


class FedSelectClient(Selecting, ClientBase[ClientState]):
    """Keeps its own entries, trains them and the shared ones in turns, and selects more."""

    def init(self) -> ClientState:
        """Start with all entries shared, and without a model."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the client's model."""
        return state.model

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit values at the client's mask, or at one that is sent if it has no state; nothing in round 1."""
        if not state.model:
            return Schema() if plan.round == 1 else Schema({p.name: TensorSpec(p.shape) for p in self.exchanged})
        return Schema(self.value_specs(self.masks(self._expected(state))))

    def _expected(self, state: ClientState) -> Packed:
        return state.before if self.hyper.first_value == "mean" else state.shared

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the client's model, or W_0, with the received means."""
        weights: Arrays = dict(state.model or self.setup.weights)
        for name, tensor in download.tensors.items():
            flat = weights[name].reshape(-1).copy()
            flat[tensor.positions()] = tensor.values
            weights[name] = flat.reshape(tensor.shape)
        return weights

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train, without a selection, which the server would not know of."""
        state, _, model = self._trained(state, download, plan)
        return replace(state, model=model)

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train, send the shared entries, and in a selecting round take the entries that moved most."""
        state, start, model = self._trained(state, download, plan)
        shared, selected = self.masks(state.shared), state.selected
        upload, after = at_masks(model, shared, self.coding, derived=True), state.shared
        if self.selects(plan):
            by_change = self.hyper.since == "selection"
            origin = (selected or self.setup.weights) if by_change else start
            taken = {}
            for name, entries in self.new(shared).items():
                moved = (model[name].astype(np.float64) - origin[name])[shared[name]]
                taken[name] = largest(moved, entries)
            upload = {**{f"{name}/new": members(mask) for name, mask in taken.items()}, **upload}
            after = self.packed({**shared, **{name: without(shared[name], mask) for name, mask in taken.items()}})
            selected = model if by_change else {}
        personal = 1 - sum(int(m.sum()) for m in self.masks(after).values()) / max(
            sum(m.size for m in shared.values()), 1
        )
        self.trainer.report("personal", personal)
        before = state.shared if self.hyper.first_value == "mean" else {}
        return ClientState(model, after, before, selected), Payload(upload)

    def _trained(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Weights, Arrays]:
        """Return the state with the mask that is in use, and the model before and after the local epochs."""
        if not state.model and download.tensors:
            shared = self.packed({name: tensor.mask() for name, tensor in download.tensors.items()})
            state = replace(state, shared=shared, before=shared)
        start = self.received_weights(state, download, plan)
        masks = self.masks(state.shared)
        if not state.shared:
            return state, start, self.fit(start, plan)
        everything = {p.name: np.ones(p.shape, np.bool_) for p in self.layout}
        passes = (("personal", {n: ~m for n, m in masks.items()}), ("shared", masks))
        model: Any = start
        network = self.trainer.network()
        for epoch in range(1, self.setup.config.local_epochs + 1):
            for purpose, free in passes:
                network.load(model)
                hooks = frozen(network, {**everything, **free})
                model = self.fit(model, plan, hooks, epochs=1, purpose=f"{purpose}-{epoch}")
        return state, start, model


FedSelect = register(
    "fedselect",
    "Entries that move most become each client's own",
    "Tamirisa et al., CVPR 2024",
    FedSelectServer,
    FedSelectClient,
    Hyper,
)
