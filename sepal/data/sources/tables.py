"""Examples in a CSV file: a column of numbers for each feature [, ``label``] [, ``person``], under a header."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Labels
from sepal.errors import DataError


class Table(NamedTuple):
    """A table with labels.

    Attributes:
        x: float32 (rows, features).
        labels: Class numbers, int64 (rows,).
        names: Names of the classes; empty if the labels are whole numbers.
        people: The person of each row, text (rows,); None without that column.
    """

    x: NDArray[np.float32]
    labels: Labels
    names: list[str]
    people: NDArray[Any] | None


def read_table(path: Path, classes: Sequence[str] = ()) -> tuple[NDArray[np.float32], Labels | None]:
    """Return the examples of a CSV file and, if it has a column ``label``, their class numbers.

    Args:
        path: The file.
        classes: Names of the classes; a label is one of them or, if there are none, a number.

    Raises:
        DataError: The file cannot be read, or a label is none of the classes.
    """
    rows = _rows(path)
    if not rows:
        raise DataError(str(path), "rows under a header", "no row")
    x = _features(path, rows)
    if "label" not in rows[0]:
        return x, None
    labels, names = _classes_of(path, [row["label"] for row in rows])
    if unknown := set(names) - set(classes):
        raise DataError(f"{path}, column label", f"one of {', '.join(classes) or 'the whole numbers'}", min(unknown))
    return x, np.array([classes.index(names[number]) for number in labels], dtype=np.int64) if names else labels


def read_labelled(path: Path) -> Table:
    """Return the examples and labels of a CSV file that has a column ``label``.

    Raises:
        DataError: The file cannot be read, or it lacks rows or labels.
    """
    rows = _rows(path)
    if not rows or "label" not in rows[0]:
        raise DataError(str(path), "rows under a header with a column `label`", "no row" if not rows else "no label")
    x = _features(path, rows)
    labels, names = _classes_of(path, [row["label"] for row in rows])
    people = np.array([row["person"] or "" for row in rows]) if "person" in rows[0] else None
    return Table(x, labels, names, people)


def _rows(path: Path) -> list[dict[Any, Any]]:
    """Return the rows of a CSV file, none with more cells than the header."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows: list[dict[Any, Any]] = list(csv.DictReader(file, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(str(path), "a CSV file with a header", str(error)) from error
    for line, row in enumerate(rows, 2):
        if None in row:  # csv's key of cells without a header
            width = len(row) - 1
            raise DataError(f"{path}, row {line}", f"{width} cells, as the header has", width + len(row[None]))
    return rows


def _features(path: Path, rows: list[dict[Any, Any]]) -> NDArray[np.float32]:
    names = [name for name in rows[0] if name not in ("label", "person")]
    cells = [[_number(path, line, name, row[name]) for name in names] for line, row in enumerate(rows, 2)]
    return np.array(cells, dtype=np.float32)


def _number(path: Path, line: int, column: str, text: Any) -> float:
    """Return a cell as a number; the first line of the file is its header."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        got = "no cell" if text is None else repr(text)
        raise DataError(f"{path}, row {line}, column {column}", "a finite number", got)
    return value


def _classes_of(path: Path, texts: Sequence[Any]) -> tuple[Labels, list[str]]:
    """Return numbers and names of labels: whole numbers from 0 as they are, without names; texts in sorted order."""
    empty = next((line for line, text in enumerate(texts, 2) if not (text or "").strip()), None)
    if empty is not None:
        raise DataError(f"{path}, row {empty}, column label", "a label", "an empty cell")
    words = [text.strip() for text in texts]
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError:
        numbers = np.array([-1.0])  # texts
    odd = np.flatnonzero(numbers % 1)  # NaN is odd, too
    if len(odd):
        raise DataError(f"{path}, row {odd[0] + 2}, column label", "a whole number or a text", words[odd[0]])
    if numbers.min() >= 0:
        return numbers.astype(np.int64), []
    names = sorted(set(words))
    return np.array([names.index(word) for word in words], dtype=np.int64), names
