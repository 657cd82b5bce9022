"""Counts the uploads that a client has sent over all runs, which ``sepal join --most-uploads`` limits.

Each upload with noise is one release, and the releases of all runs add up. A server that asks for the same update under
many run ids gets as many answers, each with its own noise, and their mean has less noise.

An upload with noise is charged by its request, before the client trains, so that no error can come between. Afterwards
it is named, too: a request whose repetition gives another upload, as it may on a GPU, is charged again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from sepal.errors import ProtocolError, StateError
from sepal.storage.files import check_owner, make_directory


@dataclass(frozen=True)
class UploadCount:
    """The uploads of one client, in lines of a file next to its states.

    A line ``RUN REQUEST`` or ``RUN UPLOAD`` is one upload. ``RUN REQUEST UPLOAD`` names the upload of a request; a
    second one of the same request counts as one more.

    Attributes:
        path: The file.
        most: Largest number of uploads; 0 for no limit, but they are still counted.
    """

    path: Path
    most: int = 0

    def spend(self, upload: str) -> None:
        """Count ``upload``; durable when this returns. A repeated upload costs nothing, because it has the same bits.

        Args:
            upload: Names the upload, in one of the forms of a line.

        Raises:
            ProtocolError: It would be one more than the node's operator allows.
            StateError: The file cannot be read or written, or somebody else may write to its directory.
        """
        make_directory(self.path.parent)
        check_owner(self.path.parent)
        line = upload.encode()
        try:
            with FileLock(self.path.with_name(f"{self.path.name}.lock")), open(self._open(), "r+b") as file:
                lines = file.read().split(b"\n")
                if line in lines:
                    return
                torn = lines.pop()  # a line that a power failure cut off counts as an upload
                if self.most and uploads([*lines, line]) + bool(torn) > self.most:
                    expected = f"at most {self.most} over all runs, as this node demands (sepal join --most-uploads)"
                    raise ProtocolError("uploads", expected, "a request for one more")
                _append(file.fileno(), (b"\n" if torn else b"") + line + b"\n")
        except OSError as reason:
            expected = "a file that can be read and written, and is no symbolic link"
            raise StateError(str(self.path), expected, reason.strerror or str(reason)) from None

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _append(handle: int, data: bytes) -> None:
    """Append to a file that was read to its end, durably; nothing of it stays where the disk has no room."""
    size = os.fstat(handle).st_size
    try:
        os.lseek(handle, 0, os.SEEK_END)
        written = 0
        while written < len(data):
            written += os.write(handle, data[written:])
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def uploads(lines: Sequence[bytes]) -> int:
    """Return how many uploads the lines are: all, without the first upload that was named for each request."""
    return len(lines) - len({line.rpartition(b" ")[0] for line in lines if line.count(b" ") == 2})
