"""Copies a run's files while a server writes them, so that the copy can be continued like the run itself.

Files of checkpoints, records and uploads are written once and never changed, so a copy is consistent if nothing that
belongs to its newest checkpoint was deleted while it was made: a server deletes uploads, and clients delete states,
only once no kept checkpoint needs them. A copy during which that checkpoint was deleted is made again.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from sepal.errors import StateError
from sepal.protocol.messages import is_version
from sepal.runs.central_secret import SECRET
from sepal.runs.stored_run import ABOUT
from sepal.server.released_mean import RELEASED
from sepal.server.run_store.disk import BEST, EVICTED, PARTS, RELEASES, ROUND_NAME, checkpoints_of
from sepal.server.summed_uploads import SUM
from sepal.simulated_time import FILE as DEVICES
from sepal.storage.files import check_owner, make_directory, read_tensors, sync_path
from sepal.storage.regular import is_inside

ROWS = ("metrics.jsonl", "ledger.jsonl")
MOST_ATTEMPTS = 20
_PART = 1 << 20  # bytes that are copied at once


def back_up(run: Path, directory: Path) -> tuple[Path, int]:
    """Copy a run, which may be going on, to a directory of its name in ``directory``, instead of an older copy there.

    Only files that a run has are read, and no link that leads out of the run is followed. The copy has the mode 700.
    The older copy is there until the new one is complete.

    Returns:
        The copy, and the round of its newest checkpoint.

    Raises:
        StateError: The run has no checkpoint that can be read, the directory holds something else under its name, it
            cannot be written, or the run deletes its checkpoints faster than they can be copied.
    """
    run = Path(os.path.abspath(run))  # "." has no name
    target, part, former = directory / run.name, directory / f".{run.name}.part", directory / f".{run.name}.former"
    if run.resolve() == target.resolve():
        raise StateError(str(directory), "another directory than that of the run", "the same")
    make_directory(directory)
    check_owner(directory)
    if not os.path.lexists(target) and former.is_dir() and not former.is_symlink():
        former.rename(target)  # a backup was killed between its two last steps
    if os.path.lexists(target) and _run_id(target) != _run_id(run):
        raise StateError(str(target), f"nothing, or an earlier copy of the run {run.name}", "something else")
    try:
        round = _copied_whole(run, part)
    except BaseException:
        _remove(part)
        raise
    if os.path.lexists(target):
        _remove(former)
        target.rename(former)
    part.rename(target)
    sync_path(directory)
    _remove(former)
    return target, round


def _copied_whole(run: Path, part: Path) -> int:
    """Copy the run's files to ``part``, again and again until no checkpoint was deleted meanwhile; return its round."""
    for _ in range(MOST_ATTEMPTS):
        _remove(part)
        make_directory(part)
        if (round := _copied(run, part)) is not None:
            return round
    expected = "a checkpoint that is there for as long as the copy takes: a larger checkpoint-every"
    raise StateError(str(run), expected, f"none in {MOST_ATTEMPTS} attempts")


def _copied(run: Path, part: Path) -> int | None:
    """Copy the run's files to ``part``; return the newest checkpoint's round, or None if it was deleted meanwhile."""
    checkpoints = checkpoints_of(run)
    if not checkpoints:
        raise StateError(str(run), "a run with a checkpoint", "none")
    newest, ended = checkpoints[-1], (run / "summary.json").exists()
    listed = [*checkpoints, *_written_once(run)]
    _check_names(listed)
    try:
        for path in listed:
            _copy(path, part / path.relative_to(run), run)
        for name in ("config.toml", ABOUT, DEVICES, *ROWS, *(["summary.json"] if ended else [])):
            if (run / name).exists():
                _copy(run / name, part / name, run, whole_lines=name in ROWS)
        if (run / "checkpoints" / RELEASES).exists():  # replaced as a whole; it may have more than the copy, never less
            _copy(run / "checkpoints" / RELEASES, part / "checkpoints" / RELEASES, run)
    except FileNotFoundError:
        return None
    if not newest.exists():
        return None
    read_tensors(part / newest.relative_to(run))  # raises if it is damaged
    return int(newest.stem.removeprefix("round-"))


