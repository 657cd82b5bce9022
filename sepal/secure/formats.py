"""The payloads of the steps, byte for byte, and the rules by which a step goes on. What is malformed is refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from sepal.errors import ProtocolError
from sepal.secure.keys import CIPHERTEXT, PUBLIC
from sepal.secure.shamir import SHARE, threshold

ID = 4  # bytes
LEAST_CLIENTS = 3
MOST_CLIENTS = 2**16
SPARING = {"sparing": True}  # may be left out where it is stored (sepal.storage.serialize)


@dataclass(frozen=True)
class Terms:
    """What a sum is about. Both sides derive it for themselves, so what one was told otherwise shows.

    Attributes:
        run: UUID of the run.
        round: From 1.
        model: Digest of the tensors from which the clients trained, and of the positions that they send.
        bits: Of an entry.
        range: The largest change of an entry.
        entries: d.
        figures: m.
        total: W, the sum of the weights over U1.
        colluders: c.
        clip: C, the largest norm of a change, with noise in the sum; else 0.
        noise: z, its multiplier; else 0.
    """

    run: str
    round: int
    model: str
    bits: int
    range: float
    entries: int
    figures: int
    total: float
    colluders: int
    clip: float = field(default=0.0, metadata=SPARING)
    noise: float = field(default=0.0, metadata=SPARING)

    def context(self, keys: Mapping[int, bytes]) -> bytes:
        """Return the digest to which all derived keys are bound, 32 bytes.

        Args:
            keys: Id to public keys, of all of U1.
        """
        roster = hashlib.sha256(b"".join(_id(client) + keys[client] for client in sorted(keys))).hexdigest()
        plain = {"clip", "noise"} if not self.noise else set()
        terms = {name: value for name, value in asdict(self).items() if name not in plain}
        text = json.dumps({**terms, "keys": roster}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()


def fewest_clients(clients: int, colluders: int) -> int:
    """Return how many clients of U1 must stay: max(t, c + 2)."""
    return max(threshold(clients, colluders), colluders + 2)


def _id(client: int) -> bytes:
    return client.to_bytes(ID, "little")


def write_entries(entries: Mapping[int, bytes]) -> bytes:
    """Return ids, each followed by its bytes, in the order of ids."""
    return b"".join(_id(client) + entries[client] for client in sorted(entries))


def read_entries(key: str, data: bytes, size: int) -> dict[int, bytes]:
    """Return id to bytes.

    Args:
        key: What they are, for an error.
        data: As :func:`write_entries` wrote it.
        size: Bytes of each.

    Raises:
        ProtocolError: There is half of one, or ids are not increasing.
    """
    step = ID + size
    if len(data) % step or len(data) > step * MOST_CLIENTS:
        raise ProtocolError(key, f"entries of {step} bytes", f"{len(data)} bytes")
    pairs = [
        (int.from_bytes(data[at : at + ID], "little"), data[at + ID : at + step]) for at in range(0, len(data), step)
    ]
    ids = [client for client, _ in pairs]
    if any(after <= before for before, after in pairwise(ids)):
        raise ProtocolError(key, "increasing ids, each once", "others")
    return dict(pairs)


def read_keys(key: str, data: bytes) -> dict[int, bytes]:
    """Return id to public keys."""
    return read_entries(key, data, PUBLIC)


def read_ciphertexts(key: str, data: bytes) -> dict[int, bytes]:
    """Return id to ciphertext."""
    return read_entries(key, data, CIPHERTEXT)


def read_shares(key: str, data: bytes) -> dict[int, bytes]:
    """Return id to share."""
    return read_entries(key, data, SHARE)


def write_present(asked: Sequence[int], present: Collection[int]) -> bytes:
    """Return one bit for each of ``asked``, in order, the lowest of a byte first: 1 if it is ``present``."""
    bits = bytearray(-(-len(asked) // 8))
    for place, client in enumerate(asked):
        bits[place // 8] |= (client in present) << place % 8
    return bytes(bits)


def read_present(key: str, data: bytes, asked: Sequence[int]) -> frozenset[int]:
    """Return which of ``asked`` are present.

    Raises:
        ProtocolError: There is another number of bits.
    """
    if len(data) != -(-len(asked) // 8) or int.from_bytes(data, "little") >> len(asked):
        raise ProtocolError(key, f"{len(asked)} bits", f"{len(data)} bytes")
    return frozenset(client for place, client in enumerate(asked) if data[place // 8] >> place % 8 & 1)


def check_weight(weight: object, total: object) -> tuple[float, float]:
    """Return a client's weight and the sum of all weights, as the server states them.

    Raises:
        ProtocolError: They are no weights.
    """
    for value in (weight, total):
        if not isinstance(value, float) or not math.isfinite(value):
            raise ProtocolError("weight", "a finite number", value)
    if not 0 <= float(weight) <= float(total):  # type: ignore[arg-type]
        raise ProtocolError("weight", f"from 0 to the sum of all, {total}", weight)
    return float(weight), float(total)  # type: ignore[arg-type]
