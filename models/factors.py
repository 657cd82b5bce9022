"""A convolution or linear layer whose weight is a product of a general and a personal factor, at any width.

Pa3dFL's and FLANC's factorisations; :mod:`sepal.models.decomposed` has the symbols and the choices where the paper is
silent.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from sepal.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST = 1 / 16  # p_min: the paper's smallest reduction ratio, 1/256, is p = 1/16
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
    count = steps(least)
    if not least**2 * (1 - 1e-9) <= capacity <= 1:  # .1² is a little above .01
        raise ModelError("capacity", f"{least**2:g} (the smallest width {least:g}, squared) to 1", f"{capacity:g}")
    return math.floor(math.sqrt(capacity) * count + 1e-9) / count


def steps(least: float) -> int:
    """Return n of ``least`` = 1/n.

    Raises:
        ModelError: It is not 1/n.
    """
    if not 0 < least <= 1 or abs(round(1 / least) * least - 1) > 1e-9:
        raise ModelError("smallest width", "1/n for a whole n", f"{least:g}")
    return round(1 / least)


def components(channels: int, least: float = LEAST) -> int:
    """Return R1: ``channels``·``least``, rounded, at least 1, lowered to a divisor of ``channels`` (equation 5)."""
    target = max(1, round(channels * least))
    return next(count for count in range(target, 0, -1) if channels % count == 0)


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
        self.bias = None if plain.bias is None else first(plain.bias, self.outputs)
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


def first(parameter: torch.Tensor, count: int) -> nn.Parameter:
    """Return a copy of the first ``count`` entries of ``parameter`` along axis 0."""
    return nn.Parameter(parameter.detach()[:count].clone())
