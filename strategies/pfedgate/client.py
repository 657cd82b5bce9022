"""pFedGate, client algorithm: one loss trains the model and the gate that makes it sparse (Algorithm 1, lines 4-9).

Chen, Yao, Gao, Ding, Li: "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023.
Deviations: see NOTES.md.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from types import MappingProxyType

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from sepal.method import ClientBase, Hooks, Payload, Plan, Predictor, RunSetup, Trainer, Weights
from sepal.models.gated import GatedModule
from sepal.strategies.pfedgate.blocks import Mask
from sepal.strategies.pfedgate.contract import ClientState, GatedModels, Hyper
from sepal.training.columns import Part, equal_parts
from sepal.training.evaluation import ByBatch
from sepal.training.network import Network
from sepal.training.trainer import ParameterGroup, read_state

EXAMPLES = 512  # evaluated at once where predictions do not depend on it


class PFedGateClient(ClientBase[ClientState]):
    """Holds φ_i. Every prediction goes through the gate."""

    fixed_keys = MappingProxyType({"precision": "whose knapsack compares gates in float32"})

    hyper: Hyper

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.gated = GatedModels(setup)
        self.keep = self.gated.keep(trainer.client)
        self.blocks = self.gated.blocks(self.keep)

    def init(self) -> ClientState:
        """Start with φ⁰, drawn from the seed, and without a model."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return θ after the last training."""
        return state.model

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return θ_g, or without a download θ after the last training, behind the client's gate."""
        weights = state.model if download is None else self.received_weights(state, download, plan)
        if not weights:
            return None
        module = self._loaded(weights, state)[1].eval()
        if self.hyper.gating == "client":
            module.pool(self._parts(self.trainer.x))

        def predict(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return torch.cat([module(part) for part in self._parts(x)])

        return ByBatch(predict) if self.hyper.gating == "batch" else predict

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train θ and φ_i, and send Δθ of the blocks that were on at least once."""
        start = self.received_weights(state, download, plan)
        after, module = self._fit(state, start, plan)
        self.trainer.report("share-uploaded", self.blocks.share(module.ever))
        return after, Payload(self.gated.update(start, after.model, module.ever, self.keep, self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload; a novel client only trains its gate, for ``novel-epochs``."""
        return self._fit(state, self.received_weights(state, download, plan), plan)[0]

    def _fit(self, state: ClientState, start: Weights, plan: Plan) -> tuple[ClientState, GatedModule]:
        network, module = self._loaded(start, state)
        module.ever[:] = False
        groups = [ParameterGroup(list(module.gate.parameters()), float(self.hyper.rate))]
        if not plan.novel:
            groups.append(ParameterGroup(list(module.model.parameters())))
        module.model.requires_grad_(not plan.novel)
        optimizer = self.trainer.optimizer(module, plan.round, groups, state.optimizer)
        epochs, purpose = (self.hyper.novel_epochs, "novel") if plan.novel else (None, "train")
        hooks = Hooks(before_step=self._before_step, after_step=lambda _: module.restore())
        self.trainer.fit(module, plan.round, hooks, epochs=epochs, purpose=purpose, optimizer=optimizer)
        module.model.requires_grad_(True)
        optimizer_state = read_state(optimizer, module) if self.hyper.keep_optimizer else {}
        weights = network.read()
        self._report(module)
        return ClientState(_below(weights, "gate"), _below(weights, "model"), optimizer_state), module

    def _before_step(self, module: nn.Module) -> None:
        """Clip the gradients of θ and φ_i separately; keep blocks that are off for the whole batch unchanged."""
        gated = typing.cast("GatedModule", module)
        for part in (gated.model, gated.gate):
            clip_grad_norm_([p for p in part.parameters() if p.grad is not None], self.hyper.clip)
        gated.hold()

    def _loaded(self, weights: Weights, state: ClientState) -> tuple[Network, GatedModule]:
        """Return the gated network of the client's budget with θ = ``weights`` and the client's gate."""
        network = self.trainer.network(f"gated-{self.keep!r}", lambda: self.gated.module(self.keep))
        module = typing.cast("GatedModule", network.module)
        gate = state.gate or self.gated.first_gate(self.keep)
        parts = {"model": weights, "gate": gate}
        network.load({f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()})
        return network, module

    def _parts(self, x: Part) -> Iterator[torch.Tensor]:
        """Cut examples (n, …) for evaluation: by batch as in training, into batches whose sizes differ by at most 1."""
        most = self.setup.config.batch_size if self.hyper.gating == "batch" else EXAMPLES
        return equal_parts(x, math.ceil(len(x) / most))

    def own_masks(self, state: ClientState) -> Mask:
        """Return bool (n, L): the blocks of the client's own model that are on for each of its training examples."""
        return self._masks(self._loaded(state.model, state)[1])

    def _masks(self, module: GatedModule) -> Mask:
        module.eval()
        if self.hyper.gating == "client":
            module.pool(self._parts(self.trainer.x))
        with torch.no_grad():
            gates = [module.sparse_weights(x)[0] for x in self._parts(self.trainer.x)]
        return (torch.cat(gates) != 0).cpu().numpy()

    def _report(self, module: GatedModule) -> None:
        """Report s', the same of multiply-adds, and how many masks there are, over the training part as evaluated."""
        masks, costs = self._masks(module), self.blocks.costs(self.gated.multiply_adds)
        self.trainer.report("share", float(np.mean([self.blocks.share(mask) for mask in masks])))
        self.trainer.report("share-multiply-adds", float((masks @ costs).mean() / costs.sum()))
        self.trainer.report("masks", len(np.unique(masks, axis=0)))


def _below(weights: Weights, part: str) -> Weights:
    """Return the tensors of ``weights`` whose names start with ``part``, without this prefix."""
    return {name.removeprefix(f"{part}."): array for name, array in weights.items() if name.startswith(f"{part}.")}
