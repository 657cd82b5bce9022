"""A torch module whose weights are loaded and read by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sepal.errors import ModelError
from sepal.modules import floating
from sepal.protocol.method import Weights


class Network:
    """A torch module and the tensors that a run exchanges, by name (:func:`sepal.modules.floating`).

    Args:
        module: Any module; moved to ``device``.
        device: Such as ``cpu`` or ``cuda:1``.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.module = module.to(device)
        self.device = device
        self.tensors = floating(self.module)

    def load(self, weights: Weights) -> None:
        """Copy ``weights`` (float32 by name, every tensor of the module) into the module.

        Raises:
            ModelError: A tensor is missing, unknown or has a different shape.
        """
        if weights.keys() != self.tensors.keys():
            odd = sorted(weights.keys() ^ self.tensors.keys())[0]
            raise ModelError("weights", f"the model's {len(self.tensors)} tensors", f"{odd} missing or unknown")
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                if tuple(tensor.shape) != weights[name].shape:
                    raise ModelError(name, f"shape {tuple(tensor.shape)}", weights[name].shape)
                tensor.copy_(torch.from_numpy(np.require(weights[name], np.float32, ["C", "W"])))

    def read(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the weights, float32 by name, in the module's order."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.tensors.items()}


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


def read_gradients(module: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Return copies of the gradients, float32 by parameter name; 0 for parameters without one."""
    return {
        name: np.zeros(tuple(p.shape), np.float32) if p.grad is None else p.grad.cpu().numpy().copy()
        for name, p in module.named_parameters()
    }
