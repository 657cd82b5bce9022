"""Entropy coding of a mask by asymmetric numeral systems, rANS (FORMAT.md, "ans").

Duda, "Asymmetric numeral systems", 2014 (https://arxiv.org/abs/1311.2540); lanes that share a stream of words after
Giesen, "Interleaved entropy coders", 2014 (https://arxiv.org/abs/1402.3392). A symbol is a byte of the bitmap. Its
frequency follows from the numbers of present entries and of all entries, which the header has, so no table is sent. All
arithmetic is of integers, so bytes are the same on every machine. Lanes are coded at once, and there are more of them
in a larger tensor, so a tensor of any size takes at most ``SYMBOLS_OF_LANE`` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sepal.errors import WireError
from sepal.wire.bits import Bytes
from sepal.wire.tensors import Array

SYMBOLS_OF_LANE = 4_096
STATE_BYTES = 5  # of a lane, in the coded bytes: a state is below 2⁴⁰
WORD_BYTES = 2

_SLOT_BITS = 16  # frequencies add up to 2¹⁶
_LOWEST = 1 << 24  # of a state between symbols; a state below it takes in a word
_WORD_BITS = 8 * WORD_BYTES
_HIGHEST = (_LOWEST << _WORD_BITS) - 1
_FINE = 1_024  # parts of a bit in which costs are counted
# What a symbol may save beside its cost: two roundings of a state that is at least 2⁸ times a frequency, so less than
# 2·log₂(1/(1 - 2⁻⁸)) = .0113 bits.
_SAVED = 12


def lanes(size: int) -> int:
    """Return the number of lanes of a mask with ``size`` entries."""
    return -(-symbols(size) // SYMBOLS_OF_LANE)


def symbols(size: int) -> int:
    """Return the number of symbols of a mask with ``size`` entries."""
    return (size + 7) // 8


@lru_cache(64)
def frequencies(count: int, size: int) -> tuple[int, ...]:
    """Return the frequency of each byte, of 2¹⁶ in all, in a mask of ``size`` entries of which ``count`` are present.

    A byte with k bits set has 2¹⁶·(count/size)ᵏ·(1 - count/size)⁸⁻ᵏ, rounded down, and at least 1. The byte of eight
    entries of the more frequent kind (0 on a tie) also gets what is missing to 2¹⁶, or loses what is too much.
    """
    absent = size - count
    by_ones = [max(1, (count**k * absent ** (8 - k) << _SLOT_BITS) // size**8) for k in range(9)]
    by_byte = [by_ones[byte.bit_count()] for byte in range(256)]
    by_byte[0 if count <= absent else 255] += (1 << _SLOT_BITS) - sum(by_byte)
    return tuple(by_byte)


def least_bytes(bitmap: Bytes, count: int, size: int) -> int:
    """Return a number of bytes that the coding of a mask needs at least, without coding it.

    Args:
        bitmap: The mask, uint8 (⌈size / 8⌉,), padded with 0.
        count: Its number of present entries, 0 < count < size.
        size: Its number of entries.
    """
    # A state of at least 2²⁴ has grown by the costs of its symbols, less its words, and is below 2⁴⁰ in the end.
    bits = int(np.bincount(bitmap, minlength=256) @ _costs(count, size)) // _FINE + 24 * lanes(size)
    return max(bits // 8, STATE_BYTES * lanes(size))


@lru_cache(64)
def _costs(count: int, size: int) -> Array:
    """Return what each byte costs at least, int64 (256,), in parts of a bit."""
    # The number of bits of fⁿ is above n·log₂ f.
    cost = {f: _FINE * _SLOT_BITS - (f**_FINE).bit_length() - _SAVED for f in set(frequencies(count, size))}
    return np.array([max(0, cost[f]) for f in frequencies(count, size)], np.int64)


def encode_ans(bitmap: Bytes, count: int, size: int) -> bytes:
    """Return a mask coded; the arguments are those of :func:`least_bytes`."""
    frequency, start = _tables(frequencies(count, size))
    width = lanes(size)
    states = np.full(width, _LOWEST, np.uint64)
    words: list[Array] = []
    for at in reversed(range(0, bitmap.size, width)):
        row = bitmap[at : at + width]
        state, f = states[: row.size], frequency[row]
        full = np.flatnonzero(state >= f << np.uint64(24))
        if full.size:
            words.append((state[full] & np.uint64(0xFFFF)).astype("<u2"))
            state[full] >>= np.uint64(_WORD_BITS)
        quotient, rest = np.divmod(state, f)
        state[:] = (quotient << np.uint64(_SLOT_BITS)) + rest + start[row]
    heads = states.astype("<u8").view(np.uint8).reshape(width, 8)[:, :STATE_BYTES]
    return b"".join([heads.tobytes(), *(part.tobytes() for part in reversed(words))])


def decode_ans(data: Bytes, count: int, size: int, key: str) -> Bytes:
    """Return the bitmap of a mask, uint8 (⌈size / 8⌉,), whose number of bits set is not checked yet.

    Args:
        data: Coded bytes, at least ``STATE_BYTES`` for each lane, and then whole words.
        count: Number of present entries by the header, 0 < count < size.
        size: Number of entries.
        key: The key of errors.

    Raises:
        WireError: A lane starts with a state that no lane can have, or does not end as one; or the number of words is
            another than the symbols take.
    """
    frequency, start = _tables(frequencies(count, size))
    of_slot = np.repeat(np.arange(256, dtype=np.uint8), frequencies(count, size))
    width, low, slot_bits = lanes(size), np.uint64(_LOWEST), np.uint64(_SLOT_BITS)
    heads = np.zeros((width, 8), np.uint8)
    heads[:, :STATE_BYTES] = data[: STATE_BYTES * width].reshape(width, STATE_BYTES)
    states = heads.view("<u8").reshape(-1).astype(np.uint64)
    if states.min() < _LOWEST:  # and five bytes are never above _HIGHEST
        raise WireError(key, f"lanes that start at {_LOWEST} to {_HIGHEST}", str(states.min()))
    words = data[STATE_BYTES * width :].view("<u2")
    bitmap, taken = np.empty(symbols(size), np.uint8), 0
    for at in range(0, bitmap.size, width):
        row = bitmap[at : at + width]
        state = states[: row.size]
        slot = state & np.uint64(0xFFFF)
        np.take(of_slot, slot, out=row)
        state >>= slot_bits
        state *= frequency[row]
        state += slot
        state -= start[row]
        empty = np.flatnonzero(state < low)
        if empty.size:
            following = words[taken : taken + empty.size]
            if following.size < empty.size:
                raise WireError(key, f"more than {words.size} words", "symbols that need them")
            state[empty] = (state[empty] << slot_bits) | following
            taken += empty.size
    if taken < words.size:
        raise WireError(key, f"{taken} words up to the last symbol", str(words.size))
    if (states != low).any():
        raise WireError(key, f"lanes that end at {_LOWEST}", str(states[states != low][0]))
    return bitmap


def _tables(table: Sequence[int]) -> tuple[Array, Array]:
    """Return the frequencies, uint64 (256,), and the sum of those before each."""
    frequency = np.array(table, np.uint64)
    return frequency, np.cumsum(frequency) - frequency
