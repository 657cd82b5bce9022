"""What the shell completes: methods, data sets, keys and names of runs. Install it with ``sepal --install-completion``.

A shell waits for these functions at every press of the tab key, so none imports PyTorch, except for one method's keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

# Names that every shell takes as they are. zsh evaluates what it is offered, and Typer does not escape a backslash: a
# directory called ``\$(command)`` ran the command at a press of the tab key.
_PLAIN = re.compile(r"[\w./-]+\Z", re.ASCII)


def methods(incomplete: str) -> list[str]:
    """Return the names of methods that begin with ``incomplete``."""
    from sepal.strategies import registry

    return _begin(registry.names(), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Return the values of the key ``dataset``."""
    from sepal.data.catalogue import CATALOGUE

    return _begin((*sorted(CATALOGUE), "folder", "hf", "own"), incomplete)


def keys(incomplete: str) -> list[str]:
    """Return the keys with an equals sign; those of a method once its name and the dot are there."""
    from sepal.cli.keys import keys_of
    from sepal.config import RunConfig
    from sepal.strategies import registry

    method, dot, _ = incomplete.partition(".")
    if dot and method in registry.names():
        return _begin((f"{key.name}=" for key in keys_of(registry.get(method).hyper, f"{method}.")), incomplete)
    return _begin((f"{key.name}=" for key in keys_of(RunConfig)), incomplete)


def runs(incomplete: str) -> list[str]:
    """Return the names of runs, and of folders of runs; those of one folder once its name and a slash are there.

    A name with other characters than letters, digits, ``.``, ``_``, ``-`` and slashes is not offered, nor one that
    would be taken for an option.
    """
    from sepal.study.runs import is_run, name_of, places_in

    places = places_in()
    inside = (
        [run for path, folder_runs in places if not is_run(path) for run in folder_runs] if "/" in incomplete else []
    )
    names = map(name_of, [path for path, _ in places] + inside)
    return _begin((name for name in names if _PLAIN.match(name) and not name.startswith("-")), incomplete)


def files_by_shell(command: click.Command) -> None:
    """Leave the completion of paths to the shell: click would answer with what has been typed, and nothing more."""
    for inner in getattr(command, "commands", {}).values():
        files_by_shell(inner)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter._custom_shell_complete = lambda ctx, parameter, incomplete: []


def _begin(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
