"""What a module holds besides the tensors that a run exchanges, and what becomes of it.

The clients of a process share modules, so each thing that a module holds is treated in one of these ways:

- **Exchanged**: parameters and persistent buffers of floating point (:func:`sepal.modules.floating`).
- **As built**: frozen parameters and pruning masks, which never change (:func:`sepal.modules.set_aside`).
- **Kept with its client**: every other buffer, persistent or not, of any dtype, such as the number of batches that
  batch normalisation has seen. The host stores those that differ from what ``build`` made with the client's state.
- **As built whenever a client takes the module up**, to train or to evaluate: attributes of Python. Where a number or
  text has changed, a line says so, because a buffer would be kept.
- **Refused by name**: an attribute that cannot be copied, a buffer that moves and cannot be stored, and a parameter
  that the module has not registered, or registers while it is trained: it would not be exchanged.

Layers of torch and of Sepal have no attributes that training changes, and nothing reads the count of batches of a
batch normalisation with a momentum. So a model of these layers has nothing to keep, and costs nothing.
"""

from __future__ import annotations

import copy
import enum
import io
import logging
import pickle
import random
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sepal.errors import ModelError, one_line
from sepal.modules import frozen_names
from sepal.seeding import generators

log = logging.getLogger("sepal")

Buffers: TypeAlias = Mapping[str, npt.NDArray[Any]]  # by name in the module
COUNTER = "num_batches_tracked"
_OF_TORCH = frozenset(vars(nn.Module()))
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_UNCHANGING = (
    *(*_NUMBERS, *_CODE, range, enum.Enum),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format),
)


