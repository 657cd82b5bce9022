"""Central differential privacy: the server sums clipped updates, adds Gaussian noise, and only then uses the mean.

docs/privacy.md has the mechanism and what it protects. Its sources: McMahan, Ramage, Talwar, Zhang, "Learning
Differentially Private Recurrent Language Models", ICLR 2018 (https://arxiv.org/abs/1710.06963), Algorithm 1 with flat
clipping and a fixed denominator; Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021 (https://arxiv.org/abs/1905.03871), Algorithm 1.

Sums run over integers: an update is clipped, and its entries are truncated towards 0 on a grid of C/2^40. So the sum is
exact whatever the order of the updates, and one client changes it by a norm of at most 2^40 steps, rounding included.
The noise is rounded to the same grid, which is what rounding the noised sum would give.

All randomness follows from a secret of the server: the noise with the round and the digest of the sum, so that a sum
that is computed again has the same noise and any other sum has independent noise; and who is drawn with the round.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sepal.config import RunConfig
from sepal.config.rules import multiplier_beside_bits
from sepal.training.privacy import gaussian
from sepal.wire.tensors import Values

GRID = 2.0**40  # steps of C
CLIP_RATE = 0.2  # η_C, the paper's
SMALLEST_CLIP, LARGEST_CLIP = 1e-12, 1e12


@dataclass(frozen=True)
class ClippedSum:
    """What is computed of a round's updates before there is noise. It must not leave the server.

    Attributes:
        entries: int64 (d,), in steps of C/2^40.
        balance: Number of updates that needed no clipping, minus the number of others.
        of: Digest (hex) of what the updates are changes of.
    """

    entries: npt.NDArray[np.int64]
    balance: int
    of: str

    def digest(self) -> str:
        """Return SHA-256 (hex) over the sum."""
        sha = hashlib.sha256(f"{self.of}|{self.balance}|".encode())
        sha.update(np.ascontiguousarray(self.entries, "<i8").tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class CentralNoise:
    """The mechanism of one run.

    Attributes:
        clients: m, by which a sum is divided: the clients of a round, or their mean number. It follows from the keys
            alone, not from who has answered.
        population: Number of clients of the run.
        noise: z.
        quantile: γ, the share of updates that is not to be clipped; 0: the clip stays.
        poisson: Whether clients are drawn each by itself.
        secret: What all randomness follows from.
    """

    clients: int
    population: int
    noise: float
    quantile: float
    poisson: bool
    secret: bytes

    @classmethod
    def of(cls, config: RunConfig, secret: bytes) -> CentralNoise:
        """Return the mechanism of a run with ``privacy.mode = "central"``.

        Args:
            config: The run's configuration.
            secret: The server's; in a simulation, which is to be repeated, :func:`of_seed`.
        """
        privacy, clients = config.privacy, config.clients_per_round or config.clients
        return cls(clients, config.clients, privacy.noise, privacy.quantile, privacy.sampling == "poisson", secret)

    @property
    def deviation_of_bits(self) -> float:
        """σ_b, standard deviation of the noise on the sum of b_i - ½, of which a client changes ½ (m/20, section 2)."""
        return self.clients / 20

    @property
    def multiplier_of_updates(self) -> float:
        """z_Δ, with which updates and bits together cost what z alone would: (z^-2 - (2σ_b)^-2)^-1/2 (Theorem 1)."""
        return multiplier_beside_bits(self.noise, self.clients) if self.quantile else self.noise

    def drawn(self, names: Sequence[str], round: int) -> list[str]:
        """Return who trains in ``round``: each of ``names`` by itself, with probability clients / population."""
        return [name for name in names if self._word(round, name) * self.population < self.clients << 128]

    def _word(self, round: int, name: str) -> int:
        message = f"sepal central draw|{round}|{name}".encode()
        return int.from_bytes(hmac.digest(self.secret, message, "sha256")[:16], "little")

    def summed(self, changes: Iterable[tuple[Values, bool]], size: int, clip: float, of: str) -> ClippedSum:
        """Return the sum of clipped updates.

        Args:
            changes: Each update, float32 (d,), and whether its client had not to clip it. They are clipped again: so
                neither rounding on the way nor a client that lies makes one larger.
            size: d.
            clip: C.
            of: Digest of what they are changes of.
        """
        total, balance = np.zeros(size, np.int64), 0
        for change, was_within in changes:
            total += on_grid(change, clip)
            balance += 1 if was_within else -1
        return ClippedSum(total, balance if self.quantile else 0, of)

    def _key(self, total: ClippedSum, clip: float, round: int) -> bytes:
        about = [round, clip.hex(), self.noise.hex(), self.quantile.hex(), self.clients, total.digest()]
        return hmac.digest(self.secret, f"sepal central noise|{json.dumps(about)}".encode(), "sha256")

    def name(self, total: ClippedSum, clip: float, round: int) -> str:
        """Return what stands for a release, 32 hexadecimal digits: the same for the same sum, no help to guess it."""
        return hmac.digest(self._key(total, clip, round), b"name", "sha256").hex()[:32]

    def released(self, total: ClippedSum, clip: float, round: int) -> tuple[npt.NDArray[np.float64], float]:
        """Return what leaves the mechanism: the noised mean, float64 (d,), and the clip of the next round.

        Args:
            total: The round's sum.
            clip: C.
            round: The round.
        """
        key = self._key(total, clip, round)
        drawn = gaussian(hmac.digest(key, b"updates", "sha256"), total.entries.size)
        noised = total.entries + np.rint(drawn * (self.multiplier_of_updates * GRID)).astype(np.int64)
        mean = noised.astype(np.float64) * (clip / (GRID * self.clients))
        if not self.quantile:
            return mean, clip
        bits = total.balance / 2 + self.deviation_of_bits * float(gaussian(hmac.digest(key, b"bits", "sha256"), 1)[0])
        return mean, next_clip(clip, bits / self.clients + 0.5, self.quantile)


def of_seed(seed: int) -> bytes:
    """Return what stands for the secret, 32 bytes, where a run is to be repeated by its seed."""
    return hashlib.sha256(f"sepal central privacy|{seed}".encode()).digest()


def next_clip(clip: float, within: float, quantile: float) -> float:
    """Return C·exp(-η_C·(b̃ - γ)): C falls when more updates than the share γ are within it.

    Args:
        clip: C.
        within: b̃, the noised share of updates that are within C.
        quantile: γ.
    """
    return min(LARGEST_CLIP, max(SMALLEST_CLIP, clip * math.exp(-CLIP_RATE * (within - quantile))))


def on_grid(change: Values, clip: float) -> npt.NDArray[np.int64]:
    """Return an update, float32 (d,), clipped to ``clip`` and in steps of clip/2^40, int64 (d,).

    Its norm is at most 2^40 also where the norm is computed a little too small: a sum of d squares in float64 is off by
    a share of at most d·2^-53. Truncation towards 0 makes no entry larger. An update that is not finite is 0.
    """
    wide = change.astype(np.float64)
    norm = float(np.sqrt(np.dot(wide, wide)))
    if not np.isfinite(norm):
        return np.zeros(change.size, np.int64)
    margin = 1 - (change.size + 8) * 2.0**-52
    scale: float = margin * GRID / max(norm, clip)
    return np.trunc(wide * scale).astype(np.int64)
