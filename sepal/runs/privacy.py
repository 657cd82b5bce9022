"""ε of the clients of a run with ``privacy.noise``, by the RDP accountant of dp-accounting (``docs/privacy.md``).

Every noised upload is one release of the Gaussian mechanism. Uploads compose adaptively over rounds. Sampling of
clients is not counted as an amplification, because the server knows who was sampled.

Source: Mironov, "Rényi Differential Privacy", CSF 2017 (https://arxiv.org/abs/1702.07476), Corollary 3 and Proposition
1; the conversion to (ε, δ) is the accountant's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from sepal.config import PrivacySettings, RunConfig
from sepal.errors import ConfigError
from sepal.server.accounting import Spent, accountant_of, epsilon_after

# Orders of the Rényi divergence. The library's own range from 1.1, which is too large for an ε above 100, to 1024. It
# uses only orders above 1.01.
ORDERS = (1.011, 1.02, 1.03, 1.05, 1.07, *(1 + x / 10 for x in range(1, 100)))
ORDERS += (*map(float, range(11, 64)), *(2.0**power for power in range(6, 15)))
# Against any other data of the client (local differential privacy), and against no update from it.
KINDS = ("epsilon", "epsilon_zero_out")


def check_accountant(config: RunConfig) -> None:
    """Raise if the run needs the accountant and it is not installed.

    Raises:
        ConfigError: See above.
    """
    if not config.privacy.noise:
        return
    if find_spec("dp_accounting") is None:
        raise ConfigError("privacy.noise", "dp-accounting, for ε: pip install 'dp-accounting<0.7'", "no such package")
    import dp_accounting

    if not hasattr(dp_accounting, "get_epsilon_gaussian"):
        raise ConfigError("privacy.noise", "dp-accounting from 0.6 on", metadata.version("dp-accounting"))


@lru_cache(maxsize=1024)
def epsilon(noise: float, releases: int, delta: float) -> float:
    """Return ε at ``delta`` for a number of Gaussian releases, one after another.

    Args:
        noise: Standard deviation of the noise, divided by how much one client can change what is released (L2 norm).
        releases: Number of releases.
        delta: δ, in (0, 1).
    """
    if not releases:
        return 0.0
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=ORDERS)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), releases))
    return float(accountant.get_epsilon(delta))


def privacy(config: RunConfig, noised: tuple[str, ...], uploads: Mapping[str, Mapping[str, int]]) -> Any:
    """Return the ``privacy`` of summary.json (``docs/run-directory.md``); None without ``privacy.clip``.

    Args:
        config: The run's configuration.
        noised: Phases whose uploads have noise (:attr:`sepal.method.interface.Method.private_phases`).
        uploads: Client name → phase → number of uploads that the server has seen.
    """
    keys, plain = config.privacy, defaultdict[str, int](int)
    if not keys.clip:
        return None
    clients = {}
    for name, phases in sorted(uploads.items()):
        clients[name] = _of_client(keys, sum(phases.get(phase, 0) for phase in noised))
        for phase in phases.keys() - set(noised):
            plain[phase] += phases[phase]
    reason = "" if keys.noise else "updates were clipped, without noise"
    if keys.noise and plain:
        which = ", ".join(f"{number} in phase {phase}" for phase, number in sorted(plain.items()))
        reason = f"some uploads have no noise: {which}"
    largest = (
        {kind: max((client[kind] for client in clients.values()), default=0.0) for kind in KINDS} if keys.noise else {}
    )
    return {
        "clip": keys.clip,
        "noise": keys.noise,
        "delta": keys.delta,
        **{kind: None if reason else largest[kind] for kind in KINDS},
        "reason": reason,
        "uploads": max((client["uploads"] for client in clients.values()), default=0),
        "not_noised": dict(plain),
        "clients": clients,
        "accountant": f"dp-accounting {metadata.version('dp-accounting')}, RDP" if keys.noise else "",
    }


def privacy_of_rounds(config: RunConfig, released: Spent) -> dict[str, Any]:
    """Return the ``privacy`` of summary.json of a run whose rounds are releases (``docs/run-directory.md``).

    Args:
        config: The run's configuration.
        released: What has been released.
    """
    keys = config.privacy
    return {
        "mode": keys.mode,
        "clip": keys.clip,
        "noise": keys.noise,
        "delta": keys.delta,
        **({"colluders": config.secure_colluders} if keys.distributed else {"quantile": keys.quantile}),
        "sampling": keys.sampling,
        **epsilon_after(config, released, tight=True),
        "reason": "",
        "releases": released.releases,
        "uploads": released.most,
        "accountant": f"dp-accounting {metadata.version('dp-accounting')}, {accountant_of(config, released)}",
    }


def _of_client(keys: PrivacySettings, uploads: int) -> dict[str, float]:
    """Return the number of noised uploads and their ε.

    Two updates of norm ``clip`` are at most twice ``clip`` apart, an update and none at most ``clip``.
    """
    if not keys.noise:
        return {"uploads": uploads}
    epsilons = (epsilon(noise, uploads, keys.delta) for noise in (keys.noise / 2, keys.noise))
    return {"uploads": uploads, **dict(zip(KINDS, epsilons, strict=True))}
