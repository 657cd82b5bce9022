"""FedPM: random weights stay as drawn, each entry has a probability of being on, and clients send one drawn bit of it.

Isik, Pase, Gündüz, Weissman, Zorzi, "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR 2023
(https://arxiv.org/abs/2209.15328), and the authors' code (BerivanIsik/sparse-random-networks, cf6b549). Weights and
biases are ±e/√(fan-in), e Euler's number, with signs from the run's seed. Each entry has a score s, at first
standard normal, and θ = σ(s). In each forward pass of training all bits m are drawn anew, m = 1 with probability θ, and
the model has w·m; the gradient passes the draw as if m were θ (*gradient*). An entry that is off has a gradient, too.
After the local epochs the client draws its bits once more and sends them, entropy-coded. The server adds them up: θ is
the mode of a Beta posterior with prior (1, 1), which is the share of ones among the uploads since the prior was last
reset, then softened to ε + (1 - 2ε)·θ, so that s stays finite. It sends s, dense. *Received* is the model under the
bits of the received θ, *trained* under those of the client's own; what is deployed is *received*.

NOTES.md says where the paper and its code differ, and what of it is a key. As in FedMask norms and their statistics are
W_0's, and dropout is off. Draws are made on the CPU, so that they are the same whatever device trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from sepal.config import Settings
from sepal.layout import Layout, Role
from sepal.masks.packed import Mask
from sepal.method import (
    ClientBase,
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    ServerBase,
    Uploads,
    Weights,
    dense,
)
from sepal.rng import derive, derive_seed
from sepal.strategies.baselines.fedmask import Masked, key
from sepal.strategies.registration import register
from sepal.training.capturable import Objective
from sepal.training.optimizers import OptimizerState, ParameterGroup, read_state
from sepal.wire.tensors import TensorSpec, members

Arrays = dict[str, npt.NDArray[np.float32]]


class Hyper(Settings):
    """FedPM's keys."""

    gradient: Literal["identity", "probability"] = Field(
        "identity", description="what a draw's gradient is multiplied by: 1, or the probability (authors' code)"
    )
    reset_every: int = Field(
        0,
        ge=0,
        description="rounds after which the server forgets earlier bits; 1: all rounds, as in the authors' code; "
        "0: once there were as many uploads as there are clients",
    )
    # Scores are within ±log((1 - ε)/ε), which is 9.2 for the least ε: a round in which all bits agree changes them by
    # less than ten times the norm that they had, from which on a run is undone (sepal.server.guard).
    softening: float = Field(0.01, ge=1e-4, lt=0.5, description="ε; probabilities are between ε and 1 - ε")
    view: Literal["sampled", "threshold"] = Field(
        "sampled", description="bits of the model that predicts: drawn once for the run, or probability above ½"
    )
    weights: Literal["signed", "drawn"] = Field(
        "signed", description="fixed weights; signed: random signs, one magnitude per tensor; drawn: W_0"
    )
    keep_optimizer: bool = Field(True, description="clients keep the optimizer's state between rounds")


class Scored:
    """What both sides share: the entries that have scores, the fixed weights, and the first scores.

    Attributes:
        masked: The weights and biases, which have a score for each entry.
        weights: All tensors of the model, before any bit.
        first: The first scores, float32 by name.
    """

    setup: RunSetup

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.masked: Layout = tuple(p for p in self.setup.layout if p.role in (Role.WEIGHT, Role.BIAS))
        seed = self.setup.config.seed
        self.first: Arrays = {
            p.name: derive(seed, "fedpm", p.name).standard_normal(p.shape, np.float32) for p in self.masked
        }
        self.weights = dict(self.setup.weights)
        if self.setup.hyper.weights == "signed":
            self.weights |= signed_constants(self.masked, seed)

    def shared(self) -> Layout:
        """Return what has scores."""
        return self.masked

    def predicting(self, scores: Weights) -> Arrays:
        """Return the model under the bits of scores, float32 by name."""
        return {**self.weights, **{name: self.weights[name] * self.on(name, score) for name, score in scores.items()}}

    def on(self, name: str, score: npt.NDArray[np.float32]) -> Mask:
        """Return the bits of the model that predicts, bool of the shape of ``score``."""
        if self.setup.hyper.view == "threshold":
            return score > 0
        return drawn(score, derive(self.setup.config.seed, "fedpm-view", name))


