"""Calls a method's ``aggregate`` and checks what it returns, because a mistake there would show somewhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sepal.errors import ConfigError
from sepal.method.algorithms import ServerAlgorithm
from sepal.protocol.types import Metrics, Plan, Uploads


def aggregated(algorithm: ServerAlgorithm[Any], state: Any, uploads: Uploads, plan: Plan) -> tuple[Any, Metrics]:
    """Return the state after a round and the figures of the server algorithm.

    Args:
        algorithm: The server algorithm.
        state: Its state before the round.
        uploads: The accepted uploads.
        plan: The round's plan.

    Raises:
        ConfigError: ``aggregate`` has returned something else.
    """
    returned: Any = algorithm.aggregate(state, uploads, plan)
    place, kind = f"{type(algorithm).__name__}.aggregate to return", type(state)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        got = f"({', '.join(_named(part) for part in returned)})" if type(returned) is tuple else _named(returned)
        raise ConfigError("method", f"{place} the state and a dict of figures, which may be empty", got)
    if not isinstance(returned[0], kind):
        raise ConfigError("method", f"{place} a {kind.__name__} as the state, as init does", _named(returned[0]))
    return returned


def _named(value: Any) -> str:
    return type(value).__name__
