"""Entry point of the ``sepal`` command, also as ``python -m sepal_cli``."""

import os
import sys


def main() -> None:
    """Remove the working directory from the module search path, then run the command.

    ``python -m`` and ``PYTHONPATH=.`` put it there, where a user's ``models.py`` or ``sepal.py`` would hide Sepal's. So
    no Sepal module may be imported before this. :mod:`sepal.user_modules` finds the user's modules.
    """
    here = os.path.realpath(os.getcwd())
    ours = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
    if here != ours:  # unless the working directory is a checkout of Sepal
        sys.path[:] = elsewhere(sys.path, here)
        if "PYTHONPATH" in os.environ:
            os.environ["PYTHONPATH"] = os.pathsep.join(elsewhere(os.environ["PYTHONPATH"].split(os.pathsep), here))
        os.environ["PYTHONSAFEPATH"] = "1"  # for child processes: `python -c` and `python -m` search it first too
    from sepal_cli.main import main as command

    command()


def elsewhere(paths: list[str], here: str) -> list[str]:
    """Return the paths that are not the directory ``here``; an empty path is the working directory."""
    return [path for path in paths if os.path.realpath(path) != here]


if __name__ == "__main__":
    main()
