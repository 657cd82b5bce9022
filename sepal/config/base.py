"""Base class of all groups of keys, conversion to flat keys, and validation errors in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sepal.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
AUTO = "auto"
# Marks with a value.
FORMER = "former"  # the default in stored runs that lack the key
NOT_SET = "not-set"  # the word for a key that is not set, where Flower gives each key a value
OTHER_WORD = "other-word"  # the name of the key in other libraries, where the two names are not similar
BY_NUMBER = "by-number"  # the values under which no number of examples depends on labels (client_app/guard.py)
# Types of a method's rates, whose default is made by :func:`auto`.
PositiveOrAuto: TypeAlias = Annotated[float, Field(gt=0)] | Literal["auto"]
NotNegativeOrAuto: TypeAlias = Annotated[float, Field(ge=0)] | Literal["auto"]
ShareOrAuto: TypeAlias = Annotated[float, Field(ge=0, le=1)] | Literal["auto"]


class Mark(StrEnum):
    """A fact about a key, written at its field (:func:`marks`) and nowhere else; lists of keys are derived from it.

    Every key whose value is free text has one of the first four marks, which says what the text may lead to. So whoever
    reads a config from elsewhere knows what not to follow, in new keys too. A mark of a group applies to all its keys.
    tests/sepal/config/test_marks.py has the rules that say which key must have which mark.
    """

    CODE = "code"  # package.module:NAME, which is imported
    PATH = "path"  # a file or directory of the machine that reads the key
    FETCHED = "fetched"  # something that is asked for over the network
    WORDS = "words"  # names and patterns that lead to nothing outside the run
    FREE = "free"  # may change when a run is resumed: where things are, how long it waits, what it can hold
    FREE_BACK = "free-back"  # may change when a run goes back to an earlier round
    SERVER_ONLY = "server-only"  # no client reads it, so clients need not agree with the server
    MACHINE = "machine"  # about the machine itself: each may have another value
    DATA = "data"  # who the clients are and what they hold: runs that are compared have the same value
    FILES = "files"  # as DATA, where files are read: a public data set is the same wherever it is stored
    DIGESTED = "digested"  # part of the digest by which a client's data is known again
    REPEAT = "repeat"  # another value repeats a run by chance, and makes it no other method
    METRIC = "metric"  # says by which metric clients, rounds and methods are compared
    AUTOMATIC = "automatic"  # 0 or ``auto`` stands for the data set's default
    WHOLE = "whole"  # any other value than ``none`` needs all of a client's examples at once
    PLAIN = "plain"  # has an effect where a method is a Flower Strategy in an app of the user's own
    DECIDING = "deciding"  # says which other keys make sense: in a run that continues, it is compared before they are
    LISTED = "listed"  # what a list shows of a run: a stored one that lacks it is damaged


def marks(*facts: Mark) -> dict[str, Any]:
    """Return marks for the ``json_schema_extra`` of a key's field."""
    return dict.fromkeys(map(str, facts), True)


# Pydantic's names of the two types of a rate.
_UNION_PARTS = ("float", "constrained-float", "literal['auto']", "literal['search']")


def auto(otherwise: float, description: str, alias: str | None = None) -> Any:
    """Return the field of a rate whose default is ``auto``: the calibrated value (``strategies/calibrated.toml``).

    Args:
        otherwise: The value where no calibration is known.
        description: What the key means.
        alias: The key, if it is not the attribute's name.
    """
    return Field(AUTO, alias=alias, description=description, json_schema_extra={"otherwise": otherwise})


def renewed(
    default: Any, former: Any, description: str, alias: str | None = None, facts: Iterable[Mark] = (), **limits: Any
) -> Any:
    """Return the field of a key whose default differs from the value with which stored runs began.

    Such a run goes on as it began: where its config lacks the key, it means ``former``, and not the default of new runs
    (:func:`sepal.strategies.registry.as_begun`). So a new
    key whose default changes what a run does has a ``former`` from its first day.

    Args:
        default: The value in new runs.
        former: The value in stored runs that lack the key.
        description: What the key means.
        alias: The key, if it is not the attribute's name.
        facts: The key's marks.
        limits: Pydantic's, such as ``ge=0``.
    """
    extra = {**marks(*facts), FORMER: former}
    return Field(default, alias=alias, description=description, json_schema_extra=extra, **limits)


def kebab(name: str) -> str:
    """Return the key of an attribute: ``batch_size`` → ``batch-size``."""
    return name.rstrip("_").replace("_", "-")


def method_name(method: str) -> str:
    """Return the name of a method, the first part of its keys, for the value of the run-config key ``method``.

    For the user's own method, ``package.module:FedMine``, it is the last part in lower case: ``fedmine``.
    """
    return method.rpartition(":")[2].lower()


