"""Encodes payloads, and decodes content against a schema.

Server and client both use these functions, so a method never gets a tensor of the wrong shape, an index out of range,
a value that is not finite, or a scalar out of its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sepal.errors import DivergedError, ProtocolError
from sepal.protocol.messages import Content
from sepal.protocol.types import Payload, Scalar, Schema, SpecLike
from sepal.wire import decode, encode, rounded
from sepal.wire.tensors import SparseTensor, Support, Tensors, TensorSpec, ValueCoding, Values

# Far above any weight or update of a working model; sums over all rounds of a run stay finite in float32.
GREATEST_VALUE = 1e6


def seal(payload: Payload) -> Content:
    """Return ``payload`` encoded; a payload without tensors has no bytes.

    Values out of range for fp16 are clipped to its largest number, because a sum over rounds may exceed it.
    """
    tensors = {name: _within(tensor) for name, tensor in payload.tensors.items()}
    return Content(encode(tensors) if tensors else b"", dict(payload.scalars))


def unsendable(payload: Payload) -> str:
    """Return the name of a tensor with a value that no server takes, or an empty text.

    It is not finite, or its magnitude is above ``GREATEST_VALUE``.
    """
    for name, tensor in payload.tensors.items():
        values = _within(tensor).values
        if values is not None and values.size and not greatest(values) <= GREATEST_VALUE:
            return name
    return ""


def check_sendable(payload: Payload) -> None:
    """Raise if a client's upload has values that no server takes, because its training has diverged.

    Raises:
        DivergedError: See :func:`unsendable`.
    """
    if name := unsendable(payload):
        raise DivergedError(name, f"values of at most {GREATEST_VALUE:g} after training", "others: it diverged")


def _within(tensor: SparseTensor) -> SparseTensor:
    if tensor.coding is not ValueCoding.FP16 or tensor.values is None:
        return tensor
    return replace(tensor, values=_cut(tensor.values))


def _cut(values: Values) -> Values:
    greatest = float(np.finfo(np.float16).max)
    return np.clip(values, -greatest, greatest)


def delivered(values: Values, coding: ValueCoding) -> Values:
    """Return ``values``, float32 (n,), as a receiver decodes them from ``coding`` (fp32, fp16 or bf16).

    If any value is not finite, and so cannot be sent, all are returned unchanged.
    """
    if coding is ValueCoding.FP32 or not np.isfinite(values).all():
        return values
    return rounded(_cut(values) if coding is ValueCoding.FP16 else values, coding)


def unseal(content: Content, schema: Schema, answered: Callable[[], Tensors] | None = None) -> Payload:
    """Decode ``content`` and check it against ``schema``.

    Args:
        content: Bytes and scalars as received.
        schema: What to accept.
        answered: Returns the tensors of the download that this content answers; only called if a spec has support SAME.

    Raises:
        WireError: The bytes are not a valid payload or do not match the schema.
        ProtocolError: A scalar is missing, unknown, of the wrong type or out of bounds.
    """
    _check_scalars(content.scalars, schema.scalars)
    if not schema.tensors:
        if content.data:
            raise ProtocolError("payload", "none", f"{len(content.data)} bytes")
        return Payload({}, dict(content.scalars))
    specs = {name: _with_same(name, spec, answered) for name, spec in schema.tensors.items()}
    if not content.data:
        required = [n for n, s in specs.items() if not (isinstance(s, TensorSpec) and s.optional)]
        if required:
            raise ProtocolError("payload", f"tensors from {required[0]} on", "none")
        return Payload({}, dict(content.scalars))
    return Payload(dict(_tensors(content, specs)), dict(content.scalars))


def _tensors(content: Content, specs: Mapping[str, SpecLike]) -> Tensors:
    """Return the decoded tensors, whose arrays nobody may change: in process, clients share those of one download."""
    plain = all(isinstance(spec, TensorSpec) and spec.index is None for spec in specs.values())
    if plain and content.decoded and content.decoded[0] == specs:
        decoded: Tensors = content.decoded[1]
        return decoded
    tensors = decode(content.data, specs)
    for name, tensor in tensors.items():
        if tensor.values is not None:
            if tensor.values.size and not greatest(tensor.values) <= GREATEST_VALUE:
                raise ProtocolError(name, f"values of at most {GREATEST_VALUE:g}", f"{greatest(tensor.values):g}")
            tensor.values.setflags(write=False)
        if tensor.index is not None:
            tensor.index.setflags(write=False)
    if plain:
        content.decoded[:] = specs, tensors
    return tensors


def greatest(values: Values) -> float:
    """Return the greatest magnitude of ``values``, float32 (n,) with n > 0; NaN if one of them is."""
    return float(np.maximum(values.max(), -values.min()))


def _with_same(name: str, spec: SpecLike, answered: Callable[[], Tensors] | None) -> SpecLike:
    """Return ``spec`` with the support of the answered download, if its support is SAME."""

    def fill(tensor_spec: TensorSpec) -> TensorSpec:
        if tensor_spec.support is not Support.SAME or tensor_spec.index is not None:
            return tensor_spec
        tensors = answered() if answered else {}
        if name not in tensors:
            raise ProtocolError(name, "a tensor of that name in the download that this answers", "none")
        return replace(tensor_spec, index=tensors[name].index)

    if isinstance(spec, TensorSpec):
        return fill(spec)
    make = spec

    def later(decoded: Mapping[str, SparseTensor]) -> TensorSpec:
        return fill(make(decoded))

    return later


def _check_scalars(
    scalars: Mapping[str, Scalar], schema: Mapping[str, tuple[type, float | None, float | None]]
) -> None:
    for name in scalars:
        if name not in schema:
            raise ProtocolError(f"scalars.{name}", f"one of {', '.join(schema) or 'none'}", "an unknown scalar")
    for name, (kind, least, greatest) in schema.items():
        if name not in scalars:
            raise ProtocolError(f"scalars.{name}", kind.__name__, "none")
        value = scalars[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ProtocolError(f"scalars.{name}", kind.__name__, value)
        if isinstance(value, str):
            continue
        if (isinstance(value, float) and not math.isfinite(value)) or (least is not None and value < least):
            raise ProtocolError(f"scalars.{name}", f"at least {least}", value)
        if greatest is not None and value > greatest:
            raise ProtocolError(f"scalars.{name}", f"at most {greatest}", value)
