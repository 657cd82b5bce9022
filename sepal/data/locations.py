"""Directories of data and cache: ``data-dir``, ``$SEPAL_DATA``, ``$SEPAL_CACHE``."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sepal.data.cache import Entry
from sepal.errors import DataError, SepalError
from sepal.storage.files import write_once
from sepal.storage.home import private_home
from sepal.storage.regular import expanded, is_inside

SECRET = "cache-secret"  # in the home of this user
YOURS = "(or, if the links are yours, set SEPAL_FOLLOW_LINKS=1)"


def data_directory(data_dir: str | Path) -> Path:
    """Return ``data_dir`` as an absolute path; if empty, ``$SEPAL_DATA`` or ``~/.cache/sepal/data``.

    Nothing is looked at there: a path in a config from elsewhere may be that of another machine.

    Raises:
        DataError: Its user is not known here.
    """
    key = "data-dir" if str(data_dir) else "SEPAL_DATA"
    return expanded(key, str(data_dir) or os.environ.get("SEPAL_DATA") or "~/.cache/sepal/data", DataError).absolute()


def reachable(path: Path) -> Path:
    """Return ``path``, which need not be there.

    Raises:
        DataError: No file can have its name, or it may not be looked at.
    """
    try:
        path.exists()
    except (OSError, ValueError) as error:
        raise DataError("data-dir", "a directory", getattr(error, "strerror", "") or error) from None
    return path


def cache_directory(data_dir: Path) -> Path:
    """Return ``$SEPAL_CACHE``, or ``<data_dir>/.sepal-cache``. It may not exist or not be writable.

    Raises:
        DataError: Its user is not known here.
    """
    chosen = os.environ.get("SEPAL_CACHE")
    return expanded("SEPAL_CACHE", chosen, DataError).absolute() if chosen else home_of(data_dir) / ".sepal-cache"


def cache_entry(data_dir: Path, key: str, private: bool = False) -> Entry | None:
    """Return the entry ``key`` in the cache of data; None if there is none that could be trusted.

    The cache beside the data may be from elsewhere, with entries that fit the files and hold something else, or may
    have been elsewhere since. So where data are a user's own, entries there have names and seals that follow from a
    secret of the user's: whoever does not know it cannot have made one, nor changed it. A digest of the files would not
    do, as anybody can compute it.

    Args:
        data_dir: Directory of the data, or a file in it.
        key: The entry's key.
        private: Whether the data are a user's own. ``SEPAL_CACHE`` is the user's choice, and needs no secret.

    Raises:
        DataError: As :func:`cache_directory`; or the cache beside the data is a link that leads out of their directory.
    """
    directory, home = cache_directory(data_dir), home_of(data_dir)
    if os.environ.get("SEPAL_CACHE"):
        return Entry(directory / key, private)
    if os.path.islink(directory) and not is_inside(directory, home):
        expected = f"a directory in {home}, or another one in SEPAL_CACHE"
        raise DataError(str(directory), expected, "a link that leads out of it")
    if not private:
        return Entry(directory / key)
    try:
        secret = write_once(private_home() / SECRET, secrets.token_hex(32).encode())
    except SepalError:
        return None
    return Entry(directory / hmac.new(secret, key.encode(), hashlib.sha256).hexdigest(), private, secret)


def home_of(data_dir: Path) -> Path:
    """Return the directory of data, which ``data-dir`` names itself or by a file in it."""
    return data_dir.parent if os.path.isfile(data_dir) else data_dir  # pathlib raises errors for odd names


def check_links(directory: Path, paths: Iterable[Path], kept: Path | None = None) -> None:
    """Refuse files of a data set that a link takes from elsewhere, such as a private file of the reader's.

    So does a hard link, which an archive can make to any file below the directory in which it is unpacked: a file has
    no further names but those of other files of the data set. The directory itself may be a link: whoever names it
    chooses it. With ``$SEPAL_FOLLOW_LINKS`` = ``1`` nothing is refused: whoever sets it has made the links.

    Args:
        directory: The data set.
        paths: Its files and directories, each below ``directory`` by name.
        kept: Another directory into which links may lead; None: there is none.

    Raises:
        DataError: One is a link that leads out of ``directory`` and ``kept``, or lies in a directory that is; or it
            has a name that is not among ``paths``.
    """
    if os.environ.get("SEPAL_FOLLOW_LINKS") == "1":
        return
    allowed, below = [directory, *([kept] if kept else [])], dict.fromkeys(paths)
    _check_names(directory, list(below))
    for path in list(below):
        while path != directory and (path := path.parent) not in below:
            below[path] = None
    for path in below:
        if path != directory and os.path.islink(path) and not any(is_inside(path, home) for home in allowed):
            raise DataError(str(path), f"a file or directory in {directory} {YOURS}", "a link that leads out of it")


def _check_names(directory: Path, paths: Iterable[Path]) -> None:
    """Refuse files that have further names, but those that are among ``paths``; the directory may be one by itself."""
    others: dict[tuple[int, int], int] = {}  # file to its names that have not been seen
    first: dict[tuple[int, int], Path] = {}
    for path in paths:
        with suppress(OSError):
            status = path.stat()  # a link that stays in the data set may lead to such a name
            if path != directory and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                file = status.st_dev, status.st_ino
                others[file] = others.get(file, status.st_nlink) - (not path.is_symlink())
                first.setdefault(file, path)
    for file, count in others.items():
        if count > 0:
            expected = f"a file without names out of {directory} {YOURS}"
            raise DataError(str(first[file]), expected, f"{count} more, by hard links")


def downloads_allowed() -> bool:
    """Return whether missing files may be downloaded: not if ``$SEPAL_DOWNLOAD`` is ``0``."""
    return os.environ.get("SEPAL_DOWNLOAD", "1") != "0"
