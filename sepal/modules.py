"""The tensors of a torch module that a run exchanges: all but frozen ones, each storage once.

A frozen parameter is not part of the federation: it is not trained, masked, noised, averaged or sent, and keeps the
value that ``build`` gave it. :func:`set_aside` turns it into a buffer that is not in ``state_dict``. So everything that
goes by parameters or by ``state_dict`` leaves it alone, and the forward pass still finds it under its name.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sepal.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

OTHERWISE = "fedavg, fedpse, dmpfl and subfedavg's un take any layer"
_NAMES = "_sepal_frozen"  # attribute of the model: names of its frozen tensors


def set_aside(module: nn.Module) -> nn.Module:
    """Turn the frozen parameters of ``module`` into buffers, in place, and return it."""
    names = [name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad]
    for name in names:
        layer, leaf = _place(module, name)
        parameter = layer._parameters.pop(leaf)
        if parameter is not None:
            layer.register_buffer(leaf, parameter.detach(), persistent=False)
    if names:
        setattr(module, _NAMES, (*frozen_names(module), *names))
    return module


def freeze_others(module: nn.Module, trainable: str, values: Mapping[str, NDArray[Any]]) -> nn.Module:
    """Freeze the parameters that no pattern names, in place, and return the module; see :func:`set_aside`.

    Args:
        module: The model. What it freezes itself stays frozen.
        trainable: Comma-separated patterns of parameters' names, with ``*``, ``?`` and ``[…]``.
        values: By name, what the frozen parameters become; those that it lacks keep their value.

    Raises:
        ConfigError: A pattern names no parameter that could be trained, or a value has another shape.
    """
    patterns = [pattern.strip() for pattern in trainable.split(",")]
    names = [name for name, _ in module.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError("trainable", f"patterns of {', '.join(names[:8])}{' …' * (len(names) > 8)}", pattern)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
    fill_frozen(module, values)
    return set_aside(module)


def fill_frozen(module: nn.Module, values: Mapping[str, NDArray[Any]]) -> None:
    """Give the parameters that are not trained the values of their name, where there is one.

    Raises:
        ConfigError: A value has another shape.
    """
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad and name in values:
            if values[name].shape != tuple(parameter.shape):
                expected, got = f"shape {tuple(parameter.shape)}", f"shape {values[name].shape}"
                raise ConfigError(f"initial-weights: {name}", expected, got)
            parameter.data.copy_(torch.from_numpy(values[name]))


def bring_back(module: nn.Module) -> nn.Module:
    """Undo :func:`set_aside`, in place, and return the module."""
    for name in frozen_names(module):
        layer, leaf = _place(module, name)
        tensor = layer._buffers.pop(leaf)
        layer._non_persistent_buffers_set.discard(leaf)  # torch.export looks for its names there, too
        if tensor is not None:
            layer.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
    setattr(module, _NAMES, ())
    return module


def frozen_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors that :func:`set_aside` has taken out."""
    found: tuple[str, ...] = getattr(module, _NAMES, ())
    return found


def frozen_tensors(module: nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the frozen tensors by name."""
    found = {}
    for name in frozen_names(module):
        layer, leaf = _place(module, name)
        tensor = layer._buffers[leaf]
        if tensor is not None:
            found[name] = tensor.detach().cpu().numpy().copy()
    return found


def floating(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights in ``state_dict`` by name: what is floating point, each storage under its first name.

    Raises:
        ModelError: Two tensors share a part of their storage only, such as a matrix and its transpose.
    """
    found: dict[str, torch.Tensor] = {}
    owners: dict[int, str] = {}
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            continue
        # on the device meta, and without entries, a tensor has no storage of its own
        where = tensor.untyped_storage().data_ptr() if tensor.device.type != "meta" and tensor.numel() else 0
        first = owners.setdefault(where, name) if where else name
        if first == name:
            found[name] = tensor
        elif not _same(found[first], tensor):
            raise ModelError("model", f"tensors that share all of their storage or nothing ({first})", name)
    return found


def tied_names(module: nn.Module) -> dict[str, str]:
    """Return the names of tensors that are stored under another name: each with that first name."""
    first: dict[int, str] = {}
    found = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            found[name] = known
    return found


def refuse_frozen_and_tied(module: nn.Module, purpose: str) -> None:
    """Refuse a model whose layers cannot be changed one by one.

    Args:
        module: The model.
        purpose: What is done to its layers, such as ``to decompose them``.

    Raises:
        ModelError: A parameter is frozen, or two layers share one.
    """
    if names := frozen_names(module):
        expected = f"layers that are all trained, {purpose} ({OTHERWISE})"
        raise ModelError("model", expected, f"{names[0]}, which is frozen")
    refuse_tied(module, purpose)


def refuse_tied(module: nn.Module, purpose: str) -> None:
    """Refuse a model in which two layers share a parameter; see :func:`refuse_frozen_and_tied`."""
    if tied := tied_names(module):
        again, name = next(iter(tied.items()))
        expected = f"layers with weights of their own, {purpose} ({OTHERWISE})"
        raise ModelError("model", expected, f"{name}, which is {again} too (tied)")


def described_layer(path: str, layer: nn.Module) -> str:
    """Return a layer as ``encoder.norm (LayerNorm)``, or a tensor that a module of other layers holds itself."""
    own = [name for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]]
    if next(layer.children(), None) is not None and not isinstance(layer, nn.MultiheadAttention):
        return f"{path}.{own[0]} of {type(layer).__name__}".lstrip(".")
    groups = f", {layer.groups} groups" if getattr(layer, "groups", 1) != 1 else ""
    return f"{path or 'the model itself'} ({type(layer).__name__}{groups})"


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
