"""SGD and Adam for one process and plain tensors, bit-identical to ``torch.optim`` on a CPU.

``torch.optim`` imports ``torch._dynamo`` when the first optimizer is made: .9 s on an idle machine. A process that
answers a single message would pay it each time, so the two updates are written out here.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Optimizer(abc.ABC):
    """Parameters in groups with settings of their own, and what an update keeps for each parameter.

    Attributes:
        param_groups: Each with ``params``, ``lr``, ``weight_decay``, and ``momentum`` for SGD.
        state: By parameter; empty before the first step.
        most_norm: Norm to which the gradient of all parameters is scaled down before a step; 0 for no limit.
    """

    KEPT: tuple[str, ...]

    def __init__(self, param_groups: Sequence[Mapping[str, Any]], most_norm: float = 0.0) -> None:
        self.param_groups, self.most_norm = [dict(group) for group in param_groups], most_norm
        self.state: dict[nn.Parameter, dict[str, torch.Tensor]] = {}

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update each parameter that has a gradient."""
        if self.most_norm:
            nn.utils.clip_grad_norm_(
                [weight for group in self.param_groups for weight in group["params"]], self.most_norm
            )
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if group["weight_decay"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                self.update(parameter, gradient, group)

    @abc.abstractmethod
    def update(self, parameter: nn.Parameter, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        """Update one parameter in place; ``gradient`` includes weight decay."""


class SGD(Optimizer):
    """w ← w - lr · v, where v ← momentum · v + g, and v is the gradient itself without momentum."""

    KEPT = ("momentum_buffer",)

    def update(self, parameter: nn.Parameter, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        """Update one parameter in place."""
        if group["momentum"]:
            moments = self.state.setdefault(parameter, {})
            if "momentum_buffer" in moments:
                gradient = moments["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
            else:
                gradient = moments["momentum_buffer"] = gradient.clone()
        parameter.add_(gradient, alpha=-group["lr"])


class Adam(Optimizer):
    """Adam with torch's default rates and ε outside the bias-corrected square root (Kingma and Ba, 2015)."""

    STEP = "step"  # number of steps, a scalar on the CPU
    KEPT = ("exp_avg", "exp_avg_sq", STEP)

    def update(self, parameter: nn.Parameter, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        """Update one parameter in place."""
        moments = self.state.setdefault(parameter, {})
        if not moments:
            moments |= {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            moments[self.STEP] = torch.tensor(0.0)
        moments[self.STEP] += 1
        first, second = BETAS
        moments["exp_avg"].lerp_(gradient, 1 - first)
        moments["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        steps = moments[self.STEP].item()
        scale = math.sqrt(1 - second**steps)
        denominator = (moments["exp_avg_sq"].sqrt() / scale).add_(EPSILON)
        parameter.addcdiv_(moments["exp_avg"], denominator, value=-(group["lr"] / (1 - first**steps)))
