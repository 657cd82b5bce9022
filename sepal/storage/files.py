"""Atomic file writes, and safetensors files with a digest of their content."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shlex
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from sepal.errors import DamagedError, SepalError, StateError
from sepal.storage.regular import check_parts, check_regular

log = logging.getLogger("sepal")
FORMAT = "1"  # docs/versioning.md; files from before there was the number have this one
LARGEST = 64 << 30  # bytes; a larger state is refused as a mistake
ONCE = 1 << 12  # bytes of a file that is written once, such as an identity
LARGEST_HEADER = 100_000_000  # bytes; the limit of safetensors
_BEFORE_DIGEST = b'{"__metadata__":{"sha256":"'
_NO_DIGEST = b"0" * 64  # stands in for the digest while it is computed
_TYPES = {"b": "BOOL", "i": "I", "u": "U", "f": "F"}


def read_tensors(path: Path) -> tuple[dict[str, npt.NDArray[Any]], str]:
    """Return the arrays and the JSON text, an object, that :func:`write_tensors` wrote.

    Raises:
        DamagedError: The file is missing, incomplete, or was changed.
        StateError: The file is whole, and of another format.
    """
    try:
        _check_digest(path)
        with safe_open(path, "np") as file:
            metadata = file.metadata()
            if (written := metadata.get("format", FORMAT)) != FORMAT:
                raise StateError(str(path), f"a state of format {FORMAT}", f"{written}, of another release of Sepal")
            arrays = tensors_of(file)
            text = metadata["sepal"]
        check_parts(path, text)
        if not isinstance(json.loads(text), dict):
            raise ValueError("its text is no JSON object")
        return arrays, text
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as reason:
        raise DamagedError(str(path), "a readable state file", f"{type(reason).__name__}: {reason}") from None


def tensors_of(file: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an open safetensors file by name.

    Raises:
        TypeError: One is of a type that NumPy lacks. Which other error the library raises depends on what is imported.
    """
    arrays = {}
    for name in file.keys():  # noqa: SIM118
        try:
            arrays[name] = file.get_tensor(name)
        except AttributeError as reason:
            raise TypeError(f"{name}: {reason}") from None
        if arrays[name].dtype.kind not in "biuf":  # bfloat16, once `ml_dtypes` is imported, as `onnx` does
            raise TypeError(f"{name}: data type {arrays[name].dtype}")
    return arrays


def write_tensors(
    path: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    text: str,
    sync: bool = True,
    limit: int = LARGEST,
    mode: int = 0o666,
    check: Callable[[], None] | None = None,
) -> None:
    """Write a safetensors file with ``arrays`` and ``text`` atomically, with a digest of its content.

    Tensors are written one by one, without a second copy of the state in memory.

    Args:
        path: The file.
        arrays: Arrays by name; C-contiguous, in native byte order.
        text: JSON for the file's metadata.
        sync: Whether to sync the file, so that it survives a power failure.
        limit: Maximum size of the arrays, bytes.
        mode: Permissions of the file, of which the umask takes away.
        check: Called when the new file is whole, before it gets its name; it may raise.

    Raises:
        StateError: The arrays or the header are too large, or the disk is full or not writable.
    """
    size = sum(array.nbytes for array in arrays.values())
    if size > limit:
        raise StateError(str(path), f"a state of at most {limit / 2**30:.3g} GiB", f"{size / 2**30:.3g} GiB")
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that every array is aligned
    head = _header(arrays, names, text)
    if len(head) > LARGEST_HEADER:
        expected = f"names and structure of at most {LARGEST_HEADER / 1e6:.3g} MB, which the format's header holds"
        raise StateError(str(path), expected, f"{len(head) / 1e6:.3g} MB")
    with _replacing(path, sync, 8 + len(head) + size, mode, check) as file:
        sha = hashlib.sha256()
        parts: Iterable[bytes | memoryview] = (_bytes(arrays[name]) for name in names)
        for part in chain((len(head).to_bytes(8, "little"), head), parts):
            file.write(part)
            sha.update(part)
        file.seek(8 + len(_BEFORE_DIGEST))
        file.write(sha.hexdigest().encode())


