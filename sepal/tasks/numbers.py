"""Numbers become float32 here, and only where nothing that a model could learn from is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.errors import DataError, one_line

EXACT = 2**24  # float32 holds all whole numbers up to here; neighbours of larger numbers differ by more than 1
MOST_LOST = 1e-3  # of a column's standard deviation, by rounding
WHOLE = 2**53  # float64 holds all whole numbers up to here
WHOLE_WORDS = "whole numbers up to 2**53, which float64 holds (leave an id out)"
_ROWS = 2**14  # rows that are looked at together


def as_array(key: str, value: Any) -> npt.NDArray[Any]:
    """Return what a user hands in as an array of numbers, truths or texts: an array, a tensor, a data frame, a list.

    Numbers that pandas stores as objects are taken for what they are.

    Raises:
        DataError: It is none, or a mask or an object would be lost.
    """
    if hasattr(value, "detach"):  # a tensor, perhaps with a gradient or on another device
        value = value.detach().cpu()
    if isinstance(value, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(value).sum())):
        raise DataError(key, "numbers without a mask, which would be lost (fill in what is masked)", f"{masked} masked")
    try:
        array = np.asarray(value)
    except Exception as error:  # that of any library's objects
        raise DataError(key, "an array", one_line(f"{type(error).__name__}: {error}", 200)) from error
    if array.dtype != object:
        return array
    odd = [item for item in array.flat if not isinstance(item, int | float | np.number)]
    if odd and isinstance(odd[0], list | tuple | np.ndarray):
        raise DataError(key, "an array of numbers", "rows of different lengths")
    if odd or (numbers := np.array(array.tolist())).dtype == object:
        item = odd[0] if odd else array.flat[0]
        raise DataError(key, "an array of numbers", f"objects such as {one_line(repr(item), 60)}")
    return numbers


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
