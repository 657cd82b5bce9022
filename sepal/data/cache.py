"""A cache of prepared arrays on disk, written once and read as memory maps by every process.

An entry is a directory named by the SHA-256 of its inputs. It is written under a temporary name and renamed when
complete, so readers never see an incomplete entry. A lock prevents processes that start together from doing the same
work. If locking or writing is not possible, each process prepares its own arrays in memory. No pickle is used.

By default the cache is beside the data, and so it may come with data from elsewhere: an entry is read as a file of
somebody else's, and whoever uses it checks what it says. Where there is no place for an entry, it is None: nothing is
read or written then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.errors import StateError
from sepal.storage.regular import TEXT, check_parts, is_regular, read_text

_NAME = re.compile(r"[a-z]+\Z")  # of an array; another one might be a path
_MOST = 4 * TEXT  # bytes of notes
Arrays = Mapping[str, NDArray[Any]]


def key_of(kind: str, *parts: object) -> str:
    """Return the name of an entry: SHA-256 (64 hex digits) of the kind and its parts as JSON."""
    return hashlib.sha256(json.dumps([kind, *parts], sort_keys=True, default=str).encode()).hexdigest()


def read(entry: Path | None, private: bool = False) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return an entry's arrays (read-only memory maps) and its notes; None if it is missing or damaged.

    So it is if it leads out of the cache, or has a pipe or a device, which might keep this process waiting; if
    ``private``, also where somebody else has made the entry or the cache.
    """
    if entry is None or (private and not (_is_own(entry.parent) and _is_own(entry))):
        return None
    try:
        path = entry / "notes.json"
        text = read_text(path, _MOST, within=entry.parent)
        check_parts(path, text)
        stored = json.loads(text)
        notes = stored["notes"]
        paths = {name: entry / f"{name}.npy" for name in stored["arrays"]}
        if not isinstance(notes, dict) or not all(map(_NAME.match, paths)):
            return None
        if not all(is_regular(path, entry.parent) for path in paths.values()):
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


def write(entry: Path | None, arrays: Arrays, notes: Mapping[str, Any], private: bool = False) -> bool:
    """Write an entry unless it exists; if ``private``, for its owner alone. Return False if that is not possible.

    Nor is it, if ``private``, in a cache that somebody else has made.
    """
    temporary: Path | None = None
    if entry is None:
        return False
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        if private and not _is_own(entry.parent):
            return False
        temporary = Path(tempfile.mkdtemp(prefix=f".{entry.name[:16]}-", dir=entry.parent))
        for name, array in arrays.items():
            with (temporary / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        (temporary / "notes.json").write_text(
            json.dumps({"arrays": sorted(arrays), "notes": dict(notes)}), encoding="utf-8"
        )
        temporary.chmod(0o700 if private else 0o755)
        _put_in_place(temporary, entry, private)
    except OSError:
        return False
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def _put_in_place(temporary: Path, entry: Path, private: bool) -> None:
    """Rename ``temporary`` to ``entry``. A damaged entry is replaced, a complete one is kept."""
    try:
        temporary.rename(entry)
    except OSError:
        if read(entry, private) is not None:
            return
        shutil.rmtree(entry, ignore_errors=True)
        temporary.rename(entry)


@contextlib.contextmanager
def exclusive(entry: Path | None) -> Iterator[None]:
    """Hold an entry's lock. Has no effect if locking is not possible, or if the lock is a link or no file."""
    if entry is None:
        yield
        return
    lock = entry.parent / f".{entry.name}.lock"
    with contextlib.ExitStack() as stack:
        if os.path.lexists(lock) and (lock.is_symlink() or not is_regular(lock)):
            yield  # versions of filelock before 3.20.1 empty the file to which it leads
            return
        with contextlib.suppress(OSError, NotImplementedError):
            from filelock import FileLock  # not needed by processes that only read

            entry.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(lock))
        yield
