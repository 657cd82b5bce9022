"""Every message of a run in one process, as bytes, to search for what must not travel."""

from __future__ import annotations

import pytest
from flwr.app import Array, RecordDict

from sepal.client_app.host import ClientHost


def bytes_of(records: RecordDict) -> bytes:
    """Return the bytes of all items of all records of a message."""
    values = (value for record in records.values() for value in record.values())
    raw = (value.data if isinstance(value, Array) else value for value in values)
    return b"".join(value if isinstance(value, bytes) else repr(value).encode() for value in raw)


def record_messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RecordDict, RecordDict]]:
    """Return a list that gets each order and reply of the runs that follow."""
    messages: list[tuple[RecordDict, RecordDict]] = []
    answer = ClientHost.answer

    def recorded(host: ClientHost, records: RecordDict) -> RecordDict:
        reply = answer(host, records)
        messages.append((records, reply))
        return reply

    monkeypatch.setattr(ClientHost, "answer", recorded)
    return messages
