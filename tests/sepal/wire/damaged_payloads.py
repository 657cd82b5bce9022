"""Small payloads that the tests of refusals spoil."""

import struct

import pytest

from sepal.errors import WireError
from sepal.wire import (
    TensorSpec,
    decode,
)
from sepal.wire import sparse_pb2 as pb


def wrap(
    header: bytes, body: bytes = b"", magic: bytes = b"SEPAL", version: int = 1, length: int | None = None
) -> bytes:
    return struct.pack("<5sBI", magic, version, len(header) if length is None else length) + header + body


def one(body: bytes = b"", **fields: object) -> bytes:
    """A payload of one mask ``w`` of shape (4, 6), `gaps`, no entry present, unless ``fields`` say otherwise."""
    default = {"name": "w", "shape": [4, 6], "index": pb.INDEX_GAPS, "values": pb.VALUE_NONE}
    return wrap(pb.Header(tensors=[pb.Tensor(**{**default, **fields})]).SerializeToString(), body)


# a, b, c = 11000000, 01000000, 10000001: positions 0, 1, 9, 16, 23. Codes 1110, 011, five times 00, 110: the first bits
# 10000001, the second ones 11000001, the third ones 110, the fourth one 0.
TRIPLES = bytes([0x81, 0x83, 0x03])


def triples(body: bytes = TRIPLES, **fields: object) -> bytes:
    default = {"index": pb.INDEX_TRIPLES, "count": 5, "third_bytes": 1, "index_bytes": len(body)}
    return one(body, **{**default, **fields})


def refused(data: bytes, match: str, spec: TensorSpec | None = None, **specs: TensorSpec) -> None:
    with pytest.raises(WireError, match=match):
        decode(data, specs or {"w": spec or TensorSpec((4, 6), values=False)})
