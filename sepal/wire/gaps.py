"""Rice coding of a strictly increasing sequence of positions (FORMAT.md, "gaps").

A gap is the number of positions skipped before the next one. Gaps of a random support are geometric, and Rice codes are
within 4.3 % of their entropy. Low bits are stored as planes and quotients in unary, so that coding and decoding are
array operations: the ends of the unary codes are the set bits of a string. Both work in blocks, so that temporaries fit
into the CPU cache.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sepal.errors import WireError
from sepal.wire.bits import Bytes, ones, packed, span
from sepal.wire.tensors import Array, Index

MAX_LOW_BITS = 30  # a gap is below 2³¹

_BLOCK = 1 << 16  # positions coded or decoded at a time


def gaps_between(index: Index) -> Array:
    """Return the gaps before positions, int64 (m,), m > 0, in the smallest of uint8, uint16 and uint32."""
    gaps = np.empty(index.size, np.uint32)
    gaps[0] = index[0]
    np.subtract(index[1:], index[:-1], out=gaps[1:], casting="unsafe")
    gaps[1:] -= 1
    return gaps.astype(np.min_scalar_type(int(gaps.max())), copy=False)


def quotient_bits(gaps: Array, low_bits: int) -> int:
    """Return the length in bits of the quotients of ``gaps`` in unary, without the low bits."""
    # The sum of all gaps is below 2³¹, so uint32, which is fastest here, cannot overflow.
    return gaps.size + int((gaps >> low_bits).sum(dtype=np.uint32))


def shortest_code(gaps: Array, last: int) -> tuple[int, int]:
    """Return the number of low bits with the shortest code, the smallest on a tie, and its quotients' length in bits.

    Args:
        gaps: Result of :func:`gaps_between`.
        last: The last position.
    """
    mean = (last + 1) / gaps.size - 1
    best = min(MAX_LOW_BITS, max(0, round(math.log2(max(1.0, mean * math.log(2))))))
    lengths = {0: last + 1}
    # The length of the code is convex in the number of low bits: where both neighbours are longer, it is the shortest.
    while missing := {k for k in (best - 1, best, best + 1) if 0 <= k <= MAX_LOW_BITS} - set(lengths):
        lengths |= {k: quotient_bits(gaps, k) for k in missing}
        best = min(lengths, key=lambda k: (lengths[k] + k * gaps.size, k))
    return best, lengths[best]


def encode_gaps(index: Index, gaps: Array, low_bits: int, length: int) -> Bytes:
    """Return the positions ``index`` in the coding GAPS, uint8 (n,).

    Args:
        index: int64 (m,), m > 0.
        gaps: Result of :func:`gaps_between`.
        low_bits: k.
        length: Result of :func:`quotient_bits` for these gaps and low bits.
    """
    planes = low_bits * gaps.size
    bits = np.zeros(planes + length, np.bool_)
    _put_low_bits(gaps, low_bits, bits[:planes])
    _put_quotients(index, gaps, low_bits, bits[planes:])
    return packed(bits)


def decode_gaps(data: Bytes, count: int, low_bits: int, size: int, key: str) -> Index:
    """Return the positions, int64 (count,), strictly increasing and below ``size``; count > 0.

    Raises:
        WireError: A different number of positions, a position beyond ``size``, or superfluous bytes.
    """
    planes = low_bits * count
    ends = ones(data, planes, count, key)
    expected = (planes + int(ends[-1]) + 8) // 8
    if data.size != expected:
        raise WireError(key, f"{expected} bytes up to the last position", str(data.size))
    return _positions(ends, data, low_bits, size, key)


def _put_low_bits(gaps: Array, low_bits: int, bits: npt.NDArray[np.bool_]) -> None:
    for plane, out in enumerate(bits.reshape(low_bits, gaps.size)):
        np.not_equal(gaps & (1 << plane), 0, out=out)


def _put_quotients(index: Index, gaps: Array, low_bits: int, bits: npt.NDArray[np.bool_]) -> None:
    """Set the ends of the unary codes in ``bits``, which are False."""
    if not low_bits:  # a quotient is the whole gap, so its code ends at the position
        bits[index] = True
        return
    end = -1
    for at in range(0, gaps.size, _BLOCK):
        ends = np.cumsum(gaps[at : at + _BLOCK] >> low_bits, dtype=np.int64)
        ends += np.arange(end + 1, end + 1 + ends.size)
        bits[ends] = True
        end = int(ends[-1])


def _positions(ends: Index, data: Bytes, low_bits: int, size: int, key: str) -> Index:
    """Convert ``ends`` of unary codes to positions, in place."""
    # Code i ends at bit eᵢ, so the quotients up to it sum to eᵢ - i, and position i is Σ(q·2ᵏ + low + 1) - 1
    # = eᵢ·2ᵏ + (2ᵏ - 1) - Σ(2ᵏ - 1 - low). No partial result overflows: eᵢ is below 2³² and k at most 30.
    if low_bits:
        top = (1 << low_bits) - 1
        carry = top
        for at in range(0, ends.size, _BLOCK):
            block = ends[at : at + _BLOCK]
            below = np.full(block.size, top, np.min_scalar_type(top))
            for plane in range(low_bits):
                bits = span(data, plane * ends.size + at, block.size)
                below ^= bits.astype(below.dtype, copy=False) << plane
            total = np.cumsum(below, dtype=np.int64)
            block <<= low_bits
            block += carry
            block -= total
            carry -= int(total[-1])
    if ends[-1] >= size:
        raise WireError(key, f"positions below {size}", str(ends[-1]))
    return ends
