"""Models whose convolutions and linear layers are products of a general and a personal factor, at any width.

Pa3dFL ("Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity"), equations 3, 4,
5, 10 and 32. The paper's symbols: T, S → outputs and inputs of the layer at width 1; k² → ``area``, the entries of one
kernel; R1 → ``components``; R2 → ``rank``; T/R1 → ``groups``; p → ``width``; p_min → ``least``; r → ``capacity``.

Where the paper is silent:

* Output channel o_ij is at j·R1 + i, so that the first groups hold every u_i, and a narrower layer is a prefix.
* R1 is lowered to a divisor of T, and p to a multiple of p_min, which must be 1/n.
* The first layer's inputs and the last hidden layer's outputs stay whole, as the sizes in Table 2 require.
* The head is not decomposed, and there are two: a global one that stays as it starts, and a personal one.
* Biases and norms are personal. Norms are ``GroupNorm``, with the same number of channels per group at every width.
* ``theta_v`` is kept as (groups, R2, inputs), the v_j one after another: a narrower one is a prefix along each axis.

Every tensor of a model at a smaller width is a prefix, along each axis, of the one at width 1: see :func:`cut`.
"""

from __future__ import annotations

import copy
import math
import typing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn

from sepal.errors import ModelError
from sepal.layout import Layout
from sepal.models.factors import LEAST, DecomposedLayer, Decomposition, first, steps
from sepal.models.weights import layout, read_weights
from sepal.modules import OTHERWISE, described_layer, refuse_frozen_and_tied
from sepal.rng import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Weights: TypeAlias = Mapping[str, NDArray[np.float32]]

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Linear)


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
            ModelError: A layer of another kind, a width that is not a multiple, or layers that do not fit when cut.
        """
        super().__init__()
        multiple, count = width * steps(least), steps(least)
        if not 1 <= round(multiple) <= count or abs(round(multiple) - multiple) > 1e-9:
            raise ModelError("width", f"a multiple of {least:g} from {least:g} to 1", f"{width:g}")
        refuse_frozen_and_tied(plain, "to decompose them")
        self.width, self.body = width, copy.deepcopy(plain)
        *hidden, head = _layers(self.body)
        whole_layers = set(whole) or {[name for name in hidden if isinstance(plain.get_submodule(name), _PLAIN)][-1]}
        if not whole_layers <= set(hidden):
            raise ModelError("layers kept whole", f"among {', '.join(hidden)}", min(whole_layers - set(hidden)))
        self.local_head = typing.cast("nn.Linear", copy.deepcopy(plain.get_submodule(head)))
        self.global_head = copy.deepcopy(self.local_head).requires_grad_(False)
        self._head = head
        self.body.set_submodule(head, nn.Identity())
        for name in hidden:
            layer = plain.get_submodule(name)
            make: Callable[[int], nn.Module]
            if isinstance(layer, _PLAIN):
                part = 1.0 if name in whole_layers else width
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
            if pending.layer is None:
                raise ModelError("model", "a model that uses each of its layers", f"{name} unused")
            self.body.set_submodule(name, pending.layer.train(training))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch to the features that both heads use, float32 (batch, features)."""
        features: torch.Tensor = self.body(x)
        return features

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
        """Return an example's multiply-adds, with weights recovered once per batch, as training does.

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
        """Return a plain model at this width, a copy: recovered weights under ``global_head`` or ``local_head``."""
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
        self.layer: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer = self.layer or self.make(x.shape[self.axis])
        out: torch.Tensor = self.layer(x)
        return out


def _cut_norm(name: str, norm: nn.GroupNorm, channels: int) -> nn.GroupNorm:
    per_group = norm.num_channels // norm.num_groups
    if channels % per_group:
        raise ModelError(
            "model", f"channels kept in {name} to be a multiple of {per_group}, its channels per group", channels
        )
    cut_norm = nn.GroupNorm(channels // per_group, channels, norm.eps, norm.affine)
    if norm.affine:
        cut_norm.weight, cut_norm.bias = first(norm.weight, channels), first(norm.bias, channels)
    return cut_norm


def _layers(model: nn.Module) -> list[str]:
    """Return the names of the layers with parameters or buffers, in order; the last is the head."""
    names = []
    for name, layer in model.named_modules():
        counters = [tensor for _, tensor in layer.named_buffers(recurse=False) if not tensor.is_floating_point()]
        tensors = len([*layer.parameters(recurse=False), *layer.buffers(recurse=False)]) - len(counters)
        convolution = isinstance(layer, nn.Conv1d | nn.Conv2d)
        fits = convolution and layer.groups == 1 and layer.padding_mode == "zeros"
        if tensors and not fits and not isinstance(layer, nn.Linear | nn.GroupNorm):
            kinds = "layers of the kinds convolution (one group, padded with zeros), linear and GroupNorm"
            raise ModelError("model", f"{kinds}, to decompose it ({OTHERWISE})", described_layer(name, layer))
        names += [name] if tensors else []
    kinds_found = [type(model.get_submodule(name)) for name in names]
    if not names or kinds_found[-1] is not nn.Linear or not any(kind in _PLAIN for kind in kinds_found[:-1]):
        kind_names = ", ".join(kind.__name__ for kind in kinds_found) or "none"
        raise ModelError("model", "a linear head after convolutions or linear layers, to decompose it", kind_names)
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
