"""Small payloads that the tests of refusals spoil."""

import struct

import pytest

from sepal.errors import WireError
from sepal.wire import TensorSpec, decode
from sepal.wire import sparse_pb2 as pb


def wrap(
    header: bytes, body: bytes = b"", magic: bytes = b"SEPAL", version: int = 1, length: int | None = None
) -> bytes:
    return struct.pack("<5sBI", magic, version, len(header) if length is None else length) + header + body


def one(body: bytes = b"", **fields: object) -> bytes:
    """A payload of one mask ``w`` of shape (4, 6), `gaps`, no entry present, unless ``fields`` say otherwise."""
    default = {"name": "w", "shape": [4, 6], "index": pb.INDEX_GAPS, "values": pb.VALUE_NONE}
    return wrap(pb.Header(tensors=[pb.Tensor(**{**default, **fields})]).SerializeToString(), body)


def refused(data: bytes, match: str, spec: TensorSpec | None = None, **specs: TensorSpec) -> None:
    with pytest.raises(WireError, match=match):
        decode(data, specs or {"w": spec or TensorSpec((4, 6), values=False)})
