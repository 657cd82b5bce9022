"""Rice coding of a strictly increasing sequence of positions (FORMAT.md, "gaps").

A gap is the number of positions skipped before the next one. Random supports have geometric gaps, for which Rice codes
come within 1.5 % of the entropy. The low bits travel as planes and the quotients in unary, so that both directions are
whole-array operations: the ends of the unary codes are the set bits of a string.
"""

from __future__ import annotations

import math

import numpy as np

from sepal.errors import WireError
from sepal.wire.bits import Bytes, ones, packed, span
from sepal.wire.tensors import Array, Index

MAX_LOW_BITS = 30  # a gap is below 2³¹

_BLOCK = 1 << 16  # positions decoded in one go


def gaps_between(index: Index) -> Array:
    """uint8, uint16 or uint32 (m,), whichever holds them: the gaps before int64 (m,) positions, m > 0."""
    gaps = np.empty(index.size, np.uint32)
    gaps[0] = index[0]
    np.subtract(index[1:], index[:-1], out=gaps[1:], casting="unsafe")
    gaps[1:] -= 1
    return gaps.astype(np.min_scalar_type(int(gaps.max())), copy=False)


def coded_bits(gaps: Array, low_bits: int) -> int:
    """Length in bits, without padding, of ``gaps`` coded with so many low bits."""
    # The sum of all gaps is below 2³¹, so uint32, the fastest here, cannot overflow.
    return gaps.size * (low_bits + 1) + int((gaps >> low_bits).sum(dtype=np.uint32))


def best_low_bits(gaps: Array, last: int) -> tuple[int, int]:
    """The number of low bits that makes the shortest code, and its length in bits; ``last`` is the last position.

    The length is convex in the number of low bits, so the walk from a good guess ends at the minimum; on a tie the
    smaller number wins.
    """
    mean = (last + 1) / gaps.size - 1
    k = min(MAX_LOW_BITS, max(0, round(math.log2(max(1.0, mean * math.log(2))))))
    bits = coded_bits(gaps, k)
    start = k
    while k > 0 and (other := coded_bits(gaps, k - 1)) <= bits:
        k, bits = k - 1, other
    if k < start:
        return k, bits
    while k < MAX_LOW_BITS and (other := coded_bits(gaps, k + 1)) < bits:
        k, bits = k + 1, other
    return k, bits


def encode_gaps(gaps: Array, low_bits: int, length: int) -> Bytes:
    """uint8 (⌈length / 8⌉,): the code; ``length`` is what ``coded_bits`` says."""
    m = gaps.size
    bits = np.zeros(length, np.bool_)
    for plane in range(low_bits):
        np.not_equal(gaps & (1 << plane), 0, out=bits[plane * m : (plane + 1) * m])
    ends = np.cumsum(gaps >> low_bits, dtype=np.int64)
    ends += np.arange(low_bits * m, (low_bits + 1) * m)
    bits[ends] = True
    return packed(bits)


def decode_gaps(data: Bytes, count: int, low_bits: int, size: int, key: str) -> Index:
    """int64 (count,), strictly increasing, below ``size``: the positions; count > 0.

    Raises:
        WireError: Another number of positions, a position beyond ``size``, or superfluous bytes.
    """
    head = low_bits * count
    index = ones(data, head, count, key)
    last = int(index[-1])
    if data.size != (head + last + 8) // 8:
        raise WireError(key, f"{(head + last + 8) // 8} bytes up to the last position", str(data.size))
    # Code i ends at bit eᵢ, so the quotients up to it sum to eᵢ - i, and position i is Σ(q·2ᵏ + low + 1) - 1
    # = eᵢ·2ᵏ + (2ᵏ - 1) - Σ(2ᵏ - 1 - low). No partial result overflows: eᵢ is below 2³² and k at most 30.
    if low_bits:
        top = (1 << low_bits) - 1
        carry = top
        for at in range(0, count, _BLOCK):
            block = index[at : at + _BLOCK]
            below = np.full(block.size, top, np.min_scalar_type(top))
            for plane in range(low_bits):
                bits = span(data, plane * count + at, block.size)
                below ^= bits.astype(below.dtype, copy=False) << plane
            total = np.cumsum(below, dtype=np.int64)
            block <<= low_bits
            block += carry
            block -= total
            carry -= int(total[-1])
    if index[-1] >= size:
        raise WireError(key, f"positions below {size}", str(index[-1]))
    return index
