"""A cache of prepared arrays on disk, written once and read as memory maps by every process.

An entry is a directory named by the SHA-256 of its inputs. It is written under a temporary name and renamed when
complete, so readers never see an incomplete entry. A lock prevents processes that start together from doing the same
work. If locking or writing is not possible, each process prepares its own arrays in memory. No pickle is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def key_of(kind: str, *parts: object) -> str:
    """Return the name of an entry: SHA-256 (64 hex digits) of the kind and its parts as JSON."""
    return hashlib.sha256(json.dumps([kind, *parts], sort_keys=True, default=str).encode()).hexdigest()


def read(entry: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return an entry's arrays (read-only memory maps) and its notes; None if it is missing or damaged."""
    try:
        notes = json.loads((entry / "notes.json").read_text(encoding="utf-8"))
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in notes["arrays"]}
    except (OSError, ValueError, KeyError, EOFError, TypeError):
        return None
    return arrays, notes["notes"]


def write(entry: Path, arrays: Arrays, notes: Mapping[str, Any], private: bool = False) -> bool:
    """Write an entry unless it exists; if ``private``, for its owner alone. Return False if that is not possible."""
    temporary: Path | None = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
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
        _put_in_place(temporary, entry)
    except OSError:
        return False
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def _put_in_place(temporary: Path, entry: Path) -> None:
    """Rename ``temporary`` to ``entry``. A damaged entry is replaced, a complete one is kept."""
    try:
        temporary.rename(entry)
    except OSError:
        if read(entry) is not None:
            return
        shutil.rmtree(entry, ignore_errors=True)
        temporary.rename(entry)


@contextlib.contextmanager
def exclusive(entry: Path) -> Iterator[None]:
    """Hold an entry's lock. Has no effect if locking is not possible."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):
            from filelock import FileLock  # not needed by processes that only read

            entry.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(entry.parent / f".{entry.name}.lock"))
        yield
