"""Reads a CSV file: a column of labels, columns of numbers, categories and times [, a column of owners].

Errors name the row. For tasks other than classification, labels are numbers, or there are columns ``label:NAME``. A
cell of another column may be missing: empty, ``NA`` or ``NaN`` in any case. pyarrow reads the cells; they stay texts
until it is known what each is (:mod:`sepal.data.sources.kinds`).
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Labels
from sepal.data.incoming import MOST_CLASSES
from sepal.data.schema import FILE, Column
from sepal.data.sources.kinds import (
    MISSING,
    MOST_CATEGORIES,
    NUMBER,
    are_codes,
    as_category,
    encoded,
    kind_of,
    missing_in,
    notes_on,
    present,
    trimmed,
)
from sepal.data.sources.reading import Unpacked, owners_of, reading
from sepal.errors import DataError, one_line
from sepal.storage.regular import check_regular, stored_size
from sepal.tasks.numbers import WHOLE, WHOLE_WORDS

LABEL, PERSON = "label", "person"  # columns with these names, where no key names others
TARGET = "label:"  # begins the names of several target columns
DELETE = "delete the rows without one"
MOST_COLUMNS = 100_000  # of a table; more than a genome has genes
INPUT = 8  # bytes of an input in a row; a category has one for each of its values
NAMED = 4  # columns with missing cells that a message names, at most
OTHER_MARKS = (";", "\t", "|")  # between cells in files that are no CSV of commas
LIKE_MISSING = ("null", "none", "nil", "n/a", "#n/a", "#value!", "?", "-", "--", ".")  # refused with a word
FIRST = 100  # cells by which a column is known for one of numbers
BLOCK = 2**26  # bytes that are read together; more than a row takes
CLASS_NUMBER = re.compile(r"[0-9]{1,18}(\.0*)?")  # int64; pandas writes 1.0 for 1 where a column has an empty cell
INDEX = ("", "Unnamed: 0")  # the first column's name where pandas wrote its rows' numbers


@dataclass(frozen=True)
class Roles:
    """Which columns of a table are what.

    Attributes:
        label: The column of labels; empty: ``label``. Of other tasks, there may be several.
        person: The column of owners; empty: ``person``, if there is one.
        leave_out: Columns that are not read.
        columns: The columns to read, as a schema says, in this order; empty: all others, each of the kind that its
            cells have.
        classes: Names of the classes; a label is then one of them or its number. If there are none, labels are whole
            numbers from 0, or texts, which become classes in sorted order.
        targets: Whether labels are numbers, in one column, several, or in columns ``label:NAME``.
        codes: Whether columns of digits with leading zeros, all of one width, are categories, where no schema says it.
    """

    label: tuple[str, ...] = ()
    person: str = ""
    leave_out: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    classes: Sequence[str] = ()
    targets: bool = False
    codes: bool = False


@dataclass
class Faults:
    """What is wrong with a table: the first fault ends the reading, unless all are collected.

    Attributes:
        collects: Whether the reading goes on after a fault.
        errors: The faults, each with the key that mends it; empty where only the file can be mended.
        kinds: What each column is, also of those that cannot be read.
        cells: The table's cells as texts, by column.
    """

    collects: bool = False
    errors: list[tuple[DataError, str]] = field(default_factory=list)
    kinds: dict[str, Column] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def noting(self, mended_by: str = "") -> Iterator[None]:
        """Note a DataError and go on, if faults are collected."""
        try:
            yield
        except DataError as error:
            if not self.collects:
                raise
            self.errors.append((error, mended_by))


class Table(NamedTuple):
    """What a CSV file holds.

    Attributes:
        x: float64 (n, inputs); NaN where a cell is missing.
        y: int64 (n,), or float64 (n, targets) of other tasks; None without a column of labels.
        names: Names of the classes, or of several targets; empty if the labels are whole numbers from 0.
        people: The person of each row; None without a column of owners.
        columns: What the columns are that were read into ``x``, in order.
        ignored: Names of the file's columns that were not asked for.
        notes: Lines that say which of the file's columns was left out, and which is no number.
        label: The columns of labels or targets.
        person: The column of owners; empty if there is none.
    """

    x: NDArray[np.float64]
    y: NDArray[Any] | None
    names: tuple[str, ...]
    people: NDArray[Any] | None
    columns: tuple[Column, ...]
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    person: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns of ``x``."""
        return tuple(name for column in self.columns for name in column.inputs)


