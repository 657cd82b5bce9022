"""The ``sepal`` command with all its commands, in the order of ``sepal --help``."""

from importlib import import_module
from pathlib import Path

from sepal import user_modules
from sepal.cli.app import app

MODULES = ("running", "showing", "listing", "comparing", "export", "serving", "joining", "deployment")

for module in MODULES:
    import_module(f"sepal.cli.{module}")

__all__ = ["app", "main"]


def main() -> None:
    """Run the ``sepal`` command; a user's modules are found in the working directory."""
    user_modules.enable(Path.cwd())
    app()
