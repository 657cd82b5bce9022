"""The log of what a client was asked and what left it: a line of JSON for each message that it answered.

It is for the client's operator: nothing of it is sent. A line is on the disk before its answer is handed to Flower, and
without its line there is no answer. So a line may be of an answer that Flower then lost, and a repeated answer has a
line of its own.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import RecordDict

from sepal.errors import SepalError, StateError
from sepal.flower.sizes import array_bytes, records_bytes
from sepal.protocol.fields import arrays_of, config, light_records
from sepal.protocol.messages import read_order
from sepal.storage.files import check_owner, free_bytes, make_directory

ERROR_PARTS = ("word", "type", "key", "code", "expected", "got")  # of an error's record
LARGEST, KEPT = 10 << 20, 10  # bytes of the file before it is set aside as FILE.1; so many are kept


@dataclass(frozen=True)
class Audit:
    """The log of one client. Processes that answer at the same time write one after the other.

    Attributes:
        path: The file, of mode 600. Its directory must be this user's.
        largest: Bytes of the file before it is set aside.
        kept: Number of older files, FILE.1 (the newest), FILE.2, ….
    """

    path: Path
    largest: int = LARGEST
    kept: int = KEPT

    def write(self, client: str, question: RecordDict, answer: RecordDict, **more: Any) -> None:
        """Add a line; durable when this returns.

        Args:
            client: The client's name.
            question: The message's records.
            answer: The records of the answer.
            more: Further entries of the line.

        Raises:
            StateError: It cannot be written, or somebody else may write to its directory.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "client": client, **more, **_request(question), **_answer(answer)})
        try:
            make_directory(self.path.parent)
            check_owner(self.path.parent)
            with FileLock(self.path.with_name(f".{self.path.name}.lock"), mode=0o600):
                handler = _File(self.path, maxBytes=self.largest, backupCount=self.kept, delay=True)
                try:
                    handler.emit(logging.makeLogRecord({"msg": line}))
                    if handler.stream:
                        os.fsync(handler.stream.fileno())
                    handler.close()
                except OSError:
                    with suppress(OSError):  # it tries once more to write what it could not
                        handler.close()
                    _drop_torn_line(self.path)
                    raise
        except OSError as reason:
            expected = "a file for the audit log that can be written, and is no symbolic link"
            got = f"{reason.strerror or reason}{free_bytes(self.path.parent, reason)}"
            raise StateError(str(self.path), f"{expected} ({len(line) + 1:,} bytes)", got) from None


def _drop_torn_line(path: Path) -> None:
    """Cut off what a full disk has left of a line; the next line would be appended to it."""
    with suppress(OSError), os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


class _File(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (the library's name)
        raise  # noqa: PLE0704  (called while the exception is handled; the library would only print it)


def _request(records: RecordDict) -> dict[str, Any]:
    """Return what the server asked for; a message that cannot be read is only counted."""
    facts: dict[str, Any] = {"bytes_in": sum(map(_size, arrays_of(records)))}
    try:
        order, _ = read_order(records)
    except SepalError as reason:
        return {**facts, "kind": "unreadable", "reason": reason.key}
    plan = order.plan
    return {
        **facts,
        "run": order.run,
        "kind": order.kind.value,
        "round": plan.round,
        "phase": plan.phase,
        "base": order.base,
        "views": list(order.views),
    }


def _answer(records: RecordDict) -> dict[str, Any]:
    """Return what leaves: bytes, and the names of all figures and facts. No value is written down."""
    payload = sum(map(_size, arrays_of(records)))
    facts: dict[str, Any] = {"bytes_out": payload + records_bytes(light_records(records)), "payload": payload}
    facts["figures"] = sorted([*records.get("metrics", ()), *config(records, "sums")])
    facts["facts"] = sorted(config(records, "facts"))
    if error := config(records, "error"):
        facts["error"] = {key: str(error.get(key, "")) for key in ERROR_PARTS if key in error}
    return facts


def _size(array: Any) -> int:
    return array_bytes(len(array.data))