class ModuleState:
    """The buffers of a module that stay with a client, and its attributes.

    Args:
        module: As it was built, on its device.
        exchanged: Names of the tensors that are exchanged.

    Raises:
        ModelError: An attribute cannot be copied, or has a parameter that the module has not registered.
    """

    def __init__(self, module: nn.Module, exchanged: Mapping[str, torch.Tensor]) -> None:
        self._module, self._parameters = module, _parameters(module)
        self._layers = dict(module.named_modules())
        self._passed_over = {*exchanged, *frozen_names(module)} | _aliases(module, exchanged)
        foreign = {path: layer for path, layer in self._layers.items() if not is_known(layer)}
        self._watched, self._warned = bool(foreign), False
        self._built = {
            name: None if tensor is None else tensor.detach().clone()
            for name, tensor in self._local()
            if foreign or not self._is_unread(name)
        }
        if not foreign:
            self._passed_over |= {name for name, _ in self._local() if name not in self._built}
        self._before = self._built
        self._attributes = _Attributes(module, foreign) if foreign else None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to restore and nothing to keep."""
        return not self._watched and not self._built

    def restore(self, buffers: Buffers) -> None:
        """Give the module a client's buffers, and reset all else that is not exchanged to how it was built.

        Args:
            buffers: By name; those that are missing are as built. Those of another module are passed over.
        """
        if self.empty:
            return
        values = dict(self._built)
        for name, array in buffers.items():
            if self._has(name):
                values[name] = torch.from_numpy(np.array(array))
        for name, _ in list(self._local()):
            if name not in values:  # registered by another client's training
                layer, leaf = self._layer_of(name)
                del layer._buffers[leaf]
        self._before = {}
        for name, tensor in values.items():
            layer, leaf = self._layer_of(name)
            self._before[name] = _set(layer, leaf, tensor)
        if self._attributes:
            self._attributes.restore()

    def kept(self, buffers: Buffers) -> Buffers:
        """Return a client's buffers after training: those of ``buffers`` that this module lacks, and its own.

        Those that are as they were built are left out.

        Raises:
            ModelError: One that has moved has a dtype that cannot be stored, or the module has other parameters now.
        """
        if self.empty:
            return buffers
        if self._attributes and not self._warned:
            self._warned = self._attributes.warn()
        if odd := sorted(self._parameters ^ _parameters(self._module)):
            expected = "the same parameters after training, because others are not exchanged"
            raise ModelError("model", expected, f"{odd[0]}, which is new or missing")
        now = dict(self._local())
        if now.keys() == self._before.keys() and all(_same(now[name], self._before[name]) for name in now):
            return buffers
        changed = {
            name: _stored(name, tensor)
            for name, tensor in now.items()
            if tensor is not None and not (name in self._built and _same(tensor, self._built[name]))
        }
        return {**{name: array for name, array in buffers.items() if not self._has(name)}, **changed}

    def all(self) -> dict[str, npt.NDArray[Any]]:
        """Return all buffers that stay with the client, by name, but those that cannot be stored: they are as built."""
        arrays = {name: _array(tensor) for name, tensor in self._local() if tensor is not None}
        return {name: array for name, array in arrays.items() if array is not None}

    def _local(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for path, layer in self._layers.items():
            for leaf, tensor in layer._buffers.items():
                name = f"{path}.{leaf}" if path else leaf
                if name not in self._passed_over:
                    yield name, tensor

    def _has(self, name: str) -> bool:
        """Return whether a buffer of that name would stay with the client."""
        path, _, leaf = name.rpartition(".")
        stays = name in self._built or (self._watched and path in self._layers and may_hold(self._layers[path], leaf))
        return stays and name not in self._passed_over

    def _layer_of(self, name: str) -> tuple[nn.Module, str]:
        path, _, leaf = name.rpartition(".")
        return self._layers[path], leaf

    def _is_unread(self, name: str) -> bool:
        layer, leaf = self._layer_of(name)
        norm = isinstance(layer, nn.modules.batchnorm._NormBase)
        return norm and leaf == COUNTER and layer.momentum is not None


def fingerprint(module: nn.Module, buffers: bool = True) -> bytes:
    """Return bytes that differ if a buffer, an attribute or the state of NumPy's or Python's generator does.

    Args:
        module: The module.
        buffers: Whether the values of buffers count.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: An attribute cannot be pickled.
    """
    parts = {id(part) for part in (*module.modules(), *module.parameters())}

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> int | None:
            return id(value) if id(value) in parts or isinstance(value, _CODE) else None

    file = io.BytesIO()
    generators = random.getstate(), np.random.get_state()  # noqa: NPY002
    layers = [
        (list(layer._buffers.items()) if buffers else list(layer._buffers), list(_attributes(layer)))
        for layer in module.modules()
    ]
    Pickler(file).dump((generators, layers))
    return file.getvalue()


class _Attributes:
    """The attributes of a module's layers as they were built.

    Args:
        module: The module.
        foreign: The layers that are neither torch's nor Sepal's, by path. Of the others, only what cannot change in
            itself is looked at, such as a rate of dropout that the model sets.
    """

    def __init__(self, module: nn.Module, foreign: Collection[str]) -> None:
        self._module = module
        self._layers = dict(module.named_modules())
        self._foreign = foreign
        self._unchanging: dict[str, dict[str, Any]] = {}
        self._tensors: dict[str, dict[str, torch.Tensor]] = {}
        others: dict[str, dict[str, Any]] = {}
        registered = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        for path, layer in self._layers.items():
            for name, value in _attributes(layer):
                if _is_unchanging(value):
                    self._unchanging.setdefault(path, {})[name] = value
                elif isinstance(value, torch.Tensor) and id(value) not in registered:
                    _refuse_unregistered(value, f"{path}.{name}")
                    self._tensors.setdefault(path, {})[name] = value.detach().clone()
                elif path in foreign:
                    others.setdefault(path, {})[name] = value
        self._others = {
            path: {name: self._copied(value, f"{path}.{name}".lstrip(".")) for name, value in attributes.items()}
            for path, attributes in others.items()
        }
        self._others = self._copy_all(self._others)

    def restore(self) -> None:
        """Give the layers their attributes as they were built."""
        others = self._copy_all(self._others) if self._others else {}
        for path, layer in self._layers.items():
            unchanging, tensors = self._unchanging.get(path, {}), self._tensors.get(path, {})
            attributes, now = {*unchanging, *tensors, *others.get(path, ())}, layer.__dict__
            for name in [name for name, _ in _attributes(layer) if name not in attributes and path in self._foreign]:
                del now[name]
            for name, value in unchanging.items():
                if name not in now or now[name] is not value:
                    now[name] = value
            now |= {name: tensor.clone() for name, tensor in tensors.items()} | others.get(path, {})

    def warn(self) -> bool:
        """Say which numbers and texts have changed, and return whether there are any."""
        for path, attributes in self._unchanging.items():
            layer = self._layers[path]
            for name, value in attributes.items():
                now = vars(layer).get(name)
                if isinstance(value, _NUMBERS[:-1]) and isinstance(now, _NUMBERS[:-1]) and now != value:
                    where = ".".join(part for part in (type(self._module).__name__, path, name) if part)
                    log.warning("model: %s is %r again at each client's turn; a buffer would be kept", where, value)
                    return True
        return False

    def _copy_all(self, values: Any) -> Any:
        """Return a copy in which what the module has registered is itself, and shared objects are shared.

        So are the global generators, to which ``np.random.rand`` and ``random.uniform`` are bound.
        """
        return copy.deepcopy(values, self._parts())

    def _parts(self) -> dict[int, Any]:
        parts = (*self._module.modules(), *self._module.parameters(), *self._module.buffers(), *generators())
        return {id(part): part for part in parts}

    def _copied(self, value: Any, name: str) -> Any:
        registered = self._parts()
        copies = dict(registered)
        try:
            copy.deepcopy(value, copies)
        except Exception as reason:  # whatever an object's own code raises
            got = one_line(f"{name} ({type(value).__name__}): {reason}", 200)
            raise ModelError("model", "attributes that can be copied, because its clients share it", got) from None
        for tensor in [copied for key, copied in copies.items() if key not in registered]:
            _refuse_unregistered(tensor, name)
        return value


def _refuse_unregistered(value: Any, name: str) -> None:
    if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
        expected = (
            "parameters that are registered (nn.ModuleList, nn.ParameterList): others are neither trained nor sent"
        )
        raise ModelError("model", expected, f"one in {name.lstrip('.')}, which is not (register it, or freeze it)")


def _parameters(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters(remove_duplicate=False)}


def _attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(layer).items():
        if name not in _OF_TORCH and not name.startswith("_sepal"):
            yield name, value


def _is_unchanging(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_unchanging, value))
    return isinstance(value, _UNCHANGING)


def may_hold(layer: nn.Module, leaf: str) -> bool:
    """Return whether ``leaf`` may name a buffer of a layer: one that is there, or that its training may make.

    A file may say any name. A buffer called like a layer or an attribute would be taken for it, and torch's layers and
    Sepal's make none.
    """
    return leaf in layer._buffers or not (not leaf or hasattr(layer, leaf) or is_known(layer))


def is_known(layer: nn.Module) -> bool:
    """Return whether a layer's code is torch's or Sepal's, whose attributes training does not change."""
    kind = next(kind for kind in type(layer).__mro__ if kind.__module__ != "torch.nn.utils.parametrize")
    hooks = (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values())
    return all(map(_is_ours, (kind, *(hook if hasattr(hook, "__qualname__") else type(hook) for hook in hooks))))


