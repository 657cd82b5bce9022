"""What a run is doing at the moment, for whoever watches it from another thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """What a run is doing.

    Attributes:
        round: The round under way, from 1.
        phase: Its phase; ``waiting`` before the first round, ``closing`` and ``closed`` at the end.
        roster: Number of clients in the roster.
        present: How many clients are connected.
        asked: How many have been asked in this round.
        missing: How many of them have not answered yet.
    """

    round: int
    phase: str
    roster: int = 0
    present: int = 0
    asked: int = 0
    missing: int = 0
