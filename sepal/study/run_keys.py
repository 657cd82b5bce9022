"""Collects flat keys from a TOML file, ``--set KEY=VALUE``, and the config of a run to continue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepal.config import Flat, Mark, RunConfig, key_types, marked, parse
from sepal.config.parse import NOT_SET
from sepal.errors import ConfigError
from sepal.runs.places import named_path
from sepal.runs.stored_run import FREE, begun, started_with, stored_config
from sepal.simulated_time import located
from sepal.storage.regular import expanded, read_stream
from sepal.storage.toml_text import parse_toml

Value = int | float | str | bool
_LEADING_POINT = re.compile(r"(?<![^+-])\.(?=[0-9])")


def gather(config: Path | None, sets: Sequence[str], shorthands: Mapping[str, Value | None], base: Path) -> Flat:
    """Return the run's flat keys. Options take precedence over ``--set``, the file, and a stored run of that name.

    Args:
        config: TOML file, flat or with tables.
        sets: ``KEY=VALUE`` texts.
        shorthands: Options for a key (``--name``, ``--rounds``); None if not given.
        base: The directory that a relative ``out`` is relative to.

    Raises:
        ConfigError: A file or a value cannot be read.
    """
    options = {key: value for key, value in shorthands.items() if value is not None}
    explicit = {**_explicit(config, sets), **options}
    return {**stored(explicit, base), **explicit}


def gather_to_serve(
    config: Path | None,
    sets: Sequence[str],
    name: str | None,
    out: str | None,
    tell: Callable[[str], None] = lambda line: None,
) -> Flat:
    """Return the flat keys of a run of Flower's processes: :func:`gather`, with ``out`` absolute.

    Those processes have another working directory. ``out`` is not taken from a stored run, whose directory may have
    been moved. Unless a key says otherwise, there are as many clients as owners of examples, or else two, and images of
    several sizes are brought to one, which clients are sent.

    Args:
        config: As in :func:`gather`.
        sets: As in :func:`gather`.
        name: As in :func:`gather`.
        out: The run directories' directory.
        tell: Called with the line that says what images are brought to.

    Raises:
        ConfigError: A file or a value cannot be read.
    """
    base = Path.cwd()
    where = out or _explicit(config, sets).get("out", RunConfig.model_fields["out"].default)
    absolute = str(base / expanded("out", where)) if isinstance(where, str) else None  # another type is refused later
    gathered = gather(config, sets, {"name": name, "out": absolute}, base)
    if isinstance(devices := gathered.get("devices"), str):
        gathered = {**gathered, "devices": located(devices)}
    flat = {key: value for key, value in gathered.items() if key not in NOT_SET or value != NOT_SET[key]}
    return {"clients": 2, **_from_files(flat, tell), **flat}


def _from_files(flat: Flat, tell: Callable[[str], None]) -> dict[str, Value]:
    """Return the keys that the run's files decide unless they are set: the number of clients, and images' size."""
    from sepal.data.sources import FILES

    if flat.get("dataset") not in FILES or NOT_SET.keys() <= flat.keys():
        return {}
    from sepal.data import federated_data
    from sepal.data.federation import as_read
    from sepal.data.owners import owner_count  # it imports Flower
    from sepal.strategies.registry import Hypers

    keys, _ = parse(flat, Hypers())
    data = federated_data(keys)
    size, owners = as_read(keys, data).folder.resize, owner_count(keys, data)
    if size != keys.folder.resize:
        tell(next(note for note in data.info.notes if note.startswith("folder.resize = ")))
    return {"folder.resize": size, **({"clients": owners} if owners else {})}


def _explicit(config: Path | None, sets: Sequence[str]) -> Flat:
    return {**(read_file(config) if config else {}), **parse_sets(sets)}


def stored(explicit: Flat, base: Path) -> Flat:
    """Return the keys with which a run of this name was started, so that ``--name`` alone continues it.

    Nothing is taken from a run that has not begun if other keys are given: its defaults may not suit them.

    Raises:
        ConfigError: A run of this name has begun with another method, data set or task.
    """
    path = named_path(explicit, base)
    if path is None:
        return {}
    config = stored_config(path) if begun(path) or FREE.issuperset(explicit) else None
    if config is None:
        return {}
    from sepal.strategies.registry import as_begun

    shared = as_begun(config, load=False)  # a run that is not continued has none of its code run
    for key in marked(RunConfig, Mark.DECIDING):
        if key in explicit and key in shared and explicit[key] != shared[key]:
            raise started_with(path, key, shared[key], explicit[key])
    return as_begun(config)


def read_file(path: Path) -> Flat:
    """Return a TOML file's keys, with tables flattened to dotted keys.

    Raises:
        ConfigError: It cannot be read, or a value is not a scalar.
    """
    try:
        return dict(flatten_tables(parse_toml(read_stream(path))))
    except OSError as reason:
        raise ConfigError("--config", "a TOML file", f"{path}: {reason.strerror}") from None
    except (ValueError, RecursionError) as reason:
        raise ConfigError("--config", "a TOML file", f"{path}: {reason}") from None


def flatten_tables(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield a TOML table's keys and values, with tables in it flattened to dotted keys.

    Raises:
        ConfigError: A value is not a scalar.
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten_tables(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield prefix + key, value
        else:
            raise ConfigError(prefix + key, "a number, a text or true or false", value)


def parse_sets(sets: Sequence[str]) -> Flat:
    """Return ``KEY=VALUE`` pairs as keys and values; a key of text takes what was typed, also ``5``.

    Raises:
        ConfigError: A pair has no ``=`` or no key.
    """
    pairs: dict[str, Value] = {}
    types = key_types(RunConfig)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("--set", "KEY=VALUE", text)
        parsed, typed = scalar(value.strip()), value.strip()
        pairs[key.strip()] = typed if types.get(key.strip()) is str and not isinstance(parsed, str) else parsed
    return pairs


def scalar(text: str) -> Value:
    """Parse a TOML scalar; any other text is returned unchanged. ``.1`` is accepted as 0.1."""
    try:
        parsed = parse_toml(f"value = {_LEADING_POINT.sub('0.', text)}")
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and isinstance(value, bool | int | float | str) else text
