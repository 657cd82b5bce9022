"""Files of elsewhere that a library reads: whatever it raises for bytes that it does not take becomes one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.errors import DataError, SepalError, one_line
from sepal.storage.regular import check_regular


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
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if not names or name in names}
