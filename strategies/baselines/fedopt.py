"""FedAdam, FedYogi and FedAdagrad: FedAvg's clients, and an adaptive optimizer on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2 (https://arxiv.org/abs/2003.00295). For each entry, with Δ (the pseudo-gradient) the mean minus W::

    m ← β1·m + (1 - β1)·Δ                       m_{-1} = 0
    v ← β2·v + (1 - β2)·Δ²                      FedAdam
    v ← v - (1 - β2)·Δ²·sign(v - Δ²)            FedYogi
    v ← v + Δ²                                  FedAdagrad; v_{-1} = τ² for all three
    W ← W + rate·m / (√v + τ)

There is no correction of the bias of m and v, as in the paper. *Received* is the global model; a deployed client
predicts with it.

Deviations: Δ is weighted by n_i, where Algorithm 2 has equal weights; statistics of normalisation layers are averaged,
because a step of the server could make a variance negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import PositiveOrAuto, Settings, auto
from sepal.layout import trained
from sepal.method import Weights
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer, ServerState
from sepal.strategies.registration import register

Array: TypeAlias = npt.NDArray[np.float64]


class Hyper(Settings):
    """Keys of FedAdam and FedYogi. The paper searches the rate for each task; β1, β2 and τ are the paper's."""

    rate: PositiveOrAuto = auto(0.01, "the server's learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="β1, decay of the mean of the pseudo-gradients")
    beta2: float = Field(0.99, ge=0, lt=1, description="β2, decay of the mean of their squares")
    tau: float = Field(1e-3, gt=0, description="τ, added to the root of that mean; τ² is what it starts from")


class AdagradHyper(Settings):
    """FedAdagrad's keys; the paper uses no momentum with it."""

    rate: PositiveOrAuto = auto(0.1, "the server's learning rate")
    beta1: float = Field(0.0, ge=0, lt=1, description="β1, decay of the mean of the pseudo-gradients")
    tau: float = Field(1e-3, gt=0, description="τ, added to the root of the sum of their squares; it starts from τ²")


@dataclass(frozen=True)
class Moments(ServerState):
    """W, and m and v of the trained tensors, float64 by name."""

    m: Mapping[str, Array]
    v: Mapping[str, Array]


class FedAdamServer(FedAvgServer):
    """FedAvg's server; takes a step of Adam."""

    def init(self) -> Moments:
        """Start from W_0 with m = 0 and v = τ²."""
        shapes = {p.name: p.shape for p in trained(self.shared())}
        v = {name: np.full(shape, self.hyper.tau**2) for name, shape in shapes.items()}
        return Moments(super().init().weights, {name: np.zeros(shape) for name, shape in shapes.items()}, v)

    def update(self, state: Moments, mean: Weights) -> Moments:
        """Return Algorithm 2's m, v and W; statistics are the mean."""
        hyper, m, v, weights = self.hyper, dict(state.m), dict(state.v), dict(mean)
        for name, before in state.m.items():
            delta = mean[name].astype(np.float64) - state.weights[name]
            m[name] = hyper.beta1 * before + (1 - hyper.beta1) * delta
            v[name] = self.second(v[name], delta**2)
            step = hyper.rate * m[name] / (np.sqrt(v[name]) + hyper.tau)
            weights[name] = (state.weights[name] + step).astype(np.float32)
        return Moments(weights, m, v)

    def second(self, v: Array, square: Array) -> Array:
        """Return the new v of a tensor, where ``square`` is Δ²."""
        new: Array = self.hyper.beta2 * v + (1 - self.hyper.beta2) * square
        return new


class FedYogiServer(FedAdamServer):
    """FedAdam's server with Yogi's v, which shrinks slowly where Δ becomes small."""

    def second(self, v: Array, square: Array) -> Array:
        """Return v - (1 - β2)·Δ²·sign(v - Δ²)."""
        new: Array = v - (1 - self.hyper.beta2) * square * np.sign(v - square)
        return new


class FedAdagradServer(FedAdamServer):
    """FedAdam's server with Adagrad's v, which only grows."""

    def second(self, v: Array, square: Array) -> Array:
        """Return v + Δ²."""
        return v + square


FedAdam = register(
    "fedadam",
    "FedAvg with Adam on the server",
    "Reddi et al., ICLR 2021",
    FedAdamServer,
    FedAvgClient,
    Hyper,
    deployed="received",
    one_model=True,
)
FedYogi = register(
    "fedyogi",
    "FedAvg with Yogi on the server",
    "Reddi et al., ICLR 2021",
    FedYogiServer,
    FedAvgClient,
    Hyper,
    deployed="received",
    one_model=True,
)
FedAdagrad = register(
    "fedadagrad",
    "FedAvg with Adagrad on the server",
    "Reddi et al., ICLR 2021",
    FedAdagradServer,
    FedAvgClient,
    AdagradHyper,
    deployed="received",
    one_model=True,
)
