"""DM-PFL, server algorithm: eq. 5, selection of the global mask, the schedule of phases (Algorithms 1 and 2).

Zhang, Zhou, Wang, Tong: "DM-PFL: Hitchhiking Generic Federated Learning for Efficient Shift-Robust Personalization",
KDD 2023. Deviations: see NOTES.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError
from sepal.layout import Layout
from sepal.masks.packed import Masks, Packed, masked, pack, unpack
from sepal.masks.schedules import cosine
from sepal.masks.selection import largest
from sepal.method import ClientInfo, Metrics, Payload, Plan, RunSetup, Schema, ServerBase, Upload, Uploads, Weights
from sepal.method.means import mean_of_holders
from sepal.method.tensors import at_masks, at_masks_specs
from sepal.strategies.dmpfl.contract import (
    ClientHolds,
    ServerState,
    budgets,
    first_masks,
    masked_parts,
    parse_schedule,
    phases,
)

Counts: TypeAlias = Mapping[str, npt.NDArray[np.int64]]
Budget: TypeAlias = Mapping[str, int]


class DmPflServer(ServerBase[ServerState]):
    """Keeps w_g and m_g, and which versions of both, and which own mask, each client has."""

    depends_on_rounds = True

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        if self.hyper.adaptive_inference and not setup.task.classifies:
            expected = f"false for the task {setup.task.name}, whose outputs are no probabilities of classes"
            raise ConfigError("dmpfl.adaptive-inference", expected, "true")
        if self.hyper.mask_by == "magnitude" and self.hyper.initial_mask == "own":
            expected = "common with dmpfl.mask-by = magnitude: W_0 is the same for all clients"
            raise ConfigError("dmpfl.initial-mask", expected, "own")
        self.budget = budgets(self.layout, self.hyper)
        self.parts = masked_parts(self.layout, self.budget)
        self.phases = phases(self.hyper, setup.config.rounds)

    def init(self) -> ServerState:
        """Start from W_0 and the first mask."""
        return ServerState(dict(self.setup.weights), first_masks(self.setup, self.budget))

    def plan(self, round: int) -> Plan:
        """Return the round's phase and the fraction α of masks that clients readjust (0: none)."""
        if round > len(self.phases):  # in the closing round, all clients refine their personal weights once
            last = "2b" if any(phase == "2b" for phase, _ in parse_schedule(self.hyper.schedule)) else self.phases[-1]
            return Plan(round, last, scalars={"prune": 0.0})
        phase, prune, every = self.phases[round - 1], 0.0, self.hyper.readjust_every
        if phase == "1" and every and self.phases[:round].count("1") % every == 0:
            prune = cosine(self.hyper.alpha, round, len(self.phases))
        return Plan(round, phase, scalars={"prune": prune})

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the parts of m_g ⊙ w_g that the client lacks; the support only if it has an older one."""
        holdings = state.held.get(client.name, ClientHolds())
        scalars = {"mask": state.mask_version, "weights": state.weights_version}
        if holdings.weights == state.weights_version:
            return Payload({}, scalars)
        masks, same_mask = unpack(state.global_mask, self.layout), holdings.global_mask == state.mask_version
        return Payload(at_masks(state.weights, masks, self.coding, same_mask), scalars)

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the same as :meth:`download`: a new client has W_0 at the initial mask."""
        return self.download(state, client, plan)

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit w_c at m_c in phase 1, with a new m_c in rounds that readjust; in 2a w at m_g; in 2b nothing."""
        if plan.phase == "2b":
            return Schema()
        if plan.scalars["prune"]:
            return Schema(at_masks_specs(self.layout, self.budget))
        shared = plan.phase == "2a"
        masks = unpack(state.global_mask, self.layout) if shared else self.personal_mask(state, client.name)
        sizes = {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}  # m_g may be below the budget
        return Schema(at_masks_specs(self.layout, sizes, masks, fresh=False))

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return w_g; in phase 1 a client trains its own w_c, which the server does not keep."""
        return state.weights

    def personal_mask(self, state: ServerState, client: str) -> Masks:
        """Return m_c as last uploaded, or the initial mask."""
        mask = state.held.get(client, ClientHolds()).mask
        return unpack(mask or first_masks(self.setup, self.budget, client), self.layout)

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Phase 1: compute eq. 5 and a new m_g. 2a: average at m_g. 2b: only record which clients have w_g."""
        masks: dict[str, Packed] = {}

        def note_mask(upload: Upload) -> float:
            if plan.scalars["prune"]:
                tensors = upload.payload.tensors
                masks[upload.client.name] = pack({p.name: tensors[p.name].mask() for p in self.parts}, self.parts)
            return self.weigh(upload)

        covered = None
        if plan.phase != "2b":
            covered = mean_of_holders(uploads, {p.name: p.shape for p in self.layout}, note_mask)
        holdings = dict(state.held)
        for client in uploads.clients:
            mask = masks.get(client.name, holdings.get(client.name, ClientHolds()).mask)
            holdings[client.name] = ClientHolds(state.mask_version, state.weights_version, mask)
        if covered is None or not len(uploads):
            return replace(state, held=holdings), {}
        after = replace(state, weights=covered.over(state.weights), weights_version=plan.round, held=holdings)
        return (after, {}) if plan.phase == "2a" else self._select(after, covered.holders, uploads.clients, plan)

    def _select(
        self, state: ServerState, holders: Counts, clients: Sequence[ClientInfo], plan: Plan
    ) -> tuple[ServerState, Metrics]:
        old = unpack(state.global_mask, self.layout)
        masks = global_mask(state.weights, holders, len(clients), self.budget, self.hyper.agreement, old)
        new, parts = pack(masks, self.parts), self.parts
        entries_changed = sum(int(np.count_nonzero(masks[p.name] & ~old[p.name])) for p in parts)
        entries = sum(int(np.count_nonzero(masks[p.name])) for p in parts)
        changed = any(not np.array_equal(new[p.name], state.global_mask[p.name]) for p in parts)
        version = plan.round if changed else state.mask_version
        after = replace(state, global_mask=new, mask_version=version)
        metrics = {
            "global-mask.entries": float(entries),
            "global-mask.missing": float(sum(self.budget[p.name] for p in parts) - entries),
            "global-mask.moved": float(entries_changed),
        }
        overlaps = {f"overlap.{c.name}": overlap(masks, self.personal_mask(after, c.name), parts) for c in clients}
        return after, {**metrics, **overlaps, "overlap-mean": float(np.mean(list(overlaps.values())))}

    def model(self, state: ServerState) -> Weights:
        """Return θ_g = w_g ⊙ m_g."""
        return masked(state.weights, unpack(state.global_mask, self.layout))


def global_mask(
    weights: Weights, holders: Counts, clients: int, budget: Budget, share: float, last: Masks
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return m_g: in each tensor the ``budget`` largest |w_g| among the eligible positions.

    Positions held by more than ``share`` of the clients are eligible, and so are positions of the last m_g that no
    client of this round covers. If fewer positions are eligible, the mask is smaller than the budget.

    Args:
        weights: w_g, float32 by name.
        holders: Number of clients that hold each position.
        clients: |C_t|.
        budget: Number of entries in each tensor's mask; a tensor whose budget is its size is kept whole.
        share: .3 in the paper; treated as a decimal number.
        last: The previous m_g.
    """
    least = int(Fraction(repr(share)) * clients)  # held by more than this many
    masks = {}
    for name, tensor in weights.items():
        candidates = (holders[name] > least) | (last[name] & (holders[name] == 0))
        whole = budget[name] == tensor.size
        k = min(budget[name], int(np.count_nonzero(candidates)))
        masks[name] = np.ones(tensor.shape, np.bool_) if whole else largest(tensor, k, candidates)
    return masks


def overlap(shared: Masks, personal: Masks, parts: Layout) -> float:
    """Return |m_g ∩ m_c| / |m_c| over ``parts``, the masked tensors; 1 where there are none (Figure 6)."""
    both = sum(int(np.count_nonzero(shared[p.name] & personal[p.name])) for p in parts)
    entries = sum(int(np.count_nonzero(personal[p.name])) for p in parts)
    return both / entries if entries else 1.0
