"""Which clients take part in a round, and which are novel; all draws follow from the run's seed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from sepal.config import RunConfig
from sepal.protocol.types import ClientInfo
from sepal.rng import derive
from sepal.server.rules import check_novel


def draw_novel(roster: Mapping[str, ClientInfo], share: float, seed: int) -> list[str]:
    """Return the sorted names of the novel clients, drawn uniformly from the roster.

    Their number is ``share`` of the roster, rounded half up; at least one if ``share`` is not 0, and never all.

    Raises:
        ConfigError: The roster has a single client.
    """
    names = sorted(roster)
    check_novel(share, names)
    if not share:
        return []
    count = min(len(names) - 1, max(1, math.floor(share * len(names) + 0.5)))
    drawn = derive(seed, "novel").choice(len(names), count, replace=False)
    return sorted(names[number] for number in drawn)


def spare(config: RunConfig) -> int:
    """Return how many clients are asked beyond ``clients-per-round`` (``oversample``)."""
    return math.ceil(round(config.clients_per_round * (config.oversample - 1), 6))


def sample_spare(others: Collection[str], config: RunConfig, number: int) -> list[str]:
    """Return which of ``others`` are asked beyond ``clients-per-round`` in round ``number``, sorted."""
    return sample(list(others), spare(config), config.seed, number, "oversample") if spare(config) else []


def sample(names: Sequence[str], count: int, seed: int, round: int, purpose: str = "sample") -> list[str]:
    """Return this round's clients, sorted: ``count`` drawn uniformly, or all if ``count`` is 0 or too large."""
    names = sorted(names)
    if not count or count >= len(names):
        return names
    drawn = derive(seed, purpose, round).choice(len(names), count, replace=False)
    return sorted(names[number] for number in drawn)
