"""A cache of prepared arrays on disk, written once and read as memory maps by every process.

An entry is a directory named by the SHA-256 of its inputs. It is written under a temporary name and renamed when
complete, so readers never see an incomplete entry. A lock prevents processes that start together from doing the same
work. If locking or writing is not possible, each process prepares its own arrays in memory. No pickle is used.

By default the cache is beside the data, and so it may come with data from elsewhere: an entry is read as a file of
somebody else's, and whoever uses it checks what it says. An entry with a secret has a seal: an HMAC over the inode, the
size and the times of each of its files. No call sets the time at which an inode was last changed, so a file that was
changed, replaced or copied since does not fit, unless somebody has written the file system's own tables. Where there is
no place for an entry, it is None: nothing is read or written then.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.errors import StateError
from sepal.storage.regular import TEXT, check_lock, check_parts, check_regular, is_regular, read_text

_NAME = re.compile(r"[a-z]+\Z")  # of an array; another one might be a path
_MOST = 4 * TEXT  # bytes of notes
_SEAL = "seal"  # hex digits; a file of an entry with a secret
Arrays = Mapping[str, NDArray[Any]]


class Entry(NamedTuple):
    """Where arrays are kept.

    Attributes:
        path: Its directory.
        private: Whether it is for its owner alone: what somebody else has made is not read, and nothing is written in a
            cache that somebody else has made.
        secret: The user's secret, with which its files are sealed; None: they are not.
    """

    path: Path
    private: bool = False
    secret: bytes | None = None

    def beside(self, suffix: str) -> Entry:
        """Return the entry of the same kind whose name ends with ``suffix``."""
        return self._replace(path=self.path.with_name(f"{self.path.name}{suffix}"))

    def seal_of(self, paths: Iterable[Path]) -> str:
        """Return the seal of files of this entry, 64 hex digits; empty without a secret.

        Raises:
            OSError: One is not there.
        """
        if self.secret is None:
            return ""
        stats = sorted((path.name, path.lstat()) for path in paths)
        facts = [[name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in stats]
        return hmac.new(self.secret, json.dumps([self.path.name, facts]).encode(), hashlib.sha256).hexdigest()


def key_of(kind: str, *parts: object) -> str:
    """Return the name of an entry: SHA-256 (64 hex digits) of the kind and its parts as JSON."""
    return hashlib.sha256(json.dumps([kind, *parts], sort_keys=True, default=str).encode()).hexdigest()


def read(entry: Entry | None) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return an entry's arrays (read-only memory maps) and its notes; None if it is missing or damaged.

    So it is if it leads out of the cache, or has a pipe or a device, which might keep this process waiting; if private,
    also where somebody else has made the entry or the cache; with a secret, also if its seal does not fit.
    """
    if entry is None or (entry.private and not (_is_own(entry.path.parent) and _is_own(entry.path))):
        return None
    directory, cache = entry.path, entry.path.parent
    try:
        notes_path = directory / "notes.json"
        text = read_text(notes_path, _MOST, within=cache)
        check_parts(notes_path, text)
        stored = json.loads(text)
        notes = stored["notes"]
        paths = {name: directory / f"{name}.npy" for name in stored["arrays"]}
        if not isinstance(notes, dict) or not all(map(_NAME.match, paths)):
            return None
        if not all(is_regular(path, cache) for path in paths.values()):
            return None
        if entry.secret is not None:
            seal = read_text(directory / _SEAL, TEXT, within=cache)
            if not hmac.compare_digest(seal.encode(), entry.seal_of([notes_path, *paths.values()]).encode()):
                return None
        arrays = {name: np.load(path, mmap_mode="r", allow_pickle=False) for name, path in paths.items()}
    except (OSError, ValueError, KeyError, EOFError, TypeError, RecursionError, StateError):
        return None
    return arrays, notes


def _is_own(directory: Path) -> bool:
    """Return whether nobody but this user, or the superuser, has made a directory."""
    try:
        return directory.stat().st_uid in {os.geteuid(), 0}
    except (OSError, ValueError):
        return False


def write(entry: Entry | None, arrays: Arrays, notes: Mapping[str, Any]) -> bool:
    """Write an entry unless it exists; if private, for its owner alone. Return False if that is not possible.

    Nor is it, if private, in a cache that somebody else has made.
    """
    temporary: Path | None = None
    if entry is None:
        return False
    cache = entry.path.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if entry.private and not _is_own(cache):
            return False
        temporary = Path(tempfile.mkdtemp(prefix=f".{entry.path.name[:16]}-", dir=cache))
        for name, array in arrays.items():
            with (temporary / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        (temporary / "notes.json").write_text(
            json.dumps({"arrays": sorted(arrays), "notes": dict(notes)}), encoding="utf-8"
        )
        if entry.secret is not None:
            (temporary / _SEAL).write_text(entry.seal_of(temporary.iterdir()), encoding="utf-8")
        temporary.chmod(0o700 if entry.private else 0o755)
        _put_in_place(temporary, entry)
    except OSError:
        return False
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def _put_in_place(temporary: Path, entry: Entry) -> None:
    """Rename ``temporary`` to the entry's path. A damaged entry is replaced, a complete one is kept."""
    try:
        temporary.rename(entry.path)
    except OSError:
        if read(entry) is not None:
            return
        shutil.rmtree(entry.path, ignore_errors=True)
        temporary.rename(entry.path)


@contextlib.contextmanager
def exclusive(path: Path | None) -> Iterator[None]:
    """Hold the lock of a path. Has no effect if locking is not possible, or if the lock is a link or no file."""
    if path is None:
        yield
        return
    lock = path.parent / f".{path.name}.lock"
    with contextlib.ExitStack() as stack:
        try:
            check_lock(lock)
            check_regular(lock)
        except (StateError, OSError, ValueError):
            yield
            return
        with contextlib.suppress(OSError, NotImplementedError):
            from filelock import FileLock  # not needed by processes that only read

            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(lock))
        yield
