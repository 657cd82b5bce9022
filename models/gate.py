"""The gate of pFedGate: computes a weight M and an importance G of every block of a model from an example.

Chen et al., "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023, section
5.2.1 and appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from sepal.errors import ModelError

VARIANCES = ("biased", "unbiased")  # at the place of their correction of n


class SwitchNorm(nn.Module):
    """Switchable normalisation (Luo et al., ICLR 2019): instance, layer and batch statistics in learned proportions.

    Means and variances are mixed separately, each by a softmax of three weights. Evaluation uses running statistics
    instead of the batch's.

    Args:
        channels: C.
        momentum: Share of the batch in the running statistics.
        eps: Added to variances.
        variance: ``biased``: the instance variance is over n values and the running one starts at 1. ``unbiased``, as
            in the norm's published code: over n - 1, and it starts at 0.

    Raises:
        ValueError: ``variance`` is neither.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5, variance: str = "biased") -> None:
        super().__init__()
        if variance not in VARIANCES:
            raise ValueError(f"variance: expected one of {', '.join(VARIANCES)}, got {variance}")
        self.correction = VARIANCES.index(variance)
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean_weight, self.var_weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.zeros(channels) if self.correction else torch.ones(channels))
        self.momentum, self.eps = momentum, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 (N, C, …) to the same shape; a batch of one channel may come as (N, length)."""
        flat = x.reshape(len(x), len(self.weight), -1)
        instance = torch.var_mean(flat, 2, correction=self.correction)  # two of (N, C)
        layer, batch = _together(*instance, 1), (self.running_var, self.running_mean)
        if self.training:
            batch = _together(*instance, 0)
            self.running_var.lerp_(batch[0].detach(), self.momentum)
            self.running_mean.lerp_(batch[1].detach(), self.momentum)
        a, b = self.var_weight.softmax(0), self.mean_weight.softmax(0)
        var = a[0] * instance[0] + a[1] * layer[0][:, None] + a[2] * batch[0]
        mean = b[0] * instance[1] + b[1] * layer[1][:, None] + b[2] * batch[1]
        scale = self.weight * (var + self.eps).rsqrt()
        return (flat * scale[..., None] + (self.bias - mean * scale)[..., None]).reshape(x.shape)


def _together(var: torch.Tensor, mean: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return variance and mean over groups of equal size: the mean variance plus the variance of the means."""
    between, whole = torch.var_mean(mean, axis, correction=0)
    return var.mean(axis) + between, whole


class Gate(nn.Module):
    """φ: switchable norm, then for each path a linear layer, BatchNorm1d and a sigmoid.

    Both paths are computed by one linear layer with 2·L outputs.

    Args:
        input_shape: Shape of one example: (channels, …), or (length,).
        blocks: L.
        paths: 2; or 1, where G is M.
        start: Where M starts once the last layer before the sigmoid is 0: ``half``, the paper's sigmoid; ``one``
            (ours), twice the sigmoid, in (0, 2).
        shift: Added before the sigmoid. BatchNorm fixes the mean there at its bias, which starts at 0, so the sigmoid
            starts near .5; 3 starts it at .95. Ours, not the paper's.
        without: A part to leave out, as in the paper's Table 2: ``pre-norm``, ``post-norm`` or ``sigmoid``. Without the
            sigmoid outputs may be any number, and ``one`` adds 1 to them.
        variance: Of the first norm; see :class:`SwitchNorm`.

    Attributes:
        pooled: float32 (paths·L,): the mean outputs over a client's data; 0 while there are none.
    """

    pooled: torch.Tensor

    def __init__(
        self,
        input_shape: Sequence[int],
        blocks: int,
        paths: int = 2,
        start: str = "half",
        shift: float = 0.0,
        without: str = "none",
        variance: str = "biased",
    ) -> None:
        super().__init__()
        channels = input_shape[0] if len(input_shape) > 1 else 1
        if variance == "unbiased" and math.prod(input_shape) == channels:
            raise ModelError("model", "inputs of more than one value a channel, for unbiased variances", input_shape)
        self.norm = nn.Identity() if without == "pre-norm" else SwitchNorm(channels, variance=variance)
        self.linear = nn.Linear(math.prod(input_shape), paths * blocks)
        self.batch_norm = nn.Identity() if without == "post-norm" else nn.BatchNorm1d(paths * blocks)
        self.bound = nn.Identity() if without == "sigmoid" else nn.Sigmoid()
        self.register_buffer("pooled", torch.zeros(paths * blocks))
        self.last = "linear" if without == "post-norm" else "batch_norm"  # name of the last layer before the sigmoid
        self.start, self.shift = start, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 (N, …) to float32 (N, paths·L): M, then G."""
        outputs: torch.Tensor = self.bound(self.batch_norm(self.linear(self.norm(x).flatten(1))) + self.shift)
        if self.start == "half":
            return outputs
        return outputs + 1 if isinstance(self.bound, nn.Identity) else 2 * outputs


def straight_through(weights: torch.Tensor, importance: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return M' = M·I*, with the gradient that M·G has towards G (appendix A).

    In the forward pass I* + (G − G.detach()) is exactly I*; I* − G.detach() + G would be so only up to rounding.

    Args:
        weights: M, (N, L).
        importance: G, (N, L).
        chosen: I*, 0 or 1, (N, L).
    """
    return weights * (chosen + (importance - importance.detach()))


def straight_through_one(weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return M' = M·I* where G is M, with the gradient of the authors' code.

    A block that is on has the gradient of M·(1 + M - M.detach()), which is (1 + M)·dM; one that is off has none. At
    s = 1 there is no choice, and their code has M alone.

    Args:
        weights: M, (N, L).
        chosen: I*, 0 or 1, (N, L).
    """
    return weights * chosen * (1 + (weights - weights.detach()))
