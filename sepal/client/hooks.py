"""Hooks through which a method changes the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from sepal.client.network import Network
from sepal.protocol.method import Weights

Loss: TypeAlias = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the module's logits: the loss of classification, without class weights."""
    return functional.cross_entropy(module(x), y)


def do_nothing(module: nn.Module) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Hooks:
    """Functions that are called in the training loop.

    Attributes:
        loss: Maps module, inputs and targets to the scalar loss; None for the task's
            (:meth:`sepal.client.training.Trainer.loss`).
        before_step: Called after the backward pass and before the optimizer's step, to change gradients.
        after_step: Called after the optimizer's step, to change parameters.
        after_epoch: Called after each epoch with the number of epochs done.
    """

    loss: Loss | None = None
    before_step: Callable[[nn.Module], None] = do_nothing
    after_step: Callable[[nn.Module], None] = do_nothing
    after_epoch: Callable[[nn.Module, int], None] = lambda module, epoch: None


def frozen(network: Network, free: Mapping[str, npt.NDArray[np.bool_]]) -> Hooks:
    """Updates only ``free`` entries; all others stay bit-identical despite momentum and weight decay.

    Frozen entries keep the values that they have when this function is called. Their gradients are set to 0, so that
    they do not enter the optimizer's state.

    Args:
        network: The network, with its weights loaded.
        free: bool by name, for every tensor of the network.
    """
    parameters = dict(network.module.named_parameters())
    fixed, start = {}, {}
    for name, tensor in network.tensors.items():
        if not free[name].all():
            fixed[name] = torch.from_numpy(~free[name]).to(tensor.device)
            start[name] = tensor.detach().clone()

    def mask_gradients(module: nn.Module) -> None:
        for name, mask in fixed.items():
            gradient = parameters[name].grad if name in parameters else None
            if gradient is not None:
                gradient.masked_fill_(mask, 0)

    def restore(module: nn.Module) -> None:
        with torch.no_grad():
            for name, mask in fixed.items():
                network.tensors[name].copy_(torch.where(mask, start[name], network.tensors[name]))

    return Hooks(before_step=mask_gradients, after_step=restore)


def proximal(anchor: Weights, strength: float, device: str) -> Hooks:
    """Return hooks that add the gradient of strength/2·‖w - anchor‖².

    Args:
        anchor: float32 by name of parameter.
        strength: At least 0; 0 adds nothing.
        device: The module's device.
    """
    if not strength:
        return Hooks()
    target = {name: torch.from_numpy(value).to(device) for name, value in anchor.items()}

    def pull(module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - target[name], alpha=strength)

    return Hooks(before_step=pull)
