"""The server's files: uploads and records of every round, and a checkpoint every few rounds.

A round's uploads and record are on disk before the next round starts. A server that was killed continues from its last
checkpoint and replays the recorded rounds (:func:`sepal.server.run_state.advance`). Two checkpoints are kept while
a run goes on: if the newer one is damaged, the older one is used, and clients still have the versions that it refers
to. Of a complete run it is three, with that of the last training round, from which it can be extended. Records are
kept for the whole run, because the report is computed from them (:mod:`sepal.server.report`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sepal.errors import DamagedError, RosterError, StateError, suggest
from sepal.names import NAME
from sepal.protocol.messages import Content
from sepal.protocol.types import ClientInfo
from sepal.server.ledger import DIRECTIONS, PURPOSES
from sepal.server.run_state import RoundRecord, RunState
from sepal.storage.files import (
    append_durably,
    check_owner,
    make_directory,
    read_tensors,
    set_aside,
    write_atomically,
    write_tensors,
)
from sepal.storage.regular import ROWS, check_inside, check_parts, is_regular, once, read_text
from sepal.storage.serialize import flatten, restore

log = logging.getLogger("sepal")

EVICTED = "evicted"
ROUND_NAME = re.compile(r"[0-9]{6,9}\Z")
BEST = "best.safetensors"
RELEASES = "releases"
PARTS = "secure"  # of a round with secure sums, in the directory of its uploads
_CHECKPOINT = re.compile(r"round-[0-9]{6,9}\.safetensors\Z")
NOBODY: frozenset[str] = frozenset()


class DiskRunStore:
    """Checkpoints, records and uploads under one directory.

    ``round-000010.safetensors`` is the state after round 10. ``uploads/000011/`` holds the uploads of round 11, one
    file per client, until no checkpoint needs them. ``records/000011`` is the record of round 11: a line with the
    digest of the JSON, then the JSON. It is written last; a round without a record counts as not completed.

    ``releases`` has a line for each noised sum that was released: its round and what stands for it.

    ``best.safetensors`` is the state from which the best full evaluation began.

    Each file says what it is (run, round, client), and its digest covers this. A file under another's name is damaged.

    Args:
        directory: Created if missing.
        state: Type of the server algorithm's state.
        keep_versions: For how many rounds before the oldest checkpoint the clients keep the versions of their states,
            so that a copy of the directory that is as old can be continued.
        check: Raises if another process has taken the run over; called before anything is written or deleted.
    """

    replays = lasts = True

    def __init__(
        self, directory: Path, state: type, keep_versions: int = 0, check: Callable[[], None] = lambda: None
    ) -> None:
        self.check_held = check
        check()
        self._directory, self._state, self._keep_versions = directory, state, keep_versions
        self._past_round, self._past_versions = 0, dict[str, str]()
        self._run = ""
        make_directory(directory / "uploads")
        make_directory(directory / "records")
        self._durable: dict[int, Mapping[str, str]] = {}
        self._best_versions: Mapping[str, str] = {}
        for part in directory.rglob(".*.part"):  # left behind by a killed process
            part.unlink(missing_ok=True)

    def _uploads(self, round: int) -> Path:
        return self._directory / "uploads" / f"{round:06d}"

    def _record(self, round: int) -> Path:
        return self._directory / "records" / f"{round:06d}"

    def _files(self) -> list[Path]:
        paths = (path for path in self._directory.glob("round-*.safetensors") if _CHECKPOINT.match(path.name))
        return sorted(paths, key=_round_of)

    def _is_another(self, run: str) -> bool:
        return bool(run and self._run) and run != self._run

    def due(self) -> bool:
        """Return False."""
        return False

    def latest(self) -> RunState | None:
        """Return the newest readable checkpoint; damaged ones are renamed and skipped."""
        newest, readable = None, dict[int, Mapping[str, str]]()
        for path in reversed(self._files()):
            try:
                progress = self._load(path)
            except DamagedError as reason:
                log.warning("%s; using the checkpoint before it", reason)
                set_aside(path)
                continue
            self._run = self._run or progress.run
            newest = newest or progress
            if len(readable) < _kept(newest):  # one more, if a kill came before it was deleted, is not announced
                readable[progress.round] = progress.versions
        self._durable |= readable
        if best := self.best():
            self._best_versions = best.versions
        damaged = sorted(path.name for path in self._directory.glob("round-*.damaged"))
        if damaged and not newest:  # not a new run, so it must not start again from the beginning
            raise StateError(str(self._directory), "a checkpoint that can be read", ", ".join(damaged))
        return newest

    def _load(self, path: Path) -> RunState:
        progress = _read(path, self._state)
        if path.name != BEST:
            _check_round(path, progress)
        if self._is_another(progress.run):
            expected = f"a checkpoint of run {self._run}"
            raise DamagedError(str(path), expected, f"that of round {progress.round} of run {progress.run}")
        return progress

    def replay(self, round: int) -> RoundRecord | None:
        """Return the record of ``round``; None if the round was not completed, or was undone."""
        record = self._stored_record(round)
        return None if record is None or record.undone else record

    def undone(self, round: int) -> RoundRecord | None:
        """Return the record of the undone attempts of ``round``; None if there were none."""
        with suppress(DamagedError):  # then the round is run as if for the first time, as any whose record is damaged
            record = self._stored_record(round)
            return record if record and record.undone else None
        return None

    def _stored_record(self, round: int) -> RoundRecord | None:
        return self._read_record(round) if self._record(round).exists() else None

    def records(self, last: int) -> Iterator[RoundRecord]:
        """Return the records of rounds 1 to ``last``, in order."""
        return (self._read_record(round) for round in range(1, last + 1))

    def _read_record(self, round: int) -> RoundRecord:
        path = self._record(round)
        try:
            head, _, text = read_text(path, ROWS).partition("\n")
            if head != hashlib.sha256(text.encode()).hexdigest():
                raise DamagedError(str(path), "the digest of what follows in its first line", head[:12])
            check_parts(path, text)
            stored = json.loads(text)
            if self._is_another(stored["run"]) or stored["record"]["round"] != round:
                got = f"that of round {stored['record']['round']} of run {stored['run']}"
                raise DamagedError(str(path), f"the record of round {round} of run {self._run}", got)
            record = restore(RoundRecord, {}, stored["record"])
        except FileNotFoundError:
            raise DamagedError(str(path), f"the record of round {round}", "none") from None
        except (ValueError, OSError, TypeError, KeyError, RecursionError) as reason:
            raise DamagedError(str(path), f"the record of round {round}", str(reason)) from None
        if not _may_be_ours(record):
            raise StateError(str(path), f"the record of round {round} as a run writes it", "numbers of no run")
        return record

    def spool(self, round: int, client: str, content: Content) -> None:
        """Store an accepted upload; durable when this returns."""
        self.check_held()
        directory = self._uploads(round)
        make_directory(directory)
        arrays = {"data": np.frombuffer(content.data, np.uint8)}
        text = json.dumps({"of": [self._run, round, client], "scalars": dict(content.scalars)})
        write_tensors(directory / f"{client}.safetensors", arrays, text)

    def read(self, round: int, client: str) -> Content:
        """Return an accepted upload."""
        path, expected = self._uploads(round) / f"{client}.safetensors", f"the upload of {client} in round {round}"
        stored, data = _blob(path, expected)
        if self._is_another(stored["of"][0]) or stored["of"][1:] != [round, client]:
            raise DamagedError(str(path), f"{expected} of run {self._run}", f"that of {stored['of']}")
        if not isinstance(scalars := stored.get("scalars"), dict):
            raise DamagedError(str(path), expected, "no scalars")
        return Content(data, scalars)

    def _part(self, round: int, name: str) -> Path:
        return self._uploads(round) / PARTS / name

    def keep_part(self, round: int, name: str, data: bytes) -> None:
        """Store a part of a round that is under way; durable when this returns."""
        self.check_held()
        make_directory(self._part(round, name).parent)
        text = json.dumps({"of": [self._run, round, name]})
        write_tensors(self._part(round, name), {"data": np.frombuffer(data, np.uint8)}, text)

    def part(self, round: int, name: str) -> bytes | None:
        """Return a part of a round; None if there is none."""
        path = self._part(round, name)
        if not path.exists():
            return None
        expected = f"the part {name} of round {round} of run {self._run}"
        stored, data = _blob(path, expected)
        if stored["of"] != [self._run, round, name]:
            raise DamagedError(str(path), expected, "another")
        return data

    def drop_parts(self, round: int, prefix: str) -> None:
        """Delete the parts of a round whose names begin with ``prefix``."""
        self.check_held()
        for path in self._part(round, "").glob(f"{prefix}*"):
            path.unlink()

    def releases(self, round: int) -> frozenset[str]:
        """Return the releases of a round; of a line that was cut off by a power failure, what there is."""
        lines = (line.partition(" ") for line in self._release_lines().splitlines())
        return frozenset(name for number, _, name in lines if number == str(round))

    def _release_lines(self) -> str:
        path = self._directory / RELEASES
        return read_text(path, ROWS) if path.exists() else ""

    def note_release(self, round: int, name: str) -> int:
        """Note a release in ``releases``, to which lines are only added; durable."""
        noted = self.releases(round)
        if name not in noted:
            self.check_held()
            text = self._release_lines()
            cut_off = bool(text) and not text.endswith("\n")
            append_durably(self._directory / RELEASES, f"{chr(10) * cut_off}{round} {name}\n".encode())
        return len(noted | {name})

    def commit(self, record: RoundRecord) -> None:
        """Store the record of a completed round; durable when this returns."""
        _, structure = flatten(record)
        self.check_held()
        for part in ("uploads", "records"):  # later rounds belong to a history that was abandoned
            for later in self._rounds(part, lambda round: round > record.round):
                _remove(later)
        text = json.dumps({"run": self._run, "record": structure})
        data = f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode()
        write_atomically(self._record(record.round), data, check=self.check_held)

    def _rounds(self, part: str, is_selected: Callable[[int], bool]) -> list[Path]:
        entries = list((self._directory / part).iterdir())
        return [path for path in entries if ROUND_NAME.match(path.name) and is_selected(int(path.name))]

    def undo(self, record: RoundRecord) -> None:
        """Go back to before ``record.round``, which is to be repeated; durable when this returns.

        Checkpoints go first: a server that is killed in between replays the rounds, and most clients diverge again.
        """
        self.check_held()
        for path in reversed(self._files()):
            if _round_of(path) >= record.round:
                path.unlink()
        self._durable = {round: versions for round, versions in self._durable.items() if round < record.round}
        self._forget_best_after(record.round - 1)
        self.commit(record)

    def _forget_best_after(self, round: int) -> None:
        """Delete the best state if the evaluation that began with it was after ``round``."""
        best = self.best()
        if best and best.round >= round:
            (self._directory / BEST).unlink()
            self._best_versions = {}

    def keep_best(self, progress: RunState, whole: bool = True) -> None:
        """Store the state from which the best full evaluation so far began, instead of the one before."""
        self._write(self._directory / BEST, progress)
        self._best_versions = progress.versions

    def best(self) -> RunState | None:
        """Return that state; None if there is none that can be read."""
        path = self._directory / BEST
        try:
            return self._load(path) if path.exists() else None
        except DamagedError as reason:
            log.warning("%s", reason)
            set_aside(path)
            return None

    def undoable(self) -> list[RoundRecord]:
        """Return the records of the rounds after the oldest checkpoint, in order, up to the first that is missing."""
        records: list[RoundRecord] = []
        round = min(self.rounds(), default=0) + 1
        while record := self.replay(round):
            records.append(record)
            round += 1
        return records

    def checkpoint(self, progress: RunState) -> None:
        """Store the run's state, then delete checkpoints and uploads that are no longer needed."""
        self._run = progress.run
        self._write(self._directory / f"round-{progress.round:06d}.safetensors", progress)
        self._durable[progress.round] = progress.versions
        files = self._files()
        newest_files = files[-_kept(progress) :]
        for path in files[: -len(newest_files)]:
            path.unlink()
        oldest = _round_of(newest_files[0])
        self._durable = {round: versions for round, versions in self._durable.items() if round >= oldest}
        for directory in self._rounds("uploads", lambda round: round <= oldest):
            shutil.rmtree(directory)

    def _write(self, path: Path, progress: RunState) -> None:
        arrays, server = flatten(progress.server)
        _, structure = flatten(replace(progress, server=None))
        write_tensors(path, arrays, json.dumps({**structure, "server": server}), check=self.check_held)

    def rewind(self, round: int) -> None:
        """Delete everything after ``round``, so that the run continues from its checkpoint.

        Raises:
            StateError: There is no checkpoint of that round. Two are kept, three of a complete run.
        """
        files = {_round_of(path): path for path in self._files()}
        if round not in files:
            raise StateError(
                "--from-round", f"the round of a checkpoint: {', '.join(map(str, files)) or 'none'}", round
            )
        self._forget_after(round)

    def rounds(self) -> list[int]:
        """Return the rounds of the checkpoints."""
        return [_round_of(path) for path in self._files()]

    def reopen(self, last: int) -> None:
        """Delete the closing round of a run that is to have more rounds than ``last``.

        The run continues from the newest checkpoint at or before ``last``, which every run has.
        """
        self._forget_after(last)

    def _forget_after(self, round: int) -> None:
        self.check_held()
        self._forget_best_after(round)
        for path in reversed(self._files()):
            if _round_of(path) > round:
                path.unlink()
        for part in ("records", "uploads"):
            for later in self._rounds(part, lambda number: number > round):
                _remove(later)

    def durable(self) -> Mapping[str, str]:
        """Return the clients' versions at the oldest kept checkpoint, or ``keep_versions`` rounds before it."""
        if not self._durable:
            return {}
        oldest = min(self._durable)
        return (
            self._versions_after(max(0, oldest - self._keep_versions)) if self._keep_versions else self._durable[oldest]
        )

    def _versions_after(self, round: int) -> Mapping[str, str]:
        """Return the clients' versions after ``round``, by the records up to it; older ones if a record is lost."""
        if round < self._past_round:  # the run has gone back
            self._past_round, self._past_versions = 0, {}
        with suppress(DamagedError):
            while self._past_round < round:
                replies = self._read_record(self._past_round + 1).replies
                self._past_versions |= {name: reply.version for name, reply in replies.items() if reply.version}
                self._past_round += 1
        return self._past_versions

    def best_versions(self) -> Mapping[str, str]:
        """Return the clients' versions of the best state."""
        return self._best_versions

    def evicted(self) -> frozenset[str]:
        """Return the names of the files in ``evicted/``, which :func:`evict` makes."""
        folder = self._directory / EVICTED
        return frozenset(path.name for path in folder.iterdir() if NAME.match(path.name)) if folder.is_dir() else NOBODY


