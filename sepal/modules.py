"""The tensors of a torch module that a run exchanges: all but frozen ones, each storage once.

A frozen parameter is not part of the federation: it is not trained, masked, noised, averaged or sent, and keeps the
value that ``build`` gave it. :func:`set_aside` turns it into a buffer that is not in ``state_dict``. So everything that
goes by parameters or by ``state_dict`` leaves it alone, and the forward pass still finds it under its name. So it is
with the masks of ``torch.nn.utils.prune``, which never change. What becomes of everything else that a module holds is
in :mod:`sepal.training.module_state`.
"""

from __future__ import annotations

import fnmatch
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sepal.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

OTHERWISE = "fedavg, fedpse, dmpfl and subfedavg's un take any layer"
_NAMES = "_sepal_frozen"  # attribute of the model: names of its frozen tensors, each with the first name of its tie
_MASKS = "_sepal_masks"  # attribute of the model: names of its pruning masks


def set_aside(module: nn.Module) -> nn.Module:
    """Turn the frozen parameters of ``module`` into buffers, in place, and return it. Those that are tied stay tied."""
    first: dict[int, str] = {}
    buffers: dict[str, torch.Tensor] = {}
    frozen = [
        (name, parameter)
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad
    ]
    ties = {name: first.setdefault(id(parameter), name) for name, parameter in frozen}
    for name, parameter in frozen:
        layer, leaf = _layer_of(module, name)
        del layer._parameters[leaf]
        layer.register_buffer(leaf, buffers.setdefault(ties[name], parameter.detach()), persistent=False)
    if ties:
        setattr(module, _NAMES, {**_ties(module), **ties})
    masks = [name for name in _masks(module) if name not in frozen_names(module)]
    for name in masks:
        layer, leaf = _layer_of(module, name)
        layer._non_persistent_buffers_set.add(leaf)
    if masks:
        setattr(module, _MASKS, (*_masks_aside(module), *masks))
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
    named = list(module.named_parameters(remove_duplicate=False))
    names = [name for name, _ in named]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError("trainable", f"patterns of {', '.join(names[:8])}{' …' * (len(names) > 8)}", pattern)
    freed = [part for name, part in named if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    module.requires_grad_(False)
    for parameter in freed:  # also those that are tied to others, which no pattern names
        parameter.requires_grad_(True)
    fill_frozen(module, values)
    return set_aside(module)


def fill_frozen(module: nn.Module, values: Mapping[str, NDArray[Any]]) -> None:
    """Give the parameters that are not trained the values of one of their names, where there is one.

    Raises:
        ConfigError: A value has another shape.
    """
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad and name in values:
            if values[name].shape != tuple(parameter.shape):
                expected, got = f"shape {tuple(parameter.shape)}", f"shape {values[name].shape}"
                raise ConfigError(f"initial-weights: {name}", expected, got)
            parameter.data.copy_(torch.from_numpy(values[name]))


def bring_back(module: nn.Module) -> nn.Module:
    """Undo :func:`set_aside`, in place, and return the module."""
    parameters: dict[str, nn.Parameter] = {}
    for name, first in _ties(module).items():
        layer, leaf = _layer_of(module, name)
        tensor = layer._buffers.pop(leaf)
        layer._non_persistent_buffers_set.discard(leaf)  # torch.export looks for its names there, too
        if tensor is not None:
            shared = parameters.setdefault(first, nn.Parameter(tensor, requires_grad=False))
            layer.register_parameter(leaf, shared)
    for name in _masks_aside(module):
        layer, leaf = _layer_of(module, name)
        layer._non_persistent_buffers_set.discard(leaf)
    setattr(module, _NAMES, {})
    setattr(module, _MASKS, ())
    return module


def frozen_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors that :func:`set_aside` has taken out, also those that are tied to others."""
    return (*_ties(module), *_masks_aside(module))


def frozen_tensors(module: nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the frozen tensors, each under the first of its names."""
    ties, arrays = _ties(module), {}
    for name in frozen_names(module):
        layer, leaf = _layer_of(module, name)
        tensor = layer._buffers[leaf]
        if tensor is not None and ties.get(name, name) == name:
            arrays[name] = tensor.detach().cpu().numpy().copy()
    return arrays


def set_frozen(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Give a frozen tensor, under all of its names, the value ``tensor``."""
    for alias in (alias for alias, first in _ties(module).items() if first == name):
        layer, leaf = _layer_of(module, alias)
        layer._buffers[leaf] = tensor


def refuse_unfit_tensors(module: nn.Module) -> None:
    """Refuse a model of which a trained parameter is not exchanged, or a tensor is not float32.

    Raises:
        ModelError: See above; the error names the first such tensor.
    """
    advice = 'build can end with model.float(); precision = "bf16" trains float32 weights in bfloat16'
    persistent = module.state_dict().keys()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_complex() and tensor.requires_grad:
            expected = "trained parameters of real numbers: others are not exchanged"
            raise ModelError("model", expected, _described(name, tensor))
        exchanged = isinstance(tensor, nn.Parameter) or name in persistent
        if tensor.is_floating_point() and tensor.dtype is not torch.float32 and exchanged:
            raise ModelError("model", f"tensors of float32 ({advice})", _described(name, tensor))
    exchanged_tensors = floating(module)
    registered = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    registered |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    if renamed := exchanged_tensors.keys() - registered:
        expected = "a state_dict with the names of its parameters and buffers"
        raise ModelError("model", expected, sorted(renamed)[0])
    storages = {tensor.untyped_storage().data_ptr() for tensor in exchanged_tensors.values()}
    for name, parameter in module.named_parameters():
        is_exchanged = name in exchanged_tensors or parameter.untyped_storage().data_ptr() in storages
        if parameter.requires_grad and not is_exchanged:
            expected = "trained parameters that are in its state_dict: others are not exchanged"
            raise ModelError("model", expected, _described(name, parameter))


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Give all buffers of the module back what they have now, whatever is done meanwhile."""
    before = [
        (layer, leaf, tensor, None if tensor is None else tensor.detach().clone())
        for layer in module.modules()
        for leaf, tensor in layer._buffers.items()
    ]
    try:
        yield
    finally:
        for layer, leaf, tensor, value in before:
            layer._buffers[leaf] = tensor
            if tensor is not None and value is not None and not torch.equal(tensor, value):
                with torch.no_grad():
                    tensor.copy_(value)


def _described(name: str, tensor: torch.Tensor) -> str:
    return f"{name}, which is {str(tensor.dtype).removeprefix('torch.')}"


def _ties(module: nn.Module) -> dict[str, str]:
    """Return the names of frozen parameters, each with the first name of the same parameter."""
    ties: dict[str, str] = getattr(module, _NAMES, {})
    return ties


def _masks_aside(module: nn.Module) -> tuple[str, ...]:
    masks: tuple[str, ...] = getattr(module, _MASKS, ())
    return masks


def _masks(module: nn.Module) -> list[str]:
    """Return the names of the masks of ``torch.nn.utils.prune``."""
    pruning = sys.modules.get("torch.nn.utils.prune")
    if pruning is None:
        return []
    return [
        f"{path}.{hook._tensor_name}_mask".lstrip(".")
        for path, layer in module.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, pruning.BasePruningMethod) and f"{hook._tensor_name}_mask" in layer._buffers
    ]


def floating(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights in ``state_dict`` by name: what is floating point, each storage under its first name.

    Raises:
        ModelError: Two tensors share a part of their storage only, such as a matrix and its transpose.
    """
    tensors: dict[str, torch.Tensor] = {}
    owners: dict[int, str] = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():  # or what get_extra_state returns
            continue
        # on the device meta, and without entries, a tensor has no storage of its own
        where = tensor.untyped_storage().data_ptr() if tensor.device.type != "meta" and tensor.numel() else 0
        first = owners.setdefault(where, name) if where else name
        if first == name:
            tensors[name] = tensor
        elif not _same(tensors[first], tensor):
            raise ModelError("model", f"tensors that share all of their storage or nothing ({first})", name)
    return tensors


def tied_names(module: nn.Module) -> dict[str, str]:
    """Return the names of tensors that are stored under another name: each with that first name."""
    first: dict[int, str] = {}
    names = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first_name = first.setdefault(id(parameter), name)
        if first_name != name:
            names[name] = first_name
    return names


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
    names = [name for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]]
    if next(layer.children(), None) is not None and not isinstance(layer, nn.MultiheadAttention):
        return f"{path}.{names[0]} of {type(layer).__name__}".lstrip(".")
    groups = f", {layer.groups} groups" if getattr(layer, "groups", 1) != 1 else ""
    return f"{path or 'the model itself'} ({type(layer).__name__}{groups})"


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def _layer_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
