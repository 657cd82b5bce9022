"""Sepal: personalized, sparse federated learning on Flower.

From Python (docs/python.md; ``help(sepal.run)`` has the arguments)::

    sepal.run(method, dataset, model, …)   run a federation, or continue it
    sepal.own(load, shape=…, classes=…)    data of your own, for ``dataset``
    sepal.compare(methods, seeds=…, …)     methods side by side
    sepal.load(run)                        a run that there is, by name or directory

The folders ``server_app``, ``client_app``, ``strategies`` and ``models`` stand at the top of the repository, and are
packages of this one: links in a checkout, directories in an installation.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["compare", "load", "own", "run"]  # with types: __init__.pyi

__version__ = "0.1.0"

if not (Path(__file__).parent / "strategies").is_dir():  # a Flower app bundle, or a checkout without links
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    """Return a function of :mod:`sepal.api`, which is imported when it is first used."""
    if name in __all__:
        return getattr(import_module("sepal.api"), name)
    raise AttributeError(f"module 'sepal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
