"""Reads files that somebody else may have put there: regular ones of a bounded size, and no links out of a directory.

A named pipe would wait for ever, a device or a file of holes fill the memory, and a link lead to a file of the
reader's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from sepal.errors import ConfigError, SepalError, StateError

TEXT = 16 << 20  # bytes, at most, of a file
ROWS = 1 << 30  # the same of a file with a line for each round or message
PARTS = 1 << 24  # objects and lists, at most, in such a file: each takes a hundred bytes or more once it is read
MOST_RATIO = 100  # times what a file takes on the disk that it may hold; deflate gives up to 1,032
MOST_HOLES = 1 << 26  # bytes that any file may hold, whatever it takes


def expanded(key: str, path: str | Path, error: type[SepalError] = ConfigError) -> Path:
    """Return ``path`` with a user's directory in place of a leading ``~`` or ``~USER``.

    Args:
        key: The key or option that names the path, for the error.
        path: A directory or file, which need not be there.
        error: Type of the error.

    Raises:
        SepalError: There is no such user on this machine.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as reason:
        raise error(key, "a directory", f"{path}: {reason}") from None


def read_bytes(path: Path, most: int = TEXT, within: Path | None = None) -> bytes:
    """Return a file's content.

    Args:
        path: The file.
        most: Bytes that it may have.
        within: A directory that it must be in once all links are followed; None: wherever it is.

    Raises:
        FileNotFoundError: There is none.
        NotADirectoryError: Neither is there a directory.
        StateError: It is no regular file, has more bytes, leads out of ``within``, or cannot be read.
    """
    try:
        target = path.resolve(strict=True)
        if within is not None and not target.is_relative_to(within.resolve()):
            raise StateError(str(path), f"a file in {within}", "a link that leads out of it")
        handle = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise StateError(str(path), "a regular file", "a directory, pipe or device")
            if facts.st_size > most:
                raise StateError(str(path), f"at most {most / 1e6:.3g} MB", f"{facts.st_size / 1e6:.3g} MB")
            if faults := _holes(handle, facts.st_size):
                raise StateError(str(path), "a file without holes", faults)
            data = file.read(most + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, RuntimeError) as reason:  # RuntimeError: a link that leads to itself
        raise StateError(str(path), "a file that can be read", getattr(reason, "strerror", "") or reason) from None
    if len(data) > most:
        raise StateError(str(path), f"at most {most / 1e6:.3g} MB", "more")
    return data


def read_text(path: Path, most: int = TEXT, within: Path | None = None) -> str:
    """Return a file's content as text, with line ends as in Python; see :func:`read_bytes`.

    Raises:
        FileNotFoundError, NotADirectoryError: See above.
        StateError: See above, or it is not UTF-8.
    """
    try:
        return read_bytes(path, most, within).decode().replace("\r\n", "\n").replace("\r", "\n")
    except ValueError as reason:
        raise StateError(str(path), "text", reason) from None


def read_stream(path: Path, most: int = TEXT) -> str:
    """Return the text of a file that the user has named, which may also be a pipe of the shell's.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not UTF-8, or has more than ``most`` bytes, as a device or a hole of a file may.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"more than {most / 1e6:.3g} MB")
    return data.decode()


def check_parts(path: str | Path, text: str | bytes) -> None:
    """Refuse JSON of so many objects and lists that a small file would fill the memory.

    Raises:
        StateError: There are more than ``PARTS``.
    """
    count = text.count(b"{") + text.count(b"[") if isinstance(text, bytes) else text.count("{") + text.count("[")
    if count > PARTS:
        raise StateError(str(path), f"at most {PARTS:,} objects and lists", "more")


def is_regular(path: Path, within: Path | None = None) -> bool:
    """Return whether ``path`` is a regular file, also behind a link, and in ``within``; False if it cannot be read."""
    try:
        return stat.S_ISREG(path.stat().st_mode) and (within is None or is_inside(path, within))
    except (OSError, ValueError):
        return False


def check_regular(path: Path) -> None:
    """Refuse a pipe, which would wait for ever, a device, or a file of holes, which would fill the memory.

    Raises:
        ValueError: ``path`` is there, and is no regular file, or holds far more than it takes on the disk.
    """
    if not os.path.lexists(path):
        return
    if not is_regular(path):
        raise ValueError("no regular file")
    with _opened(path) as file:
        if faults := _holes(file.fileno(), os.fstat(file.fileno()).st_size):
            raise ValueError(faults)


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _holes(handle: int, size: int) -> str:
    """Return what is wrong with an open file that is hardly anything but holes; empty if it is not."""
    if size <= MOST_HOLES or (stored := _stored(handle, size)) * MOST_RATIO >= size:
        return ""
    return f"{size / 1e6:.3g} MB, of which {stored / 1e6:.3g} MB are stored"


def stored_size(path: Path) -> int:
    """Return the bytes of a file without its holes, which take no room.

    Raises:
        OSError: It cannot be read.
    """
    with _opened(path) as file:
        return _stored(file.fileno(), os.fstat(file.fileno()).st_size)


def _stored(handle: int, size: int) -> int:
    stored = position = 0
    try:
        while position < size:
            start = os.lseek(handle, position, os.SEEK_DATA)
            position = os.lseek(handle, start, os.SEEK_HOLE)
            stored += position - start
    except OSError as reason:
        stored = stored if reason.errno == errno.ENXIO else size  # no more data; else nobody can say
    with suppress(OSError):
        os.lseek(handle, 0, os.SEEK_SET)
    return stored


def once(paths: Iterable[Path]) -> list[Path]:
    """Return the paths of files that are there, each file under its first name only.

    A link or a further name costs nothing, and would have a large file read again and again.
    """
    first: dict[tuple[int, int], Path] = {}
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            first.setdefault((status.st_dev, status.st_ino), path)
    return list(first.values())


def is_inside(path: Path, directory: Path) -> bool:
    """Return whether ``path`` is there, and in ``directory`` once all links are followed."""
    try:
        return path.resolve(strict=True).is_relative_to(directory.resolve())
    except (OSError, RuntimeError):
        return False


def check_inside(path: Path, directory: Path) -> None:
    """Refuse a link that leads out of a directory in which a file is to be made or written.

    Raises:
        StateError: ``path`` is there, and not in ``directory`` once all links are followed.
    """
    if os.path.lexists(path) and not is_inside(path, directory):
        raise StateError(str(path), f"nothing, or a file or directory in {directory}", "a link that leads out of it")


def check_lock(path: Path) -> None:
    """Refuse a lock that is another file: versions of filelock before 4 would empty it.

    Raises:
        StateError: It is a link, or a further name of a file that is not empty.
    """
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise StateError(str(path), "a file", "a link")
        if stat.S_ISREG(status.st_mode) and status.st_size and status.st_nlink > 1:
            raise StateError(str(path), "a file of its own", "a further name of another file, which is not empty")


def check_tree(directory: Path) -> None:
    """Refuse a directory in which this process is to write and delete, if anything below it leads elsewhere.

    Through a link it would write, cut off and delete files that are not in the directory; a pipe would keep it waiting.

    Raises:
        StateError: There is a link that leads out of it, a pipe, a socket or a device.
    """
    below = [directory]
    while below:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(below.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    check_inside(Path(entry), directory)
                elif entry.is_dir(follow_symlinks=False):
                    below.append(Path(entry))
                elif not entry.is_file(follow_symlinks=False):
                    raise StateError(entry.path, "a regular file", "a pipe, socket or device")
