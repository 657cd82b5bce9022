"""Files of elsewhere that a library reads: whatever it raises for bytes that it does not take becomes one line."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.errors import DataError, SepalError, one_line
from sepal.storage.regular import MOST_RATIO, check_regular, stored_size

MOST_UNPACKED = 1 << 31  # bytes that any file may hold once it is unpacked, however small it is
MOST_LETTERS = 256  # of an owner's name: NumPy gives each row of an array of texts the room of the longest


@contextmanager
def reading(key: str, expected: str) -> Iterator[None]:
    """Turn every error of a library into a DataError.

    No list of types would be complete: PIL and zipfile raise an AssertionError or a RuntimeError for damaged bytes,
    NumPy a tokenizer's error, pyarrow an OverflowError.

    Args:
        key: Where the bytes are from.
        expected: What they should be.

    Raises:
        DataError: See above.
    """
    try:
        yield
    except SepalError:
        raise
    except Exception as error:
        plain = isinstance(error, OSError | ValueError) and str(error)
        raise DataError(key, expected, one_line(plain or f"{type(error).__name__}: {error}", 200)) from error


class Unpacked:
    """Counts the bytes that a compressed file holds while it is unpacked, and refuses one that grows out of measure.

    Args:
        key: The file.
        stored: Its own bytes, without holes (:func:`sepal.storage.regular.stored_size`).
    """

    def __init__(self, key: str, stored: int) -> None:
        self._key, self._count = key, 0
        self._most = max(MOST_UNPACKED, MOST_RATIO * stored)

    def add(self, count: int) -> None:
        """Count further bytes.

        Raises:
            DataError: They are too many.
        """
        self._count += count
        if self._count > self._most:
            expected = f"a file that holds at most {self._most / 1e9:.3g} GB once it is unpacked"
            raise DataError(self._key, f"{expected}, or {MOST_RATIO} times its own size", f"{self._count / 1e9:.3g} GB")


def owners_of(key: str, cells: Sequence[Any]) -> NDArray[Any]:
    """Return the owner of each row as an array (n,) of texts or whole numbers.

    Args:
        key: Where the owners are from.
        cells: Of each row, the name or number of its owner.

    Raises:
        DataError: One is neither, or a name has more than ``MOST_LETTERS`` letters.
    """
    if any(isinstance(cell, list | dict) for cell in cells):
        raise DataError(key, "a number or text for each example", "lists or tables")
    longest = max((len(cell) for cell in cells if isinstance(cell, str | bytes)), default=0)
    if longest > MOST_LETTERS:
        raise DataError(key, f"names of owners of at most {MOST_LETTERS} letters", f"one of {longest:,}")
    if (size := 4 * longest * len(cells)) > MOST_UNPACKED:  # every row has the room of the longest name
        expected = f"names of owners that take at most {MOST_UNPACKED / 1e9:.3g} GB, each as much as the longest"
        raise DataError(key, expected, f"{len(cells):,} of {longest} letters, {size / 1e9:.3g} GB")
    return np.asarray(cells)


def load_array(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        DataError: It cannot be read, or it is no regular file.
    """
    with reading(str(path), "a .npy array without pickled objects"):
        check_regular(path)
        return np.asarray(np.load(path, allow_pickle=False))


def load_arrays(path: Path, expected: str, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name.

    Args:
        path: The file.
        expected: What it should be, for the error.
        names: Those to read, of which some may not be there; empty: all.

    Raises:
        DataError: It cannot be read, or it is no regular file.
    """
    with reading(str(path), expected):
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            Unpacked(str(path), stored_size(path)).add(sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if not names or name in names}
