"""Strings of bits: bit ``i`` is bit ``i % 8``, counted from the least significant, of byte ``i // 8``.

Strings are read in blocks, so that temporaries fit into the CPU cache.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.errors import WireError
from sepal.wire.tensors import Array, Index

Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK = 1 << 15  # bytes read at a time: 32 KiB, which are 256 KiB when unpacked


def packed(bits: Array) -> Bytes:
    """Return bits, bool or 0/non-0 (n,), packed as uint8 (⌈n / 8⌉,), padded with 0."""
    return np.packbits(bits, bitorder="little")


def span(data: Bytes, start: int, count: int) -> Bytes:
    """Return the bits ``start`` to ``start + count`` of ``data``, uint8 (count,), each 0 or 1."""
    skip = start & 7
    return np.unpackbits(data[start >> 3 :], count=skip + count, bitorder="little")[skip:]


def ones(data: Bytes, start: int, count: int, key: str) -> Index:
    """Return the positions of set bits from bit ``start`` on, relative to it: int64 (count,), strictly increasing.

    Raises:
        WireError: The number of set bits is not ``count``.
    """
    positions = np.empty(count, np.int64)
    written = 0
    for at in range(start >> 3, data.size, BLOCK):
        bits = np.unpackbits(data[at : at + BLOCK], bitorder="little").view(np.bool_)
        if 8 * at < start:
            bits[: start & 7] = False
        block_positions = np.flatnonzero(bits)
        if written + block_positions.size > count:
            raise WireError(key, f"{count} set bits", "more")
        np.add(block_positions, 8 * at - start, out=positions[written : written + block_positions.size])
        written += block_positions.size
    if written < count:
        raise WireError(key, f"{count} set bits", str(written))
    return positions
