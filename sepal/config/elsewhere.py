"""What a config from elsewhere may lead to: code that is imported, paths of this machine, things on the network.

Every list here is derived from the marks of the keys' fields (:class:`sepal.config.base.Mark`), so a new key that
carries the right mark is refused, emptied or hidden wherever the others are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sepal.config.base import Mark, marked
from sepal.config.run import RunConfig
from sepal.errors import ConfigError, SepalError

CODE = marked(RunConfig, Mark.CODE)  # keys whose value may be package.module:NAME
PATHS = marked(RunConfig, Mark.PATH)
PLACES = marked(RunConfig, Mark.PATH, Mark.FETCHED)  # keys that lead outside the run; reports leave them out


def named_code(flat: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of ``flat`` that name code, with their values, in the order of the config's fields."""
    return {key: value for key in CODE if ":" in (value := str(flat.get(key, "")))}


def permits(allow: Collection[str], name: str) -> bool:
    """Return whether ``package.module:NAME`` is allowed, by itself or with its whole module, whose import runs code."""
    return name in allow or name.partition(":")[0] in allow


def check_code(
    flat: Mapping[str, Any],
    allow: Collection[str],
    how: str,
    error: type[SepalError] = ConfigError,
    modules: bool = True,
) -> None:
    """Refuse keys that name code which is not allowed. To be called before anything is parsed or assembled.

    Args:
        flat: Flat keys from elsewhere.
        allow: What may be imported, ``package.module:NAME``, or ``package.module``.
        how: How it is allowed, for the error: ``this node allows (sepal join --allow …)``.
        error: Type of the error.
        modules: Whether whole modules may be allowed; if not, each name is.

    Raises:
        SepalError: A key names other code; of the type ``error``.
    """
    for key, value in named_code(flat).items():
        if not (permits(allow, value) if modules else value in allow):
            raise error(key, f"code that {how}", value)


def without_places(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``flat`` with each key that leads outside the run set back to its default, which leads nowhere."""
    plain = RunConfig().flat()
    return {key: plain[key] if key in PLACES else value for key, value in flat.items()}
