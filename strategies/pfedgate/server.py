"""pFedGate, server algorithm: each entry's mean over the clients whose blocks held it (appendix G).

Chen, Yao, Gao, Ding, Li: "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023,
Algorithm 1. Deviations: see NOTES.md.
"""

from __future__ import annotations

import numpy as np

from sepal.method import ClientInfo, Metrics, Plan, RunSetup, Schema, ServerBase, Upload, Uploads, Weights
from sepal.method.means import mean_of_holders
from sepal.strategies.pfedgate.contract import GatedModels, ServerState


class PFedGateServer(ServerBase[ServerState]):
    """Keeps θ_g. Of a client's gate, it knows the budget and which blocks were on."""

    reads_uploads = "the blocks of each client"
    uses_capacity = True

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.gated = GatedModels(setup)

    def init(self) -> ServerState:
        """Start from W_0."""
        return ServerState(dict(self.setup.weights))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit blocks of the client's budget, and Δθ there."""
        return self.gated.upload_schema(self.gated.keep(client))

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update θ_g ← θ_g + Σ n_i·Δ_i / Σ n_i, each entry over the clients that sent it; others do not change."""
        sent = []

        def note(upload: Upload) -> float:
            sent.append(upload.payload.tensors["delta"].nnz / self.gated.flat.size)
            return self.weigh(upload)

        covered = mean_of_holders(uploads, {"delta": (self.gated.flat.size,)}, note)
        after = self.gated.flat.join(state.weights).astype(np.float64) + covered.mean["delta"]
        metrics = {"share-uploaded": float(np.mean(sent))} if sent else {}
        return ServerState(self.gated.flat.cut(after.astype(np.float32))), metrics

    def model(self, state: ServerState) -> Weights:
        """Return θ_g."""
        return state.weights
