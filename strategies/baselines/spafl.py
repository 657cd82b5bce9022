"""SpaFL: clients share one pruning threshold for each filter or neuron, and nothing else.

Kim, Saad, Debbah, Hong, "SpaFL: Communication-Efficient Federated Learning with Sparse Models and Low Computational
Overhead", NeurIPS 2024 (https://arxiv.org/abs/2406.00431), and the authors' code (news-vt/SpaFL_NeruIPS_2024, d3639ab).
Symbols: w_i → row i of a weight (a filter, or a neuron's inputs) with n_i entries; τ_i → its threshold. Row i is on if
s_i = mean|w_i| - τ_i > 0. All weights stay with their client; they start from the common W_0, and τ from 0. A client
trains w and τ together on the loss of the masked model + c·Σ exp(-τ_i). The gradient passes the mask as if it were s_i
(*gate*): with g_i = Σ_j ∂L/∂ŵ_ij·w_ij it is -g_i for τ_i, and g_i·sign(w_ij)/n_i beside that of the mask for w_ij.
The server takes the plain mean of τ. A row then follows its threshold: w_ij ← w_ij - Δ_i·sign(Σ_j w_ij)/n_i, where Δ is
the change of τ since the client last received it. *Received* is the client's model after that, masked by the received
τ; *trained*, which is *kept* and deployed, masked by its own.

A layer of which at most 1 % of the rows would be on has its τ set to 0, as in the code. NOTES.md says where the paper
and its code differ, and what of it is a key. Biases and norms have no mask, and a row that is off still has its bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from sepal.config import Settings
from sepal.layout import Layout, Parameter, Role
from sepal.method import (
    ClientBase,
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    ServerBase,
    Upload,
    Uploads,
    Weights,
    dense,
    weighted_mean,
)
from sepal.strategies.baselines.zero_weights import refuse_zero_weights
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective
from sepal.training.optimizers import ParameterGroup

LEAST_DENSITY = 0.01  # of a layer's rows; the authors' code

Arrays = dict[str, npt.NDArray[np.float32]]


class Hyper(Settings):
    """SpaFL's keys. The first default is that of the authors' README for CIFAR-10."""

    penalty: float = Field(0.00015, ge=0, description="c, strength of Σ exp(-τ), which makes models sparse")
    penalty_rounds: int = Field(0, ge=0, description="T, c is times 1/(1 + exp(5 - 10·t/T)) in round t; 0: always c")
    gate: Literal["open", "near", "far"] = Field(
        "open",
        description="where the gradient passes the mask: always, at |s| ≤ 1, or at |s| > 1 (authors' CIFAR code)",
    )
    follow: Literal["inputs", "kernel", "no"] = Field(
        "inputs", description="weights follow thresholds, divided by a row's entries, or a kernel's (code); or not"
    )


@dataclass(frozen=True)
class ServerState:
    """τ by name of its tensor in payloads, float32 (rows,)."""

    thresholds: Weights


@dataclass(frozen=True)
class ClientState:
    """A client's state, float32 by name; empty before its first training.

    Attributes:
        model: All tensors of its model, without a mask.
        thresholds: Its own τ by name of weight, (rows,).
        received: The τ that it received last.
    """

    model: Weights = field(default_factory=dict)
    thresholds: Weights = field(default_factory=dict)
    received: Weights = field(default_factory=dict)


class Rows:
    """What both sides share: the weights that have thresholds, and the tensors that travel."""

    setup: RunSetup

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        refuse_zero_weights(self.setup, "a row of zeros is off, gets no gradient, and stays 0")
        self.masked: Layout = tuple(p for p in self.setup.layout if p.role is Role.WEIGHT and p.size)
        self.tensors: Layout = tuple(Parameter(tau(p.name), (rows(p)[0],), Role.NORM) for p in self.masked)

    def shared(self) -> Layout:
        """Return the thresholds."""
        return self.tensors

    def zeros(self) -> Arrays:
        """Return the first thresholds, by name of weight."""
        return {p.name: np.zeros(rows(p)[0], np.float32) for p in self.masked}


def tau(weight: str) -> str:
    """Return the name of a weight's thresholds in payloads."""
    return f"{weight}/threshold"


def rows(p: Parameter) -> tuple[int, int]:
    """Return (number of rows, entries in each)."""
    count = p.shape[0] if p.shape else 1
    return count, p.size // count


