"""Where data and cache lie: ``data-dir``, ``$SEPAL_DATA``, ``$SEPAL_CACHE``."""

from __future__ import annotations

import os
from pathlib import Path


def data_directory(data_dir: str | Path) -> Path:
    """Return ``data_dir``, or where it is empty ``$SEPAL_DATA``, else ``~/.cache/sepal/data``. Absolute."""
    chosen = str(data_dir) or os.environ.get("SEPAL_DATA") or "~/.cache/sepal/data"
    return Path(chosen).expanduser().absolute()


def cache_directory(data_dir: Path) -> Path:
    """Return ``$SEPAL_CACHE``, else ``<data_dir>/.sepal-cache``. It need not exist, nor be writable."""
    chosen = os.environ.get("SEPAL_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else data_dir / ".sepal-cache"


def downloads_allowed() -> bool:
    """Whether missing files may be fetched: yes, unless ``$SEPAL_DOWNLOAD`` is ``0``."""
    return os.environ.get("SEPAL_DOWNLOAD", "1") != "0"
