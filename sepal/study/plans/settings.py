"""``methods``, ``seeds`` and ``[settings]`` of a plan file, turned into the variants and the grid of one block."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sepal.config.base import flat_keys, method_name
from sepal.errors import ConfigError
from sepal.user_modules import is_withheld

Table = Mapping[str, Any]
SCALARS = (bool, int, float, str)
MOST_RUNS = 100_000  # of a block; lists of values multiply


BY_METHOD = ("settings", "grid", "views", "resources")  # tables of a plan with an entry for each method


def with_names(file: str, table: Table) -> dict[str, Any]:
    """Return a plan in which a method of one's own has the name that it is registered under.

    ``methods = ["mine:Mine"]`` becomes ``methods = ["mine"]`` and ``settings.mine.method = "mine:Mine"``. Tables of the
    method may be under either name.

    Args:
        file: The plan file's name, for messages.
        table: Its content.

    Raises:
        ConfigError: Two methods have one name, or there are tables, or another method, under both names of one.
    """
    methods = table.get("methods")
    if not isinstance(methods, list) or not all(isinstance(name, str) for name in methods):
        return dict(table)  # what reads it says what is wrong
    names = {name: method_name(name) for name in methods if ":" in name}
    if not names:
        return dict(table)
    labels = [names.get(name, name) for name in methods]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        expected = 'each name once; [settings.NAME] with method = "module:Variable" gives a method another name'
        raise ConfigError(f"{file}: methods", expected, repeated)
    renamed = {**table, "methods": labels, "settings": table.get("settings", {})}
    if not isinstance(renamed["settings"], Mapping):
        return renamed  # as above
    for part in BY_METHOD:
        entries = renamed.get(part)
        if not isinstance(entries, Mapping):
            continue
        if both := next((name for name, label in names.items() if name in entries and label in entries), None):
            raise ConfigError(f"{file}: {part}.{names[both]}", "one table for a method", f'{part}."{both}" beside it')
        renamed[part] = {names.get(key, key): value for key, value in entries.items()}
    for name, label in names.items():
        entry = renamed["settings"].get(label, {})
        if not isinstance(entry, Mapping) or entry.get("method", name) != name:
            got = entry.get("method") if isinstance(entry, Mapping) else entry
            raise ConfigError(f"{file}: settings.{label}", f"keys of {name}, which is among the methods", got)
        renamed["settings"] = {**renamed["settings"], label: {"method": name, **entry}}
    return renamed


def as_block(file: str, table: Table) -> dict[str, Any]:
    """Convert a plan with ``methods`` and ``[settings]`` to the equivalent plan with ``[[block]]``.

    Args:
        file: The plan file's name, for messages.
        table: Its content.

    Raises:
        ConfigError: There are no methods, a setting is neither a scalar nor a list of scalars, or settings are under a
            name that is not among the methods.
    """
    for table_name in ("block", "keys", "variants"):
        if table_name in table:
            raise ConfigError(f"{file}: {table_name}", "either methods and [settings], or [[block]] with keys", "both")
    methods, settings = table.get("methods"), table.get("settings", {})
    if not isinstance(methods, list) or not methods or not all(isinstance(name, str) for name in methods):
        raise ConfigError(f"{file}: methods", "a list of methods", methods)
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{file}: settings", "a table", settings)
    repeated = next((name for name in methods if methods.count(name) > 1), None)
    if repeated:
        raise ConfigError(f"{file}: methods", "each name once", repeated)
    shared, of_methods = split(file, methods, settings)
    variants: dict[str, Any] = {}
    for name in methods:
        variants |= dict(_variants(file, name, of_methods.get(name, {})))
    block = {
        "name": "",
        "variants": list(variants),
        "seeds": table.get("seeds", [0]),
        "keys": {key: value for key, value in shared.items() if not isinstance(value, list)},
        "grid": {key: value for key, value in shared.items() if isinstance(value, list)},
    }
    kept = {key: value for key, value in table.items() if key not in ("methods", "seeds", "settings")}
    return {**kept, "variants": variants, "block": [block]}


def split(file: str, names: list[str], settings: Table) -> tuple[dict[str, Any], dict[str, Table]]:
    """Return the settings that all methods share, flat, and those of each of ``names``."""
    shared: dict[str, Any] = {}
    by_method: dict[str, Table] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and key in names:
            by_method[key] = value
        elif isinstance(value, Mapping) and not _is_part(key):
            raise ConfigError(f"{file}: settings.{key}", f"one of the methods {', '.join(names)}", key)
        else:
            shared |= dict(_flat(f"{file}: settings", {key: value}))
    return shared, by_method


def _is_part(key: str) -> bool:
    """Return whether a table of this name, such as ``[settings.partition]``, holds keys of all runs."""
    from sepal.config import PARTS

    return key in PARTS


def _flat(where: str, table: Table, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(where, value, f"{prefix}{key}.")
            continue
        items = value if isinstance(value, list) else [value]
        if not items or not all(isinstance(item, SCALARS) for item in items):
            raise ConfigError(f"{where}.{prefix}{key}", "a number, a text, true or false, or a list of them", value)
        yield prefix + key, value


def _variants(file: str, name: str, table: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the variants of a method: one, or one for every combination of the values that it lists."""
    method = str(table.get("method", name))
    keys = own_keys(method, table, f"{file}: settings.{name}")
    for label, chosen in combinations(keys):
        yield ",".join(filter(None, (name, label))), {"method": method, **chosen}


def combinations(keys: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a label, ``keep=0.1,lr=0.05``, and the keys for every combination of the listed values."""
    listed = {key: value for key, value in keys.items() if isinstance(value, list)}
    count = math.prod(map(len, listed.values()))
    if count > MOST_RUNS:
        raise ConfigError(", ".join(listed), f"at most {MOST_RUNS} combinations", count)
    for values in itertools.product(*listed.values()):
        chosen = dict(zip(listed, values, strict=True))
        label = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        yield re.sub(r"[^A-Za-z0-9_.+=,-]", "_", label), {**keys, **chosen}


def own_keys(method: str, table: Table, where: str = "settings") -> dict[str, Any]:
    """Return ``table`` flat, with the method's own keys prefixed by its name: ``keep`` → ``fedpse.keep``.

    Where the method may not be imported (:func:`sepal.study.plans.looking.looking`), all keys stay as they are.

    Args:
        method: A method's name; for any other name, the keys stay as they are.
        table: Settings of this method; dotted keys as they are.
        where: Prefix of a key in error messages.
    """
    from sepal.strategies import registry

    is_known = registry.is_method(method) and not (":" in method and is_withheld(method))
    method_keys = set(flat_keys(registry.get(method).hyper)) if is_known else set()
    return {f"{method_name(method)}.{key}" if key in method_keys else key: value for key, value in _flat(where, table)}