def checkpoints_of(run: Path) -> list[Path]:
    """Return the checkpoints in a run directory, in order: regular files, each once; no links that lead out of it."""
    paths = (run / "checkpoints").glob("round-*.safetensors")
    regular = (path for path in paths if _CHECKPOINT.match(path.name) and is_regular(path, run))
    return once(sorted(regular, key=_round_of))


def read_checkpoint(path: Path, state: type) -> RunState:
    """Return the run's state of the checkpoint at ``path``; ``state`` is the type of the server algorithm's.

    Raises:
        DamagedError: It cannot be read, or is of another round than its name says.
        StateError: It is of another method or release.
    """
    progress = _read(path, state)
    _check_round(path, progress)
    return progress


def read_best(run: Path, state: type) -> RunState | None:
    """Return the state from which the best full evaluation of the run in ``run`` began; None if there is none.

    Raises:
        DamagedError, StateError: As :func:`read_checkpoint`.
    """
    path = run / "checkpoints" / BEST
    return _read(path, state) if is_regular(path, run) else None


def _read(path: Path, state: type) -> RunState:
    arrays, text = read_tensors(path)
    try:
        structure = json.loads(text)
        server: Any = restore(state, arrays, structure.pop("server"))
        progress = restore(RunState, {}, {**structure, "server": None})
    except (KeyError, StateError) as reason:
        raise StateError(str(path), "a checkpoint of this method", str(reason)) from None
    if not (_are_clients(progress.roster.values()) and 0 <= progress.clip < math.inf):
        raise StateError(str(path), "a checkpoint as a run writes it", "numbers of no run")
    return replace(progress, server=server)


