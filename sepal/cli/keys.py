"""The run-config keys for display: name, type, range, default, description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        values: A type with its range, or the choices.
    """

    name: str
    values: str
    default: str
    description: str


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a group; keys of nested groups are dotted."""
    for name, info in model.model_fields.items():
        key = prefix + (info.alias or name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from keys_of(info.annotation, f"{key}.")
        else:
            yield Key(key, values_of(info), shown(info.default), info.description or "")


def values_of(info: FieldInfo) -> str:
    """Return a description of a key's type and range."""
    if get_origin(info.annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(info.annotation))
    if get_origin(info.annotation) in (Union, UnionType):  # a rate or auto
        return " | ".join(values_of(FieldInfo.from_annotation(part)) for part in get_args(info.annotation))
    name = getattr(info.annotation, "__name__", "")
    kind = {"str": "text", "bool": "true | false"}.get(name, name)
    bounds = [f"{sign} {number(limit)}" for limit, sign in limits(info)]
    return f"{kind} {', '.join(bounds)}".strip()


def limits(info: FieldInfo) -> Iterator[tuple[Any, str]]:
    """Yield a numeric key's bounds with their signs."""
    for item in info.metadata:
        for attribute, sign in _BOUNDS:
            if getattr(item, attribute, None) is not None:
                yield getattr(item, attribute), sign


def number(value: Any) -> str:
    """Return a bound; large powers of two are written as powers."""
    if isinstance(value, int) and value > 2**31:
        return f"2^{(value + 1).bit_length() - 1}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(value: Any) -> str:
    """Return a default value in TOML syntax."""
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
