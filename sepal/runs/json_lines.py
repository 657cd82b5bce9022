"""Files of JSON lines, one row each, that a kill leaves readable: only the last line may be incomplete."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sepal.errors import StateError, printable
from sepal.storage.files import separate
from sepal.storage.regular import ROWS, check_parts, check_regular, read_bytes

Line = Mapping[str, Any]
LINE = 1 << 28  # bytes of a line, at most: a million clients have fewer


def read_rows(path: Path) -> list[Line]:
    """Return the rows of a file of JSON lines, without an incomplete last one; none if the file is missing.

    Their texts are printable (:func:`sepal.errors.printable`).

    Raises:
        StateError: A complete line is not a JSON object, or the file is refused (:mod:`sepal.storage.regular`).
    """
    try:
        data = read_bytes(path, ROWS, within=path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    check_parts(path, data)
    rows: list[Line] = []
    whole = data.count(b"\n")
    for number, content in enumerate(islice(io.BytesIO(data), whole), 1):  # one line at a time: there may be many
        try:
            line = content.decode().rstrip("\r\n")
            row = dict(json.loads(line))
            rows.append(row if line.isprintable() and "\\" not in line else cleaned(row))
        except (ValueError, TypeError, RecursionError):
            raise StateError(f"{path}, line {number}", "a JSON object", repr(content[:60])) from None
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
    separate(path)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as reason:
        raise StateError(str(path), "room and permission to write", reason.strerror or str(reason)) from None


def keep_until(path: Path, last: int) -> None:
    """Keep the lines before the first that is incomplete or belongs to a round after ``last``.

    The file may be from elsewhere, in a run that is continued.

    Raises:
        StateError: It is nothing but holes, or has a line that no run writes, so long or of so many parts.
    """
    if not path.exists():
        return
    bytes_read, size = 0, path.stat().st_size
    try:
        check_regular(path)
    except ValueError as reason:
        raise StateError(str(path), "the lines of rounds", reason) from None
    with open(path, "rb") as file:
        while line := file.readline(LINE + 1):
            if len(line) > LINE:
                raise StateError(str(path), f"lines of at most {LINE / 1e6:.3g} MB", "a longer one")
            check_parts(path, line)
            if not line.endswith(b"\n") or not _is_of(line, last):
                break
            bytes_read += len(line)
    if bytes_read < size:
        separate(path, bytes_read)
        os.truncate(path, bytes_read)  # a single system call, so a kill leaves no state in between


def _is_of(line: bytes, last: int) -> bool:
    try:
        return bool(json.loads(line)["round"] <= last)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
