"""Encodes and decodes positions, in the shortest of several codings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sepal.errors import WireError
from sepal.wire.ans import decode_ans, encode_ans, least_bytes
from sepal.wire.bits import Bytes, ones, packed
from sepal.wire.gaps import decode_gaps, encode_gaps, gaps_between, shortest_code
from sepal.wire.header import IndexCoding, TensorHeader
from sepal.wire.tensors import Index


@dataclass(frozen=True)
class CodedIndex:
    """Encoded positions and their header fields."""

    coding: IndexCoding
    data: bytes = b""
    axis: int = 0
    low_bits: int = 0


def encode_index(index: Index | None, shape: tuple[int, ...], entropy_coded: bool = False) -> CodedIndex:
    """Encode ``index`` in the shortest coding.

    Args:
        index: None, or int64 (nnz,), strictly increasing positions in ``shape``.
        shape: Shape of the whole tensor.
        entropy_coded: Whether ANS is one of the codings.
    """
    size = math.prod(shape)
    if index is None or index.size == size:
        return CodedIndex(IndexCoding.DENSE)
    if index.size == 0:
        return CodedIndex(IndexCoding.GAPS)
    choices = [_bitmap(index, size), *_rows(index, shape), _gaps(index, size)]
    length, encode = min(choices, key=lambda choice: choice[0])
    coded = _shorter_ans(index, size, length) if entropy_coded else None
    return coded or encode()


def decode_index(entry: TensorHeader, data: Bytes) -> Index:
    """Decode positions in BITMAP, ROWS, GAPS or ANS, int64 (nnz,); ``data`` has the length in ``entry``.

    Raises:
        WireError: See FORMAT.md, checks 24 to 28 and 32 to 34.
    """
    key = f"{entry.name} index"
    if entry.count == 0:
        return np.empty(0, np.int64)
    if entry.index is IndexCoding.BITMAP:
        return _ones_below(data, entry.count, entry.size, key)
    if entry.index is IndexCoding.ROWS:
        per_row = entry.size // entry.shape[entry.axis]
        return _spread(_ones_below(data, entry.count // per_row, entry.shape[entry.axis], key), entry.shape, entry.axis)
    if entry.index is IndexCoding.ANS:
        return _ones_below(decode_ans(data, entry.count, entry.size, key), entry.count, entry.size, key)
    coded = decode_gaps(data, entry.coded, entry.low_bits, entry.size, key)
    return coded if entry.coded == entry.count else _complement(coded, entry.size)


# A coding: its number of bytes, and a function that encodes.
_Choice = tuple[int, Callable[[], CodedIndex]]


def _bits(index: Index, size: int) -> Bytes:
    present = np.zeros(size, np.bool_)
    present[index] = True
    return packed(present)


def _shorter_ans(index: Index, size: int, length: int) -> CodedIndex | None:
    """Return positions in ANS, if that takes fewer bytes than ``length``; they are only coded where it may."""
    bitmap = _bits(index, size)
    if least_bytes(bitmap, index.size, size) >= length:
        return None
    data = encode_ans(bitmap, index.size, size)
    return CodedIndex(IndexCoding.ANS, data) if len(data) < length else None


def _bitmap(index: Index, size: int) -> _Choice:
    def encode() -> CodedIndex:
        return CodedIndex(IndexCoding.BITMAP, _bits(index, size).tobytes())

    return (size + 7) // 8, encode


def _gaps(index: Index, size: int) -> _Choice:
    coded = index if 2 * index.size <= size else _complement(index, size)
    gaps = gaps_between(coded)
    low_bits, length = shortest_code(gaps, int(coded[-1]))

    def encode() -> CodedIndex:
        data = encode_gaps(coded, gaps, low_bits, length).tobytes()
        return CodedIndex(IndexCoding.GAPS, data, low_bits=low_bits)

    return (low_bits * gaps.size + length + 7) // 8, encode


def _rows(index: Index, shape: tuple[int, ...]) -> Iterator[_Choice]:
    for axis, extent in enumerate(shape):
        rows = _rows_along(index, shape, axis)
        if rows is not None:
            yield _rows_on(rows, extent, axis)
            return  # rows of one axis are never rows of another


def _rows_on(rows: Index, extent: int, axis: int) -> _Choice:
    def encode() -> CodedIndex:
        bits = np.zeros(extent, np.bool_)
        bits[rows] = True
        return CodedIndex(IndexCoding.ROWS, packed(bits).tobytes(), axis=axis)

    return (extent + 7) // 8, encode


def _rows_along(index: Index, shape: tuple[int, ...], axis: int) -> Index | None:
    """Return the coordinates on ``axis``, int64 (r,), if ``index`` consists of whole rows of that axis; else None."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if len(shape) < 2 or index.size % (outer * inner):
        return None
    block = inner * shape[axis]
    runs = index.reshape(outer, -1, inner)
    first, last = runs[:, :, 0], runs[:, :, -1]
    # A strictly increasing run is consecutive if the distance of its ends equals its length.
    if first[0, 0] % inner or last[-1, -1] - first[0, -1] != (outer - 1) * block + inner - 1:
        return None
    shifted = first[0] + np.arange(outer)[:, None] * block
    if (last - first != inner - 1).any() or (first != shifted).any() or (first[0] % inner).any():
        return None
    rows: Index = first[0] // inner
    return rows


def _spread(rows: Index, shape: tuple[int, ...], axis: int) -> Index:
    """Return the positions of all entries in ``rows``, int64 (r,), of ``axis``: int64 (nnz,)."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    index = np.empty((outer, rows.size, inner), np.int64)
    index[:] = np.arange(inner)
    index += rows[:, None] * inner
    index += np.arange(outer)[:, None, None] * (inner * shape[axis])
    return index.reshape(-1)


def _ones_below(data: Bytes, count: int, size: int, key: str) -> Index:
    positions = ones(data, 0, count, key)
    if positions[-1] >= size:
        raise WireError(key, "padding of 0", f"bit {positions[-1]} of {size} set")
    return positions


def _complement(index: Index, size: int) -> Index:
    """Return the positions below ``size`` that are not in ``index``, int64 (size - n,)."""
    absent = np.ones(size, np.bool_)
    absent[index] = False
    return np.flatnonzero(absent)