def _may_be_ours(record: RoundRecord) -> bool:
    """Return whether a record, which may be from elsewhere, has numbers and words that a run goes on from."""
    return (
        _are_clients([*record.joined, *(reply.client for reply in record.replies.values())])
        and 0 <= record.clip < math.inf
        and 0 <= record.releases <= ROWS
        and all(entry.purpose in PURPOSES and entry.direction in DIRECTIONS for entry in record.ledger)
    )


def _are_clients(clients: Iterable[ClientInfo]) -> bool:
    return all(NAME.match(client.name) and 0 < client.capacity <= 1 and client.examples >= 0 for client in clients)


def _blob(path: Path, expected: str) -> tuple[dict[str, Any], bytes]:
    """Return what a file says of itself, whose ``of`` is a list that is not empty, and its bytes.

    Raises:
        DamagedError: It says nothing such, has no bytes, or cannot be read.
    """
    arrays, text = read_tensors(path)
    stored: dict[str, Any] = json.loads(text)
    if not isinstance(of := stored.get("of"), list) or not of or "data" not in arrays:
        raise DamagedError(str(path), expected, "something else")
    return stored, arrays["data"].tobytes()


def _check_round(path: Path, progress: RunState) -> None:
    if progress.round != _round_of(path):
        expected = f"the checkpoint of round {_round_of(path)}"
        raise DamagedError(str(path), expected, f"that of round {progress.round} of run {progress.run}")


