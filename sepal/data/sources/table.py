"""Reads a CSV file: a column ``label``, every other column a number [, a column ``person``]. Errors name the row.

For tasks other than classification, ``label`` is a number, or there are columns ``label:NAME``. A cell of another
column may be missing: empty, ``NA`` or ``NaN`` in any case. pyarrow reads the cells; they stay texts until it is known
what each is.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Labels
from sepal.data.incoming import MOST_CLASSES
from sepal.errors import DataError, one_line

NOT_FEATURES = ("label", "person")
TARGET = "label:"  # begins the names of several target columns
MISSING = ("", "na", "nan")  # a missing cell as spreadsheets, R, and NumPy write it; in lower case
MOST_COLUMNS = 100_000  # of a table; more than a genome has genes
NAMED = 4  # columns with missing cells that a message names, at most
BLOCK = 2**26  # bytes that are read together; more than a row takes
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
CLASS_NUMBER = re.compile(r"[0-9]+(\.0*)?")  # pandas writes 1.0 for 1 where a column has an empty cell
INDEX = ("", "Unnamed: 0")  # the first column's name where pandas wrote its rows' numbers


class Table(NamedTuple):
    """What a CSV file holds.

    Attributes:
        x: float64 (n, columns); NaN where a cell is missing.
        y: int64 (n,), or float64 (n, targets) of other tasks; None without a column ``label``.
        names: Names of the classes, or of several targets; empty if the labels are whole numbers from 0.
        people: The person of each row; None without a column ``person``.
        columns: Names of the columns of ``x``.
        ignored: Names of the file's columns that were not asked for.
        notes: Lines that say which of the file's columns was left out.
    """

    x: NDArray[np.float64]
    y: NDArray[Any] | None
    names: tuple[str, ...]
    people: NDArray[Any] | None
    columns: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
        DataError: The file cannot be read, two columns have one name or one has none, a column or a cell is missing, a
            label is none of the classes, or there must be labels and are none.
    """
    header = _header(path)
    cells = _cells(path, header)
    index = header[0] if _is_index(header[0], cells[header[0]]) and header[0] not in columns else None
    notes = () if index is None else (f"{path}: its first column numbers the rows, as pandas does, and is left out",)
    if index is None and not header[0].strip():
        raise DataError(f"{path}, header", "a name for every column", "none for the first one")
    targets = [name for name in header if name == "label" or name.startswith(TARGET)] if numbers else []
    others = {*NOT_FEATURES, *targets, index}
    found = tuple(name for name in header if name not in others)
    if labelled and "label" not in header and not targets:
        raise DataError(f"{path}, header", "the column with labels to be called `label`", ", ".join(found))
    wanted = tuple(columns) or found
    if lacking := sorted(set(wanted) - set(found), key=wanted.index):
        raise DataError(f"{path}, header", f"all columns of the model, also {', '.join(lacking)}", ", ".join(found))
    asked = set(wanted)
    ignored = tuple(name for name in found if name not in asked)
    x = _numbers(path, cells, wanted, gaps=True)
    if not fill:
        refuse_gaps(str(path), x, wanted, first=2)
    people = _people(path, cells["person"]) if "person" in cells and labelled else None
    if targets:
        names = tuple(name.removeprefix(TARGET) for name in targets) if len(targets) > 1 else ()
        return Table(x, _numbers(path, cells, targets), names, people, wanted, ignored, notes)
    if "label" not in cells:
        return Table(x, None, (), people, wanted, ignored, notes)
    return Table(x, *_labels(path, cells["label"], classes), people, wanted, ignored, notes)


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


def _header(path: Path) -> list[str]:
    """Return the names of a CSV file's columns, all different, and none empty but perhaps the first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte-order mark
            header = next(csv.reader(file, strict=True), [])
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(str(path), "a CSV file with a header", str(error)) from error
    check_width(str(path), len(header))
    if not header:
        raise DataError(str(path), "rows under a header", "no row")
    check_names(f"{path}, header", header, index=True)
    return header


def check_names(key: str, names: Sequence[str], index: bool = False) -> None:
    """Raise a DataError that names the column, if two have one name, or one has none; with ``index`` the first may."""
    twice = next((name for name, count in Counter(names).items() if count > 1 and name.strip()), None)
    if twice is not None:
        columns = [place for place, name in enumerate(names, 1) if name == twice]
        got = f"{twice!r} for the columns {', '.join(map(str, columns))}"
        raise DataError(key, "a different name for every column", got)
    empty = next(
        (place for place, name in enumerate(names, 1) if not name.strip() and not (index and place == 1)), None
    )
    if empty is not None:
        raise DataError(key, "a name for every column", f"none for column {empty}")


def _cells(path: Path, header: Sequence[str]) -> dict[str, Any]:
    """Return the cells of each column as texts, a ``pyarrow.ChunkedArray``; at least one row."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import csv as arrow

    wrong: list[Any] = []

    def note(row: Any) -> str:
        wrong.append(row)
        return "error"

    numbered = [str(place) for place in range(len(header))]
    try:
        quoted = _check_quotes(path)
        with path.open("rb") as file:
            table = arrow.read_csv(
                file,
                arrow.ReadOptions(  # one thread: only then pyarrow numbers the rows
                    column_names=numbered, skip_rows_after_names=1, use_threads=False, block_size=BLOCK
                ),
                arrow.ParseOptions(newlines_in_values=quoted, invalid_row_handler=note),
                arrow.ConvertOptions(column_types=dict.fromkeys(numbered, pa.string()), strings_can_be_null=False),
            )
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's are ValueErrors
        if wrong:
            expected = f"{len(header)} cells, as the header has"
            raise DataError(f"{path}, row {wrong[0].number}", expected, wrong[0].actual_columns) from None
        raise DataError(str(path), "a CSV file with a header", one_line(str(error), 200)) from error
    if not len(table):
        raise DataError(str(path), "rows under a header", "no row")
    return dict(zip(header, table.columns, strict=True))


