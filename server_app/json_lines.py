"""Files of JSON lines, one row each, that a kill leaves readable: only the last line may be incomplete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sepal.errors import StateError, printable
from sepal.storage.regular import ROWS, read_text

Line = Mapping[str, Any]


def read_rows(path: Path) -> list[Line]:
    """Return the rows of a file of JSON lines, without an incomplete last one; none if the file is missing.

    Their texts are printable (:func:`sepal.errors.printable`).

    Raises:
        StateError: A complete line is not a JSON object, or the file is refused (:mod:`sepal.storage.regular`).
    """
    try:
        *lines, _ = read_text(path, ROWS, within=path.parent).split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    rows: list[Line] = []
    for number, line in enumerate(lines, 1):
        try:
            row = dict(json.loads(line))
            rows.append(row if line.isprintable() and "\\" not in line else cleaned(row))
        except (ValueError, TypeError, RecursionError):
            raise StateError(f"{path}, line {number}", "a JSON object", line.strip()[:60]) from None
    return rows


def cleaned(value: Any) -> Any:
    """Return a value of JSON or TOML whose texts, keys among them, are printable (:func:`sepal.errors.printable`)."""
    if isinstance(value, Mapping):
        return {printable(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append ``lines``, of JSON's own types; synced when this returns."""
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as reason:
        raise StateError(str(path), "room and permission to write", reason.strerror or str(reason)) from None


def keep_until(path: Path, last: int) -> None:
    """Keep the lines before the first that is incomplete or belongs to a round after ``last``."""
    if not path.exists():
        return
    kept, size = 0, path.stat().st_size
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n") or not _is_of(line, last):
                break
            kept += len(line)
    if kept < size:
        os.truncate(path, kept)  # a single system call, so a kill leaves no state in between


def _is_of(line: bytes, last: int) -> bool:
    try:
        return bool(json.loads(line)["round"] <= last)
    except (ValueError, KeyError, TypeError):
        return False
