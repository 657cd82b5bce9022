"""``rounds = "converged"`` in a plan: a run goes on until validation accuracy stops rising, up to a limit.

It stands for two keys of `sepal run`: ``rounds``, which is the plan's ``limit``, by default three times the default of
the method or data set; and ``stop-after``, a tenth of that and at least ten rounds, unless the plan has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sepal.config import Mark, RunConfig, marked
from sepal.errors import ConfigError, SepalError
from sepal.study.run_keys import Value

CONVERGED = "converged"
LIMIT = "limit"
TIMES = 3  # the default number of rounds
LEAST, SHARE = 10, 10  # rounds; one in so many of the limit


def resolved(keys: Mapping[str, Value]) -> dict[str, Value]:
    """Return flat keys without ``rounds = "converged"`` and its ``limit``.

    Args:
        keys: Flat keys of a run, and ``limit``.

    Raises:
        ConfigError: ``limit`` is not a number of rounds.
    """
    rest = {key: value for key, value in keys.items() if key != LIMIT}
    if keys.get("rounds") != CONVERGED:
        return rest
    limit = keys.get(LIMIT)
    if limit is None:
        ignored = {"rounds", "stop-after", *marked(RunConfig, Mark.FREE, Mark.REPEAT)}
        limit = _default(tuple((key, value) for key, value in rest.items() if key not in ignored))
    elif isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(LIMIT, 'the most rounds with rounds = "converged", at least 1', limit)
    after = rest.get("stop-after") or max(LEAST, limit // SHARE)
    return {**rest, "rounds": limit, "stop-after": after}


@lru_cache(maxsize=1024)
def _default(keys: tuple[tuple[str, Value], ...]) -> int:
    """Return the limit of a run with ``keys``; 0, the data set's default, if a key is wrong or the data is missing.

    The error comes when the plan's keys are checked, or when the run starts, with the key's place.
    """
    from sepal.study.plans.rates import completed

    try:
        return TIMES * completed(dict(keys))[0].rounds
    except SepalError:
        return 0
