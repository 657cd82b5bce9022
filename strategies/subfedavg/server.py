"""Sub-FedAvg, server algorithm: the mean of each entry over the clients that kept it (Algorithms 1 and 2).

Vahidian, Morafah, Lin: "Personalized Federated Learning by Structured and Unstructured Pruning under Data
Heterogeneity", ICDCS Workshops 2021. Deviations: see NOTES.md.
"""

from __future__ import annotations

import numpy as np

from sepal.masks.packed import Mask, Packed, unpack
from sepal.method import ClientInfo, Metrics, Payload, Plan, RunSetup, Schema, ServerBase, Upload, Uploads, Weights
from sepal.method.means import mean_of_holders
from sepal.method.tensors import at_masks
from sepal.strategies.subfedavg.contract import ServerState
from sepal.strategies.subfedavg.prunable import Prunable
from sepal.strategies.subfedavg.pruning import paper_cost


class SubFedAvgServer(ServerBase[ServerState]):
    """Keeps θ_g and each client's masks."""

    reads_uploads = "what each client keeps makes its download"
    uses_capacity = True

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.prunable = Prunable(setup)

    def init(self) -> ServerState:
        """Start from W_0."""
        return ServerState(dict(self.setup.weights))

    def kept(self, state: ServerState, client: str) -> dict[str, Mask]:
        """Return a client's masks, by part."""
        return unpack(state.kept.get(client, {}), self.prunable.parts)

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return m_k ⊙ θ_g; the client knows its m_k."""
        masks = self.prunable.masks(self.kept(state, client.name))
        return Payload(at_masks(state.weights, masks, self.coding, derived=True))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit changed masks, and θ_k at the new masks."""
        return self.prunable.upload_schema(self.kept(state, client.name), client.capacity)

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Average each entry over the clients that kept it, with equal weights; other entries do not change."""
        kept: dict[str, Packed] = {}
        shares: list[tuple[float, float]] = []

        def note(upload: Upload) -> float:
            name = upload.client.name
            after = self.prunable.changed(self.kept(state, name), upload.payload.tensors)
            kept[name] = self.prunable.packed(after)
            shares.append((self.prunable.pruned(after), self.prunable.channels_pruned(after)))
            return 1

        mean = mean_of_holders(uploads, {p.name: p.shape for p in self.layout}, note)
        cost = state.cost + sum(paper_cost(self.prunable.size, pruned) for pruned, _ in shares)
        metrics = {"paper-cost": cost}
        if shares:
            weights, channels = np.mean(shares, axis=0)
            metrics |= {"pruned": float(weights), "channels-pruned": float(channels)}
        return ServerState(mean.over(state.weights), {**state.kept, **kept}, cost), metrics

    def model(self, state: ServerState) -> Weights:
        """Return θ_g."""
        return state.weights
