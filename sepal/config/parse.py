"""From flat keys to a validated configuration."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
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
    method = str(flat.get("method", RunConfig.model_fields["method"].default))
    name = method_name(method)
    if ":" in method:
        methods = ChainMap(dict.fromkeys((name, method), methods[method]), methods)  # type: ignore[arg-type]  # it is only read
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
    return config, validate(methods[config.method], groups.get(name, {}), f"{name}.")


def _check_known(flat: Flat, methods: Mapping[str, type[Settings]]) -> None:
    """Raise for the first unknown key, and suggest a similar one."""
    shared = flat_keys(RunConfig)
    chosen = str(flat.get("method", RunConfig.model_fields["method"].default))
    for key in flat:
        part, dot, _ = key.partition(".")
        method = nearest(part if dot else chosen, methods)
        method_keys = flat_keys(methods[method], f"{method}.") if method else []
        if key not in method_keys and key not in shared:
            word = OTHER_WORDS.get(key, key)
            raise ConfigError(key, "a known key", suggest("an unknown one", word, [*method_keys, *shared]))


def unknown_method(name: str, methods: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not among ``methods``, with the most similar name if there is one."""
    methods = list(methods)
    if name.endswith(".py"):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        return ConfigError("method", f"{module}:NAME, where NAME is what `register` returned in that module", name)
    if near := nearest(name, methods):
        return ConfigError("method", f"{near}, or another one of `sepal methods`", name)
    return ConfigError("method", f"one of {', '.join(methods)}", name)
