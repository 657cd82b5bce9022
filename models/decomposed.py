"""Models whose convolutions and linear layers are products of a general and a personal factor, at any width.

Pa3dFL ("Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity"), equations 3, 4,
5, 10 and 32. The paper's symbols: T, S → outputs and inputs of the layer at width 1; k² → ``area``, the entries of one
kernel; R1 → ``components``; R2 → ``rank``; T/R1 → ``groups``; p → ``width``; p_min → ``least``; r → ``capacity``.

Where the paper is silent:

* Output channel o_ij is at j·R1 + i, so that the first groups hold every u_i, and a narrower layer is a prefix.
* R1 is lowered to a divisor of T, and p to a multiple of p_min, which must be 1/n.
* The first layer's inputs stay whole, and the last hidden layer's outputs: needed for the sizes of Table 2.
* The head is not decomposed, and there are two: a global one that stays as it starts, and a personal one.
* Biases and norms are personal. Norms are ``GroupNorm``, with as many channels in a group at every width.
* ``theta_v`` is kept as (groups, R2, inputs), the v_j one after another: a narrower one is a prefix along each axis.

Every tensor of a model at a smaller width is a prefix, along each axis, of the one at width 1: see :func:`cut`.
"""

from __future__ import annotations

import copy
import math
import typing
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from models.weights import layout, read_weights
from sepal.errors import ModelError
from sepal.protocol.layout import Layout
from sepal.rng import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Weights: TypeAlias = Mapping[str, NDArray[np.float32]]

LEAST = 1 / 16  # p_min: the paper's smallest reduction ratio, 1/256, is p = 1/16
_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Linear)
_CONVOLVE: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d}


class Decomposition(Enum):
    """How a weight is composed of its two factors."""

    CHANNELS = "channels"  # Pa3dFL, equation 4: each u_i makes T/R1 whole output channels
    FLANC = "flanc"  # equation 3: the one θ_u is the basis of every output channel


def width_for(capacity: float, least: float = LEAST) -> float:
    """Return the largest multiple p of ``least`` with p² ≤ ``capacity``.

    This bounds the width, not the size: at p = ``least`` the general factors alone are more than p² of the model.

    Args:
        capacity: r, the share of the full model's cost that a client can bear, in (0, 1].
        least: p_min, 1/n for a whole n.

    Raises:
        ModelError: ``capacity`` is below ``least``² or above 1; ``least`` is not 1/n.
    """
    steps = _steps(least)
    if not least**2 * (1 - 1e-9) <= capacity <= 1:  # .1² is a little above .01
        raise ModelError("capacity", f"{least**2:g} (the smallest width {least:g}, squared) to 1", f"{capacity:g}")
    return math.floor(math.sqrt(capacity) * steps + 1e-9) / steps


def _steps(least: float) -> int:
    if not 0 < least <= 1 or abs(round(1 / least) * least - 1) > 1e-9:
        raise ModelError("smallest width", "1/n for a whole n", f"{least:g}")
    return round(1 / least)


def components(channels: int, least: float = LEAST) -> int:
    """Return R1: ``channels``·``least``, rounded, at least 1, lowered to a divisor of ``channels`` (equation 5)."""
    wanted = max(1, round(channels * least))
    return next(count for count in range(wanted, 0, -1) if channels % count == 0)