class SpaFLServer(Rows, ServerBase[ServerState]):
    """Averages thresholds."""

    robust_means = True
    summed_phases = ("",)

    def init(self) -> ServerState:
        """Start with thresholds of 0."""
        return ServerState({p.name: np.zeros(p.shape, np.float32) for p in self.tensors})

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the thresholds."""
        return Payload(dense(state.thresholds, self.tensors, self.coding))

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the thresholds, from which every client trains."""
        return state.thresholds

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Take the plain mean."""
        mean = weighted_mean(uploads, state.thresholds, weigh=self.weigh, robust=self.robust)
        size = sum(array.size for array in mean.values())
        return ServerState(mean), {"threshold": sum(float(array.sum()) for array in mean.values()) / max(size, 1)}

    def weigh(self, upload: Upload) -> float:
        """Return 1: all clients have equal weight."""
        return 1

    def model(self, state: ServerState) -> Weights:
        """Return nothing: weights stay with the clients."""
        return {}


def masked_rows(weight: torch.Tensor, threshold: torch.Tensor, gate: str) -> torch.Tensor:
    """Return a weight with 0 in the rows that are off; the gradient passes the mask at the ``gate``.

    Args:
        weight: float32 (rows, …), or () for a single row.
        threshold: τ, float32 (rows,).
        gate: As in :class:`Hyper`.
    """
    flat = weight.reshape(len(threshold), -1)
    above = flat.abs().mean(1) - threshold
    size = above.detach().abs()
    passes = torch.ones_like(size) if gate == "open" else ((size <= 1) if gate == "near" else (size > 1)).to(size.dtype)
    on = (above.detach() > 0).to(size.dtype) + passes * (above - above.detach())
    return (flat * on[:, None]).reshape(weight.shape)


class RowMasked(nn.Module):
    """A model whose weights have a threshold for each row."""

    def __init__(self, model: nn.Module, masked: Layout, gate: str) -> None:
        """Take ``model``; its weights ``masked`` get thresholds of 0."""
        super().__init__()
        self.model, self.gate = model, gate
        self.thresholds = nn.ParameterDict({key(p.name): nn.Parameter(torch.zeros(rows(p)[0])) for p in masked})
        self.names = {key(p.name): p.name for p in masked}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map inputs to logits."""
        weights = {
            self.names[at]: masked_rows(self.model.get_parameter(self.names[at]), threshold, self.gate)
            for at, threshold in self.thresholds.items()
        }
        logits: torch.Tensor = functional_call(self.model, weights, (x,))
        return logits


def key(name: str) -> str:
    """Return the key of a weight's thresholds in :class:`RowMasked`; dots are not allowed there."""
    return name.replace(".", "/")


@dataclass(frozen=True)
class LossOfThresholds(Capturable):
    """The loss plus ``strength``·Σ exp(-τ)."""

    TENSORS: ClassVar[tuple[str, ...]] = ("strength",)
    OF_NETWORK: ClassVar[tuple[str, ...]] = ("thresholds",)
    strength: torch.Tensor
    thresholds: Mapping[str, torch.Tensor]
    objective: Objective

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = self.objective(module(x), y)
        for threshold in self.thresholds.values():
            loss = loss + self.strength * torch.exp(-threshold).sum()
        return loss


@dataclass(frozen=True)
class Escape(Capturable):
    """Sets a layer's thresholds to 0 where hardly a row would be on; weights and thresholds by the same names."""

    OF_NETWORK: ClassVar[tuple[str, ...]] = ("weights", "thresholds")
    weights: Mapping[str, torch.Tensor]
    thresholds: Mapping[str, torch.Tensor]

    def __call__(self, module: nn.Module) -> None:
        """Set them."""
        with torch.no_grad():
            for name, threshold in self.thresholds.items():
                above = self.weights[name].reshape(len(threshold), -1).abs().mean(1) > threshold
                keep = (above.to(threshold.dtype).mean() > LEAST_DENSITY).to(threshold.dtype)
                threshold.mul_(keep)


