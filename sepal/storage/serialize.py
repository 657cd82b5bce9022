"""Converts states (frozen dataclasses) to named arrays and JSON, and back; computes digests of states.

A state may contain NumPy arrays, int, float, str, bool, None, enums, tuples, mappings with string keys, and dataclasses
of these. Arrays go to safetensors and the rest to JSON, without pickle. The dataclass's type hints determine how a
state is restored. Where they say array, a NumPy scalar is one: arithmetic with arrays without axes gives scalars. A
field with the metadata :data:`SPARING` is left out where it is empty, so that what was stored before there was such a
field can still be read.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sepal.errors import StateError

T = TypeVar("T")
Arrays = dict[str, npt.NDArray[Any]]
_ARRAY = "@array"
_UNIONS = (typing.Union, types.UnionType)
SPARING: Mapping[str, bool] = {"sparing": True}


class _UnfitError(Exception):
    """A state has an entry that cannot be stored; the text begins with the entry's path."""


def flatten(value: object) -> tuple[Arrays, Any]:
    """Return ``value`` as (arrays by path, JSON structure that refers to them).

    Raises:
        TypeError: It has an entry of another type than a state may have; the text names the state's class and the
            entry: ``ClientState/model/w``.
    """
    arrays: Arrays = {}
    try:
        return arrays, _flatten(value, None, "", arrays)
    except _UnfitError as unfit:
        raise TypeError(f"{type(value).__name__ if is_dataclass(value) else 'state'}{unfit}") from None


def not_finite(state: object) -> str:
    """Return the path of the first array of ``state`` that has NaN or infinity; empty if all are finite."""
    arrays = flatten(state)[0].items()
    return next((path for path, array in arrays if array.dtype.kind == "f" and not np.isfinite(array).all()), "")


def _flatten(value: object, hint: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(value, np.generic):  # before the rest, because np.float64 is a float, too
        value = np.asarray(value) if _is_array(hint) else value.item()
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise _UnfitError(f"{path}: a state cannot hold an array of {value.dtype}")
        arrays[path] = np.asarray(value, value.dtype.newbyteorder("="), order="C")
        return {_ARRAY: path}
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value) if not ("sparing" in f.metadata and not getattr(value, f.name))]
        hints = _field_types(type(value))
        return {name: _flatten(getattr(value, name), hints[name], f"{path}/{name}", arrays) for name in names}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value) or set(value) == {_ARRAY}:
            raise _UnfitError(f"{path}: a mapping's keys must be text, and not {_ARRAY} alone")
        inner = (*typing.get_args(hint), None, None)[1]
        return {str(key): _flatten(item, inner, f"{path}/{_step(key)}", arrays) for key, item in value.items()}
    if isinstance(value, tuple):
        inner = (*typing.get_args(hint), None)[0]
        return [_flatten(item, inner, f"{path}/{number}", arrays) for number, item in enumerate(value)]
    kind = (
        type(value).__name__
        if type(value).__module__ == "builtins"
        else f"{type(value).__module__}.{type(value).__name__}"
    )
    way = "; .numpy() makes one of it" if hasattr(value, "numpy") else ""
    raise _UnfitError(
        f"{path}: a state cannot hold {kind}, but arrays of NumPy, numbers, text, mappings and tuples{way}"
    )


def _step(key: str) -> str:
    """Return a key escaped as a step of a path (RFC 6901), so that no two values share a path."""
    return key.replace("~", "~0").replace("/", "~1")


def restore(kind: type[T], arrays: Mapping[str, npt.NDArray[Any]], structure: Any) -> T:
    """Return the value of type ``kind`` that :func:`flatten` was given.

    Raises:
        StateError: The structure does not match the type; the error's key is the path.
    """
    try:
        return typing.cast("T", _restore(kind, structure, arrays, kind.__name__))
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as reason:  # of a file from elsewhere
        expected = "a structure that fits its type"
        raise StateError(kind.__name__, expected, f"{type(reason).__name__}: {reason}") from reason


def _restore(hint: Any, node: Any, arrays: Mapping[str, npt.NDArray[Any]], path: str) -> Any:
    if type(node) is hint and hint in (str, int, bool, float):  # the common case, for speed
        return node
    origin = _origin(hint)
    if origin in _UNIONS:
        return _restore_union(hint, node, arrays, path)
    is_array, array_expected = isinstance(node, dict) and set(node) == {_ARRAY}, origin is np.ndarray
    if is_array or array_expected:
        if not is_array or not (array_expected or hint is Any):
            raise StateError(
                path, "an array" if array_expected else f"{hint}", "an array" if is_array else type(node).__name__
            )
        if node[_ARRAY] not in arrays:
            raise StateError(path, "its array in the file", "none")
        return arrays[node[_ARRAY]]
    if hint is Any:
        return node
    if is_dataclass(hint) and isinstance(hint, type):
        return _restore_dataclass(hint, node, arrays, path)
    if origin is tuple:
        return _restore_tuple(hint, node, arrays, path)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _restore_mapping(hint, node, arrays, path)
    return _restore_leaf(hint, node, path)