class DecomposedLayer(nn.Module):
    """A convolution or linear layer with weight θ = θ_u·θ_v, at one width.

    Attributes:
        theta_u: float32 (k²·R1, R2), the u_i one below the other; the same shape at every width.
        theta_v: float32 (groups kept, R2, inputs kept), the v_j; with FLANC (outputs kept, inputs kept/R1, R2).
        bias: float32 (outputs kept,) or None.
    """

    def __init__(
        self,
        plain: nn.Conv1d | nn.Conv2d | nn.Linear,
        inputs: int,
        width: float,
        least: float = LEAST,
        decomposition: Decomposition = Decomposition.CHANNELS,
    ) -> None:
        """Set up the factors as zeros; the bias is the first entries of the plain layer's.

        Args:
            plain: The layer at width 1.
            inputs: Inputs kept.
            width: p; of T/R1 groups of outputs, max(1, round(p·T/R1)) are kept.
            least: p_min.
            decomposition: Pa3dFL's, or FLANC's as the ablation.

        Raises:
            ModelError: FLANC's R1, a divisor of the inputs, does not divide those that are kept.
        """
        super().__init__()
        outputs, full, *kernel = plain.weight.shape
        self.kernel, self.area = tuple(kernel), math.prod(kernel)
        self.decomposition, self.inputs = decomposition, inputs
        r1 = components(outputs, least)
        groups = max(1, round(width * outputs / r1))
        self.outputs = groups * r1
        flanc = decomposition is Decomposition.FLANC
        self.components = components(full, least) if flanc else r1
        if flanc and inputs % self.components:
            raise ModelError("model", f"inputs kept to be a multiple of {self.components} (FLANC)", f"{inputs}")
        self.rank = max(min(full, outputs), self.area) if kernel else self.components
        blocks = (self.outputs, inputs // self.components, self.rank) if flanc else (groups, self.rank, inputs)
        self.theta_u = nn.Parameter(plain.weight.new_zeros(self.area * self.components, self.rank))
        self.theta_v = nn.Parameter(plain.weight.new_zeros(blocks))
        self.bias = None if plain.bias is None else _first(plain.bias, self.outputs)
        self.kind: Callable[..., nn.Conv1d | nn.Conv2d | nn.Linear] = type(plain)
        self.settings = {name: getattr(plain, name) for name in ("stride", "padding", "dilation")} if kernel else {}

    def weight(self) -> torch.Tensor:
        """Return the weight, float32 (outputs, inputs, *kernel): o_ij = u_i·v_j at output j·R1 + i."""
        u = self.theta_u.view(self.components, self.area, self.rank)
        if self.decomposition is Decomposition.FLANC:
            product = torch.einsum("ikr,oar->oaik", u, self.theta_v)
        else:
            product = torch.einsum("ikr,jrs->jisk", u, self.theta_v)
        return product.reshape(self.outputs, self.inputs, *self.kernel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 (batch, inputs, …) as the plain layer does; a linear layer never recovers its weight."""
        if self.kernel:
            return _CONVOLVE[len(self.kernel)](x, self.weight(), self.bias, **self.settings)
        if self.decomposition is Decomposition.FLANC:
            inner = x.reshape(*x.shape[:-1], -1, self.components) @ self.theta_u
            return F.linear(inner.flatten(-2), self.theta_v.flatten(1), self.bias)
        inner = F.linear(x, self.theta_v.flatten(0, 1))
        out = F.linear(inner.view(*x.shape[:-1], -1, self.rank), self.theta_u).flatten(-2)
        return out if self.bias is None else out + self.bias

    @property
    def recovery(self) -> int:
        """Return the forward multiply-adds of recovering the weight; 0 for a linear layer, which never does."""
        return self.area * self.rank * self.outputs * self.inputs if self.kernel else 0

    def regulariser(self) -> torch.Tensor:
        """Return Σ_i of the squared entries off the diagonal of u_iᵀu_i, a scalar; 0 for a linear layer (equation 32).

        The paper sums over layers; the sum over components is our reading. FLANC's θ_u is one component.
        """
        if not self.kernel:
            return self.theta_u.new_zeros(())
        count = 1 if self.decomposition is Decomposition.FLANC else self.components
        u = self.theta_u.view(count, -1, self.rank)
        gram = u.mT @ u
        return (gram * (1 - torch.eye(self.rank, device=gram.device))).square().sum()

    def plain(self) -> nn.Module:
        """Return a plain layer with the recovered weight and the same bias, both copies."""
        sizes = (self.inputs, self.outputs, *([self.kernel] if self.kernel else []))
        layer = self.kind(*sizes, **self.settings, bias=self.bias is not None)
        with torch.no_grad():
            layer.weight = nn.Parameter(self.weight())
            layer.bias = None if self.bias is None else nn.Parameter(self.bias.clone())
        return layer


def _first(parameter: torch.Tensor, count: int) -> nn.Parameter:
    return nn.Parameter(parameter.detach()[:count].clone())


class Decomposed(nn.Module):
    """A plain model with all layers but the head decomposed, at one width, under two heads.

    Attributes:
        body: The plain model with its layers replaced and without its head; maps a batch to features.
        global_head: Linear, not trained: the plain model's head as it was given.
        local_head: Linear, personal; starts as the global one.
        width: p.
    """

    def __init__(
        self,
        plain: nn.Module,
        input_shape: Sequence[int],
        width: float = 1.0,
        *,
        least: float = LEAST,
        decomposition: Decomposition = Decomposition.CHANNELS,
        whole: Sequence[str] = (),
    ) -> None:
        """Replace the layers of a copy of ``plain``; a forward pass of zeros tells each how many inputs are kept.

        The factors are zeros until weights are loaded; heads, biases and norms are those of ``plain``, cut. With
        ``plain`` on the device ``meta`` nothing is allocated, which is enough for the layouts.

        Args:
            plain: A model of convolutions, linear layers and ``GroupNorm``; the last of them is the head, linear.
            input_shape: Shape of one example.
            width: p, a multiple of ``least`` up to 1.
            least: p_min, 1/n for a whole n.
            decomposition: Pa3dFL's or FLANC's.
            whole: Names of the layers whose outputs stay whole; by default the last hidden layer. In a residual
                network, name all layers whose outputs are added to that one's.

        Raises:
            ModelError: A layer of another kind, a width that is no multiple, or layers that do not fit when cut.
        """
        super().__init__()
        steps = _steps(least)
        if not 1 <= round(width * steps) <= steps or abs(round(width * steps) - width * steps) > 1e-9:
            raise ModelError("width", f"a multiple of {least:g} from {least:g} to 1", f"{width:g}")
        self.width, self.body = width, copy.deepcopy(plain)
        *hidden, head = _layers(self.body)
        kept = set(whole) or {[name for name in hidden if isinstance(plain.get_submodule(name), _PLAIN)][-1]}
        if not kept <= set(hidden):
            raise ModelError("layers kept whole", f"among {', '.join(hidden)}", min(kept - set(hidden)))
        self.local_head = typing.cast("nn.Linear", copy.deepcopy(plain.get_submodule(head)))
        self.global_head = copy.deepcopy(self.local_head).requires_grad_(False)
        self._head = head
        self.body.set_submodule(head, nn.Identity())
        for name in hidden:
            layer = plain.get_submodule(name)
            make: Callable[[int], nn.Module]
            if isinstance(layer, _PLAIN):
                part = 1.0 if name in kept else width
                make = partial(DecomposedLayer, layer, width=part, least=least, decomposition=decomposition)
            else:
                make = partial(_cut_norm, name, typing.cast("nn.GroupNorm", layer))
            self.body.set_submodule(name, _Pending(make, -1 if isinstance(layer, nn.Linear) else 1))
        self._build(hidden, self.local_head.weight.new_zeros(1, *input_shape))

    def _build(self, names: Sequence[str], example: torch.Tensor) -> None:
        training = self.body.training
        try:
            with torch.no_grad():
                self.global_head(self.body.eval()(example))
        except RuntimeError as error:
            raise ModelError("model", f"layers that fit each other at width {self.width:g}", str(error)) from error
        self.body.train(training)
        for name in names:
            pending: Any = self.body.get_submodule(name)
            if pending.made is None:
                raise ModelError("model", "a model that uses each of its layers", f"{name} unused")
            self.body.set_submodule(name, pending.made.train(training))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch to the features that both heads use, float32 (batch, features)."""
        found: torch.Tensor = self.body(x)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch to the logits of both heads, float32 (2, batch, classes): the global one's, then the local one's.

        The local head passes no gradient to the body.
        """
        features = self.features(x)
        return torch.stack([self.global_head(features), self.local_head(features.detach())])

    def regulariser(self) -> torch.Tensor:
        """Return the sum of the layers' :meth:`DecomposedLayer.regulariser`, a scalar (equation 32 without λ)."""
        terms = [layer.regulariser() for layer in self.body.modules() if isinstance(layer, DecomposedLayer)]
        return torch.stack(terms).sum()

    @property
    def recovery(self) -> int:
        """Return the forward multiply-adds of recovering all weights once, for a whole batch."""
        return sum(layer.recovery for layer in self.body.modules() if isinstance(layer, DecomposedLayer))

    def cost(self, counted: float, examples: int, batches: int) -> float:
        """Return an example's multiply-adds, with weights recovered once per batch, as it is done.

        Args:
            counted: An example's multiply-adds, forward and backward, with weights recovered for each example (three
                products).
            examples: Number of examples in a pass.
            batches: Number of batches in a pass.
        """
        return counted - 3 * self.recovery * (1 - batches / examples)

    @property
    def general(self) -> Layout:
        """The tensors that all clients share and that are averaged: every ``theta_u``; the same at every width."""
        return tuple(p for p in layout(self) if p.name.endswith("theta_u"))

    @property
    def personal(self) -> Layout:
        """The tensors that are each client's own: ``theta_v``, biases, norms and the local head, at this width."""
        return tuple(p for p in layout(self) if not p.name.endswith("theta_u") and not p.name.startswith("global_head"))

    def recovered(self, head: str = "global_head") -> nn.Module:
        """Return a plain model at this width, copies: recovered weights under ``global_head`` or ``local_head``."""
        model = copy.deepcopy(self.body)
        for name, layer in self.body.named_modules():
            if isinstance(layer, DecomposedLayer):
                model.set_submodule(name, layer.plain())
        model.set_submodule(self._head, copy.deepcopy(self.get_submodule(head)).requires_grad_(True))
        return model


class _Pending(nn.Module):
    """Placeholder for a layer until the first batch shows how many inputs are kept."""

    def __init__(self, make: Callable[[int], nn.Module], axis: int) -> None:
        super().__init__()
        self.make, self.axis = make, axis
        self.made: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.made = self.made or self.make(x.shape[self.axis])
        out: torch.Tensor = self.made(x)
        return out


def _cut_norm(name: str, norm: nn.GroupNorm, channels: int) -> nn.GroupNorm:
    each = norm.num_channels // norm.num_groups
    if channels % each:
        raise ModelError(
            "model", f"channels kept in {name} to be a multiple of {each}, its channels per group", channels
        )
    made = nn.GroupNorm(channels // each, channels, norm.eps, norm.affine)
    if norm.affine:
        made.weight, made.bias = _first(norm.weight, channels), _first(norm.bias, channels)
    return made


def _layers(model: nn.Module) -> list[str]:
    """Return the names of the layers with parameters or buffers, in order; the last is the head."""
    names = []
    for name, layer in model.named_modules():
        own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        convolution = isinstance(layer, nn.Conv1d | nn.Conv2d)
        fits = convolution and layer.groups == 1 and layer.padding_mode == "zeros"
        if own and not fits and not isinstance(layer, nn.Linear | nn.GroupNorm):
            kinds = "layers of the kinds convolution (one group, padded with zeros), linear and GroupNorm"
            raise ModelError("model", f"{kinds}, to decompose it", f"{name or 'the model itself'}: {layer}")
        names += [name] if own else []
    kinds_found = [type(model.get_submodule(name)) for name in names]
    if not names or kinds_found[-1] is not nn.Linear or not any(kind in _PLAIN for kind in kinds_found[:-1]):
        found = ", ".join(kind.__name__ for kind in kinds_found) or "none"
        raise ModelError("model", "a linear head after convolutions or linear layers, to decompose it", found)
    return names


def initial_weights(model: Decomposed, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return initial weights, float32 by name in the order of ``layout``; each factor from (seed, "init", name).

    θ_u ~ N(0, 1/R2) and θ_v ~ N(0, 2/(inputs·k²)), so that the recovered weight has He's variance. All other
    tensors are the model's.

    Args:
        model: A model of width 1, because He's variance is that of the whole layer. Cut the result for a narrower one.
        seed: The run's seed.

    Raises:
        ModelError: The model is narrower.
    """
    if model.width != 1:
        raise ModelError("width", "1 for first weights", f"{model.width:g}")
    weights = read_weights(model)
    for name, layer in model.named_modules():
        if isinstance(layer, DecomposedLayer):
            for factor, variance in (("theta_u", 1 / layer.rank), ("theta_v", 2 / (layer.inputs * layer.area))):
                key = f"{name}.{factor}"
                drawn = derive(seed, "init", key).standard_normal(weights[key].shape, np.float32)
                weights[key] = drawn * np.float32(math.sqrt(variance))
    return weights


def cut(weights: Weights, parts: Layout) -> dict[str, NDArray[np.float32]]:
    """Return the tensors named in ``parts``, cut to its shapes: copies of the first entries along each axis."""
    return {p.name: weights[p.name][tuple(slice(side) for side in p.shape)].copy() for p in parts}