def evict(directory: Path, client: str) -> str:
    """Evict ``client`` from the run whose checkpoints are in ``directory``. A running run notices it within a round.

    A name that is in no checkpoint or record is evicted, too: its node may have joined after the last record, or may
    be yet to join. It is refused under this name.

    Returns:
        Empty if the client is in the run's records. Otherwise a few words about what was found, for the operator.

    Raises:
        RosterError: It is not the name of a client.
        StateError: The checkpoints cannot be read, or the directory is not writable or another user's.
    """
    if not NAME.match(client):
        raise RosterError("client", "at most 64 letters, digits, '.', '_' or '-'", client)
    names, run = set[str](), directory.parent
    checkpoints = sorted(directory.glob("round-*.safetensors"))
    for store_path in (directory, *checkpoints):
        check_inside(store_path, run)
    checkpoints = once(checkpoints)
    if (directory / EVICTED).is_symlink():
        raise StateError(str(directory / EVICTED), "a directory", "a link")
    for path in checkpoints:
        try:
            names |= json.loads(read_tensors(path)[1])["roster"].keys()
        except (KeyError, AttributeError) as reason:
            raise StateError(str(path), "a checkpoint of a run", f"{type(reason).__name__}: {reason}") from None
    for path in once((directory / "records").glob("[0-9]*")):
        # of a damaged record or a copy, the name alone counts
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, StateError):
            text = read_text(path, ROWS, within=run).partition("\n")[2]
            check_parts(path, text)
            names |= {str(info["name"]) for info in json.loads(text)["record"]["joined"]}
    if directory.exists():  # a server could not read what another user puts there, and would end
        check_owner(directory)
    make_directory(directory / EVICTED)
    write_atomically(directory / EVICTED / client, b"")
    return "" if client in names else suggest("no record of the run has that name", client, names)


def _kept(newest: RunState) -> int:
    """Return how many checkpoints are kept; of a closed run also that of the last training round, to extend it from."""
    return 3 if newest.closed else 2


def _round_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("round-"))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
