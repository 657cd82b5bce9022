"""The ``sepal`` command with all its commands, in the order of ``sepal --help``."""

import io
import sys
from importlib import import_module
from pathlib import Path

from sepal import user_modules
from sepal.cli.app import BAD_INPUT, app
from sepal.cli.notices import tell
from sepal.errors import ConfigError

MODULES = (
    *("running", "projects", "showing", "listing", "inspecting", "doctor", "comparing", "export"),
    *("serving", "joining", "deployment", "backup", "cleaning"),
)

for module in MODULES:
    import_module(f"sepal.cli.{module}")

__all__ = ["app", "main"]


def main() -> None:
    """Run the ``sepal`` command; a user's modules are found in the working directory."""
    for stream in (sys.stdout, sys.stderr):  # what their encoding lacks is written as an escape, not as a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _check_arguments()
    user_modules.enable(_working_directory())
    app()


def _working_directory() -> Path:
    """Return the working directory; end the process if it has been removed, since all commands look for names there."""
    try:
        return Path.cwd()
    except OSError as reason:
        tell(f"sepal: {ConfigError('working directory', 'one that is there', reason.strerror)}", fault=True)
        sys.exit(BAD_INPUT)


def _check_arguments() -> None:
    """End the process if an argument has bytes that the locale has no characters for."""
    encoding = sys.getfilesystemencoding()
    odd = next((word for word in sys.argv[1:] if any("\udc80" <= letter <= "\udcff" for letter in word)), None)
    if odd is not None and encoding != "utf-8":  # with UTF-8 it can be a file's name
        expected = "characters of the locale (LC_ALL=C.UTF-8 has all)"
        tell(f"sepal: {ConfigError('arguments', expected, f'{odd!a} in {encoding}')}", fault=True)
        sys.exit(BAD_INPUT)
