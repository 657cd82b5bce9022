"""Reads a CSV file: a column ``label``, every other column a number [, a column ``person``]. Errors name the row.

For tasks other than classification, ``label`` is a number, or there are columns ``label:NAME``. A cell of another
column may be missing: empty, ``NA`` or ``NaN`` in any case.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Labels
from sepal.errors import DataError

NOT_FEATURES = ("label", "person")
TARGET = "label:"  # begins the names of several target columns
MISSING = ("", "na", "nan")  # a missing cell as spreadsheets, R, and NumPy write it; in lower case
MOST_COLUMNS = 100_000  # of a table; more than a genome has genes
NAMED = 4  # columns with missing cells that a message names, at most


class Table(NamedTuple):
    """What a CSV file holds.

    Attributes:
        x: float32 (n, columns); NaN where a cell is missing.
        y: int64 (n,), or float32 (n, targets) of other tasks; None without a column ``label``.
        names: Names of the classes, or of several targets; empty if the labels are whole numbers from 0.
        people: The person of each row; None without a column ``person``.
        columns: Names of the columns of ``x``.
        ignored: Names of the file's columns that were not asked for.
    """

    x: NDArray[np.float32]
    y: NDArray[Any] | None
    names: tuple[str, ...]
    people: NDArray[Any] | None
    columns: tuple[str, ...]
    ignored: tuple[str, ...] = ()


def read_table(
    path: Path,
    classes: Sequence[str] = (),
    numbers: bool = False,
    labelled: bool = False,
    columns: Sequence[str] = (),
    fill: bool = False,
) -> Table:
    """Read a CSV file with a header.

    Args:
        path: The file.
        classes: Names of the classes; a label is then one of them or its number. If there are none, labels are whole
            numbers from 0, or texts, which become classes in sorted order.
        numbers: Whether targets are numbers, in the column ``label`` or in columns ``label:NAME``.
        labelled: Whether there must be labels.
        columns: The columns to read, in this order; empty: all but labels and people.
        fill: Whether missing cells are filled later. Those of targets never are.

    Raises:
        DataError: The file cannot be read, a column or a cell is missing, a label is none of the classes, or there must
            be labels and are none.
    """
    rows = _rows(path)
    if not rows:
        raise DataError(str(path), "rows under a header", "no row")
    targets = [str(name) for name in rows[0] if name == "label" or str(name).startswith(TARGET)] if numbers else []
    others = {*NOT_FEATURES, *targets}
    found = tuple(str(name) for name in rows[0] if name not in others)
    if labelled and "label" not in rows[0] and not targets:
        raise DataError(f"{path}, header", "the column with labels to be called `label`", ", ".join(found))
    wanted = tuple(columns) or found
    if lacking := sorted(set(wanted) - set(found), key=wanted.index):
        raise DataError(f"{path}, header", f"all columns of the model, also {', '.join(lacking)}", ", ".join(found))
    asked = set(wanted)
    ignored = tuple(name for name in found if name not in asked)
    x = _numbers(path, rows, wanted, gaps=True)
    if not fill:
        refuse_gaps(str(path), x, wanted, first=2)
    people = np.array([row["person"] or "" for row in rows]) if "person" in rows[0] else None
    if targets:
        names = tuple(name.removeprefix(TARGET) for name in targets) if len(targets) > 1 else ()
        return Table(x, _numbers(path, rows, targets), names, people, wanted, ignored)
    if "label" not in rows[0]:
        return Table(x, None, (), people, wanted, ignored)
    words = [(row["label"] or "").strip() for row in rows]
    return Table(x, *_labels(path, words, classes), people, wanted, ignored)


def refuse_gaps(key: str, x: NDArray[Any], columns: Sequence[str], first: int = 0) -> None:
    """Raise a DataError that says where numbers are missing, unless none is.

    Args:
        key: Where the table is from.
        x: Its numbers, (n, columns); NaN where one is missing.
        columns: Names of the columns.
        first: The number by which its first row is known.
    """
    rows, places = np.nonzero(np.isnan(x))
    if len(rows):
        expected = 'a number in every cell (a run with folder.missing = "mean" fills in the client\'s mean)'
        where = f"{key}, row {rows[0] + first}, column {columns[places[0]]}"
        raise DataError(where, expected, f"{len(rows)} without one: {count_gaps(x, columns)}")


def check_width(key: str, columns: int) -> None:
    """Raise a DataError if a table has more than ``MOST_COLUMNS``."""
    if columns > MOST_COLUMNS:
        raise DataError(key, f"at most {MOST_COLUMNS:,} columns", f"{columns:,}")


def count_gaps(x: NDArray[Any], columns: Sequence[str]) -> str:
    """Return how many numbers are missing in which columns, most first; empty if none is."""
    counts = Counter({name: int(count) for name, count in zip(columns, np.isnan(x).sum(axis=0), strict=True) if count})
    named = ", ".join(f"{count} in {name}" for name, count in counts.most_common(NAMED))
    return f"{named}, and some in {len(counts) - NAMED} more columns" if len(counts) > NAMED else named


def _rows(path: Path) -> list[dict[Any, Any]]:
    """Return the rows of a CSV file, none with more cells than the header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte-order mark
            reader = csv.DictReader(file, strict=True)
            check_width(str(path), len(reader.fieldnames or ()))  # before there is a dict of each row
            rows: list[dict[Any, Any]] = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(str(path), "a CSV file with a header", str(error)) from error
    for line, row in enumerate(rows, 2):
        if None in row:  # csv's key of cells without a header
            width = len(row) - 1
            raise DataError(f"{path}, row {line}", f"{width} cells, as the header has", width + len(row[None]))
    return rows


def _numbers(path: Path, rows: list[dict[Any, Any]], names: Sequence[str], gaps: bool = False) -> NDArray[np.float32]:
    """Return the cells as numbers; with ``gaps``, NaN for those that are missing."""
    cells = [[_number(path, line, name, row[name], gaps) for name in names] for line, row in enumerate(rows, 2)]
    return np.array(cells, dtype=np.float32)


def _number(path: Path, line: int, column: str, text: Any, gaps: bool) -> float:
    """Return a cell as a number; the first line of the file is its header."""
    if gaps and text is not None and text.strip().lower() in MISSING:
        return math.nan
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        got = "no cell" if text is None else repr(text)
        raise DataError(f"{path}, row {line}, column {column}", "a finite number", got)
    return value


def _labels(path: Path, words: Sequence[str], classes: Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """Return the numbers of labels, and the names of the classes if they have any."""
    empty = next((line for line, word in enumerate(words, 2) if not word), None)
    if empty is not None:
        raise DataError(f"{path}, row {empty}, column label", "a label", "an empty cell")
    if classes:
        return np.array([_of(path, line, word, classes) for line, word in enumerate(words, 2)], np.int64), (*classes,)
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError:
        numbers = np.array([-1.0])  # texts
    odd = np.flatnonzero(numbers % 1)  # NaN is odd, too
    if len(odd):
        raise DataError(f"{path}, row {odd[0] + 2}, column label", "a whole number or a text", words[odd[0]])
    if numbers.min() >= 0:
        return numbers.astype(np.int64), ()
    names = tuple(sorted(set(words)))
    return np.array([names.index(word) for word in words], dtype=np.int64), names


def _of(path: Path, line: int, word: str, classes: Sequence[str]) -> int:
    """Return the number of the class that a label names."""
    if word in classes:
        return classes.index(word)
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if number not in range(len(classes)):
        raise DataError(f"{path}, row {line}, column label", f"one of {', '.join(classes)}", word)
    return int(number)
