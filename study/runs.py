"""Finds and reads run directories, of finished and running runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sepal.errors import ConfigError, StateError
from sepal.server_app.places import IN_PROCESS, default_base

if TYPE_CHECKING:
    from sepal.client_app.client_model import ClientModel

INDEX = "comparison.json"  # the list of runs in a directory of `sepal compare`


def find_run(text: str) -> Path:
    """Return the run directory for ``text``: a path, or a name under ``runs/`` here or in ``$SEPAL_HOME``.

    Raises:
        ConfigError: There is no such run.
    """
    return _find(text, ("config.toml",), "a run directory")


def find_place(text: str) -> Path:
    """Return the directory of a run or a comparison for ``text``, which is a path or a name, as for :func:`find_run`.

    Raises:
        ConfigError: There is neither.
    """
    return _find(text, ("config.toml", INDEX), "a directory of a run or a comparison")


def runs_in(directory: Path | None = None) -> list[Path]:
    """Return the run directories below ``directory``, the newest first; None for those that :func:`find_run` knows.

    Directories of comparisons are searched, too.
    """
    bases = [directory] if directory else _bases()
    found = {
        file.parent.resolve()
        for base in bases
        for depth in ("*", "*/*")
        for file in base.glob(f"{depth}/config.toml")
        if file.is_file()  # reading a named pipe would wait for ever
    }
    return sorted(found, key=lambda path: (-(path / "config.toml").stat().st_mtime, path.name))


def _bases() -> list[Path]:
    return [default_base(engine) / "runs" for engine in (IN_PROCESS, "flower")]


def _find(text: str, files: tuple[str, ...], what: str) -> Path:
    bases = _bases()
    for place in (Path(text).expanduser(), *(base / text for base in bases)):
        if any((place / file).is_file() for file in files):
            return place
    expected = what if "/" in text else f"{what}, or a name under {bases[0]} or {bases[1]}"
    raise ConfigError("run", expected, text)


def model_of(path: Path, client: str | int, view: str = "") -> ClientModel:
    """Return a model of a client of the run at ``path`` (:func:`sepal.client_app.client_model.client_model`).

    ``client``: its name or its number, from 0.

    Raises:
        ConfigError: The run has no such client, or its model cannot be exported.
    """
    from sepal.client_app.build import client_name
    from sepal.client_app.client_model import client_model
    from sepal.server_app.stored_run import read_run

    stored = read_run(path)
    names = {each["name"] for line in stored.lines for each in line["clients"]}
    client = str(client)
    if client not in names and client_name(int(client) if client.isdecimal() else -1) in names:
        client = client_name(int(client))
    if client not in names:
        few = f"{sorted(names)[0]} … {sorted(names)[-1]}" if names else "none yet"
        raise ConfigError("client", f"a client of {path.name}: {few}", client)
    return client_model(path, stored.config, client, view=view)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn errors from figures of unexpected types into one error that names the run at ``path``.

    Raises:
        StateError: See above.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
        raise StateError(str(path), "figures as a run writes them", f"{type(reason).__name__}: {reason}") from reason
