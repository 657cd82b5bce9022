"""What a round's secure sums come to: the mean of the updates as one upload, and figures over all clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.errors import DamagedError, SepalError
from sepal.method.interface import RunSetup
from sepal.protocol.summed import Entries, added_sums, beyond_range, sums_of
from sepal.protocol.types import ClientInfo, Payload, Upload
from sepal.secure.ring import Ring, mean_change, scale
from sepal.server.downloads import Downloads, room
from sepal.server.run_state import RoundStart
from sepal.server.run_store import RunStore
from sepal.storage.regular import check_parts
from sepal.storage.serialize import SPARING, restore
from sepal.wire.tensors import TensorSpec

SUM = "sum"  # the part of a round that has the sums


@dataclass(frozen=True)
class StoredSum:
    """The sum of one group of clients: of those that train, or of those that are evaluated alone.

    Attributes:
        trains: Which of the two.
        names: U3, sorted; nobody where the sum is void.
        lost: Those of U1 that are not in it, each with the reason.
        weights: Σ w over U3.
        total: Σ w over U1.
        clients: |U1|.
        bits: Of an entry.
        range: The largest change of an entry.
        entries: d.
        figures: m.
        void: Why there is no sum; empty if there is one.
        step: With noise in the sum, what one of its steps is worth; else 0.
        asked: Whether masked inputs were asked for: only then the server may have learned anything.
        vector: The sum; empty where it is void.
    """

    trains: bool
    names: tuple[str, ...]
    lost: Mapping[str, str]
    weights: float
    total: float
    clients: int
    bits: int
    range: float
    entries: int
    figures: int
    void: str = ""
    step: float = field(default=0.0, metadata=SPARING)
    asked: bool = field(default=True, metadata=SPARING)
    vector: bytes = field(default=b"", repr=False)

    @property
    def beyond(self) -> int:
        """How many of the clients are beyond ``secure-range``, so that their updates count as no change.

        Those that are only evaluated have no updates: what one that lies adds to their figure is nobody's.
        """
        return 0 if self.void or not self.trains else beyond_range(self.centred[1], len(self.names))

    @property
    def centred(self) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The integers of the sum: entries, int64 (d,), and figures."""
        return Ring(self.entries, self.bits, self.figures).centred(self.vector)


@contextmanager
def reading(round: int, what: str) -> Iterator[None]:
    """Make one error of whatever is wrong with a stored part of a round, which may come from elsewhere.

    Args:
        round: The round.
        what: The part, for the error.

    Raises:
        DamagedError: See above.
    """
    try:
        yield
    except (SepalError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as reason:
        raise DamagedError(f"round {round}", what, f"a damaged one ({type(reason).__name__}: {reason})") from reason


def pack(head: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """Return JSON and bytes as one part of a round."""
    line = json.dumps({**head, "sizes": [len(blob) for blob in blobs]}, sort_keys=True)
    return line.encode() + b"\n" + b"".join(blobs)


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return what :func:`pack` has packed."""
    line, _, rest = data.partition(b"\n")
    check_parts("a part of a round", line)
    head, at, blobs = json.loads(line), 0, []
    for size in head.pop("sizes"):
        blobs.append(rest[at : at + size])
        at += size
    return head, blobs


def write_sums(sums: Sequence[StoredSum], more: Mapping[str, Any]) -> bytes:
    """Return sums as a part of a round, with ``more`` in its head."""
    heads = [{key: value for key, value in asdict(part).items() if key != "vector"} for part in sums]
    return pack({**more, "sums": heads}, [part.vector for part in sums])


def read_sums(data: bytes) -> tuple[list[StoredSum], dict[str, Any]]:
    """Return the sums of a part, and the rest of its head."""
    head, vectors = unpack(data)
    heads = head.pop("sums")
    pairs = zip(heads, vectors, strict=True)
    return [restore(StoredSum, {}, {**one, "vector": vector}) for one, vector in pairs], head


@dataclass(frozen=True)
class SummedUploads:
    """A round's uploads of which only the mean is known: it is iterated as one upload of all clients together.

    Attributes:
        clients: The clients in the sum, sorted by name.
        mean: Σ w·u / Σ w over them; None if nobody is in it.
    """

    clients: Sequence[ClientInfo]
    mean: Payload | None

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Upload]:
        if self.mean is not None:
            examples = sum(client.examples for client in self.clients)
            yield Upload(ClientInfo(f"the sum of {len(self.clients)} clients", max(1, examples)), self.mean)


def entries_of(start: RoundStart, downloads: Downloads, setup: RunSetup, name: str) -> Entries:
    """Return the entries that the clients of a round send, by what client ``name`` was sent."""
    specs = start.upload_schema(name).tensors
    plain = {key: spec for key, spec in specs.items() if isinstance(spec, TensorSpec)}
    if len(plain) < len(specs):
        raise TypeError("summed uploads have specs that follow from the server's state alone")
    return Entries.of(plain, downloads.get(name).payload, setup.weights)


def summed_uploads(
    start: RoundStart, downloads: Downloads, setup: RunSetup, sums: Sequence[StoredSum]
) -> SummedUploads:
    """Return a round's uploads, from its sums; nobody's if the sum of those that train is void."""
    for part in sums:
        if part.trains and not part.void:
            if part.step:
                mean = part.centred[0].astype(np.float64) * (part.step / len(part.names))
            else:
                factor = scale(part.bits, part.clients, part.range)
                mean = mean_change(part.centred[0], factor, part.total, part.weights)
            payload = Payload(entries_of(start, downloads, setup, part.names[0]).tensors(mean))
            return SummedUploads([start.state.roster[name] for name in part.names], payload)
    return SummedUploads([], None)


def sums_by_name(sums: Sequence[StoredSum], views: Sequence[str]) -> dict[str, float]:
    """Return the sums of the clients' figures by name, over all groups that have a sum."""
    parts = []
    for part in sums:
        if not part.void:
            parts.append(sums_of(part.centred[1], views, part.clients))
    return added_sums(parts)


def replayed_sum(start: RoundStart, round: int, store: RunStore, setup: RunSetup) -> SummedUploads:
    """Return the uploads of a recorded round, from its stored sum.

    Raises:
        DamagedError: There is none, or it cannot be used.
    """
    data = store.part(round, SUM)
    if data is None:
        raise DamagedError(f"round {round}", "its sum", "none")
    with reading(round, "its sum"):
        return summed_uploads(start, Downloads(start, room(setup)), setup, read_sums(data)[0])
