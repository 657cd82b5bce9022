"""Local training at each client's own width: Local for clients of different capacity.

As :mod:`sepal.strategies.baselines.local`, no weights are sent. A client trains its part of W_0, the first channels of
every hidden layer, at the largest width whose square is at most its capacity
(:mod:`sepal.strategies.baselines.widths`). So it is the yardstick for methods that use each client's capacity: the same
models without federation. A deployed client predicts with its own model, which is *kept*.
"""

from __future__ import annotations

from sepal.method import ClientInfo, Payload, Plan, Predictor, Schema, Weights
from sepal.strategies.baselines.local import LocalServer, ServerState
from sepal.strategies.baselines.widths import ClientState, Cuts, WidthClient, WidthSettings
from sepal.strategies.registration import register


class LocalWidthServer(Cuts, LocalServer):
    """Tells clients when to train; refuses models that cannot be cut and capacities below the smallest width."""

    robust_means = True
    summed_phases = ("",)
    uses_capacity = True

    def init(self) -> ServerState:
        """Return an empty state."""
        self.check()
        return super().init()

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit no tensor.

        Raises:
            ModelError: The client's capacity is below the square of the smallest width.
        """
        self.width(client)
        return super().upload_schema(state, client, plan)


class LocalWidthClient(WidthClient):
    """Trains its own model; nothing is sent."""

    batched = True

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit no tensor."""
        return Schema()

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the client's own model; before its first training its part of W_0."""
        return state.model or super().received_weights(state, download, plan)

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return no tensor."""
        return Payload()

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the client's own model; None for a download, which contains no model."""
        return super().predictor(state, None, plan) if download is None else None


LocalWidth = register(
    "local-width",
    "Local training only, at each client's own width",
    "baseline",
    LocalWidthServer,
    LocalWidthClient,
    WidthSettings,
    no_received_model="nothing is sent, so there is no received model",
)
