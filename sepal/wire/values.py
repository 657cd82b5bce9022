"""Encodes and decodes float32 values (FORMAT.md, "Value codings")."""

from __future__ import annotations

import numpy as np

from sepal.errors import WireError
from sepal.wire.bits import Bytes, packed
from sepal.wire.tensors import Array, ValueCoding, Values

_BYTES_EACH = {ValueCoding.FP32: 4, ValueCoding.FP16: 2, ValueCoding.BF16: 2, ValueCoding.NONE: 0}
_SCALE_BYTES = 4
_MINUS_ZERO = 0x8000_0000


def value_length(coding: ValueCoding, count: int) -> int:
    """Return the number of bytes of ``count`` values."""
    if coding is ValueCoding.SIGN:
        return _SCALE_BYTES + (count + 7) // 8 if count else 0
    return _BYTES_EACH[coding] * count


def encode_values(values: Values, coding: ValueCoding, key: str) -> Array:
    """Return the encoded values as an array of any dtype, whose memory is the bytes; ``coding`` is not NONE.

    Raises:
        WireError: NaN or infinity, before or after rounding; different magnitudes with SIGN.
    """
    values = np.ascontiguousarray(values)
    _refuse_non_finite(values, key)
    if coding is ValueCoding.FP16:
        with np.errstate(over="ignore"):
            shorts = values.astype("<f2")
        _refuse_non_finite(shorts, key)
        return shorts
    if coding is ValueCoding.BF16:
        bits = values.view(np.uint32)
        shorts = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")  # to nearest, ties to even
        if ((shorts & 0x7F80) == 0x7F80).any():
            raise WireError(key, "finite values in bf16", f"{np.abs(values).max()}")
        return shorts
    if coding is ValueCoding.SIGN:
        return _encode_signs(values, key)
    return values.astype("<f4", copy=False)


def decode_values(data: Bytes, coding: ValueCoding, count: int, key: str) -> Values:
    """Decode values, float32 (count,), that own their memory; ``data`` has the length ``value_length``.

    Raises:
        WireError: NaN or infinity; SIGN with a scale that is negative or -0, or padding that is not 0.
    """
    if coding is ValueCoding.SIGN:
        return _decode_signs(data, count, key)
    if coding is ValueCoding.BF16:
        bits = data.view("<u2").astype(np.uint32)
        bits <<= 16
        values = bits.view(np.float32)
    else:
        values = data.view("<f2" if coding is ValueCoding.FP16 else "<f4").astype(np.float32)
    _refuse_non_finite(values, key)
    return values


def rounded(values: Values, coding: ValueCoding) -> Values:
    """float32 (n,): what a receiver gets for ``values``, float32 (n,); the difference may go into a residual.

    Raises:
        WireError: The values cannot travel in this coding.
    """
    if coding is ValueCoding.NONE:
        raise WireError("values", "a coding that carries values", coding.value)
    data = np.frombuffer(encode_values(values, coding, "values").tobytes(), np.uint8)
    return decode_values(data, coding, values.size, "values")


def _encode_signs(values: Values, key: str) -> Bytes:
    if not values.size:
        return np.empty(0, np.uint8)
    magnitudes = np.abs(values)
    if (magnitudes != magnitudes[0]).any():
        raise WireError(key, "one magnitude for sign coding", f"{magnitudes.min()} to {magnitudes.max()}")
    scale = np.frombuffer(magnitudes[:1].astype("<f4").tobytes(), np.uint8)
    return np.concatenate([scale, packed(np.signbit(values))])


def _decode_signs(data: Bytes, count: int, key: str) -> Values:
    if not count:
        return np.empty(0, np.float32)
    scale = data[:_SCALE_BYTES].view("<f4")
    bits = int(data[:_SCALE_BYTES].view("<u4")[0])
    if not np.isfinite(scale[0]) or bits & _MINUS_ZERO:
        raise WireError(key, "a finite scale of at least 0", f"{scale[0]}")
    if count & 7 and data[-1] >> (count & 7):
        raise WireError(key, "padding of 0", f"last byte {data[-1]:#04x}")
    signs = np.unpackbits(data[_SCALE_BYTES:], count=count, bitorder="little").astype(np.uint32)
    signs <<= 31
    signs |= np.uint32(bits)
    return signs.view(np.float32)


def _refuse_non_finite(values: Array, key: str) -> None:
    if values.dtype == np.float32 and values.size and np.isfinite(values.min()) and np.isfinite(values.max()):
        return  # both are NaN if one value is; twice as fast as looking at each
    finite = np.isfinite(values)
    if not finite.all():
        at = int(finite.argmin())
        raise WireError(key, "finite values", f"{values[at]} at {at}")
