"""The rules between run-config keys and the clients that have registered; the server checks them before round 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized

from sepal.config import RunConfig
from sepal.errors import ConfigError
from sepal.method.interface import Method
from sepal.protocol.types import ClientInfo


def require_capacity(method: Method, width: float, roster: Mapping[str, ClientInfo]) -> float:
    """Return the capacity that every client needs: ``width``², or 0 if the method adapts the model to each client.

    A model with a share ``width`` of the channels costs about ``width``² of the full one (Pa3dFL, section 5).

    Raises:
        ConfigError: A client of ``roster`` has less.
    """
    least = 0.0 if method.uses_capacity else width**2 * (1 - 1e-9)  # .4² is a little above .16
    smallest = min(roster.values(), key=lambda client: (client.capacity, client.name), default=None)
    if smallest is not None and smallest.capacity < least:
        most = math.floor(1000 * smallest.capacity**0.5) / 1000
        why = f"{method.name} has one model for all clients, and {smallest.name} a capacity of {smallest.capacity:.3g}"
        raise ConfigError("width", f"at most {most:g}: {why}", width)
    return least


def check_novel(share: float, roster: Sized) -> None:
    """Raise if ``novel-clients`` leaves no client of the roster to train.

    Raises:
        ConfigError: See above.
    """
    if share and len(roster) < 2:
        raise ConfigError("novel-clients", "0 for a single client, which must train", share)


def check_replies(config: RunConfig, participants: int) -> None:
    """Raise if ``min-replies`` is above the number of clients that train.

    Raises:
        ConfigError: See above.
    """
    if config.min_replies > participants:
        raise ConfigError("min-replies", f"at most the {participants} clients that train", config.min_replies)
