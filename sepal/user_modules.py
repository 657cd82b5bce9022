"""Imports a user's own modules, given as ``package.module:function`` for data and models.

The user's directory is searched after all installed packages, so that a ``models.py`` beside the user's data does not
replace Sepal's. Adding it to ``sys.path`` would not do: an editable install is found through a finder that comes after
``sys.path``. So the directory has a finder of its own at the end of ``sys.meta_path``.

The directories are in the environment variable ``SEPAL_USER_PATH``, which worker processes, SuperNodes and their
ClientApp processes inherit. Each process calls :func:`enable` when it starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sepal.errors import SepalError

VARIABLE = "SEPAL_USER_PATH"
PACKAGES = frozenset({"client_app", "models", "sepal", "sepal_cli", "sepal_engines", "server_app", "strategies"})


class UserFinder(MetaPathFinder):
    """Finds top-level modules in the directories of ``SEPAL_USER_PATH``, except those named like a Sepal package.

    It finds nothing before :func:`load` is called for the first time. Libraries try to import modules that are often
    not installed (``orjson``, ``brotli``), and a file of that name in the working directory must not run just because
    somebody looks at a run there.

    Attributes:
        opened: Whether this process has been asked for a user's function.
    """

    opened = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a top-level module. Submodules are found through their package's ``__path__``."""
        if path is not None or not UserFinder.opened or fullname in PACKAGES:
            return None
        return PathFinder.find_spec(fullname, directories())


def directories() -> list[str]:
    """Return the user's directories, in search order."""
    return [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def enable(*more: Path) -> None:
    """Let this process and its children import from ``more`` and from the directories in ``SEPAL_USER_PATH``."""
    wanted = [*(str(directory.absolute()) for directory in more), *directories()]
    if wanted:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(wanted))
    if not any(isinstance(finder, UserFinder) for finder in sys.meta_path):
        sys.meta_path.append(UserFinder())


def load(key: str, target: str, error: type[SepalError]) -> Callable[..., Any]:
    """Import ``package.module:function`` and return the function.

    Args:
        key: The config key, for error messages.
        target: ``package.module:function``.
        error: Type of the errors.

    Raises:
        SepalError: It cannot be imported or is not callable. If an installed module of the same name hides the user's
            file, the error names the file to rename.
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise error(key, "package.module:function", target)
    top = module.partition(".")[0]
    if top in PACKAGES and (file := hidden(top)):
        raise error(key, renaming(top, file), target)
    UserFinder.opened = True
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as reason:
        for wanted in (top, (getattr(reason, "name", "") or "").partition(".")[0]):
            if file := hidden(wanted):
                raise error(key, renaming(wanted, file), f"{target} ({reason})") from reason
        raise error(key, "package.module:function that can be imported", f"{target} ({reason})") from reason
    if not callable(found):
        raise error(key, f"{target} to be a function", type(found).__name__)
    function: Callable[..., Any] = found
    return function


def hidden(name: str) -> Path | None:
    """Return the user's file or directory that the installed module ``name`` hides; None if there is none."""
    try:
        spec = find_spec(name) if name else None
    except ValueError:  # a module without a spec
        return None
    if spec is None:
        return None
    places = {Path(place).resolve() for place in (spec.origin, *(spec.submodule_search_locations or ())) if place}
    files = [Path(directory) / file for directory in directories() for file in (f"{name}.py", name)]
    here = [file for file in files if file.exists()]
    return here[0] if here and not places & {file.resolve() for file in here} else None


def renaming(name: str, file: Path) -> str:
    """Return the message that asks to rename a hidden file."""
    owner = "a package of Sepal" if name in PACKAGES else "installed"
    return f"a module name that is free ({name} is {owner}: rename {file})"
