"""Pa3dFL's hypernetwork: client embeddings to personal parameters, and its step (equations 7 to 10).

Wang et al., "Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity". The
paper's symbols: E → ``embeddings``; E' → ``encoded``; τ_l = exp of ``log-temperature``; θ̃_v → what was *sent*.

For a client i: E' = encoder(E), an MLP of ``depth`` linear layers with ReLU between; scores s_i = E'·e'_i/√embedding;
for each layer l of the model e_i^(l) = E'ᵀ·softmax(s_i/τ_l), h_l = ReLU(hidden_l(e_i^(l))), and each personal tensor of
the layer is weight·h_l + bias, of which only the entries of the client's width are computed.

Where the paper is silent, or its choice does not work:

* Scores are divided by √embedding and the encoder has He's variance: with torch's default start attention is uniform
  and the temperatures hardly move.
* The decoders' bias starts as one set of first weights, common to all; what h adds to it starts at a tenth of its size.
* The hidden layers of the decoders start such that ‖h‖² is 20 to 40: a step of rate γ absorbs about γ·(1 + ‖h‖²) of a
  change that all clients have in common, and above 1 it overshoots.
* ``decoder-rank``, the units of the decoders' hidden layers, bounds their size: all clients' parameters of a layer lie
  in a space of that dimension around the bias.
* The step is plain SGD; the gradient's norm is clipped, and a step that would absorb more of the clients' change than
  ``absorb`` is shortened, because ‖h‖² grows while it trains.

Gradients of the decoders' large weights are summed by hand, tensor by tensor and upload by upload, in float32: a
second copy of the hypernetwork is all that a step needs. The small rest is left to autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

from sepal.errors import ModelError
from sepal.layout import Layout
from sepal.method import Weights
from sepal.rng import derive
from sepal.strategies.pa3dfl.contract import Array, Hyper, State

Block: TypeAlias = tuple[slice, ...]
Rounding: TypeAlias = Callable[[Array], Array]

_FIRST_NORM = 20.0  # of h, squared, if the entries of e^(l) were of variance 2 and mean 0
_FIRST_SPREAD = 0.1  # of what h adds, over the bias


class StepFigures(NamedTuple):
    """Figures of one step.

    Attributes:
        loss: Equation 7: mean over the uploads of ½‖new - sent‖².
        norm: Norm of its gradient, before clipping.
        absorbed: Share of the clients' change that the step absorbs, to first order: γ·c·‖gradient‖²/(2·loss), with
            c = min(1, clip/‖gradient‖). Were all changes and all h the same it would be γ·c·(1 + ‖h‖²).
        h: ‖h‖², mean over uploads and layers.
        attended: Number of clients attended, 1/Σa² of the softmax's weights a, mean over uploads and layers.
        finite: Whether the step was taken; if not, the state is the one before it.
    """

    loss: float
    norm: float
    absorbed: float
    h: float
    attended: float
    finite: bool


class Hypernetwork:
    """Functions from one state to the next. It has sizes, but no weights."""

    def __init__(self, personal: Layout, seed: int, hyper: Hyper) -> None:
        """Set up the sizes.

        Args:
            personal: The personal tensors at width 1. Those of one module (``body.conv1.…``) are one layer.
            seed: The run's seed, for initial weights and embeddings.
            hyper: Sizes, and the limit on the memory of the weights.

        Raises:
            ModelError: The weights would be larger than the limit.
        """
        self.personal, self.seed, self.hyper = personal, seed, hyper
        self.rank = hyper.decoder_rank or hyper.hidden
        owners = [p.name.rpartition(".")[0] for p in personal]
        layers = list(dict.fromkeys(owners))
        self.layer = {p.name: layers.index(owner) for p, owner in zip(personal, owners, strict=True)}
        widths = [hyper.embedding, *[hyper.hidden] * (hyper.depth - 1), hyper.embedding]
        self.shapes: dict[str, tuple[int, ...]] = {"log-temperature": (len(layers),)}
        for number, (before, after) in enumerate(pairwise(widths)):
            self.shapes[f"encoder.{number}.weight"] = (after, before)
            self.shapes[f"encoder.{number}.bias"] = (after,)
        self.shapes["hidden.weight"] = (len(layers), self.rank, hyper.embedding)
        self.shapes["hidden.bias"] = (len(layers), self.rank)
        for p in personal:
            self.shapes[f"decoder.{p.name}.weight"] = (*p.shape, self.rank)
            self.shapes[f"decoder.{p.name}.bias"] = p.shape
        self.bytes = 4 * sum(math.prod(shape) for shape in self.shapes.values())
        if self.bytes > hyper.most_mib << 20:
            expected = f"at most {hyper.most_mib} MiB of weights (pa3dfl.most-mib, or a smaller pa3dfl.decoder-rank)"
            raise ModelError("hypernetwork", expected, f"{self.bytes / 2**20:.0f} at rank {self.rank}")

    def init(self, first: Weights) -> State:
        """Return the state before anybody joins.

        Args:
            first: The personal tensors that all start near, float32 at width 1.
        """
        weights = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        for name, shape in self.shapes.items():
            if name.startswith("encoder") and name.endswith("weight"):
                weights[name] = self._drawn(name, shape, math.sqrt(2 / shape[1]))
        deviation = math.sqrt(_FIRST_NORM / (self.rank * self.hyper.embedding))
        weights["hidden.weight"] = self._drawn("hidden.weight", self.shapes["hidden.weight"], deviation)
        for p in self.personal:
            name, start = f"decoder.{p.name}.weight", np.asarray(first[p.name], np.float32)
            scale = _FIRST_SPREAD * float(start.std(dtype=np.float64)) / math.sqrt(_FIRST_NORM)
            weights[name] = self._drawn(name, self.shapes[name], scale)
            weights[f"decoder.{p.name}.bias"] = start.copy()
        return State({}, weights)

    def _drawn(self, name: str, shape: tuple[int, ...], deviation: float) -> Array:
        drawn = derive(self.seed, "hypernetwork", name).standard_normal(shape, np.float32)
        return np.multiply(drawn, np.float32(deviation), out=drawn)

    def join(self, state: State, clients: Iterable[str]) -> State:
        """Return ``state`` with an embedding for each of ``clients`` that had none: N(0, 1), from its name and seed."""
        new, size = (client for client in clients if client not in state.embeddings), self.hyper.embedding
        drawn = {client: derive(self.seed, "embedding", client).standard_normal(size, np.float32) for client in new}
        return replace(state, embeddings={**state.embeddings, **drawn})

    def generate(self, state: State, client: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Return the personal tensors of ``client``, float32, in the shapes of its width; nothing larger is computed.

        Args:
            state: Only read.
            client: Its name; it has an embedding.
            shapes: Of each personal tensor, by name: a prefix, along each axis, of the tensor at width 1.
        """
        tensors = _Tensors(state)
        h, _ = self._code(tensors, client)
        arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        for name, array in arrays.items():
            for block in _blocks(array.shape):
                entries = tensors.decoded(name, block, h[self.layer[name]])
                array[block] = entries.numpy().reshape(array[block].shape)
        return arrays

    def step(
        self, state: State, uploads: Iterable[tuple[str, Weights]], rounded: Rounding
    ) -> tuple[State, StepFigures]:
        """Take one step on equation 7: the mean over ``uploads`` of ½‖new - sent‖², with the new one constant.

        What was sent is generated again, block by block, and rounded. The gradient is that of the whole chain with
        rounding taken as the identity, so it is exactly zero where no client changed anything.

        Args:
            state: The one that the downloads were generated from; all clients of ``uploads`` have embeddings.
            uploads: Name and personal tensors of each client, float32 at its width; read once, one at a time.
            rounded: Maps float32 (n,) to what a receiver gets of it, entry by entry.

        Returns:
            The next state, and figures. Where the loss or the gradient is not finite, the state is the one given.
        """
        tensors, loss, lengths, attended = _Tensors(state, train=True), 0.0, list[float](), 0.0
        for client, new in uploads:
            h, attention = self._code(tensors, client)
            code, pull = h.detach(), torch.zeros_like(h)
            for name, value in new.items():
                layer = self.layer[name]
                for block in _blocks(value.shape):
                    sent = rounded(tensors.decoded(name, block, code[layer]).numpy())
                    change = torch.from_numpy(sent - value[block].reshape(-1))
                    loss += float(change.dot(change)) / 2
                    pull[layer] += tensors.add(name, block, change, code[layer])
            torch.autograd.backward(h, pull)
            lengths.append(float(code.square().sum(1).mean()))
            attended += float((1 / attention.detach().square().sum(1)).mean())
        number = max(len(lengths), 1)
        slopes = [*tensors.sums.values(), *(leaf.grad for leaf in tensors.leaves() if leaf.grad is not None)]
        norm = math.sqrt(sum(float(slope.view(-1).dot(slope.view(-1))) for slope in slopes)) / number
        scale = float(self.hyper.rate) * min(1.0, self.hyper.clip / norm) if norm else 0.0
        finite = math.isfinite(loss) and math.isfinite(norm)
        absorbed = scale * norm**2 * number / (2 * loss) if loss and finite else 0.0
        if absorbed > self.hyper.absorb:
            scale, absorbed = scale * self.hyper.absorb / absorbed, self.hyper.absorb
        figures = StepFigures(loss / number, norm, absorbed, sum(lengths) / number, attended / number, finite)
        return (tensors.after_step(scale / number) if finite else state), figures

    def _code(self, tensors: _Tensors, client: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (h, float32 (layers, rank); the softmax's weights, float32 (layers, clients)) of ``client``."""
        weights, encoded = tensors.weights, tensors.embeddings
        for number in range(self.hyper.depth):
            encoded = F.relu(encoded) if number else encoded
            encoded = F.linear(encoded, weights[f"encoder.{number}.weight"], weights[f"encoder.{number}.bias"])
        scores = encoded @ encoded[tensors.rows[client]] / math.sqrt(self.hyper.embedding)
        attention = torch.softmax(scores * weights["log-temperature"].neg().exp().unsqueeze(1), 1)
        mixed = attention @ encoded
        inner = (weights["hidden.weight"] @ mixed.unsqueeze(2)).squeeze(2)
        return F.relu(inner + weights["hidden.bias"]), attention


class _Tensors:
    """A state's arrays as tensors that share their memory, and room for gradients where it trains."""

    def __init__(self, state: State, train: bool = False) -> None:
        self.weights = {name: torch.from_numpy(array) for name, array in state.weights.items()}
        self.rows = {name: row for row, name in enumerate(sorted(state.embeddings))}
        self.embeddings = torch.from_numpy(np.stack([state.embeddings[name] for name in self.rows]))
        self.sums = {n: torch.zeros_like(w) for n, w in self.weights.items() if train and n.startswith("decoder.")}
        if train:
            self.weights |= {n: w.clone() for n, w in self.weights.items() if n not in self.sums}
            for leaf in self.leaves():
                leaf.requires_grad_().grad = torch.zeros_like(leaf)

    def leaves(self) -> list[torch.Tensor]:
        """Return the tensors whose gradients autograd computes: embeddings, and all weights but the decoders'."""
        return [self.embeddings, *(w for n, w in self.weights.items() if n not in self.sums)]

    def decoded(self, name: str, block: Block, h: torch.Tensor) -> torch.Tensor:
        """Return the entries at ``block`` of tensor ``name``, flat: weight·h + bias."""
        weight, bias = self.weights[f"decoder.{name}.weight"][block], self.weights[f"decoder.{name}.bias"][block]
        return torch.addmv(bias.reshape(-1), weight.reshape(-1, h.numel()), h)

    def add(self, name: str, block: Block, change: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """Add the gradient of ½‖change‖² to the decoder's sums, and return that by ``h``."""
        weight, into = self.weights[f"decoder.{name}.weight"][block], self.sums[f"decoder.{name}.weight"][block]
        shaped = change.view(into.shape[:-1])
        self.sums[f"decoder.{name}.bias"][block] += shaped
        into.addcmul_(shaped.unsqueeze(-1), h)
        return weight.reshape(-1, h.numel()).T @ change

    def after_step(self, factor: float) -> State:
        """Return the state after subtracting ``factor`` times the sums, which are used up."""
        with torch.no_grad():
            for leaf in self.leaves():
                leaf.add_(leaf.grad, alpha=-factor)  # type: ignore[arg-type]
            for name in list(self.sums):
                self.weights[name] = self.sums.pop(name).mul_(-factor).add_(self.weights[name])
        embeddings = {name: self.embeddings[row].detach().numpy().copy() for name, row in self.rows.items()}
        return State(embeddings, {name: weight.detach().numpy() for name, weight in self.weights.items()})


def _blocks(shape: tuple[int, ...]) -> list[Block]:
    """Return where the blocks of a tensor of ``shape`` lie: with three or more axes, one per index of the first."""
    step = 1 if len(shape) > 2 else shape[0]
    return [(slice(first, first + step), *map(slice, shape[1:])) for first in range(0, shape[0], step)]
