"""Reads a small JSON object that somebody else may have written into a dataclass, with types and ranges checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from sepal.errors import StateError, printable
from sepal.storage.regular import read_text

T = TypeVar("T")
MOST = 2**53  # above it, a number of JSON is not the same in every reader
LATEST = 2.0**37  # seconds since 1970, in the year 6325: later times have no date
LARGEST = 1 << 20  # bytes of a record: a reader may read one for each run, or for each claim to it


def read_record(
    file: Path, within: Path, blank: T, what: str, *, version: int | None = None, verbatim: Collection[str] = ()
) -> T:
    """Return ``blank`` with the fields that ``file`` has; each must be of the type that it has in ``blank``.

    Whole numbers are from 0 to 2⁵³, others from 0 to 2³⁷; texts become printable. Keys that are no fields are ignored.

    Args:
        file: The file.
        within: A directory that the file must be in once all links are followed.
        blank: A dataclass's instance.
        what: What the file should have, for errors.
        version: The ``format`` that the file must name, whose fields may then be missing; None: it names none, and
            has all fields.
        verbatim: Fields whose texts are left as they are.

    Raises:
        FileNotFoundError: There is none.
        StateError: It is damaged, of another format, or cannot be read.
    """
    try:
        stored = json.loads(read_text(file, LARGEST, within))
    except NotADirectoryError:
        raise FileNotFoundError(str(file)) from None
    except (ValueError, RecursionError):
        raise StateError(str(file), f"{what}, as JSON", "a damaged file") from None
    if not isinstance(stored, dict):
        raise StateError(str(file), f"{what}, as a JSON object", "a damaged file")
    if version is not None and stored.get("format") != version:
        raise StateError(str(file), f"{what}, of format {version}", "one of another release of Sepal")
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(blank)):  # type: ignore[arg-type]
        if name in stored:
            values[name] = _checked(f"{file}: {name}", stored[name], getattr(blank, name), name in verbatim)
        elif version is None:
            raise StateError(str(file), what, f"a damaged file, without {name}")
    return replace(blank, **values)  # type: ignore[type-var]


def _checked(key: str, value: Any, example: Any, verbatim: bool) -> Any:
    if isinstance(example, bool):
        expected, fits = "true or false", isinstance(value, bool)
    elif isinstance(example, str):
        expected, fits = "a text", isinstance(value, str)
    elif isinstance(example, Mapping):
        expected, fits = "an object", isinstance(value, dict)
    elif isinstance(value, bool):
        expected, fits = "a number", False
    elif isinstance(example, int):
        expected, fits = f"a whole number from 0 to {MOST}", isinstance(value, int) and 0 <= value <= MOST
    else:
        expected, fits = f"a number from 0 to {LATEST:.0f}", isinstance(value, (int, float)) and 0 <= value <= LATEST
    if not fits:
        raise StateError(key, expected, value)
    if isinstance(value, str):
        return value if verbatim else printable(value)
    return float(value) if isinstance(example, float) else value
