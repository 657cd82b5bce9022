"""Imports a user's own modules, given as ``package.module:function`` for data and models.

They are searched for in the directories of the environment variable ``SEPAL_USER_PATH``, after all installed packages.
Worker processes, SuperNodes and their ClientApp processes inherit it. Each process calls :func:`enable` when it starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sepal.errors import SepalError

VARIABLE = "SEPAL_USER_PATH"


def directories() -> list[str]:
    """Return the user's directories, in search order."""
    return [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def enable(*more: Path) -> None:
    """Let this process and its children import from ``more`` and from the directories in ``SEPAL_USER_PATH``."""
    wanted = [*(str(directory.absolute()) for directory in more), *directories()]
    if wanted:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(wanted))


def load(key: str, target: str, error: type[SepalError]) -> Callable[..., Any]:
    """Import ``package.module:function`` and return the function.

    The user's directories are put at the end of ``sys.path`` here and not before: libraries try to import modules that
    are often not installed (``orjson``), and a file of that name must not run just because somebody looks at a run.

    Args:
        key: The config key, for error messages.
        target: ``package.module:function``.
        error: Type of the errors.

    Raises:
        SepalError: It cannot be imported or is not callable.
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise error(key, "package.module:function", target)
    sys.path.extend(directory for directory in directories() if directory not in sys.path)
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as reason:
        raise error(key, "package.module:function that can be imported", f"{target} ({reason})") from reason
    if not callable(found):
        raise error(key, f"{target} to be a function", type(found).__name__)
    function: Callable[..., Any] = found
    return function
