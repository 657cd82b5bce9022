"""ε of a run whose rounds are releases: before it, after each round, and when ``privacy.budget`` ends it.

Two runs are compared that differ by one client: in the other it is left out of the sum, its bit too (add or remove).
Of what is released of a round, a sum with noise z·C, it changes the sum by C at most. The bits of adaptive clipping are
in z (:attr:`sepal.server.central_noise.CentralNoise.multiplier_of_updates`).

- **With the draw**, for whoever does not know who was drawn: a client is in a round with probability q, independently.
  By dp-accounting: its PLD accountant (Koskela, Jälkö, Honkela, AISTATS 2020), and its RDP accountant (Mironov, Talwar,
  Zhang, 2019), which is faster and gives a somewhat larger ε.
- **Without amplification**, for whoever knows: a client was in k rounds, which is one Gaussian mechanism with noise
  z/√k. Its ε is exact (Balle, Wang, ICML 2018).

A sum that differs from an earlier one of the same round is another release of the same clients: r of them are one
Gaussian mechanism with noise z/√r.

With ``privacy.mode = "distributed"`` the noise is a sum of discrete Gaussians (Kairouz, Liu, Steinke, ICML 2021), and
the two runs differ in the update of one client, which in the other is no change: who takes part is known. Without
amplification, by dp-accounting's RDP accountant.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sepal.config import RunConfig
from sepal.errors import ConfigError
from sepal.secure.formats import MOST_CLIENTS
from sepal.secure.noise import LEAST_DEVIATION

MOST_TIGHT = 30.0  # of a larger ε, which protects nobody, that of RDP will do: PLD takes the longer the larger it is
# τ·d for at most 2^16 clients, 2^40 entries and shares of a deviation of at least 4: 10·2^16·2^40·exp(-16π²), 2e-51
TAU = 10 * MOST_CLIENTS * 2.0**40 * math.exp(-(LEAST_DEVIATION**2) * math.pi**2)
Rounds = tuple[tuple[int, int], ...]  # (releases in a round, rounds with so many)


@dataclass(frozen=True)
class Spent:
    """What a run has released so far.

    Attributes:
        rounds: Number of releases in a round to the number of rounds that have so many.
        clients: Client name to the number of releases of rounds in which it was asked to train.
    """

    rounds: Mapping[int, int] = field(default_factory=dict)
    clients: Mapping[str, int] = field(default_factory=dict)

    def plus(self, releases: int, sampled: tuple[str, ...]) -> Spent:
        """Return the same after a round.

        Args:
            releases: Of that round.
            sampled: Who was asked to train in it, whether it answered or not.
        """
        if not releases:
            return self
        clients = dict(self.clients)
        for name in sampled:
            clients[name] = clients.get(name, 0) + releases
        return Spent({**self.rounds, releases: self.rounds.get(releases, 0) + 1}, clients)

    @property
    def most(self) -> int:
        """Releases of the client with the most."""
        return max(self.clients.values(), default=0)

    @property
    def releases(self) -> int:
        """Number of releases."""
        return sum(releases * rounds for releases, rounds in self.rounds.items())

    def after_another_round(self) -> Spent:
        """Return the same after another round of the client with the most releases, at worst."""
        names = max(self.clients, key=lambda name: self.clients[name], default="any")
        return self.plus(1, (names,))


def epsilon_after(config: RunConfig, spent: Spent, tight: bool = False) -> dict[str, float | None]:
    """Return ``epsilon``, with the draw (None where there is no secret one), and ``epsilon_no_amplification``.

    Args:
        config: The run's configuration.
        spent: What it has released.
        tight: Whether ε with the draw is that of PLD, which takes seconds; if not, that of RDP.
    """
    privacy = config.privacy
    if privacy.distributed:
        return {"epsilon": None, "epsilon_no_amplification": of_shares(privacy.noise, spent.most, privacy.delta)}
    known = without_amplification(privacy.noise, spent.most, privacy.delta)
    if privacy.sampling != "poisson":
        return {"epsilon": None, "epsilon_no_amplification": known}
    rate = config.clients_per_round / config.clients
    rounds: Rounds = tuple(sorted(spent.rounds.items()))
    with_draw = _rdp(rate, privacy.noise, rounds, privacy.delta)
    if tight and with_draw < MOST_TIGHT:
        with_draw = min(with_draw, _pld(rate, privacy.noise, rounds, privacy.delta))
    return {"epsilon": with_draw, "epsilon_no_amplification": known}


def bounded_epsilon(epsilons: Mapping[str, float | None]) -> float:
    """Return the ε that ``privacy.budget`` bounds: with the draw, or where there is no secret one without."""
    with_draw = epsilons["epsilon"]
    return float(epsilons["epsilon_no_amplification"] or 0.0) if with_draw is None else with_draw


def exceeds_budget(config: RunConfig, spent: Spent) -> bool:
    """Return whether ε would be above ``privacy.budget`` with another round."""
    return is_over_budget(config, spent.after_another_round())


def is_over_budget(config: RunConfig, after: Spent) -> bool:
    """Return whether ε of ``after`` is above ``privacy.budget``."""
    budget = config.privacy.budget
    if not budget or bounded_epsilon(epsilon_after(config, after)) <= budget:  # ε of RDP is never below that of PLD
        return False
    return bounded_epsilon(epsilon_after(config, after, tight=True)) > budget


def accountant_of(config: RunConfig, spent: Spent) -> str:
    """Return how :func:`epsilon_after` computes :func:`bounded_epsilon` where it is to be tight."""
    if config.privacy.distributed:
        return "RDP of sums of discrete Gaussians"
    if config.privacy.sampling != "poisson":
        return "exact curve of the Gaussian mechanism"
    rdp = epsilon_after(config, spent)["epsilon"]
    return "PLD" if rdp is None or rdp < MOST_TIGHT else f"RDP, as ε is at least {MOST_TIGHT:g}"


def check_budget(config: RunConfig) -> None:
    """Raise if not even one round fits.

    Raises:
        ConfigError: See above.
    """
    if config.privacy.budget and exceeds_budget(config, Spent()):
        least = bounded_epsilon(epsilon_after(config, Spent().after_another_round(), tight=True))
        up = math.ceil(1000 * least) / 1000
        raise ConfigError("privacy.budget", f"at least {up:g}, the ε of one round", config.privacy.budget)


def before_the_run(config: RunConfig) -> str:
    """Return a line with ε of all rounds of the keys."""
    rounds, privacy = config.rounds, config.privacy
    all_rounds = Spent({1: rounds}, {"any": rounds})
    epsilons = epsilon_after(config, all_rounds, tight=True)
    if privacy.distributed:
        c, total = config.secure_colluders, epsilons["epsilon_no_amplification"]
        head = f"distributed privacy: all clients weigh the same, z = {privacy.noise:g}, clip {privacy.clip:g}"
        return (
            f"{head}: with these keys ε = {total:.3g} after {rounds} round{'s' * (rounds != 1)} for a client in all of "
            f"them, at δ = {privacy.delta:g}, against a server that follows the protocol and at most {c} "
            f"client{'s' * (c != 1)} on its side; no amplification by sampling, because the server knows who is drawn"
        )
    clients = config.clients_per_round or config.clients
    head = f"central privacy: the mean of {clients} clients, each with weight 1, z = {privacy.noise:g}, "
    head += f"clip {privacy.clip:g}{' at first' if privacy.quantile else ''}"
    known, spoken = f"{epsilons['epsilon_no_amplification']:.3g}", f"{rounds} round{'s' * (rounds != 1)}"
    if epsilons["epsilon"] is None:
        return f"{head}: with these keys ε = {known} after {spoken} for a client in all of them, at δ = " + (
            f"{privacy.delta:g}; no amplification by sampling, because who is drawn follows from the seed"
        )
    usual = max(1, round(rounds * clients / config.clients))
    about = without_amplification(privacy.noise, usual, privacy.delta)
    return (
        f"{head}: with these keys ε = {epsilons['epsilon']:.3g} after {spoken}, at δ = {privacy.delta:g}, for "
        f"whoever does not know who was drawn; for others {about:.3g} for a client that is drawn {usual} times, and "
        f"{known} if in all rounds"
    )


@lru_cache(maxsize=4096)
def without_amplification(noise: float, releases: int, delta: float) -> float:
    """Return ε at ``delta`` of a number of Gaussian releases, exactly.

    Args:
        noise: Standard deviation of the noise, divided by how much one client can change what is released (L2 norm).
        releases: Number of releases.
        delta: δ, in (0, 1).
    """
    if not releases:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / math.sqrt(releases), delta))


@lru_cache(maxsize=4096)
def of_shares(noise: float, releases: int, delta: float) -> float:
    """Return ε at ``delta`` of a number of sums with discrete Gaussian shares of the noise.

    For one sum of n shares of variance σ² and a change of a norm of at most √D: RDP(α) ≤ α/2·D/(nσ²) + τ·d with
    τ = 10·Σ exp(-2π²σ²·k/(k + 1)) over k = 1 … n - 1 (Theorem 1). Here D/(nσ²) ≤ 1/z²: the shares of the fewest honest
    clients are z²·D, and those of others are not credited. With σ ≥ 4, τ·d is below ``TAU``, whatever n and d are.

    Args:
        noise: z.
        releases: Number of sums.
        delta: δ, in (0, 1).
    """
    if not releases:
        return 0.0
    from dp_accounting import SelfComposedDpEvent, ZCDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=_orders())
    accountant.compose(SelfComposedDpEvent(ZCDpEvent(rho=0.5 / noise**2, xi=TAU), releases))
    return float(accountant.get_epsilon(delta))


def _event(rate: float, noise: float, rounds: Rounds) -> Any:
    import dp_accounting

    events = [
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise / math.sqrt(releases))), count
        )
        for releases, count in rounds
    ]
    return dp_accounting.ComposedDpEvent(events)


@lru_cache(maxsize=256)
def _pld(rate: float, noise: float, rounds: Rounds, delta: float) -> float:
    if not rounds:
        return 0.0
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()  # add or remove one
    accountant.compose(_event(rate, noise, rounds))
    return float(accountant.get_epsilon(delta))


def _rdp(rate: float, noise: float, rounds: Rounds, delta: float) -> float:
    if not rounds:
        return 0.0
    import numpy as np
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    of_rounds = (count * np.asarray(_rdp_of_round(rate, noise / math.sqrt(releases))) for releases, count in rounds)
    return float(compute_epsilon(_orders(), sum(of_rounds), delta)[0])


@lru_cache(maxsize=64)
def _rdp_of_round(rate: float, noise: float) -> tuple[float, ...]:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=_orders())
    with _quiet():
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)))
    return tuple(float(value) for value in accountant.rdp)


def _orders() -> tuple[float, ...]:
    return (*(1 + x / 10 for x in range(1, 100)), *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings about orders that it leaves out, which make ε larger at most."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