def signed_constants(layout: Layout, seed: int) -> Arrays:
    """Return ±e/√(fan-in) by name, float32; a bias has the fan-in of the weight before it."""
    constants: Arrays = {}
    fan_in = 1
    for p in layout:
        fan_in = max(1, math.prod(p.shape[1:])) if p.role is Role.WEIGHT else fan_in
        size = np.float32(math.e / math.sqrt(fan_in))
        minus = derive(seed, "fedpm-signs", p.name).random(p.shape, np.float32) < 0.5
        constants[p.name] = np.where(minus, -size, size).astype(np.float32)
    return constants


def probability(score: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return θ = σ(s), float32."""
    half = np.float32(0.5)
    theta: npt.NDArray[np.float32] = half + half * np.tanh(half * score)
    return theta


def drawn(score: npt.NDArray[np.float32], rng: np.random.Generator) -> Mask:
    """Return a bit for each score, bool, True with probability θ."""
    return rng.random(score.shape, np.float32) < probability(score)


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        scores: s by name, float32.
        ones: How many uploads had a 1 since the last reset, int32 by name; empty before the first upload.
        uploads: How many uploads there were since then.
        period: With ``fedpm.reset-every``, how often the prior had been reset before them.
    """

    scores: Weights
    ones: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    uploads: int = 0
    period: int = 0


@dataclass(frozen=True)
class ClientState:
    """A client's scores, float32 by name, and its optimizer's state; both empty before its first training."""

    scores: Weights = field(default_factory=dict)
    optimizer: OptimizerState = field(default_factory=dict)


class FedPMServer(Scored, ServerBase[ServerState]):
    """Adds up bits, and sends scores."""

    reads_uploads = "bits, which travel as masks and not as numbers"

    def init(self) -> ServerState:
        """Start with the scores of the seed."""
        return ServerState(self.first)

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the scores."""
        return Payload(dense(state.scores, self.masked, self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit a bit for each entry, in any coding."""
        return Schema({p.name: TensorSpec(p.shape, values=False, entropy_coded=True) for p in self.masked})

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return nothing: bits are no change of the scores."""
        return {}

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Take the share of ones since the last reset, of all clients alike."""
        every = self.setup.hyper.reset_every
        period = (plan.round - 1) // every if every else 0
        whole = not every and state.uploads >= self.setup.config.clients
        before = ServerState({}) if whole or period != state.period else state
        ones = {p.name: np.array(before.ones.get(p.name, np.zeros(p.shape)), np.int32) for p in self.masked}
        number = before.uploads
        for upload in uploads:
            number += 1
            for name, tensor in upload.payload.tensors.items():
                ones[name] += tensor.mask()
        if number == before.uploads:
            return state, {}
        least = self.setup.hyper.softening
        theta = {name: least + (1 - 2 * least) * count / number for name, count in ones.items()}
        scores = {name: np.log(share / (1 - share)).astype(np.float32) for name, share in theta.items()}
        size = max(1, sum(share.size for share in theta.values()))
        mean = sum(float(share.sum()) for share in theta.values()) / size
        return ServerState(scores, ones, number, period), {"probability": mean}

    def model(self, state: ServerState) -> Weights:
        """Return the weights under the bits of the scores."""
        return self.predicting(state.scores)


@dataclass(frozen=True)
class LossOfDraws:
    """The loss of a model whose bits are drawn anew in each forward pass; its draws are the generator's, on the CPU."""

    generator: torch.Generator
    gradient: str
    objective: Objective

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        network = cast("Masked", module)
        scores = dict(network.scores.items())
        flat = torch.cat([torch.rand(score.shape, generator=self.generator).flatten() for score in scores.values()])
        uniforms = torch.split(flat.to(x.device), [score.numel() for score in scores.values()])  # one copy in a step
        weights = {}
        for (at, score), uniform in zip(scores.items(), uniforms, strict=True):
            on = bits(score, uniform.view(score.shape), self.gradient)
            weights[network.names[at]] = network.model.get_parameter(network.names[at]) * on
        return self.objective(functional_call(network.model, weights, (x,)), y)


def bits(score: torch.Tensor, uniform: torch.Tensor, gradient: str) -> torch.Tensor:
    """Return 1 where ``uniform`` is below θ = σ(s) and 0 elsewhere, float32 of the shape of ``score``.

    Args:
        score: s.
        uniform: Numbers from 0 to 1 of the same shape.
        gradient: ``identity``: that of θ; ``probability``: θ times that.
    """
    theta = torch.sigmoid(score)
    on = (uniform < theta.detach()).to(theta.dtype)
    soft = theta if gradient == "identity" else theta.square() / 2
    return on + (soft - soft.detach())


class FedPMClient(Scored, ClientBase[ClientState]):
    """Trains scores, and sends bits that it draws."""

    fixed_keys = MappingProxyType({"max-update-norm": "whose uploads are bits, without a norm"})

    def init(self) -> ClientState:
        """Start without scores."""
        return ClientState()

    def scores(self, download: Payload) -> Arrays:
        """Return the received scores; those of the seed if none were sent."""
        return {name: tensor.dense() for name, tensor in download.tensors.items()} or self.first

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the weights under the bits of the received scores."""
        return self.predicting(self.scores(download))

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the weights under the bits of the client's own scores."""
        return self.predicting(state.scores) if state.scores else {}

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return a bit for each entry, drawn for this round, independently of training."""
        rng = derive(self.setup.config.seed, "fedpm-send", self.trainer.client.name, plan.round)
        masks = {p.name: drawn(state.scores[p.name], rng) for p in self.masked}
        size = max(1, sum(mask.size for mask in masks.values()))
        self.trainer.report("density", sum(int(mask.sum()) for mask in masks.values()) / size)
        return Payload({name: members(mask, entropy_coded=True) for name, mask in masks.items()})

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Take over the received scores and train them for E epochs."""
        scores = self.scores(download)
        network = self.trainer.network("fedpm", lambda: Masked(self.trainer.make(), self.masked))
        named = {f"scores.{key(name)}": name for name in scores}
        start = {f"model.{name}": array for name, array in self.weights.items()}
        network.load({**start, **{at: scores[name] for at, name in named.items()}})
        module = cast("Masked", network.module)
        groups = [ParameterGroup(list(module.scores.parameters()), weight_decay=0.0)]
        optimizer = self.trainer.optimizer(module, plan.round, groups, state.optimizer)
        seed = derive_seed(self.setup.config.seed, "fedpm-train", self.trainer.client.name, plan.round)
        draws = LossOfDraws(torch.Generator().manual_seed(seed % 2**63), self.hyper.gradient, self.trainer.loss)
        self.trainer.fit(module, plan.round, Hooks(draws), optimizer=optimizer)
        weights = network.read()
        moments = read_state(optimizer, module) if self.hyper.keep_optimizer else {}
        return ClientState({name: weights[at] for at, name in named.items()}, moments)


FedPM = register(
    "fedpm",
    "Probabilities of masks over fixed random weights, of which clients send drawn bits",
    "Isik et al., ICLR 2023",
    FedPMServer,
    FedPMClient,
    Hyper,
    deployed="received",
    one_model=True,
    defaults={"optimizer": "adam", "lr": 0.1},  # the authors' code has them for all data
)
