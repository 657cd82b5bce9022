"""Writes, reads and checks the header of a payload (FORMAT.md, checks 1 to 15)."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from sepal.errors import WireError
from sepal.wire import ans
from sepal.wire import sparse_pb2 as pb
from sepal.wire.gaps import MAX_LOW_BITS
from sepal.wire.tensors import ValueCoding
from sepal.wire.values import value_length

MAGIC = b"SEPAL"
VERSION = 1
MAX_HEADER_BYTES = 262_144
MAX_TENSORS = 4_096
MAX_DIMENSIONS = 8
MAX_SIZE = 2**31 - 1
HEADERS_KEPT = 4  # clients of a round send the same headers, as a rule, and one may be of 262,144 bytes

_PREAMBLE = struct.Struct("<5sBI")  # magic, version, length of the header
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,254}")


class IndexCoding(Enum):
    """How positions are encoded; numbered in ``sparse.proto``."""

    DENSE = "dense"
    BITMAP = "bitmap"
    ROWS = "rows"
    GAPS = "gaps"
    ANS = "ans"
    DERIVED = "derived"
    SAME = "same"


_INDEX_CODING = {int(pb.IndexCoding.Value(f"INDEX_{coding.name}")): coding for coding in IndexCoding}
_VALUE_CODING = {int(pb.ValueCoding.Value(f"VALUE_{coding.name}")): coding for coding in ValueCoding}


@dataclass(frozen=True)
class TensorHeader:
    """The header of one tensor.

    Attributes:
        name: The tensor's name.
        shape: Shape of the whole tensor.
        index: How positions are encoded.
        values: How values are encoded.
        count: Number of entries present.
        index_bytes: Bytes of the positions.
        value_bytes: Bytes of the values.
        axis: The axis of ROWS; otherwise 0.
        low_bits: Low bits of each gap of GAPS; otherwise 0.
    """

    name: str
    shape: tuple[int, ...]
    index: IndexCoding
    values: ValueCoding
    count: int
    index_bytes: int
    value_bytes: int
    axis: int = 0
    low_bits: int = 0

    @property
    def size(self) -> int:
        """Number of entries of the whole tensor, present or not."""
        return math.prod(self.shape)

    @property
    def coded(self) -> int:
        """Number of positions that GAPS encodes: of present or absent entries, whichever are fewer."""
        return min(self.count, self.size - self.count)


@dataclass(frozen=True)
class Contents:
    """The sizes and headers of a payload, without its tensors.

    Attributes:
        header_bytes: Bytes before the first tensor: magic, version, length, header.
        tensors: The header's entries, in order.
    """

    header_bytes: int
    tensors: tuple[TensorHeader, ...]

    @property
    def index_bytes(self) -> int:
        """Bytes of all positions."""
        return sum(entry.index_bytes for entry in self.tensors)

    @property
    def value_bytes(self) -> int:
        """Bytes of all values."""
        return sum(entry.value_bytes for entry in self.tensors)

    @property
    def total_bytes(self) -> int:
        """Length of the payload."""
        return self.header_bytes + self.index_bytes + self.value_bytes


def write_header(entries: list[TensorHeader]) -> bytes:
    """Return magic, version, length and header.

    Raises:
        WireError: A limit of the format is exceeded.
    """
    return _written(tuple(entries))


@lru_cache(HEADERS_KEPT)
def _written(entries: tuple[TensorHeader, ...]) -> bytes:
    _check_entries(entries)
    header: bytes = _message(entries).SerializeToString(deterministic=True)
    if len(header) > MAX_HEADER_BYTES:
        raise WireError("header length", f"at most {MAX_HEADER_BYTES}", str(len(header)))
    return _PREAMBLE.pack(MAGIC, VERSION, len(header)) + header


def inspect(data: bytes) -> Contents:
    """Return the contents of ``data``, after all checks that need neither a schema nor the tensors' bytes.

    Raises:
        WireError: See FORMAT.md, checks 1 to 15.
    """
    if len(data) < _PREAMBLE.size:
        raise WireError("payload", f"at least {_PREAMBLE.size} bytes", str(len(data)))
    magic, version, length = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise WireError("magic", repr(MAGIC), repr(magic))
    if version != VERSION:
        raise WireError("version", str(VERSION), str(version))
    if length > min(MAX_HEADER_BYTES, len(data) - _PREAMBLE.size):
        limit = f"at most {MAX_HEADER_BYTES} and within {len(data)} bytes"
        raise WireError("header length", limit, str(length))
    start = _PREAMBLE.size + length
    contents = Contents(start, _read_entries(bytes(data[_PREAMBLE.size : start])))
    if len(data) != contents.total_bytes:
        raise WireError("payload length", str(contents.total_bytes), str(len(data)))
    return contents


def check_name_and_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raise if the format cannot hold a name or a shape.

    Raises:
        WireError: The name or the shape is invalid.
    """
    if not _NAME.fullmatch(name):
        raise WireError("name", "1 to 255 of A-Z a-z 0-9 _ . / : - not led by punctuation", name)
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(f"{name} shape", f"at most {MAX_DIMENSIONS} dimensions", str(len(shape)))
    if max(shape, default=0) > MAX_SIZE or min(shape, default=0) < 0 or math.prod(shape) > MAX_SIZE:
        raise WireError(f"{name} shape", f"at most {MAX_SIZE} entries", str(shape))


