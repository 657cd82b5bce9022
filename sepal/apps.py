"""Sepal's two Flower apps, under the names that ``pyproject.toml`` gives to Flower.

Flower's simulation looks for the ClientApp's module in one thread while another imports the ServerApp. A module in a
folder that ``sepal/__init__.py`` adds to the package's path (in an app bundle) may be looked for before that line has
run; one that stands in this directory is always found, and Python then waits until the package is complete
(``tests/test_bundle.py``). An app is imported when it is asked for: a client imports no code of the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

__all__ = ["client_app", "server_app"]  # Flower looks for the names here before it imports the module

client_app: ClientApp
server_app: ServerApp


def __getattr__(name: str) -> Any:
    """Return the app, which is imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"sepal.{name}.app").app
