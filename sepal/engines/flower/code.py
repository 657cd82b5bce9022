"""Compares the code that a process has imported with that of a Flower app bundle and of the installation."""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PRELOADED = ("sepal.client_app", "sepal.models", "sepal.strategies")  # and what they import
FOLDERS = ("client_app", "models", "strategies")  # packages of sepal that stand beside it in a bundle
NOT_ASKED = ("api", "cli", "engines", "report", "runs", "server_app", "study")  # rooms that answer no message
LATE = ("numpy.ma", "numpy.random")  # NumPy imports them when they are first used


def preload() -> None:
    """Import everything that answering a message may need, but nothing that only prepares data."""
    for name in PRELOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)


def sources(root: Path) -> dict[str, Path]:
    """Return the files of Sepal that answer messages, by their path in an installation, such as ``sepal/rng.py``.

    Args:
        root: The directory of ``sepal``: an installation, a checkout or an unpacked bundle. Empty if there is none.
    """
    package = root / "sepal"
    outside = [root / name for name in FOLDERS if package.is_dir() and not (package / name).is_dir()]
    by_path = {}
    for top in (package, *outside):
        for directory, names, files in os.walk(top, followlinks=True):
            if Path(directory) == package:
                names[:] = [name for name in names if name not in NOT_ASKED]
            for file in (Path(directory, name) for name in files if name.endswith(".py")):
                path = file.relative_to(root)
                by_path[str(path if top == package else "sepal" / path)] = file
    return dict(sorted(by_path.items()))


@dataclass(frozen=True)
class Code:
    """The files of Sepal that answer messages, as they were when this process imported them.

    Attributes:
        files: Each file by its path in an installation (:func:`sources`), also of those that are not imported yet.
        digests: SHA-256 of each file.
        stamps: Modification time and size of the same files, in the same order.
        imported: The paths of files that are already imported.
        names: First names of all modules that are imported, of whatever origin.
    """

    files: dict[str, Path]
    digests: dict[str, str]
    stamps: tuple[tuple[int, int], ...]
    imported: frozenset[str]
    names: frozenset[str]

    @classmethod
    def imported_by(cls, load: Callable[[], None]) -> Code:
        """Call ``load``, which imports what answers messages, and return that code.

        Files are looked at before they are imported: a file that changes meanwhile makes :meth:`changed` true.
        """
        files = sources(Path(sys.modules["sepal"].__file__ or "").absolute().parents[1])
        stamps = tuple(map(stamp, files.values()))
        digests = {name: digest(file) for name, file in files.items()}
        load()
        modules = {name.replace(".", os.sep) for name in list(sys.modules)}
        imported = frozenset(n for n in files if n.removesuffix(".py").removesuffix(f"{os.sep}__init__") in modules)
        return cls(files, digests, stamps, imported, frozenset(name.partition(".")[0] for name in list(sys.modules)))

    def changed(self) -> bool:
        """Return whether a file has been changed or removed since then, for example by an upgrade."""
        return self.stamps != tuple(map(stamp, self.files.values()))

    def same_as(self, bundle: Path) -> bool:
        """Return whether an app bundle would import the same modules.

        Without Sepal in it, Sepal is imported from the installation. A module of the bundle that has the name of
        another one imported here, such as ``json``, would not be imported any more.

        Args:
            bundle: The directory into which Flower unpacked it.
        """
        modules = {file.stem for file in bundle.glob("*.py")}
        packages = {file.parent.name for file in bundle.glob("*/__init__.py")} - {"sepal"}
        if (modules | packages) & self.names:
            return False
        bundled = {name: digest(file) for name, file in sources(bundle).items()}
        if not bundled:
            return True
        return self.imported <= bundled.keys() and all(self.digests.get(name) == d for name, d in bundled.items())


def digest(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def stamp(file: Path) -> tuple[int, int]:
    """Return a file's modification time in nanoseconds and its size; (-1, -1) if it does not exist."""
    try:
        status = file.stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size
