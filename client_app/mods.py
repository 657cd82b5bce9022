"""Flower's mods around a ClientApp of Sepal's: those that change arrays cannot read a sparse payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from flwr.app import Context, Message

from sepal.errors import ConfigError

Mod: TypeAlias = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

# Flower's mods that change arrays (clipping, noise, secure aggregation). They cannot read a sparse payload.
ARRAY_MODS = frozenset(
    {"adaptiveclipping_mod", "fixedclipping_mod", "LocalDpMod", "localdp_mod", "secagg_mod", "secaggplus_mod"}
)


def refuse_array_mods(mods: Sequence[Mod]) -> None:
    """Refuse mods whose protection would have no effect.

    Raises:
        ConfigError: There is one; the error names it.
    """
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in ARRAY_MODS or type(mod).__name__ in ARRAY_MODS:
            raise ConfigError(
                "mods",
                "mods that leave arrays alone (secure aggregation and privacy mods cannot "
                "read a sparse payload; see docs/threat-model.md)",
                name,
            )
