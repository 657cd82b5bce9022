"""Hooks through which a method changes the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from sepal.protocol.types import Weights
from sepal.training.capturable import Capturable
from sepal.training.network import Network

Loss: TypeAlias = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the module's logits: the loss of classification, without class weights."""
    return functional.cross_entropy(module(x), y)


def do_nothing(module: nn.Module) -> None:
    """Do nothing."""


def no_epoch(module: nn.Module, epoch: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Hooks:
    """Functions that are called in the training loop.

    Attributes:
        loss: Maps module, inputs and targets to the scalar loss; None for the task's
            (:meth:`sepal.training.trainer.Trainer.loss`).
        before_step: Called after the backward pass and before the optimizer's step, to change gradients.
        after_step: Called after the optimizer's step, to change parameters.
        after_epoch: Called after each epoch with the number of epochs done.
    """

    loss: Loss | None = None
    before_step: Callable[[nn.Module], None] = do_nothing
    after_step: Callable[[nn.Module], None] = do_nothing
    after_epoch: Callable[[nn.Module, int], None] = no_epoch


Stacked: TypeAlias = Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], None]
"""A step's hook for several clients: changes values or gradients in place, both by name, (clients, …). Clients that
have done all their steps are left out at the end of dimension 0."""


class StackableHook(Protocol):
    """A ``before_step`` or ``after_step`` that can also be called for several clients at once."""

    def __call__(self, module: nn.Module) -> None:
        """Change the gradients or parameters of one client's module."""
        ...

    @classmethod
    def stacked(cls, hooks: Sequence[Any]) -> Stacked:
        """Return what does the same to the stacked tensors of several clients, whose hooks of this class are given."""
        ...


@dataclass(frozen=True)
class MaskGradients(Capturable):
    """Sets gradients to 0 where ``fixed``, bool by name, is true; a :class:`StackableHook`."""

    TENSORS: ClassVar[tuple[str, ...]] = ("fixed",)
    OF_NETWORK: ClassVar[tuple[str, ...]] = ("parameters",)

    fixed: Mapping[str, torch.Tensor]
    parameters: Mapping[str, nn.Parameter]

    def __call__(self, module: nn.Module) -> None:
        """Mask the gradients."""
        for name, mask in self.fixed.items():
            gradient = self.parameters[name].grad if name in self.parameters else None
            if gradient is not None:
                gradient.masked_fill_(mask, 0)

    @classmethod
    def stacked(cls, hooks: Sequence[MaskGradients]) -> Stacked:
        """Do so for several clients."""
        fixed = _stack([hook.fixed for hook in hooks])

        def mask(values: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
            for name in gradients.keys() & fixed.keys():
                gradients[name].masked_fill_(fixed[name][: len(gradients[name])], 0)

        return mask


@dataclass(frozen=True)
class Restore(Capturable):
    """Sets ``network_tensors`` back to ``start`` where ``fixed``, bool by name, is true; a :class:`StackableHook`."""

    TENSORS: ClassVar[tuple[str, ...]] = ("fixed", "start")
    OF_NETWORK: ClassVar[tuple[str, ...]] = ("network_tensors",)

    fixed: Mapping[str, torch.Tensor]
    start: Mapping[str, torch.Tensor]
    network_tensors: Mapping[str, torch.Tensor]

    @torch.no_grad()
    def __call__(self, module: nn.Module) -> None:
        """Restore the tensors."""
        for name, mask in self.fixed.items():
            self.network_tensors[name].copy_(torch.where(mask, self.start[name], self.network_tensors[name]))

    @classmethod
    def stacked(cls, hooks: Sequence[Restore]) -> Stacked:
        """Do so for several clients."""
        fixed, start = _stack([hook.fixed for hook in hooks]), _stack([hook.start for hook in hooks])

        def restore(values: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
            for name in values.keys() & fixed.keys():
                count = len(values[name])
                values[name].copy_(torch.where(fixed[name][:count], start[name][:count], values[name]))

        return restore


@dataclass(frozen=True)
class Pull(Capturable):
    """Adds strength · (scale · w - target) to the gradient of each parameter w in ``target``; a StackableHook."""

    TENSORS: ClassVar[tuple[str, ...]] = ("target",)

    target: Mapping[str, torch.Tensor]
    strength: float
    scale: float = 1.0

    def __call__(self, module: nn.Module) -> None:
        """Pull the parameters."""
        for name, parameter in module.named_parameters():
            if parameter.grad is not None and name in self.target:
                self._add(parameter.grad, parameter.detach(), self.target[name])

    def _add(self, gradient: torch.Tensor, value: torch.Tensor, target: torch.Tensor) -> None:
        scaled = value if self.scale == 1 else self.scale * value
        gradient.add_(scaled - target, alpha=self.strength)

    @classmethod
    def stacked(cls, hooks: Sequence[Pull]) -> Stacked:
        """Do so for several clients, which may differ in strength and scale."""
        target = _stack([hook.target for hook in hooks])
        same = len({(hook.strength, hook.scale) for hook in hooks}) == 1
        numbers = torch.tensor([[hook.strength, hook.scale] for hook in hooks])
        factors = {device: numbers.to(device) for device in {tensor.device for tensor in target.values()}}

        def pull(values: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
            for name in gradients.keys() & target.keys():
                count, value = len(values[name]), values[name].detach()
                if same:
                    hooks[0]._add(gradients[name], value, target[name][:count])
                    continue
                strength, scale = (along(factors[value.device][:count, at], value) for at in (0, 1))
                gradients[name].add_(strength * (scale * value - target[name][:count]))

        return pull


@dataclass(frozen=True)
class ClipGradients(Capturable):
    """Scales the gradients of all parameters down to a norm of at most ``most``, together."""

    most: float

    def __call__(self, module: nn.Module) -> None:
        """Clip the gradients."""
        nn.utils.clip_grad_norm_(module.parameters(), self.most)


def along(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return one number for each client, (clients,), in a shape that broadcasts over ``like``, (clients, …)."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


def _stack(tensors: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the tensors of all clients by name, (clients, …); zeros or False for those that a client lacks."""
    shapes = {name: tensor for by_name in tensors for name, tensor in by_name.items()}
    return {
        name: torch.stack([by_name[name] if name in by_name else torch.zeros_like(like) for by_name in tensors])
        for name, like in shapes.items()
    }


def frozen(network: Network, free: Mapping[str, npt.NDArray[np.bool_]]) -> Hooks:
    """Updates only ``free`` entries; all others stay bit-identical despite momentum and weight decay.

    Frozen entries keep the values that they have when this function is called. Their gradients are set to 0, so that
    they do not enter the optimizer's state.

    Args:
        network: The network, with its weights loaded.
        free: bool by name, for every tensor of the network.
    """
    fixed, start = {}, {}
    for name, tensor in network.tensors.items():
        if not free[name].all():
            fixed[name] = torch.from_numpy(~free[name]).to(tensor.device)
            start[name] = tensor.detach().clone()
    mask = MaskGradients(fixed, dict(network.module.named_parameters()))
    return Hooks(before_step=mask, after_step=Restore(fixed, start, network.tensors))


def proximal(anchor: Weights, strength: float, device: str) -> Hooks:
    """Return hooks that add the gradient of strength/2·‖w - anchor‖².

    Args:
        anchor: float32 by name of parameter.
        strength: At least 0; 0 adds nothing.
        device: The module's device.
    """
    if not strength:
        return Hooks()
    copies = {name: torch.tensor(value, device=device) for name, value in anchor.items()}  # it may be read-only
    return Hooks(before_step=Pull(copies, strength))
