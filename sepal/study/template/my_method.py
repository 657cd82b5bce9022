"""The method: FedAvg whose clients start a round between the server's model and their own of the last round.

`sepal check-method my_method:Mine` checks it as Sepal checks its own methods.
"""

from pydantic import Field
from sepal.method import Settings
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, FedAvgServer
from sepal.strategies.registration import register


class Hyper(Settings):
    """The method's keys: `mine.share` in run.toml."""

    share: float = Field(0.5, ge=0, le=1, description="how much of the received model a client starts from")


class MineClient(FedAvgClient):
    """Trains from share · received + (1 - share) · its own model."""

    def adapt(self, state, download, plan):
        """Train without an upload; FedAvgClient sends the new model afterwards. Randomness comes from self.fit."""
        start, share = self.received_weights(state, download, plan), self.hyper.share
        if state.model:
            start = {name: share * start[name] + (1 - share) * state.model[name] for name in start}
        return ClientState(self.fit(start, plan))


Mine = register(
    "mine",
    "FedAvg whose clients keep a part of their own model",
    "this project",
    FedAvgServer,
    MineClient,
    Hyper,
    deployed="kept",
)
