"""The updates of :mod:`sepal.training.sgd_adam` for the parameters of several clients, stacked along dimension 0.

All clients take the same number of steps until they are done, and each has a learning rate of its own. The formulas are
the same; the order in which a GPU or a CPU adds may differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sepal.training.hooks import along
from sepal.training.sgd_adam import BETAS, EPSILON, Adam, Optimizer


class StackedSteps:
    """The optimizers of several clients as one.

    Args:
        optimizers: New ones, of one class, with the same parameters, momentum, weight decay and clipping.
        names: For each optimizer, the names of its parameters, in the order of its groups.
        device: Where the parameters are.
    """

    def __init__(self, optimizers: Sequence[Optimizer], names: Sequence[str], device: str) -> None:
        self._adam, self._most = isinstance(optimizers[0], Adam), optimizers[0].most_norm
        by_client = [settings(optimizer) for optimizer in optimizers]
        self._settings = dict(zip(names, by_client[0], strict=True))
        self._rates: dict[str, float | torch.Tensor] = {}
        for number, name in enumerate(names):
            rates = [groups[number]["lr"] for groups in by_client]
            self._rates[name] = rates[0] if len(set(rates)) == 1 else torch.tensor(rates).to(device)
        self._kept: dict[str, tuple[torch.Tensor, ...]] = {}
        self._steps = 0

    @torch.no_grad()
    def step(self, values: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
        """Update ``values`` in place; both (clients, …) by name, fewer clients than before if some are done."""
        self._steps += 1
        if self._most:
            squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
            shrink = (self._most / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
            gradients = {name: gradient * along(shrink, gradient) for name, gradient in gradients.items()}
        for name, plain in gradients.items():
            value, decay = values[name], self._settings[name]["weight_decay"]
            gradient = plain.add(value, alpha=decay) if decay else plain
            (self._adam_step if self._adam else self._sgd_step)(name, value, gradient)

    def _sgd_step(self, name: str, value: torch.Tensor, gradient: torch.Tensor) -> None:
        momentum = self._settings[name]["momentum"]
        if momentum:
            if name in self._kept:
                gradient = self._kept[name][0][: len(value)].mul_(momentum).add_(gradient)
            else:
                self._kept[name] = (gradient.clone(),)
        self._move(name, value, gradient, 1.0)

    def _adam_step(self, name: str, value: torch.Tensor, gradient: torch.Tensor) -> None:
        if name not in self._kept:
            self._kept[name] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        mean, square = (buffer[: len(value)] for buffer in self._kept[name])
        first, second = BETAS
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        denominator = (square.sqrt() / math.sqrt(1 - second**self._steps)).add_(EPSILON)
        self._move(name, value, mean / denominator, 1 / (1 - first**self._steps))

    def _move(self, name: str, value: torch.Tensor, direction: torch.Tensor, scale: float) -> None:
        rate = self._rates[name]
        if isinstance(rate, float):
            value.add_(direction, alpha=-rate * scale)
        else:
            value.sub_(direction * along(rate[: len(value)] * scale, value))


def settings(optimizer: Optimizer) -> list[Mapping[str, Any]]:
    """Return ``lr``, ``weight_decay`` and, for SGD, ``momentum`` of each parameter, in the order of the groups."""
    return [group for group in optimizer.param_groups for _ in group["params"]]
