"""The limits of a message's records, and the fields of a record, each read with its type checked.

A message that is not as ours are raises ProtocolError.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from sepal.errors import ProtocolError
from sepal.names import NAME
from sepal.protocol.types import Kind, Scalar
from sepal.tasks.scoring import MOST_SUMS

MOST_RECORDS, MOST_KEYS, MOST_ITEMS = 32, 256, 131_072  # of a message; of a record; of a list, text or bytes in it
MOST_LISTED = 4096  # items of all lists of a message; ours have none, and Flower takes several µs to write one
MOST_NAME = 256  # characters of a record's name, and of a key
MOST_METRICS, GREATEST = 96, 1e18  # of a reply; a sum of squares of GREATEST is still a float


def config(records: RecordDict, name: str) -> ConfigRecord:
    """Return the ConfigRecord ``name``; empty if there is none. Flower's ``config_records`` copies all of them."""
    record = records.get(name)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def arrays_of(records: RecordDict) -> list[Array]:
    """Return the arrays of all ArrayRecords, in their order."""
    return [array for record in records.values() if isinstance(record, ArrayRecord) for array in record.values()]


def light_records(records: RecordDict) -> dict[str, tuple[type, Mapping[str, Any]]]:
    """Return the class and the items of every record that has no arrays, by name."""
    return {name: (type(record), record) for name, record in records.items() if not isinstance(record, ArrayRecord)}


def check_counts_of(records: RecordDict) -> None:
    """Check the numbers of records, keys and items of a message, which takes no longer for a large message.

    Raises:
        ProtocolError: There are more than in any of our messages.
    """
    if len(records) > MOST_RECORDS:
        raise ProtocolError("message", f"at most {MOST_RECORDS} records", len(records))
    listed = 0
    for name, record in records.items():
        most = MOST_METRICS if name in ("metrics", "facts", "sums") else MOST_KEYS
        if len(record) > most:
            raise ProtocolError(name, f"at most {most}", len(record))
        for key, value in record.items():
            if len(key) > MOST_NAME or len(name) > MOST_NAME:
                raise ProtocolError(
                    "message", f"names and keys of at most {MOST_NAME} characters", len(name) + len(key)
                )
            if isinstance(value, list | str | bytes) and len(value) > MOST_ITEMS:
                raise ProtocolError(f"{name}.{key}"[:100], f"at most {MOST_ITEMS} items", len(value))
            listed += len(value) if isinstance(value, list) else 0
    if listed > MOST_LISTED:
        raise ProtocolError("message", f"at most {MOST_LISTED} items in lists", listed)


def scalars(records: RecordDict, name: str) -> dict[str, Scalar]:
    """Return the scalars of the record ``name``; none if the message lacks it."""
    out: dict[str, Scalar] = {}
    for key, value in config(records, name).items():
        if not isinstance(value, bool | int | float | str):
            raise ProtocolError(f"{name}.{key}", "a number, text or truth value", type(value).__name__)
        out[key] = value
    return out


def metrics(records: RecordDict) -> dict[str, float]:
    """Return a reply's counts and figures, from 0 to ``GREATEST`` each; none if the message lacks them."""
    record = records.get("metrics")
    if not isinstance(record, MetricRecord):
        return {}
    if len(record) > MOST_METRICS:
        raise ProtocolError("metrics", f"at most {MOST_METRICS}", len(record))
    for key, value in record.items():
        if not NAME.match(key):
            raise ProtocolError("metrics", "names of at most 64 letters, digits, '.', '_' or '-'", key)
        if isinstance(value, list) or not 0 <= value <= GREATEST:
            raise ProtocolError(f"metrics.{key}", f"a number from 0 to {GREATEST:g}", value)
    return {key: float(value) for key, value in record.items() if not isinstance(value, list)}


def packed(values: Sequence[float]) -> bytes:
    """Return numbers as bytes of float64, little-endian."""
    return struct.pack(f"<{len(values)}d", *values)


def sums(records: RecordDict) -> dict[str, tuple[float, ...]]:
    """Return a reply's sums of metrics by name, each finite; none if the message lacks them.

    How many there are for each name is checked against the run's task (:mod:`sepal.server.answers`).
    """
    sums_by_name = {}
    for key, value in config(records, "sums").items():
        if not NAME.match(key):
            raise ProtocolError("sums", "names of at most 64 letters, digits, '.', '_' or '-'", key)
        if not isinstance(value, bytes) or len(value) % 8 or len(value) > 8 * MOST_SUMS:
            got = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
            raise ProtocolError(f"sums.{key}", f"bytes of at most {MOST_SUMS} float64", got)
        numbers = struct.unpack(f"<{len(value) // 8}d", value)
        if not all(math.isfinite(number) for number in numbers):
            raise ProtocolError(f"sums.{key}", "finite numbers", "NaN or infinity")
        sums_by_name[key] = numbers
    return sums_by_name


def text(head: ConfigRecord, key: str, most: int = 256) -> str:
    """Return the text at ``key``, of at most ``most`` characters."""
    value = head.get(key)
    if not isinstance(value, str) or len(value) > most:
        got_text = value if isinstance(value, str) else type(value).__name__
        raise ProtocolError(key, f"text of at most {most} characters", got_text)
    return value


def name(head: ConfigRecord, key: str) -> str:
    """Return the name of a client or run at ``key``."""
    value = text(head, key)
    if not NAME.match(value):
        raise ProtocolError(key, "a name of at most 64 letters, digits, '.', '_' or '-'", value)
    return value


def truth(head: ConfigRecord, key: str) -> bool:
    """Return the truth value at ``key``."""
    value = head.get(key)
    if not isinstance(value, bool):
        raise ProtocolError(key, "a truth value", type(value).__name__)
    return value


def number(head: ConfigRecord, key: str, least: int, above: int) -> int:
    """Return the whole number at ``key``, from ``least`` to ``above`` - 1."""
    value = head.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < above:
        raise ProtocolError(key, f"a whole number from {least} to {above - 1}", value)
    return value


def positive(head: ConfigRecord, key: str) -> float:
    """Return the number above 0 at ``key``, which is finite."""
    value = head.get(key)
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise ProtocolError(key, "a finite number above 0", value)
    return value


def kind(head: ConfigRecord) -> Kind:
    """Return what the order or reply is about."""
    value = text(head, "kind")
    if value not in {member.value for member in Kind}:
        raise ProtocolError("kind", f"one of {', '.join(Kind)}", value)
    return Kind(value)
