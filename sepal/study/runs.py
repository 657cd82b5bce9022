"""Finds run directories, of finished and running runs, alone or in a folder: one place resolves all names of runs."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepal.errors import ConfigError, StateError
from sepal.runs.json_lines import cleaned
from sepal.runs.places import IN_PROCESS, default_base
from sepal.storage.regular import expanded, is_regular, read_text
from sepal.user_modules import in_own_code

if TYPE_CHECKING:
    from sepal.export.extraction import ClientModel

# What Python, NumPy and torch raise for values of other types, numbers or shapes than a run writes.
UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
LATEST = 2.0**37  # seconds since 1970: in the year 6325
EXPORT = "you allow (sepal export --allow package.module:NAME)"
ROOM = 2  # times the memory that is available, for what training takes: a model that is not trained has a third of it
INDEX = "comparison.json"  # the list of runs in a directory of `sepal compare`


def find_run(text: str) -> Path:
    """Return the run directory for ``text``: a path, or a name under ``runs/`` here or in ``$SEPAL_HOME``.

    A run in a folder, such as that of a comparison, is named with it: ``penguins/fedpse-seed0``.

    Raises:
        ConfigError: There is no such run, or ``text`` names a folder of them.
    """
    path = _resolved(text)
    if path and is_run(path):
        return path
    if path:
        raise ConfigError("run", f"one run, such as `sepal ls {text}` lists", f"{text}, a folder of runs")
    raise _unknown(text, "a run directory")


def find_place(text: str) -> Path:
    """Return the directory of a run, or one with runs in it, for ``text``: a path or a name, as for :func:`find_run`.

    Raises:
        ConfigError: There is neither.
    """
    if path := _resolved(text):
        return path
    raise _unknown(text, "a directory of a run or a comparison")


def is_run(path: Path) -> bool:
    """Return whether ``path`` is a run directory."""
    return is_regular(path / "config.toml")  # reading a named pipe would wait for ever


def runs_of(folder: Path) -> list[Path]:
    """Return a run directory itself, or the run directories in a folder, the newest first; see :func:`once`."""
    if is_run(folder):
        return [folder]
    directories = once(path.parent for path in folder.glob("*/config.toml") if is_regular(path))
    return sorted(directories, key=lambda path: (-started(path), path.name))


def once(paths: Iterable[Path]) -> list[Path]:
    """Return directories without the links to others among them: each costs time and memory to read, a link nothing."""
    first: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), path)):
        first.setdefault(os.path.realpath(path), path)  # pathlib raises errors for a link to itself
    return list(first.values())


def started(run: Path) -> float:
    """Return when a run began, in seconds since 1970; 0 for a time that no calendar has."""
    with suppress(OSError):  # it may have been removed since it was listed
        if 0 <= (when := (run / "config.toml").stat().st_mtime) < LATEST:
            return when
    return 0.0


def places_in(directory: Path | None = None) -> list[tuple[Path, list[Path]]]:
    """Return single runs and folders of runs, each with :func:`runs_of` it, the newest first.

    Args:
        directory: Where to look; None for where names are looked up.
    """
    bases = {base.resolve() for base in ([directory] if directory else _bases())}
    folders = once(folder for base in bases for folder in base.glob("*"))
    pairs = [(folder, runs) for folder in folders if (runs := runs_of(folder))]
    return sorted(pairs, key=lambda pair: (-started(pair[1][0]), pair[0].name))


def compared_in(folder: Path) -> set[str]:
    """Return the names of the runs that a comparison shows; the others in its folder are trials.

    Raises:
        StateError: Its list is damaged.
    """
    try:
        return {str(row["name"]) for row in read_index(folder)["runs"]}
    except (ValueError, LookupError, TypeError):
        raise StateError(str(folder / INDEX), "the list of a comparison's runs", "a damaged file") from None


def read_index(folder: Path) -> Any:
    """Return what the list of a comparison's runs says, with printable texts.

    Raises:
        ValueError: It is missing or no JSON.
        StateError: It is no regular file in the folder.
    """
    try:
        return cleaned(json.loads(read_text(folder / INDEX, within=folder)))
    except (OSError, RecursionError) as reason:
        raise ValueError(str(reason)) from None


def name_of(path: Path) -> str:
    """Return the shortest text by which :func:`find_place` finds ``path``."""
    path = path.resolve()
    for base in (*_bases(), Path.cwd()):
        if path.is_relative_to(base.resolve()):
            name = str(path.relative_to(base.resolve()))
            if (match := _resolved(name)) and match.resolve() == path:  # a name here hides the same one elsewhere
                return name
    return str(path)


def _bases() -> list[Path]:
    return [default_base(engine) / "runs" for engine in (IN_PROCESS, "flower")]


def _resolved(text: str) -> Path | None:
    places = (expanded("run", text), *(base / text for base in _bases()))
    return next((path for path in places if is_regular(path / INDEX) or runs_of(path)), None)


def _unknown(text: str, expected: str) -> ConfigError:
    bases, folder = _bases(), text.rpartition("/")[0]
    if folder and (path := _resolved(folder)) and not is_run(path):
        return ConfigError("run", f"{expected}, such as `sepal ls {folder}` lists", text)
    names = "" if Path(text).is_absolute() else f", or a name under {bases[0]} or {bases[1]}"
    return ConfigError("run", f"{expected}{names}", text)


def model_of(
    path: Path,
    client: str | int | None,
    view: str = "",
    allow: Collection[str] = (),
    how: str = EXPORT,
    round: int | None = None,
) -> ClientModel:
    """Return a model of a client of the run at ``path`` (:func:`sepal.export.client_model.client_model`).

    Args:
        path: The run's directory.
        client: Its name or its number, from 0; None for the model that all clients have in common.
        view: Which of its models; empty for the deployed one.
        allow: Code that the run's keys may name, ``package.module:NAME``.
        how: How code is allowed, for the error.
        round: An earlier round whose model it is to be; None for the last one.

    Raises:
        ConfigError: The run has no such client, its model cannot be exported, or it names code that is not allowed.
    """
    from sepal.client_app.guard import available, check_sizes
    from sepal.config.elsewhere import check_code
    from sepal.export.client_model import client_model
    from sepal.export.common_model import common_model
    from sepal.names import client_name
    from sepal.runs.stored_run import read_run, stored_config

    flat = stored_config(path) or {}
    check_code(flat, allow, how)
    check_sizes(flat, ROOM * available())
    if client is None:
        with naming(path):
            return common_model(path, flat, view=view, round=round)
    stored = read_run(path)
    with naming(path):
        names = {str(entry["name"]) for line in stored.lines for entry in line["clients"]}
    client = str(client)
    is_number = client.isdecimal() and len(client) < 20
    if client not in names and is_number and client_name(int(client)) in names:
        client = client_name(int(client))
    if client not in names and is_number and flat.get("client-names") == "owners":
        from sepal.runs.about import with_images_as_begun
        from sepal.strategies.assembly import assemble

        with with_images_as_begun(path):
            client = assemble(flat).client_name(int(client))
    if client not in names:
        few = f"{sorted(names)[0]} … {sorted(names)[-1]}" if names else "none yet"
        raise ConfigError("client", f"a client of {path.name}: {few}", client)
    with naming(path):
        return client_model(path, flat, client, view=view, round=round)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn errors from figures of unexpected types into one error that names the run at ``path``.

    An error in the user's own code stays what it is.

    Raises:
        StateError: See above.
    """
    try:
        yield
    except UNFIT as reason:
        if in_own_code(reason):
            raise
        raise StateError(str(path), "figures as a run writes them", f"{type(reason).__name__}: {reason}") from reason
