"""What may be wrong with data that can be read: numbers that stand for missing ones, rows and images that occur twice.

Nothing is changed. A line says it, because the figures of a run would not show it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NINES = re.compile(r"-?99+")  # -999 and the like, which instruments and surveys write for a missing number
NAMED = 4  # columns that a line names, at most
FEW = 30  # different rows or images; of fewer, some are alike by chance
BLOCK = 1024  # rows that fit into a processor's cache together
SHARE = 0.01  # of the rows or images that occur again, below which nothing is said


def stand_ins(key: str, places: Mapping[str, int], x: NDArray[Any]) -> tuple[str, ...]:
    """Return the line about columns in which a number such as -999 may stand for a missing one; none if none does.

    It occurs twice or more at an end of the column, and is further from the next number than all others lie apart.

    Args:
        key: Where the table is from.
        places: The columns of numbers by name, each with its place in ``x``.
        x: Floats (n, columns); NaN where a number is missing.
    """
    suspected = []
    lows, highs = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
    for name, place in places.items():
        for end in (float(lows[place]), float(highs[place])):
            if not NINES.fullmatch(f"{end:.15g}"):
                continue
            present = x[~np.isnan(x[:, place]), place]
            others = present[present != end]
            count = len(present) - len(others)
            if count < 2 or not len(others):
                continue
            low, high = float(others.min()), float(others.max())
            if max(low - end, end - high) > high - low:
                suspected.append(f"{count} of {name} are {end:.15g} (the others {low:g} to {high:g})")
    if not suspected:
        return ()
    rest = f", and so in {len(suspected) - NAMED} more columns" if len(suspected) > NAMED else ""
    named = ", ".join(suspected[:NAMED])
    return (f"{key}: {named}{rest}: if that stands for missing numbers, leave these cells empty (folder.missing)",)


def repeated(key: str, x: NDArray[Any]) -> tuple[str, ...]:
    """Return the line that counts the rows of a table whose inputs occur before; none if they are few or by chance.

    Equal rows are not by chance where none of their inputs is missing, and a column has more different numbers than
    half of the different rows.

    Args:
        key: Where the table is from.
        x: All parts' inputs, floats (n, inputs).
    """
    digests = _digests(x)
    different, count = len(np.unique(digests)), len(digests)
    if _few(different, count) or not any(2 * len(np.unique(column)) > different for column in x.T):
        return ()
    return _repeats(key, count - different, len(x), "rows have the same inputs as")


def repeated_images(key: str, x: NDArray[Any]) -> tuple[str, ...]:
    """Return the line that counts images with the same pixels as an earlier one; none if they are few.

    Args:
        key: Where they are from.
        x: All parts' images, (n, …).
    """
    different = len({hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in x})
    if _few(different, len(x)):
        return ()
    return _repeats(key, len(x) - different, len(x), "images have the same pixels as")


def _few(different: int, count: int) -> bool:
    return different < FEW or count - different < SHARE * count


def _repeats(key: str, count: int, total: int, words: str) -> tuple[str, ...]:
    end = "a client may be tested on what it, or another one, trains on"
    return (f"{key}: {count} of {total} {words} an earlier one; {end}",)


def _digests(x: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a number for each row without a missing input, equal for equal rows."""
    factors = np.random.default_rng(0).integers(2**63, size=x.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    digests = []
    for start in range(0, len(x), BLOCK):
        numbers = x[start : start + BLOCK].astype(np.float64, order="C")
        if (missing := np.isnan(numbers)).any():
            numbers = numbers[~missing.any(axis=1)]
        bits = (numbers + 0.0).view(np.uint64)  # -0.0 + 0.0 is 0.0
        bits ^= bits >> np.uint64(32)
        bits *= factors
        bits ^= bits >> np.uint64(29)
        bits *= factors
        digests.append(bits.sum(axis=1))
    return np.concatenate(digests)