def _check_quotes(path: Path) -> bool:
    """Return whether a file has quotes; a csv.Error says that one is never closed: pyarrow would read on to the end."""
    with path.open("rb") as file:
        count = sum(block.count(b'"') for block in iter(lambda: file.read(2**20), b""))
    if count % 2:
        with path.open(newline="", encoding="utf-8-sig") as text:
            for _ in csv.reader(text, strict=True):
                pass
    return count > 0


def _is_index(name: str, cells: Any) -> bool:
    """Return whether the first column is the index that pandas writes: whole numbers, all different."""
    if name not in INDEX:
        return False
    import pyarrow as pa
    from pyarrow import compute

    try:
        return bool(compute.count_distinct(cells.cast(pa.int64())).as_py() == len(cells))
    except pa.ArrowInvalid:
        return False


def _numbers(path: Path, cells: dict[str, Any], names: Sequence[str], gaps: bool = False) -> NDArray[np.float64]:
    """Return columns as numbers (n, columns); with ``gaps``, NaN for those that are missing."""
    x = np.empty((len(next(iter(cells.values()))), len(names)))
    for place, name in enumerate(names):
        x[:, place] = _column(path, name, cells[name], gaps)
    return x


def _column(path: Path, name: str, cells: Any, gaps: bool) -> NDArray[np.float64]:
    import pyarrow as pa
    from pyarrow import compute

    try:
        values = cells.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # spaces, missing cells, or texts
        words = compute.utf8_trim_whitespace(cells)
        missing = compute.is_in(compute.utf8_lower(words), value_set=pa.array(MISSING))
        usable = compute.match_substring_regex(words, NUMBER)
        _refuse(path, name, cells, ~(compute.or_(usable, missing) if gaps else usable).to_numpy(), "a finite number")
        values = compute.if_else(missing, None, words).cast(pa.float64()).to_numpy()  # NaN where it is missing
    _refuse(path, name, cells, np.isinf(values) if gaps else ~np.isfinite(values), "a finite number")
    return np.asarray(values)


def _refuse(path: Path, name: str, cells: Any, bad: NDArray[Any], expected: str) -> None:
    """Raise a DataError for the first bad cell; the first line of the file is its header."""
    rows = np.flatnonzero(bad)
    if len(rows):
        text = cells[int(rows[0])].as_py()
        got = one_line(repr(text), 80) if text.strip() else "an empty cell"
        raise DataError(f"{path}, row {rows[0] + 2}, column {name}", expected, got)


def _people(path: Path, cells: Any) -> NDArray[Any]:
    """Return the person of each row, as a text."""
    people = np.array(cells.to_pylist())
    _refuse(path, "person", cells, people == "", "a person")
    return people


def _labels(path: Path, cells: Any, classes: Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """Return the numbers of labels, and the names of the classes if they have any."""
    from pyarrow import compute

    encoded = compute.utf8_trim_whitespace(cells).combine_chunks().dictionary_encode()
    words, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()

    def refuse(odd: Sequence[bool], expected: str) -> None:
        _refuse(path, "label", cells, np.asarray(odd, bool)[codes], expected)

    refuse([word.lower() in MISSING and word not in classes for word in words], "a label")
    names = tuple(classes)
    if classes:
        refuse([_of(word, classes) < 0 for word in words], f"one of {', '.join(classes)}")
        numbers = [_of(word, classes) for word in words]
    elif all(map(CLASS_NUMBER.fullmatch, words)):
        numbers = [int(word.partition(".")[0]) for word in words]
        refuse([n >= MOST_CLASSES for n in numbers], f"a class number below {MOST_CLASSES:,}, or texts as labels")
    else:
        if all(re.match(NUMBER, word) for word in words):  # a quantity, and no class
            refuse([float(word) % 1 != 0 for word in words], "a whole number or a text")
        names = tuple(sorted(words))
        numbers = [names.index(word) for word in words]
    return np.asarray(numbers, np.int64)[codes], names


def _of(word: str, classes: Sequence[str]) -> int:
    """Return the number of the class that a label names; -1 if it is none."""
    if word in classes:
        return classes.index(word)
    number = int(word.partition(".")[0]) if CLASS_NUMBER.fullmatch(word) else -1
    return number if number < len(classes) else -1
