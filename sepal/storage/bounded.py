"""Values in bounded memory: beyond the limit they are discarded (BoundedCache) or written to disk (Spill)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Generic, TypeVar

from sepal.errors import StateError
from sepal.storage.files import write_atomically

T = TypeVar("T")
MEBIBYTE = 1 << 20


class BoundedCache(Generic[T]):
    """Values by key, up to a limit. A value that does not fit is not kept, and the caller computes it again.

    Kept values are never evicted. Values are read repeatedly in the same order, and then evicting the least recently
    used one would discard the value that is needed next.

    Args:
        limit: Bytes to keep.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._values: dict[str, tuple[T, int]] = {}

    def keep(self, key: str, value: T, size: int) -> None:
        """Keep ``value``, of ``size`` bytes, if it fits."""
        if self.bytes + size <= self.limit:
            self.drop(key)
            self._values[key] = value, size
            self.bytes += size

    def get(self, key: str) -> T | None:
        """Return the value; None if it was not kept."""
        entry = self._values.get(key)
        return entry[0] if entry else None

    def drop(self, key: str) -> None:
        """Discard the value."""
        if key in self._values:
            self.bytes -= self._values.pop(key)[1]


class Spill:
    """Byte strings by key, in memory up to a limit and in temporary files beyond it.

    Args:
        limit: Bytes kept in memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._memory: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under a new key.

        Raises:
            StateError: The disk is full or not writable.
        """
        if self.bytes + len(data) <= self.limit:
            self._memory[key] = data
            self.bytes += len(data)
            return
        try:
            self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="sepal-")
        except OSError as reason:
            raise StateError("TMPDIR", "a directory for temporary files", reason.strerror or reason) from None
        path = Path(self._scratch.name) / str(len(self._files))
        write_atomically(path, data, sync=False)
        self._files[key] = path

    def get(self, key: str) -> bytes:
        """Return the data.

        Raises:
            KeyError: There is none under this key.
        """
        return self._memory[key] if key in self._memory else self._files[key].read_bytes()

    def clear(self) -> None:
        """Discard everything."""
        self._memory, self._files, self.bytes = {}, {}, 0
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None