def read_table(
    path: Path, roles: Roles | None = None, labelled: bool = False, fill: bool = False, faults: Faults | None = None
) -> Table:
    """Read a CSV file with a header.

    Args:
        path: The file.
        roles: Which columns are what; None: a column ``label`` of classes.
        labelled: Whether there must be labels.
        fill: Whether missing cells are filled later. Those of targets never are.
        faults: What collects what is wrong, all of it; None: the first fault is raised.

    Raises:
        DataError: The file cannot be read, two columns have one name or one has none, a column or a cell is missing, a
            label is none of the classes, or there must be labels and are none.
    """
    roles, faults = roles or Roles(), faults or Faults()
    with reading(str(path), "a CSV file with a header"):
        check_regular(path)
    header = _header(path, faults, {column.name for column in roles.columns})
    cells = faults.cells = _cells(path, header)
    places = _places(path, header, cells, roles, labelled, faults)
    targets, person, features, ignored, notes = places
    columns, x = _read_features(path, cells, features, roles, faults)
    if not fill:
        with faults.noting():
            refuse_gaps(str(path), x, columns, first=2)
    people: NDArray[Any] | None = None
    y: NDArray[Any] | None = None
    names = tuple[str, ...]()
    if labelled and person in cells:
        with faults.noting():
            people = _people(path, person, cells[person])
    if (present_targets := [name for name in targets if name in cells]) == list(targets) and present_targets:
        with faults.noting("task, folder.label" if roles.targets else "folder.classes" if roles.classes else ""):
            if roles.targets:
                y = np.asarray(_numbers(path, cells, targets))
                names = tuple(name.removeprefix(TARGET) for name in targets) if len(targets) > 1 else ()
            else:
                y, names = _labels(path, targets[0], cells[targets[0]], roles.classes)
    notes = (*notes, *notes_on(columns), *_numbering(path, columns, cells))
    return Table(x, y, names, people, columns, ignored, notes, tuple(targets), person if people is not None else "")


def _numbering(path: Path, columns: Sequence[Column], cells: dict[str, Any]) -> tuple[str, ...]:
    """Return the line that names columns which number the rows, 0, 1, 2, …: ids that say nothing."""
    numbering = [column.name for column in columns if column.kind == "number" and _numbers_rows(cells[column.name])]
    if not numbering:
        return ()
    return (f"{path}: {', '.join(numbering)} numbers the rows; folder.leave-out leaves it out if it is an id",)


def _numbers_rows(cells: Any) -> bool:
    """Return whether each cell is the one before it plus 1, in a table of a dozen rows or more."""
    import pyarrow as pa  # type: ignore[import-untyped]

    first = cells.slice(0, FIRST).to_pylist()
    if len(first) < 12 or not all(re.fullmatch(r"[0-9]{1,15}", cell) for cell in first):
        return False
    try:
        return bool((np.diff(cells.cast(pa.int64()).to_numpy()) == 1).all())
    except pa.ArrowInvalid:
        return False


class Places(NamedTuple):
    """Where a header has what: columns of targets, of the owner and of inputs, those left out, and lines about it."""

    targets: list[str]
    person: str
    features: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def _places(
    path: Path, header: Sequence[str], cells: dict[str, Any], roles: Roles, labelled: bool, faults: Faults
) -> Places:
    """Return where a header has what ``roles`` say."""
    read = {column.name for column in roles.columns}
    index = header[0] if _is_index(header[0], cells[header[0]]) and header[0] not in read else None
    notes = () if index is None else (f"{path}: its first column numbers the rows, as pandas does, and is left out",)
    if index is None and not header[0].strip():
        with faults.noting():
            raise DataError(f"{path}, header", "a name for every column", "none for the first one")
    targets, person = _targets(header, roles), roles.person or (PERSON if PERSON in header else "")
    others = {index, *targets, person, *roles.leave_out} - read
    features = tuple(name for name in header if name not in others)
    feature_names = set(features)  # there may be very many
    for key, names in (("folder.leave-out", roles.leave_out), ("folder.person", (person,) if labelled else ())):
        if lacking := [name for name in names if name and name not in header]:
            with faults.noting(key):
                raise DataError(f"{path}, header: {key}", f"columns among {', '.join(header)}", ", ".join(lacking))
    if labelled and not set(targets) <= set(header):
        with faults.noting("folder.label"):
            columns = ", ".join(features)
            if roles.label:
                raise DataError(f"{path}, header: folder.label", f"one of {columns}", ", ".join(roles.label))
            expected = f"the column to predict to be called `{LABEL}`; folder.label (inspect: --label) names another"
            raise DataError(f"{path}, header", expected, columns)
    if lacking := [column.name for column in roles.columns if column.name not in feature_names]:
        with faults.noting("folder.schema"):
            expected = f"all columns of the {'schema' if labelled else 'model'}, also {', '.join(lacking)}"
            raise DataError(f"{path}, header", expected, ", ".join(features))
    ignored = tuple(name for name in features if roles.columns and name not in read)
    if labelled and ignored:
        notes = (*notes, f"{path}: columns that the schema does not read are left out: {', '.join(ignored)}")
    return Places(targets, person, features, ignored, notes)