def _is_array(hint: Any) -> bool:
    origin = _origin(hint)
    return origin is np.ndarray or (origin in _UNIONS and any(map(_is_array, typing.get_args(hint))))


def _origin(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    origin = typing.get_origin(getattr(origin, "__value__", origin)) or origin  # numpy 2.5's NDArray is a `type` alias
    return hint if hint is np.ndarray else origin


def _restore_mapping(hint: Any, node: Any, arrays: Mapping[str, npt.NDArray[Any]], path: str) -> dict[str, Any]:
    if not isinstance(node, dict):
        raise StateError(path, "a mapping", type(node).__name__)
    inner = typing.get_args(hint)[1]
    return {key: _restore(inner, item, arrays, f"{path}/{key}") for key, item in node.items()}


def _restore_leaf(hint: Any, node: Any, path: str) -> Any:
    """Restore an int, float, str or bool, an enum, or a literal."""
    enum = isinstance(hint, type) and issubclass(hint, Enum)
    if enum or typing.get_origin(hint) is typing.Literal:
        choices = [member.value for member in hint] if enum else list(typing.get_args(hint))
        if node not in choices:
            raise StateError(path, f"one of {', '.join(map(str, choices))}", node)
        return hint(node) if enum else node
    kinds = (int, float) if hint is float else (hint,)
    if not isinstance(node, kinds) or (isinstance(node, bool) and hint is not bool):
        raise StateError(path, getattr(hint, "__name__", str(hint)), type(node).__name__)
    return float(node) if hint is float else node


def _restore_tuple(hint: Any, node: Any, arrays: Mapping[str, npt.NDArray[Any]], path: str) -> tuple[Any, ...]:
    arguments = typing.get_args(hint)
    if not isinstance(node, list):
        raise StateError(path, "a list", type(node).__name__)
    same = len(arguments) == 2 and arguments[1] is Ellipsis
    if not same and len(arguments) != len(node):
        raise StateError(path, f"{len(arguments)} items", len(node))
    hints = [arguments[0]] * len(node) if same else list(arguments)
    return tuple(_restore(h, item, arrays, f"{path}/{i}") for i, (h, item) in enumerate(zip(hints, node, strict=True)))


def _restore_dataclass(hint: type, node: Any, arrays: Mapping[str, npt.NDArray[Any]], path: str) -> Any:
    hints = _field_types(hint)
    spared = {f.name for f in fields(hint) if "sparing" in f.metadata}
    if not isinstance(node, dict) or node.keys() | spared != hints.keys():
        raise StateError(path, f"the fields {', '.join(hints)}", ", ".join(node) if isinstance(node, dict) else node)
    return hint(**{name: _restore(hints[name], node[name], arrays, f"{path}/{name}") for name in hints if name in node})


@cache
def _field_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name; cached, because resolving them is slow."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _restore_union(hint: Any, node: Any, arrays: Mapping[str, npt.NDArray[Any]], path: str) -> Any:
    choices = typing.get_args(hint)
    if node is None and type(None) in choices:
        return None
    error = StateError(path, str(hint), "nothing that fits")
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _restore(choice, node, arrays, path)
        except StateError as reason:
            error = reason
    raise error


def digest_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return SHA-256 (hex) over name, dtype, shape and little-endian bytes of each array, sorted by name."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], arrays[name].dtype.newbyteorder("<"), order="C")
        sha.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode())
        sha.update(array.data if array.ndim and array.size else array.tobytes())
    return sha.hexdigest()


def _canonical(node: Any) -> Any:
    """Return a structure with whole floats as ints, so that a state has the same digest before and after a restore."""
    if isinstance(node, dict):
        return {key: _canonical(item) for key, item in node.items()}
    if isinstance(node, list):
        return [_canonical(item) for item in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def digest(state: object) -> str:
    """Return SHA-256 (hex) of ``state``: of its arrays, then of the rest as canonical JSON."""
    arrays, structure = flatten(state)
    text = json.dumps(_canonical(structure), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{digest_arrays(arrays)}{text}".encode()).hexdigest()
