"""Directories of data and cache: ``data-dir``, ``$SEPAL_DATA``, ``$SEPAL_CACHE``."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from sepal.data.cache import Entry
from sepal.errors import DataError, SepalError
from sepal.storage.files import write_once
from sepal.storage.home import private_home
from sepal.storage.regular import expanded, is_inside

SECRET = "cache-secret"  # in the home of this user


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

    The directory itself may be a link: whoever names it chooses it. With ``$SEPAL_FOLLOW_LINKS`` = ``1`` nothing is
    refused: whoever sets it has made the links.

    Args:
        directory: The data set.
        paths: Its files and directories, each below ``directory`` by name.
        kept: Another directory into which links may lead; None: there is none.

    Raises:
        DataError: One is a link that leads out of ``directory`` and ``kept``, or lies in a directory that is.
    """
    if os.environ.get("SEPAL_FOLLOW_LINKS") == "1":
        return
    allowed, below = [directory, *([kept] if kept else [])], dict.fromkeys(paths)
    for path in list(below):
        while path != directory and (path := path.parent) not in below:
            below[path] = None
    for path in below:
        if path != directory and os.path.islink(path) and not any(is_inside(path, home) for home in allowed):
            expected = f"a file or directory in {directory} (or, if the links are yours, set SEPAL_FOLLOW_LINKS=1)"
            raise DataError(str(path), expected, "a link that leads out of it")


def downloads_allowed() -> bool:
    """Return whether missing files may be downloaded: not if ``$SEPAL_DOWNLOAD`` is ``0``."""
    return os.environ.get("SEPAL_DOWNLOAD", "1") != "0"
