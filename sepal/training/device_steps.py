"""The updates of :mod:`sepal.training.sgd_adam` with rate and count as tensors, so that a captured step can make them.

The formulas are the same, in an order that differs by rounding: a rate that is a number is multiplied and added at
once, one that is a tensor is multiplied first. Corrections of Adam's bias are computed in float64, as on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sepal.training.sgd_adam import BETAS, EPSILON, SGD, Adam, Optimizer


@dataclass
class _Group:
    parameters: list[nn.Parameter]
    rate: torch.Tensor
    weight_decay: float
    momentum: float


class DeviceSteps:
    """An optimizer that reads nothing on the host. All of its tensors keep their addresses.

    Args:
        optimizer: Whose groups and kind of update it takes over.
        device: Where the parameters are.
    """

    def __init__(self, optimizer: Optimizer, device: str) -> None:
        self._adam, self._most = isinstance(optimizer, Adam), optimizer.most_norm
        self._count = torch.zeros((), dtype=torch.float64, device=device)
        self._groups = [
            _Group(list(group["params"]), torch.zeros_like(self._count), group["weight_decay"], _momentum(group))
            for group in optimizer.param_groups
        ]
        self._kept: dict[nn.Parameter, tuple[torch.Tensor, ...]] = {
            parameter: tuple(torch.zeros_like(parameter) for _ in range(2 if self._adam else bool(group.momentum)))
            for group in self._groups
            for parameter in group.parameters
        }
        self._updated: set[nn.Parameter] = set()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that it keeps from step to step."""
        return [self._count, *(tensor for moments in self._kept.values() for tensor in moments)]

    @torch.no_grad()
    def begin(self, optimizer: Optimizer) -> bool:
        """Take over rates and state of another optimizer of the same parameters; return whether that can be done."""
        counts = {float(moments[Adam.STEP]) for moments in optimizer.state.values() if Adam.STEP in moments}
        if len(counts) > 1 or (counts and len(optimizer.state) < len(self._kept)):
            return False  # Adam whose parameters have made different numbers of steps
        self._count.fill_(max(counts, default=0.0))
        for group, settings in zip(self._groups, optimizer.param_groups, strict=True):
            group.rate.fill_(settings["lr"])
        for parameter, tensors in self._kept.items():
            state = optimizer.state.get(parameter, {})
            for key, tensor in zip(optimizer.KEPT, tensors, strict=False):
                tensor.copy_(state[key]) if key in state else tensor.zero_()
        return True

    def end(self, optimizer: Optimizer) -> None:
        """Give another optimizer of the same parameters a copy of what is kept."""
        for parameter in self._updated:
            moments = self._kept[parameter]
            if moments:
                state = {key: tensor.clone() for key, tensor in zip(optimizer.KEPT, moments, strict=False)}
                if self._adam:
                    state[Adam.STEP] = self._count.to("cpu", torch.float32)
                optimizer.state[parameter] = state

    def plain(self) -> Optimizer:
        """Return an optimizer of the usual kind in the same state."""
        groups = [
            {"params": group.parameters, "lr": float(group.rate), "weight_decay": group.weight_decay}
            | ({} if self._adam else {"momentum": group.momentum})
            for group in self._groups
        ]
        optimizer: Optimizer = (Adam if self._adam else SGD)(groups, self._most)
        if self._adam or any(group.momentum for group in self._groups):
            self._updated, before = set(self._kept), self._updated
            self.end(optimizer)
            self._updated = before
        return optimizer

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self._kept:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update each parameter that has a gradient."""
        if self._most:
            nn.utils.clip_grad_norm_(list(self._kept), self._most)
        self._count += 1
        for group in self._groups:
            pairs = [(parameter, parameter.grad) for parameter in group.parameters if parameter.grad is not None]
            if not pairs:
                continue
            parameters: list[torch.Tensor] = [parameter for parameter, _ in pairs]
            gradients = [gradient for _, gradient in pairs]
            self._updated |= {parameter for parameter, _ in pairs}
            if group.weight_decay:
                gradients = list(torch._foreach_add(gradients, parameters, alpha=group.weight_decay))
            moments = [self._kept[parameter] for parameter, _ in pairs]
            moves = (
                self._adam_moves(group, gradients, moments) if self._adam else self._moves(group, gradients, moments)
            )
            torch._foreach_add_(parameters, moves)

    def _moves(
        self, group: _Group, gradients: list[torch.Tensor], moments: Sequence[tuple[torch.Tensor, ...]]
    ) -> list[torch.Tensor]:
        if group.momentum:
            buffers = [state[0] for state in moments]
            torch._foreach_mul_(buffers, group.momentum)
            torch._foreach_add_(buffers, gradients)
            gradients = buffers
        return list(torch._foreach_mul(gradients, (-group.rate).float()))

    def _adam_moves(
        self, group: _Group, gradients: list[torch.Tensor], moments: Sequence[tuple[torch.Tensor, ...]]
    ) -> list[torch.Tensor]:
        means, squares = [state[0] for state in moments], [state[1] for state in moments]
        first, second = BETAS
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        denominators = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(denominators, (1 - torch.pow(second, self._count)).sqrt().float())
        torch._foreach_add_(denominators, EPSILON)
        moves = list(torch._foreach_div(means, denominators))
        torch._foreach_mul_(moves, (-group.rate / (1 - torch.pow(first, self._count))).float())
        return moves


def _momentum(group: Any) -> float:
    return float(group.get("momentum", 0.0))