class SpaFLClient(Rows, ClientBase[ClientState]):
    """Keeps its weights, and trains them with its thresholds."""

    def init(self) -> ClientState:
        """Start without a model."""
        return ClientState()

    def thresholds(self, download: Payload) -> Arrays:
        """Return the received τ, by name of weight."""
        if not download.tensors:
            return self.zeros()
        return {p.name: download.tensors[tau(p.name)].dense() for p in self.masked}

    def moved(self, state: ClientState, thresholds: Weights) -> Arrays:
        """Return the client's weights after they have followed the received thresholds."""
        weights: Arrays = {name: np.array(array) for name, array in (state.model or self.setup.weights).items()}
        before = state.received or self.zeros()
        for p in self.masked if self.hyper.follow != "no" else ():
            flat = weights[p.name].reshape(rows(p))
            entries = rows(p)[1] if self.hyper.follow == "inputs" or len(p.shape) < 3 else math.prod(p.shape[2:])
            step = (thresholds[p.name] - before[p.name]) * np.sign(flat.sum(1, dtype=np.float64)) / entries
            flat -= step[:, None].astype(np.float32)
        return weights

    def on(self, weights: Weights, thresholds: Weights) -> dict[str, npt.NDArray[np.bool_]]:
        """Return which rows are on; all of a layer of which hardly one would be."""
        on = {}
        for p in self.masked:
            size = np.abs(weights[p.name].reshape(rows(p))).mean(1)
            on[p.name] = size > thresholds[p.name]
            if on[p.name].mean() <= LEAST_DENSITY:
                on[p.name] = size > 0
        return on

    def masked_model(self, weights: Weights, thresholds: Weights) -> Arrays:
        """Return the weights, 0 in the rows that are off."""
        model: Arrays = dict(weights)
        for name, on in self.on(weights, thresholds).items():
            model[name] = (weights[name].reshape(len(on), -1) * on[:, None]).reshape(weights[name].shape)
        return model

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the client's model after it has followed the received thresholds, masked by them."""
        thresholds = self.thresholds(download)
        return self.masked_model(self.moved(state, thresholds), thresholds)

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the client's model masked by its own thresholds."""
        return self.masked_model(state.model, state.thresholds) if state.model else {}

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return the client's thresholds."""
        return Payload(dense({tau(name): t for name, t in state.thresholds.items()}, self.tensors, self.coding))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Take over the received thresholds, let the weights follow them, and train both for E epochs."""
        received = self.thresholds(download)
        start = self.moved(state, received)
        network = self.trainer.network("spafl", lambda: RowMasked(self.trainer.make(), self.masked, self.hyper.gate))
        named = {p.name: (f"model.{p.name}", f"thresholds.{key(p.name)}") for p in self.masked}
        weights = {f"model.{name}": array for name, array in start.items()}
        network.load({**weights, **{named[name][1]: threshold for name, threshold in received.items()}})
        module = cast("RowMasked", network.module)
        escape = Escape(*({name: network.tensors[pair[side]] for name, pair in named.items()} for side in (0, 1)))
        escape(module)
        strength = torch.tensor(self.penalty(plan.round), dtype=torch.float32, device=self.trainer.device)
        hooks = Hooks(LossOfThresholds(strength, dict(module.thresholds.items()), self.trainer.loss), after_step=escape)
        of_thresholds = ParameterGroup(list(module.thresholds.values()), weight_decay=0.0)
        groups = [ParameterGroup(list(module.model.parameters())), of_thresholds]
        present = {named[name][0]: float(on.mean()) for name, on in self.on(start, received).items()}
        self.trainer.fit(module, plan.round, hooks, parameters=groups, density=present)
        read = network.read()
        model = {name: read[f"model.{name}"] for name in start}
        thresholds = {name: read[threshold] for name, (_, threshold) in named.items()}
        after = self.on(model, thresholds)
        entries = sum(p.size for p in self.masked)
        self.trainer.report("density", sum(after[p.name].mean() * p.size for p in self.masked) / max(entries, 1))
        return ClientState(model, thresholds, received)

    def penalty(self, round: int) -> float:
        """Return c in a round."""
        rounds = self.hyper.penalty_rounds
        rise = 1 / (1 + math.exp(min(5 - 10 * round / rounds, 50.0))) if rounds else 1.0
        return float(self.hyper.penalty * rise)


SpaFL = register(
    "spafl",
    "A shared pruning threshold for each filter, over weights of each client's own",
    "Kim et al., NeurIPS 2024",
    SpaFLServer,
    SpaFLClient,
    Hyper,
)
