"""What a run asks of its store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from sepal.protocol.messages import Content
from sepal.server.run_state import RoundRecord, RunState


class RunStore(Protocol):
    """Stores checkpoints, round records and uploads of a run.

    Attributes:
        replays: Whether rounds are replayed after a restart, so that every accepted upload must be stored.
        lasts: Whether it outlives its process, so that a run that has ended can be continued.
    """

    replays: bool
    lasts: bool

    def due(self) -> bool:
        """Return whether the next completed round gets a checkpoint, whatever its number."""
        ...

    def check_held(self) -> None:
        """Check that no other process has taken the run over, before anything of it is written.

        Raises:
            SupersededError: One has (:mod:`sepal.runs.claims`).
        """
        ...

    def latest(self) -> RunState | None:
        """Return the newest readable checkpoint; None for a new run."""
        ...

    def replay(self, round: int) -> RoundRecord | None:
        """Return the record of ``round``; None if the round was not completed, or was undone.

        Raises:
            DamagedError: The record cannot be read.
        """
        ...

    def records(self, last: int) -> Iterator[RoundRecord]:
        """Return the records of rounds 1 to ``last``, in order.

        Raises:
            DamagedError: A record is missing or cannot be read; the error names its file.
        """
        ...

    def spool(self, round: int, client: str, content: Content) -> None:
        """Store an accepted upload."""
        ...

    def read(self, round: int, client: str) -> Content:
        """Return an accepted upload."""
        ...

    def keep_part(self, round: int, name: str, data: bytes) -> None:
        """Store a part of a round that is under way, instead of an older one; durable when this returns.

        Parts are kept as long as the round's uploads would be.

        Args:
            round: The round.
            name: Letters, digits and hyphens.
            data: Its content.
        """
        ...

    def part(self, round: int, name: str) -> bytes | None:
        """Return a part of a round; None if there is none."""
        ...

    def drop_parts(self, round: int, prefix: str) -> None:
        """Delete the parts of a round whose names begin with ``prefix``."""
        ...

    def releases(self, round: int) -> frozenset[str]:
        """Return what :meth:`note_release` has noted of a round."""
        ...

    def note_release(self, round: int, name: str) -> int:
        """Note that a noised sum is about to be released; durable when this returns.

        Args:
            round: Its round.
            name: What stands for the sum and its noise: 32 hexadecimal digits.

        Returns:
            How many different ones of this round have been noted, with this one.
        """
        ...

    def commit(self, record: RoundRecord) -> None:
        """Store the record of a completed round; durable when this returns."""
        ...

    def undo(self, record: RoundRecord) -> None:
        """Go back to before ``record.round``, which is to be repeated; durable when this returns.

        Args:
            record: What the undone attempts have cost; :meth:`undone` returns it until the round is committed.
        """
        ...

    def undone(self, round: int) -> RoundRecord | None:
        """Return the record of the undone attempts of ``round``; None if there were none."""
        ...

    def undoable(self) -> list[RoundRecord]:
        """Return the records of the rounds after the oldest checkpoint, in order; none where no round is replayed."""
        ...

    def checkpoint(self, progress: RunState) -> None:
        """Store the run's state."""
        ...

    def keep_best(self, progress: RunState, whole: bool = True) -> None:
        """Store the state from which the best full evaluation so far began, instead of the one before.

        Args:
            progress: The state.
            whole: Or its versions alone, because nobody can ask for it: messages are then as in a run that is stored.
        """
        ...

    def best(self) -> RunState | None:
        """Return that state; None if there is none that can be read."""
        ...

    def durable(self) -> Mapping[str, str]:
        """Return the clients' versions at the checkpoint before the newest.

        The server never asks for older ones, but for :meth:`best_versions`.
        """
        ...

    def best_versions(self) -> Mapping[str, str]:
        """Return the clients' versions of the best state; none without one."""
        ...

    def evicted(self) -> frozenset[str]:
        """Return the names of the clients that an operator has evicted so far."""
        ...
