"""A store in memory, for runs that end with their process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sepal.errors import DamagedError
from sepal.protocol.messages import Content
from sepal.protocol.types import Scalar
from sepal.server.run_state import RoundRecord, RunState
from sepal.storage.bounded import MEBIBYTE, Spill


class MemoryRunStore:
    """One round's uploads and one checkpoint.

    Args:
        limit: Bytes of uploads kept in memory; the rest goes to temporary files.
    """

    replays = lasts = False

    def __init__(self, limit: int = 16 * MEBIBYTE) -> None:
        self._latest: RunState | None = None
        self._best: RunState | None = None
        self._whole = True
        self._versions_before: Mapping[str, str] = {}
        self._round = 0
        self._undone: RoundRecord | None = None
        self._spill = Spill(limit)
        self._scalars: dict[str, Mapping[str, Scalar]] = {}
        self._parts: dict[str, bytes] = {}
        self._parts_of = 0
        self._releases: dict[int, set[str]] = {}

    def due(self) -> bool:
        """Return False."""
        return False

    def check_held(self) -> None:
        """Do nothing: no other process can reach a run in memory."""

    def latest(self) -> RunState | None:
        """Return the newest checkpoint, or None."""
        return self._latest

    def replay(self, round: int) -> RoundRecord | None:
        """Return None, because records are not stored."""

    def records(self, last: int) -> Iterator[RoundRecord]:
        """Raise DamagedError if ``last`` is above 0, because records are not stored."""
        if last:
            raise DamagedError("memory", f"the records of rounds 1 to {last}", "none")
        return iter(())

    def spool(self, round: int, client: str, content: Content) -> None:
        """Store an accepted upload, and discard those of other rounds."""
        if round != self._round:
            self._spill.clear()
            self._scalars, self._round = {}, round
        self._spill.put(client, content.data)
        self._scalars[client] = content.scalars

    def read(self, round: int, client: str) -> Content:
        """Return an accepted upload of the current round."""
        if round != self._round:
            raise KeyError(round)
        return Content(self._spill.get(client), self._scalars[client])

    def keep_part(self, round: int, name: str, data: bytes) -> None:
        """Keep a part of a round, and discard those of other rounds."""
        if self._parts_of != round:
            self._parts, self._parts_of = {}, round
        self._parts[name] = data

    def part(self, round: int, name: str) -> bytes | None:
        """Return a part of the current round."""
        return self._parts.get(name) if round == self._parts_of else None

    def drop_parts(self, round: int, prefix: str) -> None:
        """Discard parts of the current round."""
        if round == self._parts_of:
            self._parts = {name: data for name, data in self._parts.items() if not name.startswith(prefix)}

    def releases(self, round: int) -> frozenset[str]:
        """Return the releases of a round."""
        return frozenset(self._releases.get(round, ()))

    def note_release(self, round: int, name: str) -> int:
        """Note a release; return how many different ones there were of this round."""
        names = self._releases.setdefault(round, set())
        names.add(name)
        return len(names)

    def commit(self, record: RoundRecord) -> None:
        """Do nothing: records are only needed to replay rounds."""

    def undo(self, record: RoundRecord) -> None:
        """Keep the record of the undone attempts; the run itself keeps the state to which it goes back."""
        self._undone = record
        if self._best and self._best.round >= record.round:
            self._best = None
        if self._latest and self._latest.round >= record.round:
            self._latest = None

    def undone(self, round: int) -> RoundRecord | None:
        """Return the record of the undone attempts of ``round``."""
        return self._undone if self._undone and self._undone.round == round else None

    def undoable(self) -> list[RoundRecord]:
        """Return nothing, because no round is replayed."""
        return []

    def checkpoint(self, progress: RunState) -> None:
        """Keep the state, and the versions of the one before it: a server's state can be large."""
        if self._latest:
            self._versions_before = self._latest.versions
        self._latest = progress

    def keep_best(self, progress: RunState, whole: bool = True) -> None:
        """Keep the state from which the best full evaluation began, or its versions alone."""
        self._best = progress if whole else replace(progress, server=None)
        self._whole = whole

    def best(self) -> RunState | None:
        """Return that state; None if its versions alone are kept."""
        return self._best if self._whole else None

    def durable(self) -> Mapping[str, str]:
        """Return the clients' versions at the checkpoint before the newest; none if it is the only one."""
        return self._versions_before

    def best_versions(self) -> Mapping[str, str]:
        """Return the clients' versions of the best state."""
        return self._best.versions if self._best else {}

    def evicted(self) -> frozenset[str]:
        """Return nothing, because no operator can reach a run in memory."""
        return frozenset()
