"""The directory of client states, Flower's own files, and runs whose ``out`` is relative."""

from __future__ import annotations

import os
from pathlib import Path

from sepal.errors import StateError
from sepal.storage.files import check_owner, private_directory
from sepal.storage.regular import expanded


def home() -> Path:
    """Return ``$SEPAL_HOME``, or ``~/.sepal`` if it is unset or empty, as an absolute path; it may not exist.

    Raises:
        ConfigError: Its user is not known here.
    """
    return expanded("SEPAL_HOME", os.environ.get("SEPAL_HOME") or "~/.sepal").absolute()


def private_home() -> Path:
    """Return :func:`home`, made with mode 700 if it is missing.

    Raises:
        StateError: It cannot be made, or somebody else owns it or may write to it.
    """
    path = home()
    try:
        private_directory(path)
    except OSError as reason:
        raise StateError(str(path), "a directory that can be made", reason.strerror or str(reason)) from None
    check_owner(path)
    return path
