"""The ring in which masked vectors are added, and how updates get there.

A vector has d entries of 32 or 16 bits and m figures of 32 bits, and is its bytes, little-endian. Sums are taken modulo
2^32 and 2^16. ``docs/secure-sums.md`` has the formulas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.errors import ProtocolError
from sepal.secure.masks import stream

FIGURE = 4  # bytes
MOST_FIGURE = 2**31 - 1


@dataclass(frozen=True)
class Ring:
    """The vectors of one sum.

    Attributes:
        entries: d.
        bits: Of an entry: 32 or 16.
        figures: m.
    """

    entries: int
    bits: int
    figures: int = 0

    def __post_init__(self) -> None:
        if self.bits not in (8, 16, 32):  # 8: worked examples
            raise ValueError("entries of 8, 16 or 32 bits")

    @property
    def entry_bytes(self) -> int:
        """Bytes of all entries."""
        return self.entries * self.bits // 8

    @property
    def size(self) -> int:
        """Bytes of a vector."""
        return self.entry_bytes + FIGURE * self.figures

    @property
    def _types(self) -> tuple[str, str]:
        return f"<u{self.bits // 8}", f"<u{FIGURE}"

    def parts(self, vector: bytes) -> list[npt.NDArray[Any]]:
        """Return a vector's entries and figures, as read-only arrays of unsigned integers.

        Raises:
            ProtocolError: It has another size.
        """
        if len(vector) != self.size:
            raise ProtocolError("masked input", f"{self.size} bytes", f"{len(vector)} bytes")
        entry_type, figure_type = self._types
        cut = self.entry_bytes
        entries = np.frombuffer(vector, entry_type, cut // (self.bits // 8))
        return [entries, np.frombuffer(vector, figure_type, -1, cut)]

    def vector(self, entries: npt.NDArray[np.int64], figures: Sequence[int]) -> bytes:
        """Return integers as a vector; negative ones as their residues.

        Args:
            entries: int64 (d,).
            figures: m integers.
        """
        if entries.shape != (self.entries,) or len(figures) != self.figures:
            raise ValueError(f"{self.entries} entries and {self.figures} figures")
        entry_type, figure_type = self._types
        return entries.astype(entry_type).tobytes() + np.asarray(figures, np.int64).astype(figure_type).tobytes()

    def centred(self, vector: bytes) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Return the integers of a vector, from -2^(b-1) to 2^(b-1) - 1: entries, int64 (d,), and figures."""
        entries, figures = self.parts(vector)
        signed = entries.astype(f"<u{self.bits // 8}").view(f"<i{self.bits // 8}").astype(np.int64)
        return signed, [int(value) for value in figures.astype("<u4").view("<i4")]


class Sum:
    """A running sum of vectors, in the ring.

    Args:
        ring: The vectors.
        start: What it begins with; by default 0.
    """

    def __init__(self, ring: Ring, start: bytes = b"") -> None:
        self._ring = ring
        self._parts = [part.copy() for part in ring.parts(start or bytes(ring.size))]

    def add(self, vector: bytes) -> None:
        """Add a vector."""
        for part, addend in zip(self._parts, self._ring.parts(vector), strict=True):
            np.add(part, addend, out=part)

    def subtract(self, vector: bytes) -> None:
        """Subtract a vector."""
        for part, subtrahend in zip(self._parts, self._ring.parts(vector), strict=True):
            np.subtract(part, subtrahend, out=part)

    def vector(self) -> bytes:
        """Return the sum."""
        return b"".join(part.tobytes() for part in self._parts)


def scale(bits: int, clients: int, reach: float) -> float:
    """Return S, by which a change times its share of the weights is multiplied: no sum over the clients can wrap.

    Args:
        bits: Of an entry.
        clients: |U1|.
        reach: ``secure-range``, the largest change of an entry.

    Raises:
        ProtocolError: So many clients leave nothing of the ring.
    """
    most: int = 2 ** (bits - 1) - 1 - clients
    if most < 1:
        raise ProtocolError("secure-bits", f"more bits for {clients} clients", bits)
    return most / reach


def within(change: npt.NDArray[np.float32], reach: float) -> bool:
    """Return whether a change can be summed: each entry is finite, and changes by at most ``reach``."""
    return bool(np.abs(change).max(initial=0.0) <= reach)  # NaN is not


def rounded(change: npt.NDArray[np.float32], factor: float, seed: bytes) -> npt.NDArray[np.int64]:
    """Return ⌊factor·change + u⌋, int64 (d,), with u uniform in [0, 1): its mean is factor·change.

    Args:
        change: float32 (d,).
        factor: Share of the weights times S.
        seed: 32 bytes from which u follows.
    """
    words = np.frombuffer(stream(seed, 4 * change.size), "<u4")
    scaled = change.astype(np.float64)
    scaled *= factor
    scaled += words * 2.0**-32
    return np.floor(scaled).astype(np.int64)


def rounding_seed(seed: int, client: str, round: int) -> bytes:
    """Return what the rounding of a client's update follows from; it is no secret."""
    return hashlib.sha256(f"sepal rounding|{seed}|{client}|{round}".encode()).digest()


def mean_change(
    total: npt.NDArray[np.int64], factor: float, all_weights: float, weights: float
) -> npt.NDArray[np.float64]:
    """Return Σ w·Δ / Σ w over the clients in a sum, float64 (d,).

    Args:
        total: The sum's entries, int64 (d,).
        factor: S.
        all_weights: W, over U1.
        weights: W3, over U3.
    """
    return total.astype(np.float64) * (all_weights / (factor * weights))
