"""The ledger entries of one round, written while its messages are sent and arrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sepal.errors import told_causes
from sepal.protocol.messages import Content
from sepal.protocol.types import STEPS, Kind
from sepal.server.ledger import LedgerEntry
from sepal.server.requests import Request


class RoundLedger:
    """What was sent to each client of a round, and what came back.

    Args:
        round: The round's number.
        dense: Bytes of the whole model as float32.
        secure: Whether the round has secure sums.
        entries: What is in it already.
    """

    def __init__(self, round: int, dense: int, secure: bool = False, entries: Iterable[LedgerEntry] = ()) -> None:
        self._round, self._dense, self._secure = round, dense, secure
        self._entries: list[LedgerEntry] = list(entries)

    def sent(self, request: Request, content: Content, message: int) -> None:
        """Enter an order whose message has so many bytes."""
        self._enter(request, "down", content, message)

    def accepted(self, request: Request, content: Content, message: int) -> None:
        """Enter a reply that counts."""
        self._enter(request, "up", content, message)

    def refused(self, request: Request, content: Content, message: int, reason: str) -> None:
        """Enter a reply that does not count."""
        self._enter(request, "up", content, message, "refused", reason)

    def missing(self, request: Request, reason: str) -> None:
        """Enter that no reply came."""
        self._enter(request, "up", Content(), 0, "missing", reason)

    def late(self, client: str, message: int, reason: str) -> None:
        """Enter a reply that nobody waited for; ``message`` is 0 if it has not come."""
        self._entries.append(LedgerEntry(self._round, client, "training", "up", 0, message, 0, "late", reason))

    def _enter(
        self,
        request: Request,
        direction: str,
        content: Content,
        message: int,
        status: str = "accepted",
        reason: str = "",
    ) -> None:
        kind = request.order.kind
        carries = kind not in STEPS and (direction == "down" or (status == "accepted" and kind is Kind.TRAIN))
        self._entries.append(
            LedgerEntry(
                round=self._round,
                client=request.client,
                purpose=request.purpose,
                direction=direction,
                payload=len(content.data),
                message=message,
                dense=self._dense if carries else 0,
                status=status,
                reason=reason[:300],
                step=(kind.value if kind in STEPS else "keys" * (direction == "up")) if self._secure else "",
            )
        )

    def revoke(self, client: str, reason: str, status: str = "refused") -> None:
        """Mark the accepted reply of ``client`` as refused, or as late: a late upload has cost what it would have."""
        for index, entry in enumerate(self._entries):
            if (entry.client, entry.direction, entry.status) == (client, "up", "accepted"):
                dense = entry.dense if status == "late" else 0
                self._entries[index] = replace(entry, dense=dense, status=status, reason=reason)

    @property
    def causes(self) -> str:
        """Why messages were not accepted: each cause once, with its clients."""
        refused = [entry for entry in self._entries if entry.reason]
        return told_causes((entry.client, entry.reason.removeprefix(f"{entry.client}: ")) for entry in refused)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries by client name, orders first."""
        return tuple(sorted(self._entries, key=lambda entry: (entry.client, entry.direction)))
