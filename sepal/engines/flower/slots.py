"""Numbered key slots: clients that start from the same image and configuration, but each with its own key.

A restarted container has the same host name, and so gets its slot back. A lock marks a slot that is in use; the kernel
releases it however its process ends.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from sepal.errors import ConfigError, StateError, one_line
from sepal.names import NAME
from sepal.storage.files import make_directory, write_atomically

FOREIGN = 60.0  # seconds after which a client takes a free slot that another host had


@dataclass(frozen=True)
class Slot:
    """One of the keys.

    Attributes:
        number: The slot's number, from 0.
        count: Number of slots.
        name: The client's name, which is that of the key's directory.
    """

    number: int
    count: int
    name: str


@contextmanager
def claimed(
    certs: Path | None,
    directory: Path,
    owner: str = "",
    patience: float = FOREIGN,
    most: float = 300.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Slot]:
    """Hold a free slot: the one that this host had, or an unused one, or after a while one that another host had.

    Args:
        certs: Directory of the keys, ``NAME/key`` or ``nodes/NAME/key`` each.
        directory: Where claims are written, shared by all clients.
        owner: Name of the claimant; by default this host's name.
        patience: Seconds to wait for the host that had a slot.
        most: Seconds to wait in all.
        tell: Called with a line if it has to wait.

    Raises:
        ConfigError: There are no keys.
        StateError: All slots stay in use.
    """
    names = key_names(certs)
    who = owner or socket.gethostname()
    make_directory(directory)
    begin, reported = time.monotonic(), False
    while True:
        waited = time.monotonic() - begin
        for foreign in (False, True)[: 2 if waited >= patience else 1]:
            claim = _hold(directory, names, who, foreign)
            if claim:
                number, lock = claim
                try:
                    yield Slot(number, len(names), names[number])
                finally:
                    lock.release()
                return
        if waited > most:
            raise StateError(str(directory), f"a free one of {len(names)} slots", "all in use by other clients")
        if not reported:
            tell(f"sepal: none of {len(names)} slots is free: waiting up to {most:g} s")
            reported = True
        time.sleep(0.5)


def key_names(certs: Path | None) -> list[str]:
    """Return the names of the keys in a directory, sorted.

    Raises:
        ConfigError: There are none, or one is called as no client may be.
    """
    directories = [] if certs is None else [certs, certs / "nodes"]
    for directory in directories:
        names = sorted(path.parent.name for path in directory.glob("*/key"))
        if odd := next((name for name in names if not NAME.match(name)), None):  # it becomes a file's, and is printed
            expected = "directories called like clients: at most 64 letters, digits, '.', '_' or '-'"
            raise ConfigError(str(directory), expected, one_line(odd, 80))
        if names:
            return names
    raise ConfigError("--claim", "--certs with a directory of node keys (see `sepal certs --nodes`)", str(certs))


def _hold(directory: Path, names: list[str], who: str, foreign: bool) -> tuple[int, FileLock] | None:
    """Lock a slot and write down its owner; try the owner's slots first, then those that nobody had."""
    had = {name: _read(directory / name) for name in names}
    former = [name for name in names if had[name] == who]
    order = former + [name for name in names if not had[name] or (foreign and had[name] != who)]
    for name in order:
        lock = FileLock(directory / f".{name}.lock", 0)
        try:
            lock.acquire()
        except Timeout:
            continue
        if _read(directory / name) != had[name]:  # another client was faster, and has ended already
            lock.release()
            continue
        write_atomically(directory / name, who.encode())
        return names.index(name), lock
    return None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