class Settings(BaseModel):
    """Base class of a group of keys: frozen, and strict (an int is accepted as a float; nothing else is converted)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, alias_generator=kebab
    )

    def completed(self, calibrated: Mapping[str, Any]) -> Self:
        """Return the keys with every ``auto`` replaced.

        Args:
            calibrated: Key without its prefix to value; other keys get the value that :func:`auto` was given.
        """
        update = {}
        for name, info in type(self).model_fields.items():
            extra = info.json_schema_extra
            if isinstance(extra, dict) and "otherwise" in extra and getattr(self, name) == AUTO:
                key = info.alias or kebab(name)
                update[name] = float(calibrated.get(key, extra["otherwise"]))
        return self.model_copy(update=update)

    def value(self, key: str) -> Any:
        """Return the value of a flat key of this group: ``partition.alpha``."""
        group, dot, rest = key.partition(".")
        names = (name for name, info in type(self).model_fields.items() if (info.alias or kebab(name)) == group)
        value = getattr(self, next(names))
        return value.value(rest) if dot else value

    def largest_message(self, setup: Any) -> int:
        """Return the number of entries of the method's largest message; sets the default of ``max-message-bytes``.

        Args:
            setup: The run's :class:`sepal.method.interface.RunSetup`.
        """
        return sum(parameter.size for parameter in setup.layout)


def flat_keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the flat keys of a group; keys of nested groups are dotted."""
    return list(key_types(kind, prefix))


def key_types(kind: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return the flat keys of a group, each with its type."""
    return {key: info.annotation for key, info in key_fields(kind, prefix)}


@lru_cache(maxsize=256)  # a comparison asks for them with each of its runs
def key_fields(kind: type[BaseModel], prefix: str = "") -> tuple[tuple[str, FieldInfo], ...]:
    """Return the flat keys of a group, each with its field; keys of nested groups are dotted, and have their marks.

    Args:
        kind: The group.
        prefix: What its keys start with.
    """
    return tuple(_walk(kind, prefix, {}))


def _walk(kind: type[BaseModel], prefix: str, inherited: Mapping[str, Any]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the keys and fields of a group, which all have the marks ``inherited``."""
    for name, info in kind.model_fields.items():
        key, inner = prefix + (info.alias or kebab(name)), info.annotation
        extra = {**inherited, **_extra(info)}
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _walk(inner, f"{key}.", extra)
        else:
            yield key, _with(info, extra) if inherited else info


def _with(info: FieldInfo, extra: dict[str, Any]) -> FieldInfo:
    field = copy(info)
    field.json_schema_extra = extra
    return field


def _extra(info: FieldInfo) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def group_names(kind: type[BaseModel], *facts: Mark) -> tuple[str, ...]:
    """Return the names of the groups in a group of keys; with marks, of those that carry any of them."""
    groups = {
        info.alias or kebab(name): info
        for name, info in kind.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }
    return tuple(name for name, info in groups.items() if not facts or has_mark(info, *facts))


def marked(kind: type[BaseModel], *facts: Mark, prefix: str = "") -> tuple[str, ...]:
    """Return the flat keys of a group that carry any of the marks, in the order of its fields."""
    return tuple(key for key, info in key_fields(kind, prefix) if has_mark(info, *facts))


def has_mark(info: FieldInfo, *facts: Mark) -> bool:
    """Return whether a key's field carries any of the marks."""
    return any(_extra(info).get(fact) for fact in facts)


def mark_values(kind: type[BaseModel], mark: str, prefix: str = "") -> dict[str, Any]:
    """Return the flat keys whose fields have a mark with a value, such as ``former``, each with the mark's value."""
    return {key: _extra(info)[mark] for key, info in key_fields(kind, prefix) if mark in _extra(info)}


def former_values(kind: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return the flat keys of a group that :func:`renewed` has made, each with its former value."""
    return mark_values(kind, FORMER, prefix)


def flatten(settings: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Return a group of keys as flat keys with values; keys of nested groups are dotted."""
    flat: dict[str, Any] = {}
    for name, info in type(settings).model_fields.items():
        value, key = getattr(settings, name), prefix + (info.alias or kebab(name))
        if isinstance(value, BaseModel):
            flat.update(flatten(value, key if key.endswith(".") else f"{key}."))
        else:
            flat[key] = value
    return flat


def validate(kind: type[M], values: Mapping[str, Any], prefix: str = "") -> M:
    """Validate ``values`` as ``kind``. The first error is raised as a ConfigError whose key starts with ``prefix``."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = [str(part) for part in fault["loc"]]
        union = bool(path) and path[-1] in _UNION_PARTS
        path = path[:-1] if union else path
        key = prefix + ".".join(path) if path else prefix.removesuffix(": ")  # a rule of the whole group has no path
        if fault["type"] == "extra_forbidden":
            raise ConfigError(key, "a known key", "an unknown one") from None
        if fault["type"] == "missing":
            raise ConfigError(key, "a value", "nothing") from None
        word = next((part for part in map(_word_of, error.errors(include_url=False)) if part), AUTO)
        expected = plainly(fault["msg"]) + (f", or {word!r}" if union else "")
        raise ConfigError(key, expected, repr(fault["input"])) from None


def _word_of(fault: ErrorDetails) -> str:
    """Return the word that a rate may be besides a number, ``auto`` or ``search``, from pydantic's name of its type."""
    last = str(fault["loc"][-1]) if fault["loc"] else ""
    match = re.fullmatch(r"literal\['(\w+)'\]", last)
    return match[1] if match else ""


def plainly(message: str) -> str:
    """Return what a pydantic message says was expected: ``less than 1``."""
    text = message.removeprefix("Input should be ").removeprefix("Value error, ").replace("valid tuple", "list")
    return text[:1].lower() + text[1:]
