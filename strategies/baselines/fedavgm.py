"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019,
section 4.3 (https://arxiv.org/abs/1909.06335). With Δ the mean's difference to W, v ← β·v + Δ and W ← W + rate·v.
β = 0 with rate 1 is FedAvg. *Received* is the global model; a deployed client predicts with it.

Deviation: statistics of normalisation layers are averaged without momentum, because beyond the mean a variance may be
below 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import PositiveOrAuto, Settings, auto
from sepal.layout import trained
from sepal.method import Weights
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer, ServerState
from sepal.strategies.registration import register


class Hyper(Settings):
    """FedAvgM's keys."""

    rate: PositiveOrAuto = auto(1.0, "the server's learning rate")  # the paper's
    # The paper searches 0, .7, .9, .97, .99 and .997 together with the clients' rate; .9 is our choice among them.
    beta: float = Field(0.9, ge=0, lt=1, description="β, momentum of the server")


@dataclass(frozen=True)
class MomentumState(ServerState):
    """W, and the momentum of the trained tensors, float64 by name."""

    momentum: Mapping[str, npt.NDArray[np.float64]]


class FedAvgMServer(FedAvgServer):
    """FedAvg's server; moves by momentum."""

    def init(self) -> MomentumState:
        """Start from W_0 at rest."""
        return MomentumState(super().init().weights, {p.name: np.zeros(p.shape) for p in trained(self.shared())})

    def update(self, state: MomentumState, mean: Weights) -> MomentumState:
        """Return v ← β·v + Δ and W ← W + rate·v."""
        momentum, weights = {}, dict(mean)
        for name, before in state.momentum.items():
            momentum[name] = self.hyper.beta * before + (mean[name].astype(np.float64) - state.weights[name])
            weights[name] = (state.weights[name] + self.hyper.rate * momentum[name]).astype(np.float32)
        return MomentumState(weights, momentum)


FedAvgM = register(
    "fedavgm",
    "FedAvg with momentum on the server",
    "Hsu et al., 2019",
    FedAvgMServer,
    FedAvgClient,
    Hyper,
    deployed="received",
    one_model=True,
)