def _targets(header: Sequence[str], roles: Roles) -> list[str]:
    """Return the columns of labels or targets."""
    if roles.label:
        return list(roles.label)
    targets = [name for name in header if roles.targets and (name == LABEL or name.startswith(TARGET))]
    return targets or [LABEL]


def _read_features(
    path: Path, cells: dict[str, Any], names: Sequence[str], roles: Roles, faults: Faults
) -> tuple[tuple[Column, ...], NDArray[np.float64]]:
    """Return what columns are, and what they become, float64 (n, inputs)."""
    requested: Sequence[Column | str] = roles.columns or names
    present = [column for column in requested if (column if isinstance(column, str) else column.name) in cells]
    rows, width = len(next(iter(cells.values()))), 0
    unpacked = Unpacked(f"{path}, with {INPUT} bytes for each row and category", stored_size(path))
    numbers = np.empty((rows, len(present)))
    columns, blocks = list[Column](), list[NDArray[np.float64]]()
    for index, column in enumerate(present):
        name = column if isinstance(column, str) else column.name
        resolved = _kind(name, cells[name], roles.codes) if isinstance(column, str) else column
        faults.kinds[name] = resolved
        width += len(resolved.inputs)
        check_width(str(path), width)
        unpacked.add(INPUT * rows * len(resolved.inputs))
        with faults.noting(f"folder.leave-out = {name}, or its kind in {FILE}"):
            if resolved.kind == "text":
                raise _unreadable(path, name, cells[name])
            if resolved.kind == "number":
                numbers[:, index] = _column(path, name, cells[name], gaps=True)
                blocks.append(numbers[:, index : index + 1])
            elif resolved.inputs:
                blocks.append(encoded(str(path), resolved, cells[name]))
            columns.append(resolved)
    read = tuple(column for column in columns if column.inputs)
    plain = len(blocks) == len(present) and all(block.base is numbers for block in blocks)
    return read, numbers if plain or not blocks else np.concatenate(blocks, axis=1)


def _kind(name: str, cells: Any, codes: bool) -> Column:
    """Return what a column is by its cells; most are numbers as they are."""
    first = cells.slice(0, FIRST)
    if codes and _may_be_codes(first) and are_codes(cells):
        return as_category(name, cells) or Column(name=name, kind="text")
    plain = all(re.match(NUMBER, cell) for cell in first.to_pylist())
    return Column(name=name, kind="number") if plain else kind_of(name, cells)


def _may_be_codes(first: Any) -> bool:
    """Return whether all of a column's first cells have one width, as codes do."""
    return len({len(word) for word in present(first).to_pylist()}) <= 1


def _unreadable(path: Path, name: str, cells: Any) -> DataError:
    """Return the error about a column of texts or codes that are too many for categories."""
    words = present(cells)
    example = one_line(repr(words[0].as_py()), 60)
    if not are_codes(cells):
        expected = f"numbers, at most {MOST_CATEGORIES} categories, or times (folder.leave-out leaves a column out)"
        return DataError(f"{path}, column {name}", expected, f"texts such as {example}")
    expected = (
        f"at most {MOST_CATEGORIES} codes with leading zeros, each twice in the mean (folder.leave-out = {name} leaves "
        "them out, folder.leading-zeros = number takes them for numbers)"
    )
    return DataError(f"{path}, column {name}", expected, f"{len(words.unique())} codes such as {example}")


def refuse_gaps(key: str, x: NDArray[Any], columns: Sequence[Column], first: int = 0) -> None:
    """Raise a DataError that says where numbers are missing, unless none is.

    Args:
        key: Where the table is from.
        x: Its inputs, (n, inputs); NaN where one is missing.
        columns: The columns that they were made of.
        first: The number by which its first row is known.
    """
    gaps = _gaps(x, columns)
    rows, column_indices = np.nonzero(gaps)
    if len(rows):
        lacking = {columns[index].kind for index in column_indices.tolist()}
        does = ["fills in the client's mean"] if lacking != {"category"} else []
        does += ["takes a missing category for none of its values"] if "category" in lacking else []
        noun = "value" if "category" in lacking else "number"
        expected = f'a {noun} in every cell (a run with folder.missing = "mean" {" and ".join(does)})'
        where = f"{key}, row {rows[0] + first}, column {columns[column_indices[0]].name}"
        raise DataError(where, expected, f"{len(rows)} without one: {count_gaps(x, columns)}")


