"""How MB are written, the same in every table and sentence: small models send thousands of bytes, large ones 10⁹."""

from __future__ import annotations

import math


def decimals(megabytes: float) -> int:
    """Return how many decimals a size in MB has: two; fewer from 10 on; below 0.1 four, or what one figure takes."""
    if 0 < megabytes < 0.1:
        power = -math.floor(math.log10(megabytes))
        return min(power + 1, max(4, power))
    return 0 if megabytes == 0 or megabytes >= 100 else 1 if megabytes >= 10 else 2


def size(megabytes: float) -> str:
    """Return MB, or other figures of such sizes, without their unit: ``0`` is nothing at all, and only that."""
    return f"{megabytes:.{decimals(megabytes)}f}"
