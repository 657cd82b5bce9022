"""Directories of data and cache: ``data-dir``, ``$SEPAL_DATA``, ``$SEPAL_CACHE``."""

from __future__ import annotations

import os
from pathlib import Path

from sepal.errors import DataError


def data_directory(data_dir: str | Path) -> Path:
    """Return ``data_dir`` as an absolute path; if empty, ``$SEPAL_DATA`` or ``~/.cache/sepal/data``.

    Raises:
        DataError: It cannot be a path: its name is too long, its user is not known here, or it may not be looked at.
    """
    chosen = str(data_dir) or os.environ.get("SEPAL_DATA") or "~/.cache/sepal/data"
    try:
        path = Path(chosen).expanduser().absolute()
        path.exists()  # an error of the system, if there is one
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError("data-dir", "a directory", getattr(error, "strerror", "") or str(error)) from None
    return path


def cache_directory(data_dir: Path) -> Path:
    """Return ``$SEPAL_CACHE``, or ``<data_dir>/.sepal-cache``. It may not exist or not be writable."""
    chosen = os.environ.get("SEPAL_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else home_of(data_dir) / ".sepal-cache"


def home_of(data_dir: Path) -> Path:
    """Return the directory of data, which ``data-dir`` names itself or by a file in it."""
    return data_dir.parent if data_dir.is_file() else data_dir


def downloads_allowed() -> bool:
    """Return whether missing files may be downloaded: not if ``$SEPAL_DOWNLOAD`` is ``0``."""
    return os.environ.get("SEPAL_DOWNLOAD", "1") != "0"