def _check_names(paths: Iterable[Path]) -> None:
    """Refuse two names of one file, of which a copy would have the content as often.

    Raises:
        StateError: There are such.
    """
    first: dict[tuple[int, int], Path] = {}
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            other = first.setdefault((status.st_dev, status.st_ino), path)
            if other != path and stat.S_ISREG(status.st_mode):
                raise StateError(str(path), "a file of its own", f"a further name of {other.name}")


def _written_once(run: Path) -> Iterator[Path]:
    """Yield the files of a run that are never changed: records before uploads, which are stored before their record."""
    store, clients = run / "checkpoints", run / "clients"
    if (store / BEST).exists():
        yield store / BEST
    if os.path.lexists(run / SECRET):  # with another secret, the copy could not be continued
        yield run / SECRET
    yield from _entries(store / EVICTED)
    yield from (path for path in _entries(store / "records") if ROUND_NAME.match(path.name))
    for uploads in (path for path in _entries(store / "uploads") if ROUND_NAME.match(path.name)):
        yield from (path for path in _entries(uploads) if path.suffix == ".safetensors")
        yield from (path for path in _entries(uploads / PARTS) if path.name in (SUM, RELEASED))
    for client in (client for run_id in _entries(clients) for client in _entries(run_id)):  # of a run in process
        for path in _entries(client):
            if path.name == "identity" or (path.suffix in (".safetensors", ".origin") and is_version(path.stem)):
                yield path


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _copy(source: Path, target: Path, within: Path, whole_lines: bool = False) -> None:
    """Copy a regular file of a run; with ``whole_lines``, up to the end of its last complete line.

    Raises:
        FileNotFoundError: It was deleted.
        StateError: It is no regular file, leads out of the run, or cannot be read or written.
    """
    make_directory(target.parent)
    try:
        if not is_inside(source, within):
            if not os.path.lexists(source):
                raise FileNotFoundError(source)
            raise StateError(str(source), f"a file in {within}", "a link that leads out of it")
        handle = os.open(source.resolve(strict=True), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb"), open(target, "xb", opener=_private) as written:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise StateError(str(source), "a regular file", "a directory, pipe or device")
            _stream(handle, written, whole_lines)
            written.flush()
            os.fsync(written.fileno())
    except FileNotFoundError:
        raise
    except OSError as reason:
        raise StateError(str(target), f"room and permission to copy {source}", reason.strerror or reason) from None


def _stream(handle: int, written: BinaryIO, whole_lines: bool) -> None:
    """Copy a file; its holes stay such, so that a planted one of terabytes takes neither room nor time."""
    end, position = 0, 0  # of the last complete line; of what is copied
    while data := os.pread(handle, _PART, position := _after_hole(handle, position)):
        if (line_end := data.rfind(b"\n")) >= 0:
            end = position + line_end + 1
        if data.count(0) < len(data):
            written.seek(position)
            written.write(data)
        position += len(data)
    written.truncate(end if whole_lines else position)


def _after_hole(handle: int, position: int) -> int:
    """Return where a file's next data begin; its end if there are none, and ``position`` where nobody can say."""
    try:
        return os.lseek(handle, position, os.SEEK_DATA)
    except OSError as reason:
        return max(position, os.fstat(handle).st_size) if reason.errno == errno.ENXIO else position


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _run_id(run: Path) -> str:
    """Return the id of the run in a directory; empty if it has no checkpoint."""
    checkpoints = [] if run.is_symlink() else checkpoints_of(run)
    return str(json.loads(read_tensors(checkpoints[-1])[1]).get("run", "")) if checkpoints else ""


def _remove(directory: Path) -> None:
    if directory.is_symlink():
        raise StateError(str(directory), "a directory that `sepal backup` has made", "a link")
    if directory.exists():
        shutil.rmtree(directory)
