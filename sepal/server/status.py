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
        working: How many of them are connected and have not answered yet.
        missing: How many of them have not answered and are not connected.
    """

    round: int
    phase: str
    roster: int = 0
    present: int = 0
    asked: int = 0
    working: int = 0
    missing: int = 0

    @property
    def waits_for(self) -> str:
        """What the run cannot go on without, in words; empty if its work goes on or is done."""
        if self.phase == "waiting":
            return f"waiting for clients: {self.present} are connected, {self.roster} are known"
        if self.missing and not self.working:
            return f"round {self.round} waits for {self.missing} of {self.asked} clients, which are not connected"
        return ""
