"""The kinds of a table's columns: what a column without a schema is, and what its cells become.

A number is float64. A category is 0 or 1 for each of its values, and NaN for all where the cell is missing. A time is
float64 seconds since 1970, of ISO 8601. Anything else is text, which no run reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.data.schema import Column
from sepal.errors import DataError, one_line

MISSING = ("", "na", "nan")  # a missing cell as spreadsheets, R, and NumPy write it; in lower case
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
LIKE_NUMBER = r"(?i)^[+-]?([.,]?[0-9]|inf(inity)?$)"  # what may be meant as a number, such as 1,5 or 12 kg
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
CODE = r"^[0-9]{2,}$"
MOST_CATEGORIES = 50  # of a column without a schema
FEW = 10  # so many categories also where each row has its own
MICRO = 1e6
SHOWN = 6  # categories that a message names, at most


def trimmed(cells: Any) -> Any:
    """Return texts without white space at both ends, as one ``pyarrow.Array``."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import compute

    chunked = cells if isinstance(cells, pa.ChunkedArray) else pa.chunked_array([cells])
    return compute.utf8_trim_whitespace(chunked).combine_chunks()


def missing_in(words: Any) -> NDArray[np.bool_]:
    """Return which of trimmed texts are missing cells."""
    import pyarrow as pa
    from pyarrow import compute

    missing = compute.is_in(compute.utf8_lower(words), value_set=pa.array(MISSING, words.type))
    return np.asarray(missing.to_numpy(zero_copy_only=False), bool)


def _matches(words: Any, pattern: str) -> NDArray[np.bool_]:
    from pyarrow import compute

    return np.asarray(compute.match_substring_regex(words, pattern).to_numpy(zero_copy_only=False), bool)


def present(cells: Any) -> Any:
    """Return texts without white space at both ends and without missing cells, as one ``pyarrow.Array``."""
    words = trimmed(cells)
    return words.filter(~missing_in(words))


def has_leading_zeros(cells: Any) -> bool:
    """Return whether a cell is a whole number of several digits that begins with 0."""
    return bool(_matches(present(cells), r"^0[0-9]+$").any())


def are_codes(cells: Any) -> bool:
    """Return whether all cells are digits of one width, of which one begins with 0, such as postal codes.

    As numbers they would lose the zeros, and 01234 would be close to 01235.
    """
    from pyarrow import compute

    words = present(cells)
    if not len(words) or not _matches(words, CODE).all():
        return False
    widths = compute.min_max(compute.utf8_length(words)).as_py()
    return bool(widths["min"] == widths["max"]) and has_leading_zeros(words)


def kind_of(name: str, cells: Any) -> Column:
    """Return what a column is by its cells, texts.

    Numbers if a cell is one, or begins like one; then a cell that is none is refused when it is read. Times if all are.
    Categories if there are at most ``MOST_CATEGORIES``, which occur twice in the mean, or ``FEW``. Otherwise text.
    """
    from pyarrow import compute

    words = present(cells)
    if not len(words):
        return Column(name=name, kind="number")
    different = compute.unique(words)
    if _matches(different, TIME).all():
        return Column(name=name, kind="time")
    if _matches(different, NUMBER).any() or _matches(different, LIKE_NUMBER).any():
        return Column(name=name, kind="number")
    return as_category(name, words) or Column(name=name, kind="text")


def as_category(name: str, cells: Any) -> Column | None:
    """Return a column as a category; None if it has too many values, or hardly one twice."""
    from pyarrow import compute

    words = present(cells)
    values = sorted(compute.unique(words).to_pylist())
    if not values or len(values) > MOST_CATEGORIES or (len(values) > FEW and 2 * len(values) > len(words)):
        return None
    return Column(name=name, kind="category", values=tuple(values))


def encoded(key: str, column: Column, cells: Any, first: int = 2) -> NDArray[np.float64]:
    """Return the cells of a category or of times as inputs of a model.

    Args:
        key: Where the table is from.
        column: The column.
        cells: Its cells as texts.
        first: The number by which the first row is known.

    Returns:
        float64 (n, inputs); NaN where a cell is missing.

    Raises:
        DataError: A cell is none of the category's values, or no time.
    """
    words = trimmed(cells)
    missing = missing_in(words)
    if column.kind == "time":
        return _seconds(key, column, words, missing, first)[:, None]
    codes = _codes(words, column.values)
    missing &= codes < 0  # a value may be called NA
    _refuse(key, column, words, (codes < 0) & ~missing, f"one of {_listed(column.values)}", first)
    indicators = (codes[:, None] == np.arange(len(column.values))).astype(np.float64)
    indicators[missing] = np.nan
    return np.asarray(indicators)


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(values[:SHOWN]) + more


def _codes(words: Any, values: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each word among the values; -1 for none."""
    import pyarrow as pa
    from pyarrow import compute

    values_set = pa.array(values, words.type)
    places = compute.index_in(words, value_set=values_set)
    if places.null_count:  # pandas writes 1.0 for 1 in a column with an empty cell
        whole = compute.replace_substring_regex(words, r"^([+-]?[0-9]+)\.0*$", r"\1")
        places = compute.coalesce(places, compute.index_in(whole, value_set=values_set))
    return np.asarray(compute.fill_null(places, -1).to_numpy(zero_copy_only=False), np.int64)


def _seconds(key: str, column: Column, words: Any, missing: NDArray[np.bool_], first: int) -> NDArray[np.float64]:
    import pandas as pd

    expected = "a time as 2026-01-31 or 2026-01-31 12:00:00 (ISO 8601)"
    _refuse(key, column, words, ~_matches(words, TIME) & ~missing, expected, first)
    zoned = _matches(words, ZONE) & _matches(words, "[ T]")
    if zoned.any():
        _refuse(key, column, words, ~zoned & ~missing, f"{expected}, with a time zone as the others have", first)
    texts = pd.Series(words.to_pylist(), dtype="string").mask(missing)
    times = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    _refuse(key, column, words, times.isna().to_numpy() & ~missing, expected, first)
    micros = times.dt.as_unit("us").astype("int64").to_numpy()
    return np.where(missing, np.nan, micros / MICRO)


def _refuse(key: str, column: Column, words: Any, bad: NDArray[np.bool_], expected: str, first: int) -> None:
    """Raise a DataError for the first bad cell."""
    rows = np.flatnonzero(bad)
    if len(rows):
        got = one_line(repr(words[int(rows[0])].as_py()), 80)
        raise DataError(f"{key}, row {rows[0] + first}, column {column.name}", expected, got)


def notes_on(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the line that says which columns are read as categories or times; none if all are numbers."""
    described = [f"{column.name} ({len(column.values)} categories)" for column in columns if column.kind == "category"]
    described += [f"{column.name} (times)" for column in columns if column.kind == "time"]
    line = f"columns read as other than numbers: {', '.join(described)}; `sepal data inspect` shows all"
    alike = [note for column in columns for note in alike_but_case(f"column {column.name}", column.values)]
    return (line, *alike) if described else ()


def alike_but_case(subject: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the line that says which names differ in case alone, such as Yes and yes; none if none do."""
    by_word: dict[str, list[str]] = {}
    for name in names:
        by_word.setdefault(name.casefold(), []).append(name)
    pairs = [" and ".join(same) for same in by_word.values() if len(same) > 1]
    return (f"{subject}: {_listed(pairs)} differ in case alone, and are read as different",) if pairs else ()
