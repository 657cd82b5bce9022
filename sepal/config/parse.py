"""From flat keys to a validated configuration."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from sepal.config import base
from sepal.config.base import Settings, flat_keys, kebab, mark_values, method_name, validate
from sepal.config.rules import check_together
from sepal.config.run import PARTS, RunConfig
from sepal.errors import ConfigError, nearest, suggest

# Flower gives each key a value, so one whose default depends on the data has a word there for not being set.
NOT_SET = mark_values(RunConfig, base.NOT_SET)
OTHER_WORDS = {word: key for key, word in mark_values(RunConfig, base.OTHER_WORD).items()}  # of other libraries
Flat: TypeAlias = Mapping[str, int | float | str | bool]


def parse(flat: Flat, methods: Mapping[str, type[Settings]]) -> tuple[RunConfig, Settings]:
    """Return the shared keys and the chosen method's own, validated.

    Args:
        flat: Flat keys; missing keys, and those that are ``NOT_SET``, have their default value.
        methods: Method name to the model of its own keys; only looked up for names that occur.

    Raises:
        ConfigError: An unknown key or method, a wrong type, or a value out of range. Keys of other methods than the
            chosen one are checked too.
    """
    methods = _with_chosen(flat, methods)
    shared: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        part, dot, rest = key.partition(".")
        if key in NOT_SET and value == NOT_SET[key]:
            continue
        if "_" in (rest if dot else key):
            raise ConfigError(key, f"hyphens: {kebab(key)}", key)
        if key in PARTS:
            raise ConfigError(key, f"its parts as keys, {key}.…", repr(value))
        if not dot:
            shared[key] = value
        elif part in PARTS:
            shared.setdefault(part, {})[rest] = value
        else:
            groups.setdefault(part, {})[rest] = value
    _check_known(flat, methods)
    config = validate(RunConfig, shared)
    for part, values in groups.items():
        validate(methods[part], values, f"{part}.")
    if config.method not in methods:
        raise unknown_method(config.method, methods)
    check_together(config)
    name = method_name(config.method)
    return config, validate(methods[config.method], groups.get(name, {}), f"{name}.")


def without_unknown(flat: Flat, methods: Mapping[str, type[Settings]]) -> dict[str, int | float | str | bool]:
    """Return the flat keys that this release knows; arguments as in :func:`parse`."""
    unknown = dict(_unknown(flat, _with_chosen(flat, methods)))
    return {key: value for key, value in flat.items() if key not in unknown}


def _chosen(flat: Flat) -> str:
    return str(flat.get("method", RunConfig.model_fields["method"].default))


def _with_chosen(flat: Flat, methods: Mapping[str, type[Settings]]) -> Mapping[str, type[Settings]]:
    """Return ``methods`` with the user's own method, if that is the chosen one, also under its name."""
    method = _chosen(flat)
    if ":" not in method:
        return methods
    return ChainMap(dict.fromkeys((method_name(method), method), methods[method]), methods)  # type: ignore[arg-type]  # it is only read


def _check_known(flat: Flat, methods: Mapping[str, type[Settings]]) -> None:
    """Raise for the first unknown key, and suggest a similar one."""
    for key, similar in _unknown(flat, methods):
        got = suggest("an unknown one", OTHER_WORDS.get(key, key), similar)
        part, dot, _ = key.partition(".")
        expected = "a known key"
        if dot and part in methods and got == "an unknown one":
            own = ", ".join(flat_keys(methods[part], f"{part}."))
            expected += f" ({part} has {own or 'none of its own'})"
        raise ConfigError(key, expected, got)


def _unknown(flat: Flat, methods: Mapping[str, type[Settings]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each unknown key, with the keys that may have been meant."""
    shared, chosen = flat_keys(RunConfig), _chosen(flat)
    for key in flat:
        part, dot, _ = key.partition(".")
        method = nearest(part if dot else chosen, methods)
        method_keys = flat_keys(methods[method], f"{method}.") if method else []
        if key not in method_keys and key not in shared:
            yield key, [*method_keys, *shared]


def unknown_method(name: str, methods: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not among ``methods``, with the most similar name if there is one."""
    methods = list(methods)
    if name.endswith(".py"):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        return ConfigError("method", f"{module}:NAME, where NAME is what `register` returned in that module", name)
    if near := nearest(name, methods):
        return ConfigError("method", f"{near}, or another one of `sepal methods`", name)
    module, dot, variable = name.rpartition(".")
    own = f"{module}:{variable}" if dot else "MODULE:NAME"
    return ConfigError("method", f"one of `sepal methods`, or {own} for a method of your own", name)
