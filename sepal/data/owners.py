"""Owners of examples as clients: how many there are, and what the clients are called.

Of files with a column of owners (``person`` of CSV and NPZ files, ``hf.person``), each owner is a client of the rule
``natural``, and has the owner's name: ``berlin``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sepal.config import RunConfig
from sepal.data.federation import DealtData, FederatedData
from sepal.data.sources import FILES, load
from sepal.data.splitting import able_owners, dealt_owners
from sepal.errors import ConfigError
from sepal.names import NAME

NUMBERED = re.compile(r"(client-)?[0-9]+", re.IGNORECASE)
RULE = "owners whose names differ, also in lower case, and have at most 64 letters a-z, digits, '.', '_' or '-'"


class Owners(NamedTuple):
    """What a run's keys mean for data with owners.

    Attributes:
        config: The shared keys, with ``clients`` and ``client-names`` replaced.
        names: The clients' names, by number; empty where they are called by their numbers.
        notes: Lines to show when the run starts.
    """

    config: RunConfig
    names: tuple[str, ...]
    notes: tuple[str, ...]


def with_owners(config: RunConfig, data: FederatedData, clients_set: bool) -> Owners:
    """Return the keys of a run with as many clients as there are owners, unless the user has set a number, and names.

    Args:
        config: The shared keys.
        data: The run's data.
        clients_set: Whether the key ``clients`` is set.

    Raises:
        ConfigError: ``client-names`` is ``owners``, and the data has none, or they cannot be names.
        DataError: The data cannot be read.
    """
    if not _has_owners(config, data):
        if config.client_names == "owners":
            expected = "numbers for data without owners (a column person, hf.person), or not dealt by them"
            raise ConfigError("client-names", expected, config.client_names)
        return Owners(config.model_copy(update={"client_names": "numbers"}), (), ())
    notes = []
    if not clients_set:
        able, few = _count(data)
        if able:
            config = config.model_copy(update={"clients": able})
            remark = f"; {few} with fewer are left out" if few else ""
            least = config.partition.min_examples
            notes.append(f"clients = {able}: one for each owner with at least {least} examples{remark}")
    names: tuple[str, ...] = ()
    if config.client_names != "numbers" and config.clients:
        try:
            names = names_of(data, config.clients)
        except ConfigError as reason:
            if config.client_names == "owners":
                raise
            notes.append(
                f"clients are called by their numbers: {reason.key}: expected {reason.expected}, got {reason.got}"
            )
    chosen = "owners" if names else "numbers"
    return Owners(config.model_copy(update={"client_names": chosen}), names, tuple(notes))


def _has_owners(config: RunConfig, data: FederatedData) -> bool:
    natural = config.partition.name == "natural" or (config.partition.name == "auto" and data.info.natural)
    return config.dataset in FILES and natural and data.info.natural and isinstance(data, DealtData)


def owner_count(config: RunConfig, data: FederatedData) -> int:
    """Return how many owners can be clients of a run; 0 where examples have none, or are not dealt by them."""
    return _count(data)[0] if _has_owners(config, data) else 0


def _count(data: Any) -> tuple[int, int]:
    """Return how many owners have enough examples, and how many have fewer."""
    spec = data.spec
    able, everybody = able_owners(spec, load(spec.dataset, spec.data_dir, spec.folder))
    return len(able), everybody - len(able)


def names_of(data: Any, clients: int) -> tuple[str, ...]:
    """Return the names of the clients of data that is dealt by owners, by number.

    A number becomes ``owner-3``, so that it is not taken for the number of a client, and so does ``client-00003``.

    Raises:
        ConfigError: An owner's name cannot be that of a client, which names directories.
        DataError: There are fewer owners than clients, or the data cannot be read.
    """
    spec = replace(data.spec, clients=clients)
    owners = dealt_owners(spec, load(spec.dataset, spec.data_dir, spec.folder))
    return checked_names([f"owner-{owner}" if NUMBERED.fullmatch(str(owner)) else str(owner) for owner in owners])


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of clients.

    Raises:
        ConfigError: One of them cannot name a directory, or two differ in capital letters alone.
    """
    names_by_casefold: dict[str, str] = {}
    for name in names:
        if not NAME.match(name):
            raise ConfigError("client-names", RULE, repr(name))
        if name.casefold() in names_by_casefold:
            raise ConfigError("client-names", RULE, f"{names_by_casefold[name.casefold()]} and {name}")
        names_by_casefold[name.casefold()] = name
    return tuple(names)
