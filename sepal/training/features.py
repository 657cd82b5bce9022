"""The input of a model's last layer: the features of which its outputs are a linear function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

from sepal.errors import ModelError
from sepal.layout import Layout, Role


@dataclass(frozen=True)
class LastLayer:
    """The linear layer that ends a model.

    Attributes:
        name: The submodule's name.
        weight: Name of its weight, (outputs, features).
        bias: Name of its bias, (outputs,); empty if it has none that is trained.
        outputs: Number of its outputs.
        features: Number of its inputs.
        method: The method that reads its input, for error messages.
    """

    name: str
    weight: str
    bias: str
    outputs: int
    features: int
    method: str

    def read(
        self, module: nn.Module, x: torch.Tensor, weights: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a module's outputs for a batch, and the input of its last layer, (n, …, features).

        Args:
            module: The module.
            x: The batch.
            weights: Parameters and buffers by name that take the place of the module's own; None: its own.

        Raises:
            ModelError: What the module returns is not what this layer returns.
        """
        calls: list[tuple[torch.Tensor, torch.Tensor, int]] = []

        def note(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            calls.append((inputs[0], output, output._version))

        handle = module.get_submodule(self.name).register_forward_hook(note)
        try:
            outputs: torch.Tensor = module(x) if weights is None else functional_call(module, dict(weights), (x,))
        finally:
            handle.remove()
        if len(calls) != 1 or not _same_values(outputs, *calls[0][1:]):
            odd = "which is used more than once" if len(calls) > 1 else "which is not used"
            raise _refused(self.method, f"{self.name}, {odd if len(calls) != 1 else 'after which something follows'}")
        return outputs, calls[0][0]


def _same_values(outputs: torch.Tensor, output: torch.Tensor, version: int) -> bool:
    """Return whether a module's outputs are a layer's, at most in another shape: no part of them, nothing in place."""
    same_memory = outputs.data_ptr() == output.data_ptr() and outputs.numel() == output.numel()
    return same_memory and outputs._version == version


def last_layer(module: nn.Module, layout: Layout, method: str, example: torch.Tensor | None = None) -> LastLayer:
    """Return the last layer of a module, as :func:`sepal.layout.layers` counts.

    Args:
        module: The run's module.
        layout: Its tensors.
        method: The method that needs it, for error messages.
        example: Some examples, with which is tried whether the module's outputs are this layer's; the module is in
            evaluation mode afterwards. None: it is seen when :meth:`LastLayer.read` is called.

    Raises:
        ModelError: It is not one linear layer with weights of its own.
    """
    begins = [place for place, parameter in enumerate(layout) if parameter.role is Role.WEIGHT]
    end = layout[begins[-1] :] if begins else ()  # the last layer as sepal.layout.layers counts
    parts = {parameter.name.rpartition(".")[0] for parameter in end}
    if len(parts) != 1:
        raise _refused(method, ", ".join(parameter.name for parameter in end) or "no layer")
    (name,) = parts
    layer = module.get_submodule(name)
    if type(layer) is not nn.Linear:
        raise _refused(method, f"{end[0].name} of {type(layer).__name__}")
    biases = [parameter.name for parameter in end if parameter.role is Role.BIAS]
    outputs, features = end[0].shape
    last = LastLayer(name, end[0].name, biases[0] if biases else "", outputs, features, method)
    if example is not None:
        with torch.no_grad():
            last.read(module.eval(), example)
    return last


def checked_last_layer(module: nn.Module, layout: Layout, input_shape: Sequence[int], method: str) -> LastLayer:
    """Return the last layer; a module that ends otherwise is refused before any client trains it.

    Args:
        module: The run's module; changed by a call.
        layout: Its tensors.
        input_shape: Shape of one example. Inputs that the module does not take as zeros are tried by clients alone.
        method: The method that needs it, for error messages.

    Raises:
        ModelError: See :func:`last_layer`.
    """
    last = last_layer(module, layout, method)
    for kind in (torch.float32, torch.int64):
        try:
            with torch.no_grad():
                last.read(module.eval(), torch.zeros(1, *input_shape, dtype=kind))
        except ModelError:
            raise
        except Exception:  # such as an embedding's, of numbers that are no tokens
            continue
        break
    return last


def _refused(method: str, got: str) -> ModelError:
    return ModelError("model", f"one that ends with a linear layer, whose input {method} needs", got)
