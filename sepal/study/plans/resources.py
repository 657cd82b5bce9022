"""What a plan's runs ask of a cluster: the table ``[resources]``, for all runs and by method.

A plan may be somebody else's. So there are a few keys, whose values are letters, digits and few signs, and none that
says where a scheduler writes, what it runs or which environment that gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from sepal.config import plainly
from sepal.errors import ConfigError, suggest

WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
NODES = r"^[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]{0,999}$"  # n[1-3],m7


class Resources(BaseModel):
    """What one run asks for; a missing value is left to the cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cores: Annotated[StrictInt, Field(ge=1, le=4096)] | None = None
    gpus: Annotated[StrictInt, Field(ge=0, le=64)] | Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]+:[1-9][0-9]?$")] = 0
    memory: str | None = Field(default=None, pattern=r"^[1-9][0-9]{0,6}[MG]$")
    time: str | None = Field(default=None, pattern=r"^([0-9]{1,3}-)?[0-9]{2}:[0-5][0-9]:[0-5][0-9]$")
    partition: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,-]{0,99}$")  # a list: any of them
    account: str | None = Field(default=None, pattern=WORD)
    qos: str | None = Field(default=None, pattern=WORD)
    constraint: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.&|,-]{0,99}$")
    reservation: str | None = Field(default=None, pattern=WORD)
    nodelist: str | None = Field(default=None, pattern=NODES)
    exclude: str | None = Field(default=None, pattern=NODES)


WORDS = {
    "cores": "a whole number from 1 to 4096",
    "gpus": 'a whole number up to 64, or TYPE:NUMBER such as "a100:1"',
    "memory": 'a number of MB or GB per node, such as "8G"',
    "time": '[D-]HH:MM:SS, such as "02:00:00"',
}
PLAIN = "letters, digits and few signs"


def read_resources(file: str, table: Any, variants: Iterable[str]) -> dict[str, Resources]:
    """Return what runs ask for by variant; under an empty name for all others.

    Args:
        file: The plan file's name, for messages.
        table: The table ``[resources]``.
        variants: The plan's variants. A table of a method holds for all variants whose names begin with its own.

    Raises:
        ConfigError: A key or a name is unknown, or a value has another form.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{file}: resources", "a table", table)
    shared = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    by_variant = {"": _checked(f"{file}: resources", shared)}
    named = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    names = list(variants)
    for name in named:
        if not any(_is_of(variant, name) for variant in names):
            expected = f"one of the methods {', '.join(dict.fromkeys(variant.split(',')[0] for variant in names))}"
            raise ConfigError(f"{file}: resources.{name}", expected, name)
    for variant in names:
        of_variant = sorted((name for name in named if _is_of(variant, name)), key=len)
        merged = {key: value for name in of_variant for key, value in named[name].items()}
        if of_variant:
            by_variant[variant] = _checked(f"{file}: resources.{of_variant[-1]}", {**shared, **merged})
    return by_variant


def _is_of(variant: str, name: str) -> bool:
    """Return whether ``variant`` is ``name``, or one of the values that its settings list: ``fedpse,keep=0.1``."""
    return f"{variant},".startswith(f"{name},")


def _checked(where: str, table: Mapping[str, Any]) -> Resources:
    try:
        return Resources.model_validate(dict(table))
    except ValidationError as reason:
        first = reason.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            got = suggest("an unknown one", key, Resources.model_fields)
            raise ConfigError(f"{where}.{key}", f"one of {', '.join(Resources.model_fields)}", got) from None
        expected = WORDS.get(key, PLAIN if first["type"] == "string_pattern_mismatch" else plainly(first["msg"]))
        raise ConfigError(f"{where}.{key}", expected, str(first["input"])[:60]) from None