def _gaps(x: NDArray[Any], columns: Sequence[Column]) -> NDArray[np.bool_]:
    """Return which cells are missing, (n, columns)."""
    return np.asarray(np.isnan(x if len(columns) == x.shape[1] else x[:, first_inputs(columns)]))


def first_inputs(columns: Sequence[Column]) -> list[int]:
    """Return the place of each column's first input."""
    starts, start = [], 0
    for column in columns:
        starts.append(start)
        start += len(column.inputs)
    return starts


def check_width(key: str, columns: int) -> None:
    """Raise a DataError if a table has more than ``MOST_COLUMNS``."""
    if columns > MOST_COLUMNS:
        raise DataError(key, f"at most {MOST_COLUMNS:,} columns", f"{columns:,}")


def count_gaps(x: NDArray[Any], columns: Sequence[Column]) -> str:
    """Return how many cells are missing in which columns, most first; empty if none is."""
    missing = _gaps(x, columns).sum(axis=0)
    counts = Counter({column.name: int(count) for column, count in zip(columns, missing, strict=True) if count})
    named = ", ".join(f"{count} in {name}" for name, count in counts.most_common(NAMED))
    return f"{named}, and some in {len(counts) - NAMED} more columns" if len(counts) > NAMED else named


def _header(path: Path, faults: Faults, verbatim: Collection[str] = ()) -> list[str]:
    """Return the names of a CSV file's columns, all different, and none empty but perhaps the first.

    White space around a name is left out, but for names in ``verbatim``, with which a model was trained.

    Where faults are collected, a column without a name of its own is called by its number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte-order mark
            header = next(csv.reader(file, strict=True), [])
    except (OSError, ValueError, csv.Error) as error:
        raise _not_utf8(path) or DataError(str(path), "a CSV file with a header", str(error)) from error
    check_width(str(path), len(header))
    if not header:
        raise DataError(str(path), "rows under a header", "no row")
    if len(header) == 1 and (mark := next((mark for mark in OTHER_MARKS if mark in header[0]), "")):
        raise DataError(f"{path}, header", "commas between cells", f"{mark!r}")
    header = [name if name in verbatim else name.strip() for name in header]
    for fault in _name_faults(f"{path}, header", header, index=True):
        with faults.noting():
            raise fault
    counts = Counter(header)
    named = {index for index, name in enumerate(header) if counts[name] == 1 and (name.strip() or not index)}
    return [name if index in named else f"column {index + 1}" for index, name in enumerate(header)]


def check_names(key: str, names: Sequence[str], index: bool = False) -> None:
    """Raise a DataError that names the column, if two have one name, or one has none; with ``index`` the first may."""
    for fault in _name_faults(key, names, index):
        raise fault


def _name_faults(key: str, names: Sequence[str], index: bool) -> Iterator[DataError]:
    for twice in [name for name, count in Counter(names).items() if count > 1 and name.strip()]:
        columns = [number for number, name in enumerate(names, 1) if name == twice]
        got = f"{twice!r} for the columns {', '.join(map(str, columns))}"
        yield DataError(key, "a different name for every column", got)
    for number, name in enumerate(names, 1):
        if not name.strip() and not (index and number == 1):
            yield DataError(key, "a name for every column", f"none for column {number}")


def _cells(path: Path, header: Sequence[str]) -> dict[str, Any]:
    """Return the cells of each column as texts, a ``pyarrow.ChunkedArray``; at least one row."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    wrong: list[Any] = []

    def note(row: Any) -> str:
        wrong.append(row)
        return "error"

    numbered = [str(index) for index in range(len(header))]
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
        fault = DataError(str(path), "a CSV file with a header", one_line(str(error), 200))
        raise _not_utf8(path) or fault from error
    if not len(table):
        raise DataError(str(path), "rows under a header", "no row")
    return dict(zip(header, table.columns, strict=True))


