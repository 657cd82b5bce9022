"""DM-PFL, client algorithm: training under masks (Algorithms 1 to 3), adaptive inference (Algorithm 4).

Zhang, Zhou, Wang, Tong: "DM-PFL: Hitchhiking Generic Federated Learning for Efficient Shift-Robust Personalization",
KDD 2023. Deviations: see NOTES.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from sepal.errors import ProtocolError
from sepal.masks.packed import Masks, density, pack, spread, take, unpack
from sepal.masks.schedules import prune_and_regrow
from sepal.method import ClientBase, Payload, Plan, Predictor, RunSetup, Schema, Trainer, Weights
from sepal.method.tensors import at_masks
from sepal.strategies.dmpfl.contract import (
    ClientState,
    budgets,
    download_schema,
    first_masks,
    masked_parts,
    parse_schedule,
)
from sepal.training.columns import split
from sepal.training.hooks import frozen
from sepal.training.network import Network, NetworkPredictor
from sepal.wire.tensors import Support

Dense = dict[str, npt.NDArray[np.float32]]


class DmPflClient(ClientBase[ClientState]):
    """Keeps w_c at m_c and a copy of w_g at m_g, from which θ_c and θ_g are built."""

    private_phases = ("2a",)
    batched = True
    combination = "sepal.strategies.dmpfl.client:adaptive"

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.budget = budgets(self.layout, self.hyper)
        self.parts = masked_parts(self.layout, self.budget)
        self.phases = {phase for phase, _ in parse_schedule(self.hyper.schedule)}

    def init(self) -> ClientState:
        """Start from W_0 at the initial masks, which the server derives too."""
        mask = first_masks(self.setup, self.budget, self.trainer.client.name)
        global_mask = first_masks(self.setup, self.budget)
        personal, shared = (take(self.setup.weights, unpack(bits, self.layout)) for bits in (mask, global_mask))
        return ClientState(mask, personal, global_mask, shared)

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the parts of m_g ⊙ w_g that the client lacks."""
        return download_schema(self.layout, self.budget, unpack(state.global_mask, self.layout))

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Run the client's part of Algorithm 1, 2 or 3, by the round's phase; in phase 2b the upload is empty.

        Raises:
            ProtocolError: The phase is not in ``dmpfl.schedule``. Uploads of phase 1 carry no noise, and a client of a
                run without phase 1 must not be brought to send one.
        """
        if plan.phase not in self.phases:
            raise ProtocolError("phase", f"one of dmpfl.schedule: {', '.join(sorted(self.phases))}", plan.phase)
        state = self.with_download(state, download)
        if plan.phase == "2b":
            return self._refine_personal(state, plan), Payload()
        if plan.phase == "2a":
            masks = unpack(state.global_mask, self.layout)
            weights = self._fit(spread(state.shared, masks), masks, masks, plan).read()
            sent = (
                spread(self._released(state.shared, take(weights, masks), plan), masks)
                if self.clips_uploads
                else weights
            )
            return state, Payload(at_masks(sent, masks, self.coding, derived=True))
        state = self._train_personal(state, plan)
        masks = unpack(state.mask, self.layout)
        personal = spread(state.personal, masks)
        return state, Payload(at_masks(personal, masks, self.coding, derived=not plan.scalars["prune"]))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload, and keep the masks. In phase 2a the state does not change."""
        state = self.with_download(state, download)
        if plan.phase == "2a":
            return state
        if plan.phase == "2b":
            return self._refine_personal(state, plan)
        return self._train_personal(state, replace(plan, scalars={"prune": 0.0}))

    def _released(self, received: Weights, trained: Weights, plan: Plan) -> Weights:
        """Return values at m_g, as ``privacy.*`` lets them leave the client: those received plus a noised change."""
        names = list(received)
        start, end = (np.concatenate([part[name] for name in names]) for part in (received, trained))
        noised_end = start + self.trainer.release(end - start, plan.round).noised
        ends = np.cumsum([received[name].size for name in names])
        return dict(zip(names, np.split(noised_end, ends[:-1]), strict=True))

    # What the client holds

    def with_download(self, state: ClientState, download: Payload) -> ClientState:
        """Return the state with the received m_g and m_g ⊙ w_g; an empty download means that the client has both.

        Raises:
            ProtocolError: Some tensors are missing, or the client has another mask than the server assumes.
        """
        tensors, versions = download.tensors, download.scalars
        if not tensors and versions["weights"] == state.weights_version:
            return replace(state, ahead=False)
        if len(tensors) < len(self.layout):
            raise ProtocolError("payload", "each tensor of the model", f"{len(tensors)} of {len(self.layout)}")
        for name, tensor in tensors.items():
            if tensor.support is Support.DERIVED and versions["mask"] != state.mask_version:
                raise ProtocolError(name, f"mask {state.mask_version}, which is held", versions["mask"])
        bits = pack({p.name: tensors[p.name].mask() for p in self.parts}, self.parts)
        shared = {name: np.asarray(tensor.values) for name, tensor in tensors.items()}
        mask, weights = int(versions["mask"]), int(versions["weights"])
        fresh = replace(state, global_mask=bits, shared=shared, mask_version=mask, weights_version=weights)
        return replace(fresh, ahead=False)

    def global_model(self, state: ClientState) -> Dense:
        """θ_g = w_g ⊙ m_g, as last received."""
        return spread(state.shared, unpack(state.global_mask, self.layout))

    def personal_model(self, state: ClientState) -> Dense:
        """θ_c = w_g ⊙ (m_g ∩ m_c) + w_c ⊙ (m_c − m_g), eq. 4; after phase 1 the overlap is the client's own."""
        mask, global_mask = unpack(state.mask, self.layout), unpack(state.global_mask, self.layout)
        personal = spread(state.personal, mask)
        if state.ahead:
            return personal
        shared = self.global_model(state)
        return {name: np.where(mask[name] & global_mask[name], shared[name], personal[name]) for name in personal}

    # Training

    def _train_personal(self, state: ClientState, plan: Plan) -> ClientState:
        """Algorithm 1, lines 5-12: train θ_c under m_c, then readjust m_c where the plan says so."""
        mask = unpack(state.mask, self.layout)
        network = self._fit(self.personal_model(state), mask, mask, plan)
        weights, fraction = network.read(), float(plan.scalars["prune"])
        if fraction and self.parts:
            gradient = self.trainer.gradient(network.module)
            for p in self.parts:  # regrown entries are 0 in ``weights``, because they were masked
                mask[p.name] = prune_and_regrow(weights[p.name], gradient[p.name], mask[p.name], fraction)
        bits, personal = pack(mask, self.parts), take(weights, mask)
        return replace(state, mask=bits, personal=personal, trained=True, ahead=True)

    def _refine_personal(self, state: ClientState, plan: Plan) -> ClientState:
        """Algorithm 3: the overlap is set to w_g and frozen, and w_c is trained on m_c − m_g."""
        mask, global_mask = unpack(state.mask, self.layout), unpack(state.global_mask, self.layout)
        free = {name: mask[name] & ~global_mask[name] for name in mask}
        weights = self._fit(self.personal_model(state), mask, free, plan).read()
        state = replace(state, personal=take(weights, mask), trained=True)
        return replace(state, entropies=self._base_entropies(state)) if self.hyper.adaptive_inference else state

    def _fit(self, start: Weights, mask: Masks, free: Masks, plan: Plan) -> Network:
        """Train ``free`` for E epochs from ``start``; ``mask`` is only used to count multiply-adds."""
        network = self.trainer.network()
        network.load(start)
        parameters = [p for name, p in network.module.named_parameters() if free[name].any()]
        if not parameters:
            return network
        share = density({p.name: mask[p.name] for p in self.parts})
        hooks = frozen(network, free)
        self.trainer.fit(network.module, plan.round, hooks, parameters=parameters, density=share)
        return network

    # Prediction

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return θ_c or the choice of Algorithm 4; θ_g before w_c was trained. A download replaces the overlap."""
        if download is not None:
            state = self.with_download(state, download)
        elif not state.trained and not state.weights_version:
            return None
        if not state.trained:
            return self.trainer.predictor(self.global_model(state))
        personal = self.trainer.predictor(self.personal_model(state))
        if not self.hyper.adaptive_inference or not state.entropies:
            return personal
        shared = self.trainer.predictor(self.global_model(state), "global")
        return NetworkPredictor([*personal.networks, *shared.networks], adaptive, state.entropies)

    def _base_entropies(self, state: ClientState) -> tuple[float, ...]:
        """Return BE(θ_c) and BE(θ_g), the mean entropies of the outputs on the client's training data, in nats."""
        models = {"model": self.personal_model(state), "global": self.global_model(state)}
        means = []
        for use, weights in models.items():
            predict, total = self.trainer.predictor(weights, use), 0.0
            for x, _ in split(self.trainer.x, self.trainer.y):
                total += float(entropy(predict(x)).sum(dtype=torch.float64))
            means.append(total / len(self.trainer.x))
        return tuple(means)


# Algorithm 4


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of the softmax of logits (n, classes), in nats, (n,)."""
    nats: torch.Tensor = torch.special.entr(functional.softmax(logits, 1)).sum(1)
    return nats


def prefers_personal(
    personal: torch.Tensor, shared: torch.Tensor, similarity: torch.Tensor, base_personal: float, base_shared: float
) -> torch.Tensor:
    """Return E_c − (1 − Sim)·BE(θ_c) < E_g − (1 − Sim)·BE(θ_g) for each example (Algorithm 4, line 4)."""
    shift = 1 - similarity
    return personal - shift * base_personal < shared - shift * base_shared


def adaptive(personal: torch.Tensor, shared: torch.Tensor, base_personal: float, base_shared: float) -> torch.Tensor:
    """Return the logits, (n, classes), of the model that Algorithm 4 chooses for each example."""
    similarity = functional.cosine_similarity(personal, shared, dim=1)
    uses_personal = prefers_personal(entropy(personal), entropy(shared), similarity, base_personal, base_shared)
    return torch.where(uses_personal.unsqueeze(1), personal, shared)
