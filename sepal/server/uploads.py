"""A round's accepted uploads, decoded for the server algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from sepal.errors import ProtocolError, WireError
from sepal.method.algorithms import HasReference
from sepal.method.interface import RunSetup
from sepal.method.means import BLOCK, blocks, values
from sepal.protocol.messages import Content
from sepal.protocol.payloads import unseal
from sepal.protocol.types import ClientInfo, Kind, Payload, Upload, Weights
from sepal.server.downloads import Downloads, payload_bytes, room
from sepal.server.guard import Change, length
from sepal.server.run_state import RoundRecord, RoundStart
from sepal.server.run_store import RunStore
from sepal.storage.bounded import BoundedCache
from sepal.wire.tensors import SparseTensor


class RoundUploads:
    """Uploads in the order of client names; may be iterated more than once.

    Checking an upload decodes it. Decoded uploads are kept as far as ``limit`` allows; any other upload is read and
    decoded again in each iteration.

    Args:
        start: The inputs of the round.
        downloads: The downloads that the uploads answer.
        read: Returns the content of an accepted upload, by client name.
        limit: Bytes of decoded uploads to keep in memory.
    """

    def __init__(
        self,
        start: RoundStart,
        downloads: Downloads,
        read: Callable[[str], Content],
        limit: int,
    ) -> None:
        self._start, self._downloads, self._read = start, downloads, read
        self._decoded: BoundedCache[Payload] = BoundedCache(limit)
        self._names: set[str] = set()

    def check(self, name: str, content: Content) -> None:
        """Check client ``name``'s upload against the schema.

        Raises:
            WireError: The bytes are not a payload, or do not match the schema.
            ProtocolError: A scalar is missing, unknown, of the wrong type or out of bounds.
        """
        try:
            payload = self._decode(name, content)
        except (WireError, ProtocolError) as reason:
            got = f"{reason.got} in the upload (see {type(self._start.algorithm).__name__}.upload_schema)"
            raise type(reason)(reason.key, reason.expected, got) from None
        self._decoded.keep(name, payload, payload_bytes(payload))

    def norm(self, name: str, content: Content | None = None) -> float:
        """Return the Euclidean norm of the change that client ``name`` uploads, over all values that it sent.

        What the client trained from is subtracted where the upload has weights (``ServerBase.reference``).

        Args:
            name: The client.
            content: Its upload, if it has not been stored yet.
        """
        return math.sqrt(sum(change.norm**2 for change in self.changes(name, content).values()))

    def changes(self, name: str, content: Content | None = None) -> dict[str, Change]:
        """Return the change of each tensor with values that ``name`` uploads from what the client trained from."""
        start, payload = self._start, self._decoded.get(name) or self._decode(name, content or self._read(name))
        reference: Weights = {}
        if isinstance(start.algorithm, HasReference):
            client, download = start.state.roster[name], self._downloads.get(name).payload
            reference = start.algorithm.reference(start.state.server, client, start.plan, download)
        tensors = {key: tensor for key, tensor in payload.tensors.items() if tensor.values is not None}
        return {key: _change(tensor, reference.get(key)) for key, tensor in tensors.items()}

    def refuse(self, name: str) -> None:
        """Remove the upload of client ``name`` from those that are iterated."""
        self._names.discard(name)
        self._decoded.drop(name)

    def holds(self, name: str) -> bool:
        """Return whether the decoded upload of client ``name`` is kept in memory."""
        return self._decoded.get(name) is not None

    def accept(self, name: str) -> None:
        """Add the upload of client ``name`` to those that are iterated."""
        self._names.add(name)

    def _decode(self, name: str, content: Content) -> Payload:
        schema = self._start.upload_schema(name)
        payload = unseal(content, schema, lambda: self._downloads.get(name).payload.tensors)
        for tensor in payload.tensors.values():  # the same arrays are returned by every iteration
            if tensor.values is not None:
                tensor.values.setflags(write=False)
        return payload

    @property
    def clients(self) -> list[ClientInfo]:
        """The clients that uploaded, sorted by name; does not decode any upload."""
        return [self._start.state.roster[name] for name in sorted(self._names)]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Upload]:
        for name in sorted(self._names):
            payload = self._decoded.get(name)
            if payload is None:
                payload = self._decode(name, self._read(name))
                self._decoded.keep(name, payload, payload_bytes(payload))
            yield Upload(self._start.state.roster[name], payload)


def _change(tensor: SparseTensor, reference: npt.NDArray[np.float32] | None) -> Change:
    """Return the change of ``tensor`` from ``reference``. A reference of another shape does not count."""
    change = values(tensor)
    if reference is None or reference.shape != tensor.shape:
        return Change(length(change.astype(np.float64)))
    at_entries = reference.reshape(-1)
    if tensor.index is not None:
        at_entries = at_entries[tensor.index]
    return Change(_distance(change, at_entries), at_entries)


def _distance(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Return the Euclidean norm of a - b, computed in float64; infinite or NaN where an entry is."""
    flat_a, flat_b, differences, total = a.reshape(-1), b.reshape(-1), np.empty(min(a.size, BLOCK)), 0.0
    for block in blocks(a.size):
        out = differences[: len(flat_a[block])]
        total += length(np.subtract(flat_a[block], flat_b[block], out=out, dtype=np.float64)) ** 2
    return math.sqrt(total)


def replayed_uploads(start: RoundStart, record: RoundRecord, store: RunStore, setup: RunSetup) -> RoundUploads:
    """Return the uploads of a recorded round, from the store."""
    uploads = RoundUploads(start, Downloads(start, room(setup)), partial(store.read, record.round), room(setup))
    for name, reply in record.replies.items():
        if reply.kind is Kind.TRAIN:
            uploads.accept(name)
    return uploads
