"""The protocol's number, and who speaks which: docs/versioning.md says when it is raised and what it promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sepal import __version__
from sepal.errors import ProtocolError

PROTOCOL = 2  # raise it by one when tests/sepal/protocol/test_protocol_number.py says so
FIRST = 2  # messages before it do not name their release, and were read by their own release alone
_RELEASE = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,31}\Z")
Side: TypeAlias = Literal["server", "client"]


@dataclass(frozen=True)
class Peer:
    """What a sender says about itself.

    Attributes:
        protocol: Number of its protocol; 0 if it names none.
        sepal: Its release of Sepal; empty if it does not say, as in orders and replies after the query.
    """

    protocol: int
    sepal: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Peer:
        """Return what the head of a message, or an error's record, says; untrusted."""
        number, release = record.get("protocol"), record.get("sepal")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 10**9:
            number = 0
        return cls(number, release if isinstance(release, str) and _RELEASE.match(release) else "")

    def __str__(self) -> str:
        return f"protocol {self.protocol}" + (f" (Sepal {self.sepal})" if self.sepal else "")


def ourselves() -> Peer:
    """Return this side."""
    return Peer(PROTOCOL, __version__)


def check_peer(peer: Peer, sender: Side) -> None:
    """Check that this side works with a sender's protocol: its own number, the one before and the one after.

    Args:
        peer: What the sender says about itself.
        sender: Which side it is.

    Raises:
        ProtocolError: It does not; the error names both numbers and releases, and which side to upgrade.
    """
    if max(FIRST, PROTOCOL - 1) <= peer.protocol <= PROTOCOL + 1:
        return
    receiver: Side = "client" if sender == "server" else "server"
    older = sender if peer.protocol < PROTOCOL else receiver
    least = max(FIRST, PROTOCOL - 1)
    expected = f"{least} to {PROTOCOL + 1}, because this {receiver} has {ourselves()}"
    got = f"{peer} of the {sender}" if peer.protocol else f"none: a {sender} before protocol {FIRST}"
    raise ProtocolError("protocol", expected, f"{got}: upgrade the {older}")
