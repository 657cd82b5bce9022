"""A torch module whose weights are loaded and read by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sepal.errors import ModelError
from sepal.modules import floating
from sepal.protocol.types import Weights
from sepal.training.module_state import ModuleState


class Network:
    """A torch module and the tensors that a run exchanges, by name (:func:`sepal.modules.floating`).

    Args:
        module: Any module; moved to ``device``.
        device: Such as ``cpu`` or ``cuda:1``.

    Attributes:
        tensors: What is exchanged, by name.
        state: All else that the module holds.
        programs: Its captured steps, the one used last at the end (:mod:`sepal.training.programs`).

    Raises:
        ModelError: The module holds something that clients cannot share.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.module = module.to(device)
        self.device = device
        self.tensors = floating(self.module)
        self.state = ModuleState(self.module, self.tensors)
        self.programs: dict[Hashable, Any] = {}
        self._slots = {name: _slot(self.module, name) for name in self.tensors}

    def load(self, weights: Weights) -> None:
        """Copy ``weights`` (float32 by name, every tensor of the module) into the module.

        Raises:
            ModelError: A tensor is missing, unknown or has a different shape.
        """
        if weights.keys() != self.tensors.keys():
            odd = sorted(weights.keys() ^ self.tensors.keys())[0]
            raise ModelError("weights", f"the model's {len(self.tensors)} tensors", f"{odd} missing or unknown")
        self._look_again()
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                if tuple(tensor.shape) != weights[name].shape:
                    raise ModelError(name, f"shape {tuple(tensor.shape)}", weights[name].shape)
                if tensor.device.type == "cpu" and tensor.dtype is torch.float32:
                    np.copyto(tensor.numpy(), weights[name])  # torch would copy an array that is read-only twice
                else:
                    tensor.copy_(torch.from_numpy(np.require(weights[name], np.float32, ["C", "W"])))

    def read(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the weights, float32 by name, in the module's order."""
        self._look_again()
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.tensors.items()}

    def _look_again(self) -> None:
        """Put the module's own tensors back where it has assigned others, as in ``self.mean = ...``, with their values.

        Raises:
            ModelError: One has become a tensor of another shape, or nothing.
        """
        for name, (tensors, leaf, original) in self._slots.items():
            now = tensors.get(leaf)
            if now is not original:
                if now is None or now.shape != original.shape:
                    got = "nothing" if now is None else f"shape {tuple(now.shape)}"
                    raise ModelError("model", f"{name} of shape {tuple(original.shape)} after each step", got)
                with torch.no_grad():
                    original.copy_(now)
                tensors[leaf] = original
            if original.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name] = original.detach()


class NetworkPredictor:
    """Networks, with their weights, as a function from a batch to logits; `sepal export` takes it apart.

    It is valid until other weights are loaded into one of the networks.

    Attributes:
        networks: One or more.
        combine: Maps the logits of several networks, in their order, and ``numbers`` to logits. `sepal export` needs
            to find it again: it is what the method's record names as ``combination``.
        numbers: What ``combine`` takes besides.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        combine: Callable[..., torch.Tensor] | None = None,
        numbers: tuple[float, ...] = (),
    ) -> None:
        if (combine is None) != (len(networks) == 1):
            raise ValueError("give one network, or several and what combines their logits")
        self.networks, self.combine, self.numbers = tuple(networks), combine, numbers
        for network in self.networks:
            network.module.eval()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, classes) of a batch."""
        with torch.no_grad():
            logits: list[torch.Tensor] = [network.module(x) for network in self.networks]
            return self.combine(*logits, *self.numbers) if self.combine else logits[0]


def _slot(module: nn.Module, name: str) -> tuple[dict[str, Any], str, torch.Tensor]:
    path, _, leaf = name.rpartition(".")
    layer = module.get_submodule(path)
    tensors: dict[str, Any] = layer._parameters if leaf in layer._parameters else layer._buffers
    return tensors, leaf, tensors[leaf]


def read_gradients(module: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Return copies of the gradients, float32 by parameter name; 0 for parameters without one."""
    return {
        name: np.zeros(tuple(p.shape), np.float32) if p.grad is None else p.grad.cpu().numpy().copy()
        for name, p in module.named_parameters()
    }
