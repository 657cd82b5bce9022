"""What past runs have left on this machine and no run needs: for ``sepal clean``, which lists it first.

It works by names that Sepal and Flower give, in directories of this user's, and follows no link. What must outlive a
run is under other names and stays: the identity of a client's store, from which its noise is drawn, the counts of
uploads, audit logs, evictions, and everything in run directories.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from sepal.client_app.frozen_data import FILE as FROZEN
from sepal.client_app.secure_sums import VAULT, FileVault
from sepal.data.locations import cache_directory, data_directory
from sepal.errors import ConfigError, SepalError, StateError
from sepal.names import NAME
from sepal.protocol.messages import is_version, version_round
from sepal.protocol.types import Kind
from sepal.runs.stored_run import stored_summary
from sepal.secure.client import SecureClient
from sepal.storage.files import check_owner, everything_below
from sepal.storage.home import home
from sepal.storage.regular import check_lock, read_text
from sepal.storage.toml_text import parse_toml

DAY = 24 * 3600.0
_RUN = re.compile(r"[0-9a-f]{32}\Z")
_STATE = re.compile(r"(.+)\.(?:safetensors|origin|damaged|safetensors\.damaged)\Z")
_PART = re.compile(r"\..+\.part\Z")
_SERVER = re.compile(r"(?:state\.db(?:-wal|-shm|-journal)?|nodes\.json|(?:run-)?config\.toml|[a-z]+\.log(?:\.\d+)?)\Z")
_SERVER_TREES = ("app", "apps")
_ENTRY = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Leftover:
    """Something that may be removed, or the reason why it stays.

    Attributes:
        what: What it is.
        directory: Where it is.
        files: What would be removed: files, and directories with all that is in them.
        bytes: Their size.
        used: When they were last used, in seconds since 1970.
        run: Name or UUID of the run that it was for; empty if it was for any.
        stays: Why it stays; empty if it may go.
        lock: File that whoever uses it locks; None if nobody has to.
    """

    what: str
    directory: Path
    files: tuple[Path, ...]
    bytes: int
    used: float
    run: str = ""
    stays: str = ""
    lock: Path | None = None


def leftovers(days: float, run: str = "", state_dir: Path | None = None, now: float | None = None) -> list[Leftover]:
    """Return what past runs have left: clients' states, servers' homes and prepared data, the largest first.

    Args:
        days: For how many days it must not have been used.
        run: A run, by its name or UUID, that its operator has given up: what it has left, alone, may go although it has
            not ended. Empty for all runs.
        state_dir: Directory of clients' states; by default ``~/.sepal/state``.
        now: The time, in seconds since 1970.

    Raises:
        ConfigError: There is nothing of ``run``.
        StateError: A directory is somebody else's.
    """
    now, root = time.time() if now is None else now, home()
    leftovers = [*_states(state_dir or root / "state", run), *_servers(root / "server", run)]
    if run and not leftovers:
        raise ConfigError("--run", "the name or UUID of a run that has left something here", run)
    if not run:
        leftovers += _prepared(cache_directory(data_directory("")))
    aged = (_aged(item, days, now) for item in leftovers if run in ("", item.run))
    return sorted(aged, key=lambda item: -item.bytes)


def remove(item: Leftover) -> bool:
    """Remove what may go; return False, and change nothing, if somebody uses it or has changed it meanwhile."""
    if item.stays:
        return False
    with ExitStack() as stack:
        if item.lock is not None:
            try:
                check_lock(item.lock)
                stack.enter_context(FileLock(item.lock, timeout=0))
            except (StateError, Timeout, OSError):
                return False
        size, used = _measured(item.files)
        if size != item.bytes or used > item.used:
            return False
        for path in item.files:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        _forget_secrets(item.directory / VAULT)
    with suppress(OSError):  # not empty: there is something whose name is not ours
        item.directory.rmdir()
    return True


def _forget_secrets(path: Path) -> None:
    """Erase the update and the keys that wait for a secure sum; of which rounds one has left stays."""
    if path.is_file() and not path.is_symlink():
        with suppress(SepalError):  # damaged: nobody can say what has left
            SecureClient("", FileVault(path)).forget()


def _aged(item: Leftover, days: float, now: float) -> Leftover:
    """Return ``item``, which stays if it was used in the last ``days``."""
    lately = not item.stays and not now - item.used >= days * DAY
    return replace(item, stays=f"used in the last {days:g} days") if lately else item


def _states(directory: Path, given_up: str) -> Iterator[Leftover]:
    for run in _directories(directory, _RUN):
        for store in _directories(run, NAME):
            files = tuple(path for path in _files(store) if _is_state(path.name))
            if files and given_up in ("", run.name):
                may_go = given_up or _has_ended(files)
                stays = "" if may_go else f"the run has not ended here (--run {run.name} gives it up)"
                what = f"states of {store.name} in run {run.name}"
                yield Leftover(what, store, files, *_measured(files), run.name, stays, store / "lock")


def _is_state(name: str) -> bool:
    match = _STATE.match(name)
    return bool(name == FROZEN or _PART.match(name) or (match and is_version(match[1])))


def _has_ended(files: Collection[Path]) -> bool:
    """Return whether a client's newest state is of a closing round: no other round keeps one without an upload."""
    states = [path for path in files if path.suffix == ".safetensors"]
    if not states:
        return False
    newest = max(states, key=lambda path: version_round(path.stem))
    try:
        with safe_open(newest, "np") as file:
            kind = json.loads(file.metadata()["sepal"])["record"]["reply"]["kind"]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError):
        return False
    return bool(kind == Kind.ADAPT.value)


