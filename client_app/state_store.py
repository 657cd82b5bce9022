"""A client's states on disk, by version, as safetensors files.

A version is kept until the server announces, by ``durable``, that it will not ask for it again. The reply is stored
with the state, so that a repeated message gets the same reply, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from sepal.errors import DamagedError, StateError, one_line
from sepal.protocol.messages import Content, Order, Reply, is_version, version_round
from sepal.protocol.types import Scalar
from sepal.storage.files import (
    check_owner,
    check_room,
    make_directory,
    read_tensors,
    set_aside,
    write_once,
    write_tensors,
)
from sepal.storage.regular import check_lock, is_regular
from sepal.storage.serialize import flatten, restore

log = logging.getLogger("sepal")
_IDENTITY = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True)
class Stored:
    """One version of a client's state, and the reply that was sent with it.

    Attributes:
        request: Identifies the message that was answered: kind, round, base, digest of the download, views.
        state: The client algorithm's state.
        reply: Head of the reply.
        content: Content of the reply.
        local: By name, the model's buffers that stay with the client and are not as they were built
            (:mod:`sepal.training.module_state`).
    """

    request: str
    state: Any
    reply: Reply
    content: Content
    local: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class VersionOrigin:
    """The message that led to a version, as received."""

    order: Order
    content: Content


class StateStore(Protocol):
    """The states of one client in one run."""

    @property
    def identity(self) -> str:
        """A unique id of this store. It tells a restarted client from a second client with the same name."""
        ...

    def load(self, version: str) -> Stored | None:
        """Return the version; None if it is missing or damaged.

        Raises:
            StateError: The state belongs to another method or release.
        """
        ...

    def answered(self, round: int, request: str) -> Stored | None:
        """Return the version of ``round`` that answered ``request``; None if there is none."""
        ...

    def save(self, version: str, stored: Stored, origin: VersionOrigin | None = None) -> None:
        """Store the version and the message that led to it; in a durable store, both are synced when this returns."""
        ...

    def origin(self, version: str) -> VersionOrigin | None:
        """Return the message that led to ``version``, to rebuild a damaged state; None if it is not stored."""
        ...

    def prune(self, durable: str, best: str = "") -> None:
        """Delete the versions older than ``durable`` but ``best``, never ``durable`` itself or a newer one."""
        ...

    def versions(self) -> list[str] | None:
        """Return the versions that are there or can be made again, the newest first.

        None where a server that comes back finds them all the same.
        """
        ...


class DiskStateStore:
    """States as safetensors files in one directory, written atomically and synced.

    Args:
        directory: The client's directory in this run; created if missing.
        kind: Type of the client algorithm's state.
        durable: Whether files are synced, so that they survive a power failure.

    Raises:
        StateError: The directory cannot be made, or somebody else owns it or may write to it; or its identity is no
            readable file of ours.

    Attributes:
        directory: See above.
        secret: A random text that stays on this machine; ``identity`` is derived from it.
    """

    def __init__(self, directory: Path, kind: type, durable: bool = True) -> None:
        self.directory, self._kind, self._durable = directory, kind, durable
        make_directory(directory)
        check_owner(directory)
        read = write_once(directory / "identity", uuid.uuid4().hex.encode())
        if not _IDENTITY.fullmatch(read):
            raise StateError(str(directory / "identity"), "32 hexadecimal digits", repr(read[:40]))
        self.secret = read.decode()
        self.identity = hashlib.sha256(self.secret.encode()).hexdigest()[:32]

    @contextmanager
    def lock(self, patience: float = 10.0) -> Iterator[None]:
        """Lock the store for this process, and delete incomplete files of a killed process.

        Args:
            patience: Seconds to wait for another process to release the lock.

        Raises:
            StateError: Another process holds the lock: usually two SuperNodes on one state directory. Or the lock is no
                file that can be written.
        """
        check_lock(self.directory / "lock")
        try:
            lock = FileLock(self.directory / "lock", patience).acquire()
        except Timeout:
            raise StateError(str(self.directory), "one process at a time", "another one that uses it") from None
        except OSError as reason:
            path, expected = str(self.directory / "lock"), "a file that can be written"
            raise StateError(path, expected, reason.strerror or str(reason)) from None
        with lock:
            for part in self.directory.glob(".*.part"):
                part.unlink(missing_ok=True)
            yield

    def check_room(self, size: int) -> None:
        """Check that about ``size`` bytes can be written.

        Raises:
            StateError: They cannot.
        """
        check_room(self.directory, size)

    def _path(self, version: str) -> Path:
        return self._file(version, "safetensors")

    def _file(self, version: str, suffix: str) -> Path:
        """Return the file of a version, whose name may be from a file of elsewhere.

        Raises:
            StateError: It is none, such as a path out of the directory.
        """
        if not is_version(version):
            raise StateError(str(self.directory), "the name of a version", one_line(version, 80))
        return self.directory / f"{version}.{suffix}"

    def versions(self) -> list[str]:
        """Return the versions that are there or can be made again, the newest first."""
        names = {*self._named("safetensors"), *self._named("origin")}  # a message is enough to make its version again
        return sorted(names, key=version_round, reverse=True)

    def _named(self, suffix: str) -> list[str]:
        """Return the versions of the files with ``suffix``; a file with another name, such as a copy, is ignored."""
        return [path.stem for path in self.directory.glob(f"*-*.{suffix}") if is_version(path.stem)]

    def load(self, version: str) -> Stored | None:
        """Return the version; None if it is missing or damaged, or its name empty. A damaged file is renamed."""
        if not version or not is_regular(path := self._path(version), self.directory):
            return None
        try:
            arrays, text = read_tensors(path)
            self._check(path, version, text)
            return unpack(arrays, text, self._kind)
        except DamagedError as reason:
            log.warning("%s; set aside", reason)
            set_aside(path)
            return None

    def answered(self, round: int, request: str) -> Stored | None:
        """Return the version of ``round`` that answered ``request``; None if there is none."""
        return _answered(self, self._named("safetensors"), round, request)

    def save(self, version: str, stored: Stored, origin: VersionOrigin | None = None) -> None:
        """Store the message that led to the version, then the version."""
        if origin is not None:
            data = np.frombuffer(origin.content.data, np.uint8)
            arrays, head = flatten(_Message(origin.order, data, dict(origin.content.scalars)))
            text = json.dumps({"of": self._of(version), "message": head})
            write_tensors(self._origin_path(version), arrays, text, sync=self._durable)
        arrays, packed = pack(stored)
        text = json.dumps({"of": self._of(version), **packed})
        write_tensors(self._path(version), arrays, text, sync=self._durable)

    def _of(self, version: str) -> str:
        """Return what a file claims to be: its store, which stands for run and client, and its version."""
        return f"{self.identity} {version}"

    def _check(self, path: Path, version: str, text: str) -> None:
        """Raise DamagedError if another file has been put under this name; the digest covers ``text``."""
        head = json.loads(text)
        stored_version = head.get("of") if isinstance(head, dict) else None
        if stored_version != self._of(version):
            raise DamagedError(str(path), f"the file of version {version} of this client", f"that of {stored_version}")

    def origin(self, version: str) -> VersionOrigin | None:
        """Return the message that led to ``version``; None if it is missing or damaged."""
        if not is_regular(self._origin_path(version), self.directory):
            return None
        try:
            arrays, text = read_tensors(self._origin_path(version))
            self._check(self._origin_path(version), version, text)
            message = restore(_Message, arrays, json.loads(text)["message"])
        except (StateError, ValueError):
            return None
        return VersionOrigin(message.order, Content(message.data.tobytes(), message.scalars))

    def _origin_path(self, version: str) -> Path:
        return self._file(version, "origin")

    def prune(self, durable: str, best: str = "") -> None:
        """Delete the versions older than ``durable`` but ``best``, and their messages."""
        for version in _older(self._named("safetensors"), durable, best):
            self._path(version).unlink(missing_ok=True)
        for version in _older(self._named("origin"), durable, best):  # also those whose state was never written
            self._origin_path(version).unlink(missing_ok=True)


def _older(versions: list[str], durable: str, best: str) -> list[str]:
    oldest = version_round(durable)
    return [version for version in versions if version != best and version_round(version) < oldest]


def _answered(store: StateStore, versions: list[str], round: int, request: str) -> Stored | None:
    for version in sorted(versions):
        if version_round(version) == round:
            stored = store.load(version)
            if stored and stored.request == request:
                return stored
    return None


@dataclass(frozen=True)
class _Record:
    """The request and reply that are stored with a state."""

    request: str
    reply: Reply
    data: npt.NDArray[np.uint8]
    scalars: dict[str, Scalar]


@dataclass(frozen=True)
class _Local:
    """The buffers that are stored with a state."""

    buffers: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class _Message:
    """An order and its content, as stored."""

    order: Order
    data: npt.NDArray[np.uint8]
    scalars: dict[str, Scalar]


def pack(stored: Stored) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return a version as arrays by name, and a structure for JSON that refers to them."""
    data = np.frombuffer(stored.content.data, np.uint8)
    record = _Record(stored.request, stored.reply, data, dict(stored.content.scalars))
    state_arrays, state = flatten(stored.state)
    arrays, head = flatten(record)
    arrays = {f"record{name}": array for name, array in arrays.items()}
    arrays.update({f"state{name}": array for name, array in state_arrays.items()})
    if not stored.local:  # as in files from before there was such a thing
        return arrays, {"state": state, "record": head}
    local_arrays, local = flatten(stored.local)
    arrays.update({f"local{name}": array for name, array in local_arrays.items()})
    return arrays, {"state": state, "record": head, "local": local}


def unpack(arrays: dict[str, npt.NDArray[Any]], text: str, kind: type) -> Stored:
    """Return the version that :func:`pack` took apart; ``text`` is the structure as JSON.

    Raises:
        StateError: It is of another method or release.
    """
    try:
        head = json.loads(text)
        state, record = head["state"], head["record"]
    except (ValueError, KeyError, TypeError) as reason:
        raise StateError("state", "a state's structure", reason) from None
    prefixes = ("state", "record", "local")
    part = {p: {n.removeprefix(p): a for n, a in arrays.items() if n.startswith(p)} for p in prefixes}
    read = restore(_Record, part["record"], record)
    local = restore(_Local, part["local"], {"buffers": head.get("local", {})}).buffers
    content = Content(read.data.tobytes(), read.scalars)
    return Stored(read.request, restore(kind, part["state"], state), read.reply, content, local)
