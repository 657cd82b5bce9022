"""FedPSE, client algorithm: upstream personalized sparsification (Algorithm 1).

Zheng et al., "FedPSE: Personalized Sparsification with Element-wise Aggregation for Federated Learning", CIKM 2023.
Deviations: see NOTES.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sepal.layout import statistics, trained
from sepal.masks.flat import Flat
from sepal.masks.selection import per_layer_top_k, top_k
from sepal.method import ClientBase, Payload, Plan, RunSetup, Schema, Trainer, Weights, dense
from sepal.strategies.fedpse.contract import ClientState, budget, by_layer, download_schema, updated
from sepal.training.trainer import read_state
from sepal.wire import rounded
from sepal.wire.tensors import Index, SparseTensor, Values


class FedPSEClient(ClientBase[ClientState]):
    """Trains from its own base, and sends the k largest entries of its update plus residual."""

    private_phases = ("",)
    batched = True

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.flat = Flat(trained(setup.layout))

    def init(self) -> ClientState:
        """Start with W_i = W_0 and e_i = 0."""
        zeros = {p.name: np.zeros(p.shape, np.float32) for p in self.flat.layout}
        return ClientState(dict(self.setup.weights), zeros)

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit a sparse update; for a newcomer it is the sum of all updates."""
        return download_schema(self.setup)

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return W_i plus the download."""
        return updated(state.base, download.tensors, self.layout)

    def personal_weights(self, state: ClientState) -> Weights:
        """Return W_i^T."""
        return state.model

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train and sparsify the update (Algorithm 1). Only downloads change the base, not local training.

        With ``privacy.*``, update plus residual is clipped and noised before top-k selects. The new residual is then
        the clipped part without noise, 0 at all entries that were sent.
        """
        after = self.adapt(state, download, plan)
        gained = self.flat.join(after.model) - self.flat.join(after.base) + self.flat.join(state.residual)
        released = self.trainer.release(gained, plan.round)
        index = self._top_k(released.noised)
        sent = rounded(released.noised[index], self.coding)
        owed = released.clipped.copy()
        owed[index] = 0 if self.clips_uploads else released.noised[index] - sent
        upload: dict[str, SparseTensor] = self.flat.scatter(index, sent, self.coding)
        upload |= dense(after.model, statistics(self.layout), self.coding)
        return replace(after, residual=self.flat.cut(owed)), Payload(upload)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way, without an upload; the residual does not change."""
        base = self.received_weights(state, download, plan)
        if self.hyper.listing:
            return self._adapt_keeping_optimizer(replace(state, base=base), plan)
        return replace(state, base=base, model=self.fit(base, plan))

    def _adapt_keeping_optimizer(self, state: ClientState, plan: Plan) -> ClientState:
        """Train from the base; the optimizer goes on from the last round (Appendix E compiles its model once)."""
        network = self.trainer.network()
        network.load(state.base)
        optimizer = self.trainer.optimizer(network.module, plan.round, state=state.optimizer)
        self.trainer.fit(network.module, plan.round, optimizer=optimizer)
        return replace(state, model=network.read(), optimizer=read_state(optimizer, network.module))

    def _top_k(self, gained: Values) -> Index:
        if not by_layer(self.hyper):
            return top_k(gained, budget(self.setup))
        starts = self.flat.starts()
        chosen = per_layer_top_k(self.flat.cut(gained), self.hyper.keep)
        return np.concatenate([chosen[p.name] + starts[i] for i, p in enumerate(self.flat.layout)])