def _not_utf8(path: Path) -> DataError | None:
    """Return an error that names the first line of a file that is not UTF-8; None if all are."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as fault:
                utf16 = number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff"))
                way = f"iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8 FILE > NEW"
                expected = f"text in UTF-8 (in Excel: save as CSV UTF-8; elsewhere: {way})"
                return DataError(f"{path}, line {number}", expected, f"the byte {line[fault.start]:#04x}")
    return None


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
    for index, name in enumerate(names):
        x[:, index] = _column(path, name, cells[name], gaps)
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
        bad = ~(compute.or_(usable, missing) if gaps else usable).to_numpy()
        first = str(cells[int(np.flatnonzero(bad)[0])].as_py()).strip() if bad.any() else ""
        _refuse(path, name, cells, bad, f"a finite number{_way(first) if gaps else ''}")
        values = compute.if_else(missing, None, words).cast(pa.float64()).to_numpy()  # NaN where it is missing
    _refuse(path, name, cells, np.isinf(values) if gaps else ~np.isfinite(values), "a finite number")
    large = [row for row in np.flatnonzero(np.abs(values) >= WHOLE).tolist() if _whole(cells[row].as_py()) > WHOLE]
    if large:
        _refuse(path, name, cells, np.arange(len(values)) == large[0], f"{WHOLE_WORDS}: folder.leave-out = {name}")
    return np.asarray(values)


def _way(cell: str) -> str:
    """Return what a cell that is no number may be, and what to do about it."""
    if re.fullmatch(r"[+-]?[0-9]+([ \u00a0\u202f'.,][0-9]+)+", cell):
        return " (a decimal point, and nothing between thousands: 1234.5)"
    if re.fullmatch(r"[0-9]{1,4}[/.-][0-9]{1,2}([/.-][0-9]{2,4})?", cell):
        return " (a time is written as 2026-01-31)"
    return " (a missing one is an empty cell, NA or NaN)" if cell.lower() in LIKE_MISSING else ""


def _whole(cell: str) -> int:
    """Return the size of a whole number that is written in digits; 0 of another number."""
    return abs(int(cell)) if re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", cell) else 0


def _refuse(path: Path, name: str, cells: Any, bad: NDArray[Any], expected: str) -> None:
    """Raise a DataError for the first bad cell; the first line of the file is its header."""
    rows = np.flatnonzero(bad)
    if len(rows):
        text = cells[int(rows[0])].as_py()
        got = one_line(repr(text), 80) if text.strip() else "an empty cell"
        raise DataError(f"{path}, row {rows[0] + 2}, column {name}", expected, got)


def _people(path: Path, name: str, cells: Any) -> NDArray[Any]:
    """Return the person of each row, as a text."""
    words = trimmed(cells)
    _refuse(path, name, cells, missing_in(words), f"an owner ({DELETE})")
    return owners_of(f"{path}, column {name}", words.to_pylist())


def _labels(path: Path, name: str, cells: Any, classes: Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """Return the numbers of labels, and the names of the classes if they have any."""
    encoded_words = trimmed(cells).dictionary_encode()
    words, codes = encoded_words.dictionary.to_pylist(), encoded_words.indices.to_numpy()

    def refuse(odd: Sequence[bool], expected: str) -> None:
        _refuse(path, name, cells, np.asarray(odd, bool)[codes], expected)

    lacking = [word.lower() in MISSING and word not in classes for word in words]
    spelt = next((word for word, lacks in zip(words, lacking, strict=True) if lacks and word), "")
    named = f", or name {spelt!r} in folder.classes" if spelt else ""
    refuse(lacking, f"a label ({DELETE}{named})")
    names = tuple(classes)
    if classes:
        by_name = {name: number for number, name in enumerate(classes)}
        numbers = [_of(word, by_name) for word in words]
        refuse([number < 0 for number in numbers], f"one of {', '.join(classes)}")
    elif all(map(CLASS_NUMBER.fullmatch, words)):
        numbers = [int(word.partition(".")[0]) for word in words]
        refuse([n >= MOST_CLASSES for n in numbers], f"a class number below {MOST_CLASSES:,}, or texts as labels")
    else:
        if all(re.match(NUMBER, word) for word in words):  # a quantity, and no class
            expected = "a whole number or a text (task = regression predicts numbers)"
            refuse([float(word) % 1 != 0 for word in words], expected)
        names = tuple(sorted(words))
        by_name = {name: number for number, name in enumerate(names)}
        numbers = [by_name[word] for word in words]
    return np.asarray(numbers, np.int64)[codes], names


def _of(word: str, classes: Mapping[str, int]) -> int:
    """Return the number of the class that a label names, of those by name; -1 if it is none."""
    if word in classes:
        return classes[word]
    number = int(word.partition(".")[0]) if CLASS_NUMBER.fullmatch(word) else -1
    return number if number < len(classes) else -1
