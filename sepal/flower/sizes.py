"""How many bytes a message's records have as Flower sends them, without writing them.

Flower sends a RecordDict as objects: the RecordDict itself, a list of names and of its records' SHA-256, and each
different record once. An object is a head (class, ids of its children, length of the body) and a body; the body of a
record of numbers and texts is Protocol Buffers. Writing and hashing all of them took a millisecond a message, most of a
small client's round. The tests compare every size with what Flower writes, so a release that writes otherwise is seen;
what Flower adds to an array is measured.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from flwr.app import ConfigRecord, MetricRecord

from sepal.errors import ProtocolError

Part: TypeAlias = tuple[type[ConfigRecord] | type[MetricRecord], Mapping[str, Any]]
_ID = 64  # characters of a SHA-256
_ARRAY_FRAME = 480  # head of an Array and of its ArrayRecord
_CHUNK = 5 * 2**20  # an Array's bytes are split into chunks of this size
_CHUNK_FRAME = 88  # head and id of every chunk after the first


def array_bytes(size: int) -> int:
    """Return the size in bytes of an ArrayRecord with one Array of ``size`` bytes as Flower sends it."""
    return size + _ARRAY_FRAME + _CHUNK_FRAME * (max(0, size - 1) // _CHUNK)


def records_bytes(records: Mapping[str, Part]) -> int:
    """Return the size in bytes of a RecordDict as Flower sends it.

    Args:
        records: By name, each record's class and what it contains; none is an ArrayRecord.

    Raises:
        ProtocolError: A value is of a type that Flower does not send, such as a number of NumPy.
    """
    different: list[tuple[int, Part]] = []
    for record in records.values():
        size = _record_bytes(record)
        if not any(size == twin_size and _alike(record, twin) for twin_size, twin in different):
            different.append((size, record))
    names = [len(json.dumps(name)) + len(': ""') + _ID for name in records]
    body = len("{}") + sum(names) + len(", ") * max(0, len(names) - 1)
    ids = _ID * len(different) + max(0, len(different) - 1)
    return _object_bytes("RecordDict", ids, body) + sum(size for size, _ in different)


def _object_bytes(kind: str, ids: int, body: int) -> int:
    return len(kind) + 1 + ids + 1 + len(str(body)) + 1 + body


def _alike(first: Part, second: Part) -> bool:
    """Return whether Flower writes the same bytes for both; the first difference ends the comparison."""
    same = first[0] is second[0] and list(first[1]) == list(second[1])
    return same and all(map(_equal, first[1].values(), second[1].values()))


def _equal(first: Any, second: Any) -> bool:
    """Return whether two values are written alike: 1, True and 1.0 are not, nor 0.0 and -0.0."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(struct.pack("d", first) == struct.pack("d", second) if isinstance(first, float) else first == second)


def _record_bytes(record: Part) -> int:
    kind, items = record
    body = 0
    for key, value in items.items():
        name = _field(_length(key)) if key else 0  # Protocol Buffers leaves out an empty text
        body += _field(name + _field(_value_bytes(value)))
    return _object_bytes(kind.__name__, 0, body)


def _value_bytes(value: Any) -> int:
    """Return the length of a ConfigRecordValue or MetricRecordValue, whose lists have field numbers above 15."""
    if not isinstance(value, list):
        return 1 + (_length(value) if isinstance(value, int | float) else _varint(_length(value)) + _length(value))
    if all(isinstance(item, int | float) for item in value):
        unsigned = any(isinstance(item, int) and item >= 2**63 for item in value)
        content = sum(map(_varint if unsigned else _length, value))
        inner = _field(content) if value else 0
    else:
        inner = sum(_field(_length(item)) for item in value)
    return 2 + _varint(inner) + inner


def _length(value: bool | float | str | bytes) -> int:
    """Return the bytes of a single value without its tag, and of a text without its length."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return _varint(value if value >= 2**63 else 2 * value if value >= 0 else -2 * value - 1)
    if isinstance(value, float):
        return 8
    if not isinstance(value, str | bytes):
        raise ProtocolError("message", "a number, text, truth value or bytes of Python", type(value).__name__)
    return len(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)


def _varint(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _field(length: int) -> int:
    """Return the bytes of a field of ``length`` bytes with its tag and its length."""
    return 1 + _varint(length) + length
