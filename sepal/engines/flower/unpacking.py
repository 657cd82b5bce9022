"""Unpacks an app bundle as a whole or not at all.

Flower 1.39 makes the bundle's directory and then copies file by file, and takes a directory that is there as complete.
After a kill or a power cut in between, every later message would fail.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from filelock import FileLock

from sepal.storage.files import sync_path

PART = ".unpacking-"  # prefix of directories that are not ready
APPS, LETTERS, INFO = "apps", 8, ".info"  # Flower's: below FLWR_HOME; of the hash in a directory's name; not unpacked


def bundles(home: Path, digest: str) -> list[Path]:
    """Return the directories below ``home`` (``FLWR_HOME``) that may hold the bundle with SHA-256 ``digest``."""
    return list((home / APPS).glob(f"*.{digest[:LETTERS]}"))


def clear(home: Path) -> None:
    """Remove the unpacked bundles below ``home``, of which a kill may have left one in part."""
    shutil.rmtree(home / APPS, ignore_errors=True)


def unpack(install: Callable[..., Path], fab: bytes, home: Path) -> Path:
    """Unpack a bundle below ``home``, and again if it is there in part; return its directory.

    Args:
        install: Flower's ``install_from_fab``.
        fab: The bundle, a ZIP file.
        home: ``FLWR_HOME``.
    """
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".unpacking.lock"):  # forks may overlap
        for stale in home.glob(f"{PART}*"):
            shutil.rmtree(stale)
        targets = bundles(home, hashlib.sha256(fab).hexdigest())
        for target in targets:
            if not whole(target, fab):
                shutil.rmtree(target)
        if not any(target.exists() for target in targets):
            with tempfile.TemporaryDirectory(dir=home, prefix=PART) as part:
                unpacked = install(fab, Path(part), skip_prompt=True)
                for file in unpacked.rglob("*"):
                    if file.is_file():
                        sync_path(file)
                (home / APPS).mkdir(exist_ok=True)
                unpacked.rename(home / APPS / unpacked.name)
                sync_path(home / APPS)
    return install(fab, home, skip_prompt=True)


def whole(directory: Path, fab: bytes) -> bool:
    """Return whether a directory holds all files of a bundle."""
    with zipfile.ZipFile(BytesIO(fab)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and name.split("/")[0] != INFO]
        return all(
            (directory / name).is_file() and (directory / name).read_bytes() == archive.read(name) for name in names
        )