def _servers(directory: Path, given_up: str) -> Iterator[Leftover]:
    for place in _directories(directory, NAME):
        files = tuple(path for path in _files(place) if _SERVER.match(path.name))
        trees = tuple(path for path in _directories(place, NAME) if path.name in _SERVER_TREES)
        if (files or trees) and given_up in ("", place.name):
            may_go = given_up or _is_complete(place)
            stays = "" if may_go else f"the run has not ended (--run {place.name} gives it up)"
            what = f"a server's own files of run {place.name}"
            both = (*files, *trees)
            yield Leftover(what, place, both, *_measured(both), place.name, stays, directory / ".lock")


def _is_complete(place: Path) -> bool:
    """Return whether the run of a server's home has its summary, where the home says that the run is."""
    try:
        keys = parse_toml(read_text(place / "run-config.toml", within=place))
        return stored_summary(Path(str(keys["out"])) / place.name) is not None
    except (OSError, KeyError, ValueError, SepalError):
        return False


def _prepared(directory: Path) -> Iterator[Leftover]:
    with suppress(StateError):  # one that others may write to is not looked at
        for entry in _directories(directory, _ENTRY):
            if entry.stat().st_uid == os.getuid():
                size, used = _measured((entry,))
                with suppress(OSError):
                    used = max(used, (entry / "notes.json").lstat().st_atime)
                yield Leftover("prepared data, which a run makes again", entry.parent, (entry,), size, used)


def _directories(directory: Path, names: re.Pattern[str]) -> Iterator[Path]:
    """Yield the directories in a directory of this user's, by name; no links."""
    yield from (
        Path(entry) for entry in _entries(directory) if entry.is_dir(follow_symlinks=False) and names.match(entry.name)
    )


def _files(directory: Path) -> Iterator[Path]:
    """Yield the regular files in a directory of this user's; no links."""
    yield from (Path(entry) for entry in _entries(directory) if entry.is_file(follow_symlinks=False))


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    if os.path.islink(directory) or not os.path.isdir(directory):  # pathlib raises errors for odd names
        return []
    check_owner(directory)
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _measured(paths: Collection[Path]) -> tuple[int, float]:
    """Return bytes of files and of what is in directories, and when one of them was last written."""
    size, used = 0, 0.0
    for path in paths:
        for file in everything_below(path):
            with suppress(OSError):
                facts = file.lstat()
                size += facts.st_size if not file.is_dir() else 0
                used = max(used, facts.st_mtime)
    return size, used
