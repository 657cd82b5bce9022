"""Clients' states in bounded memory, and on disk beyond it, for hundreds of virtual clients in one process.

In process, server and clients stop together, so the server only asks for the newest version of a state, the one before
it, and, where a round is undone (:mod:`sepal.server.recovery`), the one before that. At each checkpoint the versions in
memory are written to disk, and a resumed run starts from these. Files are those of
:class:`sepal.client_app.state_store.DiskStateStore`.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np

from sepal.client_app.secure_sums import FileVault
from sepal.client_app.state_store import DiskStateStore, Stored, VersionOrigin
from sepal.protocol.messages import Content
from sepal.storage.serialize import flatten

SECRETS = "secure"  # a file of a client's directory
DEFAULT_LIMIT = 1 << 30  # bytes of states kept in memory, over all workers


class StateCache:
    """The states of a process's clients; the least recently used ones are moved to disk.

    Args:
        directory: Directory of states on disk, with a subdirectory for each client.
        kind: The method's client state type.
        limit: Bytes of states kept in memory.
    """

    def __init__(self, directory: Path, kind: type, limit: int = DEFAULT_LIMIT) -> None:
        self.directory, self.kind, self.limit = directory, kind, limit
        self.bytes = 0
        self._entries: OrderedDict[tuple[str, str], tuple[Stored, int]] = OrderedDict()
        self._versions: dict[str, list[str]] = {}  # of the entries, by client
        self._dirty: set[tuple[str, str]] = set()
        self._disks: dict[str, DiskStateStore] = {}
        self._secrets: dict[str, bytes] = {}

    def client(self, name: str) -> CachedStore:
        """Return the store of one client."""
        return CachedStore(self, name)

    def vault(self, name: str) -> CachedVault:
        """Return where one client keeps the secrets of secure sums."""
        return CachedVault(self, name)

    def disk(self, name: str) -> DiskStateStore:
        """Return the client's store on disk; created at the first call."""
        if name not in self._disks:
            self._disks[name] = DiskStateStore(self.directory / name, self.kind, durable=False)
        return self._disks[name]

    def get(self, name: str, version: str) -> Stored | None:
        """Return a version from memory or disk."""
        key = name, version
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key][0]
        return self.disk(name).load(version) if (self.directory / name).exists() else None

    def put(self, name: str, version: str, stored: Stored) -> None:
        """Keep a version in memory, and move others to disk if they no longer fit."""
        size = _size(stored)
        self._forget((name, version))
        self._entries[name, version] = stored, size
        self._versions.setdefault(name, []).append(version)
        self._dirty.add((name, version))
        self.bytes += size
        while self.bytes > self.limit and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            self._write(oldest)
            self._forget(oldest)

    def versions(self, name: str) -> list[str]:
        """Return the client's versions in memory."""
        return list(self._versions.get(name, ()))

    def drop(self, name: str, version: str) -> None:
        """Discard a version in memory; a copy on disk is kept."""
        self._forget((name, version))

    def flush(self, name: str | None = None) -> None:
        """Write the versions in memory that are not on disk, of one client or of all.

        Older versions than the newest are written, too, because the server may have refused the newest.
        """
        for key in list(self._entries):
            if name in (None, key[0]):
                self._write(key)

    def release(self, name: str) -> None:
        """Write a client's versions to disk and discard them, so that another process can take over the client."""
        self.flush(name)
        for version in self.versions(name):
            self._forget((name, version))
        if name in self._secrets:
            self._moving(name).write(self._secrets.pop(name))

    def secrets(self, name: str) -> bytes:
        """Return a client's secrets of secure sums; those that another process has released are taken from the disk."""
        if name not in self._secrets and (self.directory / name / SECRETS).exists():
            vault = self._moving(name)
            self._secrets[name] = vault.read()
            vault.path.unlink()
        return self._secrets.get(name, b"")

    def keep_secrets(self, name: str, data: bytes) -> None:
        """Keep a client's secrets in memory."""
        self._secrets[name] = data

    def _moving(self, name: str) -> FileVault:
        return FileVault(self.disk(name).directory / SECRETS, durable=False)

    def _write(self, key: tuple[str, str]) -> None:
        if key in self._dirty:
            self.disk(key[0]).save(key[1], self._entries[key][0])
            self._dirty.discard(key)

    def _forget(self, key: tuple[str, str]) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
            self._dirty.discard(key)
            self._versions[key[0]].remove(key[1])
            if not self._versions[key[0]]:
                del self._versions[key[0]]


class CachedVault:
    """One client's secrets of secure sums: in memory, and on disk only on the way to another process."""

    def __init__(self, cache: StateCache, name: str) -> None:
        self._cache, self._name = cache, name

    def read(self) -> bytes:
        """Return them; empty if there are none."""
        return self._cache.secrets(self._name)

    def write(self, data: bytes) -> None:
        """Replace them."""
        self._cache.keep_secrets(self._name, data)


def forget_secrets(directory: Path) -> None:
    """Delete what a killed process has left of secrets: its rounds are run again, with new ones."""
    for path in directory.glob(f"*/*/{SECRETS}"):
        path.unlink(missing_ok=True)


class CachedStore:
    """One client's states in a :class:`StateCache`; see :class:`sepal.client_app.state_store.StateStore`."""

    def __init__(self, cache: StateCache, name: str) -> None:
        self._cache, self._name = cache, name
        self._base = ""
        self.identity = uuid.uuid5(uuid.NAMESPACE_URL, name).hex  # names are unique in process

    def load(self, version: str) -> Stored | None:
        """Return the version, and remember it as the one before the next."""
        self._base = version
        return self._cache.get(self._name, version)

    def answered(self, round: int, request: str) -> Stored | None:
        """Return None: no reply is lost in process, so none is kept. Asked again, a client trains again."""
        return None

    def origin(self, version: str) -> VersionOrigin | None:
        """Return None: in process, lost states are trained again from the last checkpoint."""

    def save(self, version: str, stored: Stored, origin: VersionOrigin | None = None) -> None:
        """Keep the version and the two before it, without the upload; discard older ones in memory."""
        stored = replace(stored, request=f"{stored.request.partition('|')[0]}|upload not kept", content=Content())
        base = self._cache.get(self._name, self._base) if self._base else None
        for old in self._cache.versions(self._name):
            if old not in (version, self._base, base.reply.base if base else ""):
                self._cache.drop(self._name, old)
        self._cache.put(self._name, version, stored)

    def versions(self) -> None:
        """Return None: in process, the server and the clients have one directory."""

    def prune(self, durable: str, best: str = "") -> None:
        """Delete versions on disk that neither a checkpoint nor the best state needs."""
        if durable and (self._cache.directory / self._name).exists():
            self._cache.disk(self._name).prune(durable, best)


def _size(stored: Stored) -> int:
    arrays, _ = flatten(stored.state)
    return sum(np.asarray(array).nbytes for array in (*arrays.values(), *stored.local.values())) + 1024
