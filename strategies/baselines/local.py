"""Local: every client trains its own model, and no weights are sent. A baseline without communication.

In each round the sampled clients train their own models, which start at W_0, for E epochs. There is no *received*
model. A deployed client predicts with its own, which is *kept*. Messages only tell clients when
to train, so rounds and sampling are the same as for other methods.
"""

from __future__ import annotations

from dataclasses import dataclass

from sepal.layout import Layout
from sepal.method import Metrics, Payload, Plan, Predictor, ServerBase, Uploads, Weights
from sepal.strategies.baselines.fedper import ClientState, PartClient
from sepal.strategies.registration import register


@dataclass(frozen=True)
class ServerState:
    """Empty: the server learns nothing."""


class Nothing:
    """The exchanged tensors: none."""

    def shared(self) -> Layout:
        """Return no tensor."""
        return ()


class LocalServer(Nothing, ServerBase[ServerState]):
    """Tells clients when to train."""

    robust_means = True
    summed_phases = ("",)

    def init(self) -> ServerState:
        """Return an empty state."""
        return ServerState()

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Leave the state as it is."""
        return state, {}

    def model(self, state: ServerState) -> Weights:
        """Return no model."""
        return {}


class LocalClient(Nothing, PartClient):
    """Trains its own model; all layers stay with the client."""

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the client's own model; None for a download, which contains no model."""
        return super().predictor(state, None, plan) if download is None else None


Local = register(
    "local",
    "Local training only",
    "baseline",
    LocalServer,
    LocalClient,
    no_received_model="nothing is sent, so there is no received model",
)