def _header(arrays: Mapping[str, npt.NDArray[Any]], names: list[str], text: str) -> bytes:
    """Return the header of a safetensors file, padded to 8 bytes, with zeros in place of the digest."""
    head: dict[str, Any] = {"__metadata__": {"sha256": _NO_DIGEST.decode(), "sepal": text, "format": FORMAT}}
    at = 0
    for name in names:
        array = arrays[name]
        kind = _TYPES[array.dtype.kind]
        dtype = kind if kind == "BOOL" else f"{kind}{8 * array.itemsize}"
        head[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    data = json.dumps(head, separators=(",", ":")).encode()
    return data + b" " * (-len(data) % 8)


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the array's memory, little-endian; without a copy on a little-endian machine."""
    little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return little.reshape(-1).view(np.uint8).data


def _check_digest(path: Path) -> None:
    sha = hashlib.sha256()
    check_regular(path)
    with open(path, "rb") as file:
        length = file.read(8)
        head = file.read(min(int.from_bytes(length, "little"), LARGEST_HEADER))
        if not head.startswith(_BEFORE_DIGEST):
            raise ValueError("a file that Sepal did not write")
        begin, end = len(_BEFORE_DIGEST), len(_BEFORE_DIGEST) + 64
        digest = head[begin:end]
        sha.update(length + head[:begin] + _NO_DIGEST + head[end:])
        while part := file.read(1 << 20):
            sha.update(part)
    if digest != sha.hexdigest().encode():
        expected = f"content with digest {digest[:12].decode(errors='replace')}"
        raise DamagedError(str(path), expected, "another: the file has changed since")


def make_directory(path: Path) -> None:
    """Create the directory ``path`` with mode 700, and its parents, if missing, and sync them.

    Raises:
        StateError: It cannot be created.
    """
    try:
        missing = [path, *path.parents]
        missing = missing[: next((number for number, part in enumerate(missing) if part.exists()), 0)]
        private_directory(path)
        for directory in missing:  # otherwise a power failure may lose the directory with its synced files
            sync_path(directory.parent)
    except OSError as reason:
        raise StateError(str(path), "a directory that can be made", reason.strerror or reason) from None


def private_directory(path: Path) -> None:
    """Make ``path`` with mode 700, so that nobody else can read states and records.

    A directory that exists keeps its mode. Missing parents get the usual mode.

    Raises:
        OSError: It cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def check_owner(path: Path) -> None:
    """Check that nobody but this user, or the superuser, owns the directory ``path`` or may write to it.

    Another user could put a link there, through which this process would change a file elsewhere, or exchange what is
    read from there later. A symbolic link to a directory is followed if it is this user's or the superuser's.

    Raises:
        StateError: Somebody else owns it or may write to it.
    """
    trusted = {os.geteuid(), 0}
    for status in (path.lstat(), path.stat()):
        if status.st_uid not in trusted:
            expected = f"a directory of this user (uid {os.geteuid()}), because others could plant links there"
            raise StateError(str(path), expected, f"one of uid {status.st_uid}")
    if mode := status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "others" if mode & stat.S_IWOTH else "its group"
        expected = f"a directory that only its owner may write to (chmod go-w {shlex.quote(str(path))})"
        raise StateError(str(path), expected, f"one that {who} may write to, mode {stat.S_IMODE(status.st_mode):o}")


def everything_below(path: Path) -> Iterator[Path]:
    """Yield a path, and all files and directories below it, without following links.

    What a process deletes meanwhile is left out; ``Path.rglob`` raises an error then.
    """
    yield path
    if not path.is_symlink():
        for directory, subdirectories, files in os.walk(path):
            yield from (Path(directory, name) for name in chain(subdirectories, files))


def sync_path(path: Path) -> None:
    """Sync a file's content or a directory's entries, so that both survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def separate(path: Path, most: int | None = None) -> None:
    """Give a file that is to be written in place an inode of its own, if it has further names, which are hard links.

    An archive that was unpacked in a directory may have made one to any file below it: what is written would be in
    that file. The others keep the content.

    Args:
        path: The file.
        most: Bytes that it is to keep; None: all.

    Raises:
        StateError: There is no room for a copy, or it cannot be read.
    """
    target = Path(os.path.realpath(path))  # a link that stays in the directory may lead to such a name
    try:
        status = target.lstat()
    except OSError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        left = status.st_size if most is None else most
        try:
            handle = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as reason:  # it may be written all the same, and so would its other names
            raise StateError(str(path), "a file that can be read", reason.strerror or reason) from None
        with os.fdopen(handle, "rb") as file, _replacing(target, True, left, 0o600) as copy:
            while data := file.read(min(left, 1 << 20)):
                copy.write(data)
                left -= len(data)


def append_durably(path: Path, data: bytes) -> None:
    """Add ``data`` at the end of a file, which is made with mode 600 if it is missing; durable when this returns.

    Raises:
        StateError: It cannot be written, as on a full disk; a part of ``data`` may then be there.
    """
    separate(path)
    is_new = not path.exists()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            sync_path(path.parent)
    except OSError as reason:
        raise StateError(str(path), "a file that can be written", reason.strerror or reason) from None


def set_aside(path: Path) -> None:
    """Rename a damaged file to ``.damaged``."""
    with suppress(FileNotFoundError):
        path.rename(path.with_suffix(".damaged"))


def write_once(path: Path, data: bytes) -> bytes:
    """Write ``data`` unless the file exists, for this user alone, and return its content.

    Of several concurrent writers, one wins. A symbolic link is not followed: it could make this process read or write a
    file that others chose.

    Raises:
        StateError: The disk is full, the file cannot be written or read, or it is a symbolic link, a pipe or
            far too large.
    """
    if not os.path.lexists(path):
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        write_atomically(part, data, mode=0o600)
        try:
            os.link(part, path)
        except FileExistsError:
            log.debug("%s was written by another process", path)
        except OSError:  # a file system without hard links
            part.replace(path)
        part.unlink(missing_ok=True)
    try:
        return read_unlinked(path, ONCE)
    except FileNotFoundError:  # deleted in between
        raise StateError(str(path), "a readable file", "none") from None


def read_unlinked(path: Path, most: int) -> bytes:
    """Return the content of a regular file that is no symbolic link; a pipe does not keep this process waiting.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        FileNotFoundError: There is none.
        StateError: It is another, has more bytes, or cannot be read.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StateError(str(path), "a regular file", "a directory, pipe or device")
            data = file.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as reason:
        raise StateError(str(path), "a readable file that is no symbolic link", reason.strerror or reason) from None
    if len(data) > most:
        raise StateError(str(path), f"at most {most:,} bytes", "more")
    return data


def read_plain_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a safetensors file from any source.

    Raises:
        StateError: The file is missing or damaged.
    """
    try:
        check_regular(path)
        with safe_open(path, "np") as file:
            return tensors_of(file)
    except (OSError, SafetensorError, ValueError, TypeError) as reason:
        raise StateError(str(path), "a safetensors file", f"{type(reason).__name__}: {reason}") from None


def write_atomically(
    path: Path, data: bytes, sync: bool = True, mode: int = 0o666, check: Callable[[], None] | None = None
) -> None:
    """Write ``data`` atomically: ``path`` has its old or its new content, with ``sync`` even after a power failure.

    Args:
        path: The file.
        data: Its new content.
        sync: Whether to sync the file.
        mode: Permissions of the file, of which the umask takes away.
        check: Called when the new file is whole, before it gets its name; it may raise.

    Raises:
        StateError: The disk is full or not writable; no temporary file remains.
    """
    with _replacing(path, sync, len(data), mode, check) as file:
        file.write(data)


@contextmanager
def _replacing(
    path: Path, sync: bool, size: int, mode: int = 0o666, check: Callable[[], None] | None = None
) -> Iterator[BinaryIO]:
    """Yield a temporary file for ``size`` bytes, which replaces ``path`` when the block ends."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if check:
            check()
        part.replace(path)
        if sync:
            sync_path(path.parent)
    except OSError as reason:
        with suppress(OSError):  # the directory may be none
            part.unlink(missing_ok=True)
        expected = f"room and permission to write {size:,} bytes"
        raise StateError(str(path), expected, f"{reason.strerror or reason}{free_bytes(path.parent, reason)}") from None
    except SepalError:  # of ``check``
        part.unlink(missing_ok=True)
        raise


def free_bytes(directory: Path, reason: OSError) -> str:
    """Return ``: N bytes free``, with the room of a directory, for an error that says that it has none."""
    if reason.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    with suppress(OSError):
        return f": {shutil.disk_usage(directory).free:,} bytes free"
    return ""


def check_room(directory: Path, size: int) -> None:
    """Check that ``size`` bytes can be written to a directory, before work that would be in vain.

    Raises:
        StateError: They cannot; it was raised from an OSError, as where the writing fails.
    """
    try:
        if shutil.disk_usage(directory).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as reason:
        got = f"{reason.strerror}{free_bytes(directory, reason)}"
        raise StateError(str(directory), f"room to write about {size:,} bytes", got) from reason
