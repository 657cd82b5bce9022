"""The rules between run-config keys and the clients that have registered; the server checks them before round 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

from sepal.config import RunConfig
from sepal.errors import ConfigError
from sepal.layout import Layout, statistics
from sepal.masks.selection import count
from sepal.method.algorithms import ChoosesParticipants, ServerAlgorithm
from sepal.method.interface import Method
from sepal.protocol.types import ClientInfo
from sepal.secure.noise import Shares


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


def check_noised_rounds(algorithm: ServerAlgorithm[Any], method: Method, config: RunConfig) -> None:
    """Raise if noise on a round's sum would protect nothing of a method, or not what its rounds ask for.

    Args:
        algorithm: The method's server algorithm.
        method: Its record.
        config: The run's configuration.

    Raises:
        ConfigError: It exchanges nothing, or running statistics, or has rounds whose uploads are not one mean, or for
            which not ``clients-per-round`` clients are asked. Or shares of noise could make a secure sum wrap.
    """
    if not config.privacy.of_rounds:
        return
    name, mode = method.name, config.privacy.mode
    exchanged: Layout = getattr(algorithm, "shared", tuple)()
    if not exchanged:
        raise ConfigError("privacy.mode", f"local: {name} sends nothing that could have noise", mode)
    if statistics(exchanged):
        expected = "a model without running statistics, which no clipping bounds (such as one with group norm)"
        raise ConfigError("model", f"{expected}, or a method that keeps them on the client", config.model)
    for plan in map(algorithm.plan, range(1, config.rounds + 1)):
        if plan.who != "sampled" or plan.phase not in method.summed_phases:
            expected = f"local: round {plan.round} of {name} is not one mean over clients-per-round clients"
            raise ConfigError("privacy.mode", expected, mode)
    if config.privacy.distributed:
        entries = sum(parameter.size for parameter in exchanged)
        _check_shares(entries if config.compress.name == "none" else count(config.compress.keep, entries), config)


def _check_shares(entries: int, config: RunConfig) -> None:
    """Raise if the noise of a round with the clients of the keys could make its sum wrap, or is too large to be drawn.

    Where fewer answer, their shares are larger; a round for which they are too large is void.

    Raises:
        ConfigError: See above.
    """
    asked = config.clients_per_round or config.clients
    for clients in {asked, math.ceil(asked * config.oversample)} - {0}:
        shares = Shares(*config.privacy.of_shares, entries, clients, config.secure_colluders)
        if refused := shares.refused(config.secure_bits):
            raise ConfigError(*refused)


def check_choosing(algorithm: ServerAlgorithm[Any], method: Method, config: RunConfig) -> None:
    """Raise if a method decides from its state who trains, and a key has others draw.

    Args:
        algorithm: The method's server algorithm.
        method: Its record.
        config: The run's configuration.

    Raises:
        ConfigError: See above.
    """
    if not isinstance(algorithm, ChoosesParticipants):
        return
    why = f"with {method.name}, which decides from its state who trains"
    if config.roster == "drawn":
        raise ConfigError("roster", f"closed or open {why}", config.roster)
    for key, plain in (("oversample", 1), ("deadline", 0)):
        if config.value(key) != plain:
            raise ConfigError(key, f"{plain} {why}", config.value(key))


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