def _is_ours(code: Any) -> bool:
    return str(code.__module__).startswith(("torch.nn.", "sepal."))


def _aliases(module: nn.Module, exchanged: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names of buffers that have the storage of an exchanged tensor."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in exchanged.values() if tensor.numel()}
    named = module.named_buffers(remove_duplicate=False)
    return {name for name, tensor in named if tensor.numel() and tensor.untyped_storage().data_ptr() in storages}


def _same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    alike = (first.dtype, first.shape, first.device) == (second.dtype, second.shape, second.device)
    return alike and torch.equal(first, second)


def _set(layer: nn.Module, leaf: str, value: torch.Tensor | None) -> torch.Tensor | None:
    """Give a buffer a value, in place if possible, and return the value on the buffer's device."""
    now = layer._buffers.get(leaf)
    if value is None:
        layer._buffers[leaf] = None
        return None
    if now is not None:
        value = value.to(now.device)
        if _same(now, value):
            return value
        overlaps = any(side > 1 and not step for side, step in zip(now.shape, now.stride(), strict=True))
        if (now.dtype, now.shape) == (value.dtype, value.shape) and not overlaps and not now.requires_grad:
            with torch.no_grad():
                now.copy_(value)
            return value
    layer._buffers[leaf] = value.clone()
    return value


def _stored(name: str, tensor: torch.Tensor) -> npt.NDArray[Any]:
    array = _array(tensor)
    if array is None:
        expected = f"the buffer {name} to stay as built, or to be of bool, whole numbers or floats that NumPy has"
        raise ModelError("model", expected, f"{str(tensor.dtype).removeprefix('torch.')}, and it moves")
    return array


def _array(tensor: torch.Tensor) -> npt.NDArray[Any] | None:
    """Return a copy, or None of what a state cannot hold: complex numbers, bfloat16, sparse and quantised tensors."""
    try:
        array: npt.NDArray[Any] = tensor.detach().cpu().numpy().copy()
    except (TypeError, RuntimeError):
        return None
    return array if array.dtype.kind in "biuf" else None
