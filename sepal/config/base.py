"""Base class of all groups of keys, conversion to flat keys, and validation errors in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sepal.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def kebab(name: str) -> str:
    """Return the key of an attribute: ``batch_size`` → ``batch-size``."""
    return name.rstrip("_").replace("_", "-")


class Settings(BaseModel):
    """Base class of a group of keys: frozen, and strict (an int is accepted as a float; nothing else is converted)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, alias_generator=kebab
    )

    def largest_message(self, task: Any) -> int:
        """Return the number of entries of the method's largest message; sets the default of ``max-message-bytes``.

        Args:
            task: The run's :class:`sepal.protocol.method.Task`.
        """
        return sum(parameter.size for parameter in task.layout)


def flat_keys(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the flat keys of a group; keys of nested groups are dotted."""
    keys: list[str] = []
    for name, info in kind.model_fields.items():
        key, inner = prefix + (info.alias or kebab(name)), info.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        keys += flat_keys(inner, f"{key}.") if nested else [key]  # type: ignore[arg-type]
    return keys


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
        key = prefix + ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            raise ConfigError(key, "a known key", "an unknown one") from None
        raise ConfigError(key, plainly(fault["msg"]), repr(fault["input"])) from None


def plainly(message: str) -> str:
    """Return what a pydantic message says was expected: ``less than 1``."""
    text = message.removeprefix("Input should be ").removeprefix("Value error, ").replace("valid tuple", "list")
    return text[:1].lower() + text[1:]
