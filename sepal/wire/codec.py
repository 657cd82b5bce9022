"""Encodes tensors as bytes and decodes them: ``sepal.sparse.v1``, specified in FORMAT.md.

For any bytes, decoding returns tensors that match the receiver's specs or raises WireError. It takes less than twice
the memory of the returned arrays plus 16 MB, and with ANS a bit for each entry. Uses NumPy and protobuf only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from sepal.errors import WireError
from sepal.wire.bits import Bytes
from sepal.wire.header import IndexCoding, TensorHeader, check_name_and_shape, inspect, write_header
from sepal.wire.index import CodedIndex, decode_index, encode_index
from sepal.wire.tensors import Index, SparseTensor, Support, Tensors, TensorSpec, ValueCoding
from sepal.wire.values import decode_values, encode_values

Spec: TypeAlias = TensorSpec | Callable[[Tensors], TensorSpec]
Specs: TypeAlias = Mapping[str, Spec]

_UNSENT = {Support.DERIVED: IndexCoding.DERIVED, Support.SAME: IndexCoding.SAME}
_SUPPORT = {coding: support for support, coding in _UNSENT.items()}


def encode(tensors: Tensors) -> bytes:
    """Return ``tensors`` encoded, in the mapping's order; equal tensors give equal bytes.

    Args:
        tensors: Tensors by name. An index is checked even if it is not sent.

    Raises:
        WireError: The format cannot hold a name, shape, index or value: for example unsorted or duplicate positions,
            NaN, a value out of range of its coding, or different magnitudes with SIGN.
    """
    entries: list[TensorHeader] = []
    parts: list[bytes | memoryview] = []
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        unsent = _UNSENT.get(tensor.support)
        index = CodedIndex(unsent) if unsent else encode_index(tensor.index, tensor.shape, tensor.entropy_coded)
        parts.append(index.data)
        value_bytes = 0
        if tensor.values is not None:
            values = encode_values(tensor.values, tensor.coding, f"{name} values")
            parts.append(values.data)
            value_bytes = values.nbytes
        entries.append(
            TensorHeader(
                name,
                tuple(tensor.shape),  # a method of the user's own may give a list
                index.coding,
                tensor.coding,
                tensor.nnz,
                len(index.data),
                value_bytes,
                index.axis,
                index.low_bits,
            )
        )
    return b"".join([write_header(entries), *parts])


def decode(data: bytes, specs: Specs) -> dict[str, SparseTensor]:
    """Decode ``data`` and check it against ``specs``.

    Args:
        data: A payload.
        specs: What to accept, by name, in the payload's order. A spec may be a function of the tensors decoded before
            it, for example if a mask determines another tensor's shape or support. Its exceptions are not caught.

    Returns:
        The tensors in order. Their arrays own their memory, except for a known support, which is the spec's. An index
        of None means that all entries are present.

    Raises:
        WireError: See FORMAT.md. Header, lengths and specs are checked before arrays are allocated; a spec that is a
            function, before the arrays of its tensor.
    """
    contents = inspect(data)
    entries = {entry.name: entry for entry in contents.tensors}
    _check_order(entries, specs)
    for name, spec in specs.items():
        if isinstance(spec, TensorSpec):
            _admit(name, entries.get(name), spec)
    payload = np.frombuffer(data, np.uint8)
    tensors: dict[str, SparseTensor] = {}
    at = contents.header_bytes
    for name, spec in specs.items():
        entry = entries.get(name)
        if not isinstance(spec, TensorSpec):
            spec = spec(tensors)  # noqa: PLW2901
            _admit(name, entry, spec)
        if entry is not None:
            middle, end = at + entry.index_bytes, at + entry.index_bytes + entry.value_bytes
            tensors[name] = _decode_tensor(entry, spec, payload[at:middle], payload[middle:end])
            at = end
    return tensors


def _check_tensor(name: str, tensor: SparseTensor) -> None:
    check_name_and_shape(name, tensor.shape)
    if tensor.index is not None:
        _check_index(name, tensor.index, tensor.size)
    if (tensor.values is None) != (tensor.coding is ValueCoding.NONE):
        raise WireError(f"{name} values", f"values as {tensor.coding.value} has them", "the opposite")
    if tensor.values is not None and (tensor.values.dtype != np.float32 or tensor.values.shape != (tensor.nnz,)):
        got = f"{tensor.values.dtype} {tensor.values.shape}"
        raise WireError(f"{name} values", f"float32 ({tensor.nnz},)", got)


def _check_index(name: str, index: Index, size: int) -> None:
    if index.dtype != np.int64 or index.ndim != 1:
        raise WireError(f"{name} index", "int64 (nnz,)", f"{index.dtype} {index.shape}")
    if not index.size:
        return
    if (index[1:] <= index[:-1]).any():
        raise WireError(f"{name} index", "strictly increasing positions", "unsorted or duplicate ones")
    if index[0] < 0 or index[-1] >= size:
        raise WireError(f"{name} index", f"positions in 0 to {size - 1}", f"{index[0]} to {index[-1]}")


def _check_order(entries: Mapping[str, TensorHeader], specs: Specs) -> None:
    for name in entries:
        if name not in specs:
            raise WireError("name", f"one of {', '.join(specs)}", name)
    expected = [name for name in specs if name in entries]
    if list(entries) != expected:
        raise WireError("names", f"the order {', '.join(expected)}", ", ".join(entries))


def _admit(name: str, entry: TensorHeader | None, spec: TensorSpec) -> None:
    """Raise if the header of a tensor does not match its spec."""
    if entry is None:
        if not spec.optional:
            raise WireError(name, "to be in the payload", "nothing")
        return
    if entry.shape != spec.shape:
        raise WireError(f"{name} shape", str(spec.shape), str(entry.shape))
    support = _SUPPORT.get(entry.index, Support.EXPLICIT)
    if support is not spec.support and not _is_known(support, spec):
        raise WireError(f"{name} index", f"{spec.support.value} support", entry.index.value)
    if entry.index is IndexCoding.ANS and not spec.entropy_coded:
        raise WireError(f"{name} index", "a coding without entropy coding", entry.index.value)
    if spec.values is (entry.values is ValueCoding.NONE):
        raise WireError(f"{name} values", "values" if spec.values else "a mask without values", entry.values.value)
    fewest, most = spec.min_count, spec.size if spec.max_count is None else spec.max_count
    if not fewest <= entry.count <= most and not _is_known(support, spec):
        raise WireError(f"{name} count", f"{fewest} to {most}", str(entry.count))
    if support is not Support.EXPLICIT:
        known_size = spec.size if spec.index is None else spec.index.size
        if entry.count != known_size:
            raise WireError(f"{name} count", f"{known_size} of the known support", str(entry.count))


def _is_known(support: Support, spec: TensorSpec) -> bool:
    """Return whether the receiver accepts a new support and is sent the known one."""
    return support is Support.DERIVED and spec.support is Support.EXPLICIT and spec.index is not None


def _decode_tensor(entry: TensorHeader, spec: TensorSpec, index_data: Bytes, value_data: Bytes) -> SparseTensor:
    values = None
    if entry.values is not ValueCoding.NONE:
        values = decode_values(value_data, entry.values, entry.count, f"{entry.name} values")
    support = _SUPPORT.get(entry.index, Support.EXPLICIT)
    if support is not Support.EXPLICIT:
        index = spec.index
    elif entry.index is IndexCoding.DENSE:
        index = None
    else:
        index = decode_index(entry, index_data)
    return SparseTensor(entry.shape, index, values, support, entry.values, spec.entropy_coded)
