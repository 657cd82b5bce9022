"""Which uploads of a round count by simulated time: ``oversample`` and ``deadline`` on the devices of a profile.

All clients of the round train, and all are waited for. Then each reply is judged by what it says of its work and by the
bytes that the ledger has counted. So the decision is exact for every method, follows from the seed, and is the same in
every simulation; what it costs is the training of those that are left out. It is taken once, before the round's result:
the record has it, and a replay takes the same. Why not before the training: docs/decisions/0040-simulated-time.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sepal.config import RunConfig
from sepal.config.rules import in_simulated_time
from sepal.errors import ConfigError
from sepal.protocol.messages import Reply
from sepal.protocol.types import ClientInfo, Kind
from sepal.server.ledger import LedgerEntry
from sepal.simulated_time import (
    DeviceProfile,
    RoundEnd,
    end_of_round,
    rates,
    read_profile,
    seconds,
    training_work,
    without_room,
)
from sepal.simulated_time.work import FIGURES, Matrix


class SimulatedRounds:
    """Judges the replies of a run's rounds.

    Args:
        config: The run's configuration.
        profile: The clients' devices.
    """

    def __init__(self, config: RunConfig, profile: DeviceProfile) -> None:
        self._config, self._profile = config, profile

    @classmethod
    def of(cls, config: RunConfig) -> SimulatedRounds | None:
        """Return what judges the rounds of a run; None if nothing is decided by simulated time.

        Raises:
            ConfigError: The profile cannot be read.
        """
        return cls(config, read_profile(config.devices)) if in_simulated_time(config) else None

    def check_room(self, clients: Iterable[ClientInfo], size: int, whole: bool) -> None:
        """Raise if a client could not train on its device.

        Args:
            clients: Clients that may be asked to train.
            size: Bytes of the model as float32.
            whole: Whether each client trains all of it; otherwise the share that is its capacity.

        Raises:
            ConfigError: Its memory is below that of weights and gradients.
        """
        needed = {client.name: 2.0 * size * (1.0 if whole else client.capacity) for client in clients}
        if lacking := without_room(needed, self._profile, self._config.seed):
            most = needed[lacking[0]]
            expected = f"a memory of at least {most:g} bytes, of weights and gradients, for {lacking[0]}"
            got = f"{self._profile.device(lacking[0], self._config.seed).memory:g}"
            raise ConfigError(f"devices: {self._profile.name}", expected, f"{got}; {len(lacking)} clients lack it")

    def end(self, entries: Iterable[LedgerEntry], replies: Mapping[str, Reply], needed: int) -> RoundEnd:
        """Return when a round ends, and which of its uploads count.

        Args:
            entries: The round's messages.
            replies: The accepted replies, by client name.
            needed: How many uploads make the round, and may come.

        Raises:
            ConfigError: A client does not report what its device needs, so that it would seem to be the fastest.
        """
        figures = {name: reply.metrics for name, reply in replies.items() if reply.kind is Kind.TRAIN}
        work = training_work(map(vars, entries), figures)
        device_rates = self._rates(work)
        for name, of_device in zip(work, device_rates, strict=True):
            for figure, column in FIGURES.items():
                if of_device[column] and figure not in figures[name]:
                    expected = f"{figure} of every client that trains, of which its device makes seconds"
                    raise ConfigError(f"devices: {self._profile.name}", expected, f"none from {name}")
        spent = seconds(np.array([*work.values()], np.float64).reshape(-1, 5), device_rates)
        by_name = dict(zip(work, spent.tolist(), strict=True))
        return end_of_round(by_name, needed, self._config.deadline, self._config.min_replies)

    def reason(self, end: RoundEnd) -> str:
        """Return why those that are late do not count."""
        in_time = f"within {end.seconds:.6g} s of simulated time"
        return f"expected an upload {in_time}, after which the round ended with {len(end.counted)}"

    def _rates(self, names: Iterable[str]) -> Matrix:
        return rates(self._profile, names, self._config.seed)
