"""Numbers become float32 here, and only where nothing that a model could learn from is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.errors import DataError

EXACT = 2**24  # float32 holds all whole numbers up to here; neighbours of larger numbers differ by more than 1
MOST_LOST = 1e-3  # of a column's standard deviation, by rounding
WHOLE = 2**53  # float64 holds all whole numbers up to here
WHOLE_WORDS = "whole numbers up to 2**53, which float64 holds (leave an id out)"
_ROWS = 2**14  # rows that are looked at together


def check_whole(key: str, numbers: npt.NDArray[Any]) -> None:
    """Raise a DataError for a whole number that float64 may not hold; it is rather an id than a quantity."""
    if numbers.dtype.kind not in "iu" or numbers.dtype.itemsize < 8 or not numbers.size:
        return
    largest = max(int(numbers.max()), -int(numbers.min()))
    if largest > WHOLE:
        raise DataError(key, WHOLE_WORDS, largest)


def as_float32(key: str, numbers: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return numbers (n, …) as float32, contiguous.

    Raises:
        DataError: One is not finite, is beyond float32 or, of whole numbers, beyond ``WHOLE``; or rounding would take
            more than ``MOST_LOST`` of the standard deviation of a column with numbers above ``EXACT``, such as times
            in seconds since 1970.
    """
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise DataError(key, "finite numbers", "NaN or infinity")
    check_whole(key, numbers)
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(numbers, dtype=np.float32)
    if numbers.dtype in (np.float16, np.float32) or not numbers.size:
        return values
    largest = max(abs(float(numbers.max())), abs(float(numbers.min())))
    if largest > float(np.finfo(np.float32).max):
        raise DataError(key, f"numbers up to {np.finfo(np.float32).max:.3g}, which float32 holds", f"{largest:g}")
    if largest > EXACT:
        _check_kept(key, numbers.reshape(len(numbers), -1), values.reshape(len(numbers), -1))
    return values


def _check_kept(key: str, numbers: npt.NDArray[Any], values: npt.NDArray[np.float32]) -> None:
    first = numbers[0].astype(np.float64)
    lost, total, squares = (np.zeros(numbers.shape[1]) for _ in range(3))
    for start in range(0, len(numbers), _ROWS):
        block = numbers[start : start + _ROWS].astype(np.float64)
        lost = np.maximum(lost, np.abs(block - values[start : start + _ROWS]).max(axis=0))
        block -= first
        total += block.sum(axis=0)
        squares += (block**2).sum(axis=0)
    spread = np.sqrt(np.maximum(squares / len(numbers) - (total / len(numbers)) ** 2, 0))
    bad = np.flatnonzero((spread > 0) & (lost > MOST_LOST * spread))
    if len(bad):
        where = f"those of column {bad[0]}" if numbers.shape[1] > 1 else "they"
        got = f"{where} have a standard deviation of {spread[bad[0]]:.3g} and would be off by up to {lost[bad[0]]:.3g}"
        expected = "numbers whose differences float32 holds (subtract a common part, or give a table to standardise)"
        raise DataError(key, expected, got)