def _message(entries: Sequence[TensorHeader]) -> pb.Header:
    return pb.Header(
        tensors=[
            pb.Tensor(
                name=entry.name,
                shape=entry.shape,
                index=f"INDEX_{entry.index.name}",
                values=f"VALUE_{entry.values.name}",
                count=entry.count,
                index_bytes=entry.index_bytes,
                value_bytes=entry.value_bytes,
                axis=entry.axis,
                low_bits=entry.low_bits,
            )
            for entry in entries
        ]
    )


@lru_cache(HEADERS_KEPT)
def _read_entries(header: bytes) -> tuple[TensorHeader, ...]:
    try:
        message = pb.Header.FromString(header)
    except (DecodeError, ValueError) as error:
        raise WireError("header", "a protobuf Header", str(error)) from None
    if len(message.tensors) > MAX_TENSORS:
        raise WireError("header", f"at most {MAX_TENSORS} tensors", str(len(message.tensors)))
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != header:
        raise WireError("header", "canonical protobuf without unknown fields", "another form")
    entries = tuple(map(_read_entry, message.tensors))
    _check_entries(entries)
    return entries


def _read_entry(tensor: pb.Tensor) -> TensorHeader:
    check_name_and_shape(tensor.name, tuple(tensor.shape))
    if tensor.index not in _INDEX_CODING:
        raise WireError(f"{tensor.name} index", "a known index coding", str(tensor.index))
    if tensor.values not in _VALUE_CODING:
        raise WireError(f"{tensor.name} values", "a known value coding", str(tensor.values))
    return TensorHeader(
        tensor.name,
        tuple(tensor.shape),
        _INDEX_CODING[tensor.index],
        _VALUE_CODING[tensor.values],
        tensor.count,
        tensor.index_bytes,
        tensor.value_bytes,
        tensor.axis,
        tensor.low_bits,
    )


def _check_entries(entries: Sequence[TensorHeader]) -> None:
    if len(entries) > MAX_TENSORS:
        raise WireError("header", f"at most {MAX_TENSORS} tensors", str(len(entries)))
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise WireError("name", "each name once", entry.name)
        names.add(entry.name)
        _check_count(entry)
        _check_parameters(entry)
        _check_lengths(entry)


def _check_count(entry: TensorHeader) -> None:
    coding, size = entry.index, entry.size
    fewest, most = 0, size
    if coding is IndexCoding.DENSE:
        fewest = size
    elif coding in (IndexCoding.BITMAP, IndexCoding.ROWS, IndexCoding.ANS):
        fewest, most = 1, size - 1
    elif coding is IndexCoding.GAPS:
        most = size - 1
    if not fewest <= entry.count <= most:
        raise WireError(f"{entry.name} count", f"{fewest} to {most} for {coding.value}", str(entry.count))


def _check_parameters(entry: TensorHeader) -> None:
    coding, size = entry.index, entry.size
    if coding is IndexCoding.ROWS:
        if len(entry.shape) < 2 or entry.axis >= len(entry.shape):
            raise WireError(f"{entry.name} axis", "one of at least 2 axes", f"{entry.axis} of {len(entry.shape)}")
        if entry.count % (size // entry.shape[entry.axis]):
            raise WireError(f"{entry.name} count", "whole rows", str(entry.count))
    elif entry.axis:
        raise WireError(f"{entry.name} axis", f"0 for {coding.value}", str(entry.axis))
    most_low_bits = MAX_LOW_BITS if coding is IndexCoding.GAPS and entry.coded else 0
    if entry.low_bits > most_low_bits:
        raise WireError(f"{entry.name} low_bits", f"at most {most_low_bits}", str(entry.low_bits))


def _check_lengths(entry: TensorHeader) -> None:
    fewest = most = 0
    if entry.index is IndexCoding.BITMAP:
        fewest = most = (entry.size + 7) // 8
    elif entry.index is IndexCoding.ROWS:
        fewest = most = (entry.shape[entry.axis] + 7) // 8
    elif entry.index is IndexCoding.GAPS and entry.coded:
        bits = entry.coded * (entry.low_bits + 1)
        fewest, most = (bits + 7) // 8, (bits + (entry.size >> entry.low_bits) + 7) // 8
    elif entry.index is IndexCoding.ANS:
        fewest = ans.STATE_BYTES * ans.lanes(entry.size)
        most = fewest + ans.WORD_BYTES * ans.symbols(entry.size)
        if (entry.index_bytes - fewest) % ans.WORD_BYTES:
            raise WireError(f"{entry.name} index_bytes", f"{fewest} and whole words", str(entry.index_bytes))
    if not fewest <= entry.index_bytes <= most:
        raise WireError(f"{entry.name} index_bytes", f"{fewest} to {most}", str(entry.index_bytes))
    length = value_length(entry.values, entry.count)
    if entry.value_bytes != length:
        raise WireError(f"{entry.name} value_bytes", str(length), str(entry.value_bytes))
