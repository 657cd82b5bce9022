"""Imports torchvision, which is used for downloads and CIFAR's files. No other module imports it."""

from __future__ import annotations

import contextlib
import io
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

from sepal.data import cache
from sepal.data.locations import downloads_allowed
from sepal.errors import DataError
from sepal.user_modules import imported

_TIMEOUT = 30.0  # seconds a server may stay silent


def torchvision(submodule: str = "datasets") -> ModuleType:
    """Import ``torchvision.<submodule>``.

    Raises:
        DataError: torchvision is not installed.
    """
    try:
        return imported(f"torchvision.{submodule}")
    except ImportError as error:
        raise DataError("torchvision", "to be installed for this data set", str(error)) from error


def download(cls: str, directory: Path, where: str, **options: Any) -> None:
    """Let torchvision download the files of ``torchvision.datasets.<cls>`` into ``directory``.

    Args:
        cls: For example ``FashionMNIST``.
        directory: torchvision's ``root``.
        where: Says in words which files to put where by hand; shown in the error.
        options: Passed on, for example ``split``.

    Raises:
        DataError: There is no network, it failed, or ``$SEPAL_DOWNLOAD`` is 0.
    """
    if not downloads_allowed():
        raise DataError("data-dir", where, "nothing there, and SEPAL_DOWNLOAD=0 forbids downloading")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with cache.exclusive(directory / f"{cls}.download"), contextlib.redirect_stdout(io.StringIO()):
            getattr(torchvision(), cls)(str(directory), download=True, **options)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise DataError("data-dir", where, f"nothing there, and the download failed: {reason}") from error
    finally:
        socket.setdefaulttimeout(before)
