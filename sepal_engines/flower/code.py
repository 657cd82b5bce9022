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

from sepal.user_modules import PACKAGES

PRELOADED = ("client_app", "models", "strategies")  # and with them what they import from sepal
ANSWERING = ("sepal", *PRELOADED)
LATE = ("numpy.ma", "numpy.random")  # NumPy imports them when they are first used


def preload() -> None:
    """Import everything that answering a message may need, but nothing that only prepares data."""
    for name in PRELOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)


@dataclass(frozen=True)
class Code:
    """The files of the packages that answer messages, as they were when this process imported them.

    Attributes:
        root: Directory of the packages.
        digests: SHA-256 of each file by its path below ``root``, also of files that are not imported yet.
        stamps: Modification time and size of the same files, in the same order.
        imported: The files that are already imported.
        names: First names of all modules that are imported, of whatever origin.
    """

    root: Path
    digests: dict[str, str]
    stamps: tuple[tuple[int, int], ...]
    imported: frozenset[str]
    names: frozenset[str]

    @classmethod
    def imported_by(cls, load: Callable[[], None]) -> Code:
        """Call ``load``, which imports what answers messages, and return that code.

        Files are looked at before they are imported: a file that changes meanwhile makes :meth:`changed` true.
        """
        root = Path(sys.modules["sepal"].__file__ or "").resolve().parents[1]
        files = sorted(file for name in ANSWERING for file in (root / name).rglob("*.py"))
        stamps = tuple(stamp(file) for file in files)
        digests = {str(file.relative_to(root)): digest(file) for file in files}
        load()
        modules = (getattr(m, "__file__", None) for m in list(sys.modules.values()))
        imported = {str(Path(file).resolve()) for file in modules if file}
        ours = frozenset(name for name in digests if str(root / name) in imported)
        return cls(root, digests, stamps, ours, frozenset(name.partition(".")[0] for name in list(sys.modules)))

    def changed(self) -> bool:
        """Return whether a file has been changed or removed since then, for example by an upgrade."""
        return self.stamps != tuple(stamp(self.root / name) for name in self.digests)

    def same_as(self, bundle: Path) -> bool:
        """Return whether an app bundle would import the same modules.

        Packages that are not in the bundle come from the installation, so a bundle without code is the same. A module
        of the bundle that has the name of another one imported here, such as ``json``, would not be imported any more.

        Args:
            bundle: The directory into which Flower unpacked it.
        """
        modules = {file.stem for file in bundle.glob("*.py")}
        packages = {file.parent.name for file in bundle.glob("*/__init__.py")} - PACKAGES
        if modules & PACKAGES or (modules | packages) & self.names:
            return False
        held = [name for name in ANSWERING if (bundle / name).exists()]
        theirs = {
            str(file.relative_to(bundle)): digest(file) for name in held for file in (bundle / name).rglob("*.py")
        }
        needed = {name for name in self.imported if name.partition(os.sep)[0] in held}
        return needed <= theirs.keys() and all(self.digests.get(name) == found for name, found in theirs.items())


def digest(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def stamp(file: Path) -> tuple[int, int]:
    """Return a file's modification time in nanoseconds and its size; (-1, -1) if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_mtime_ns, found.st_size
