"""The ledger: the size of every message, by client, direction and purpose.

Each entry has three sizes in bytes. *payload*: the encoded wire payload; methods are compared by this one. *message*:
the payload and everything that Flower adds, before gRPC framing and TLS. *dense*: the whole model as float32, which
FedAvg would send; ratios are relative to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import RecordDict

from sepal.errors import ProtocolError
from sepal.flower.sizes import array_bytes, records_bytes
from sepal.protocol.fields import arrays_of, check_counts_of, light_records
from sepal.protocol.messages import Enclosed
from sepal.storage.serialize import SPARING

PURPOSES = ("training", "evaluation", "closing")
DIRECTIONS = ("down", "up")


@dataclass(frozen=True)
class LedgerEntry:
    """One message of one round.

    Attributes:
        direction: ``down`` (server to client) or ``up``.
        payload: Encoded payload, bytes.
        message: Content of the Flower message, bytes; 0 if no message came.
        dense: Dense equivalent, bytes; 0 if the message carries no model.
        status: ``accepted``, ``refused``, ``missing``, ``late``, or ``undone`` for a message of a round that was
            repeated (:mod:`sepal.server.recovery`).
        reason: Why a message was not accepted.
        step: With secure sums, what the message was about: ``keys``, ``share``, ``mask`` or ``unmask``; else empty.
    """

    round: int
    client: str
    purpose: str
    direction: str
    payload: int
    message: int
    dense: int
    status: str = "accepted"
    reason: str = ""
    step: str = field(default="", metadata=SPARING)


@dataclass(frozen=True)
class Bytes:
    """Sums of payloads and their dense equivalents by direction, and of whole messages."""

    up: int = 0
    down: int = 0
    up_dense: int = 0
    down_dense: int = 0
    up_message: int = 0
    down_message: int = 0

    def plus(self, entry: LedgerEntry) -> Bytes:
        """Return the sums with ``entry`` added."""
        names = {entry.direction: entry.payload, f"{entry.direction}_dense": entry.dense}
        names[f"{entry.direction}_message"] = entry.message
        return replace(self, **{name: getattr(self, name) + value for name, value in names.items()})


@dataclass(frozen=True)
class Totals:
    """Bytes so far, by purpose."""

    training: Bytes = field(default_factory=Bytes)
    evaluation: Bytes = field(default_factory=Bytes)
    closing: Bytes = field(default_factory=Bytes)

    def plus(self, entries: Iterable[LedgerEntry]) -> Totals:
        """Return the totals with ``entries`` added."""
        sums = {purpose: getattr(self, purpose) for purpose in PURPOSES}
        for entry in entries:
            sums[entry.purpose] = sums[entry.purpose].plus(entry)
        return Totals(**sums)

    def summary(self) -> dict[str, object]:
        """Return the ``bytes`` of summary.json: training at the top, every purpose's sums under ``total``."""
        head = {name: getattr(self.training, name) for name in ("up", "down", "up_dense", "down_dense")}
        parts = {purpose: vars(getattr(self, purpose)) for purpose in PURPOSES}
        names = vars(self.training)
        whole: Mapping[str, int] = {name: sum(part[name] for part in parts.values()) for name in names}
        return {**head, "purposes": parts, "total": whole}


def message_bytes(records: RecordDict) -> int:
    """Return the size in bytes of a message's records as Flower sends them.

    Arrays are not serialized again: their size follows from the number of their bytes. For a message
    with more records or keys than ours have, the size is a lower bound, because serializing it would take long.
    """
    if isinstance(records, Enclosed) and not records.written:
        payload = len(records.content.data)
        return records_bytes(records.parts) + (array_bytes(payload) if payload else 0)
    arrays = arrays_of(records)
    try:
        check_counts_of(records)
    except ProtocolError:
        names = sum(map(len, records)) + sum(sum(map(len, record)) for record in records.values())
        return names + sum(len(array.data) for array in arrays)
    return records_bytes(light_records(records)) + sum(array_bytes(len(array.data)) for array in arrays)


def check_size(size: int, most: int) -> None:
    """Raise ProtocolError if a message has more than ``most`` bytes; called before any of it is decoded."""
    if size > most:
        raise ProtocolError("max-message-bytes", f"a message of at most {most} bytes", f"{size} bytes")
