"""A client's share of the noise in a sum: clipped and rounded changes, and an exact sampler of the discrete Gaussian.

Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021 (https://arxiv.org/abs/2102.06387), Algorithm 1 and Theorem 1, without the rotation. docs/secure-sums.md has
the formulas. All numbers that decide are integers or fractions, so both sides and all machines agree on them.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sepal.errors import ProtocolError
from sepal.secure.formats import fewest_clients
from sepal.secure.keys import derive
from sepal.secure.masks import packed, stream

LEAST_STEPS = 256  # of a clip: a small model's changes are rounded finely, too
LEAST_DEVIATION = 4  # steps, of a share: the theorem's τ is then nothing
MOST_DEVIATION = 2**16  # steps: the table of the sampler has 34 times as many entries
REACH = 17  # deviations: beyond it there is a probability below 2^-200
ATTEMPTS = 64  # at a rounding within the bound, of which each succeeds with a probability of at least 1 - e^-½
FIRST, MORE = 64, 128  # bits of a uniform number: those that decide as a rule, and the rest
_WEIGHT = 320  # bits of a probability's weight; errors of the recurrence stay below 2^-250


@dataclass(frozen=True)
class Shares:
    """The shares of noise of one sum: the same for all of its clients, who know all that it follows from.

    Attributes:
        clip: C, the largest norm of a change.
        multiplier: z, above 0.
        entries: d.
        clients: n = |U1|.
        colluders: c.
    """

    clip: float
    multiplier: float
    entries: int
    clients: int
    colluders: int

    @cached_property
    def honest(self) -> int:
        """h, the fewest honest clients of a sum that is not void."""
        return fewest_clients(self.clients, self.colluders) - self.colluders

    @cached_property
    def steps(self) -> int:
        """r, the clip in steps: so many that rounding adds less than 1 % to the norm, and a share has 4 or more."""
        least = 16 * self.honest / Fraction(self.multiplier) ** 2
        return max(LEAST_STEPS, _root_above(16 * self.entries), _root_above(least))

    @property
    def step(self) -> float:
        """γ, what a step is worth."""
        return self.clip / self.steps

    @cached_property
    def most_squared(self) -> int:
        """D, the largest squared norm of a rounded change, in steps: r² + d/4 + √(2 ln 1/β)·(r + √d/2), β = e^-½."""
        d, r = self.entries, self.steps
        return r * r + -(-d // 4) + r + _root_above(Fraction(d, 4))

    @cached_property
    def variance(self) -> Fraction:
        """σ² of a client's share, in steps: h of them have z²·D."""
        return Fraction(self.multiplier) ** 2 * self.most_squared / self.honest

    @cached_property
    def largest(self) -> int:
        """T, the largest share of an entry, in steps."""
        return _reach(self.variance)

    def refused(self, bits: int) -> tuple[str, str, float | int] | None:
        """Return key, expectation and value of the key that makes such sums impossible; None if they are possible.

        Args:
            bits: Of an entry of the sum.
        """
        who, z = f"{self.clients} clients of which {self.honest} may have to make the noise", self.multiplier
        if self.variance > MOST_DEVIATION**2:
            most = MOST_DEVIATION * math.sqrt(self.honest / self.most_squared)
            return "privacy.noise", f"at most {most:.4g} with {self.entries} entries and {who}", z
        if self.clients * (self.steps + self.largest) <= 2 ** (bits - 1) - 1:
            return None
        if bits < 32:
            return "secure-bits", f"32: a sum with its noise could wrap, with {self.entries} entries and {who}", bits
        return "privacy.noise", f"a multiplier with which no sum of 32 bits can wrap, with {who}", z

    def check(self, bits: int) -> None:
        """Raise if a sum could wrap, or a share is too large to be drawn.

        Raises:
            ProtocolError: See above.
        """
        if reasons := self.refused(bits):
            raise ProtocolError(*reasons)


def noised(change: npt.NDArray[np.float32], shares: Shares, secret: bytes, bound: bytes) -> npt.NDArray[np.int64]:
    """Return what a client adds to a sum before it is masked, int64 (d,): its change and its share, in steps.

    Args:
        change: float32 (d,).
        shares: The shares of the sum.
        secret: 32 bytes from which all follows. Whoever knows it can remove the share.
        bound: What it is used for: with anything else there, all is independent.
    """
    rounded = _rounded(change, shares, secret, bound)
    return rounded + discrete_gaussian(shares.variance, change.size, secret, bound)


def _rounded(change: npt.NDArray[np.float32], shares: Shares, secret: bytes, bound: bytes) -> npt.NDArray[np.int64]:
    """Return a change in steps, clipped and rounded, int64 (d,): of a squared norm of at most D, whatever it is."""
    wide = change.astype(np.float64)
    norm = float(np.sqrt(np.dot(wide, wide)))
    if not math.isfinite(norm):  # an error would tell it, and of this client alone
        return np.zeros(change.size, np.int64)
    margin = 1 - (change.size + 8) * 2.0**-52  # the norm may be computed a little too small
    wide *= margin * shares.steps / max(norm, shares.clip)
    for attempt in range(ATTEMPTS):
        key = derive(secret, b"rounding", bound, packed(attempt))
        words = np.frombuffer(stream(key, 4 * change.size), "<u4")
        steps = np.floor(wide + words * 2.0**-32).astype(np.int64)
        if int(np.dot(steps, steps)) <= shares.most_squared:
            return steps
    return np.trunc(wide).astype(np.int64)


def discrete_gaussian(variance: Fraction, size: int, secret: bytes, bound: bytes = b"") -> npt.NDArray[np.int64]:
    """Return independent draws, int64 (size,): P[k] ∝ exp(-k²/2σ²), k = -T … T (Canonne, Kamath, Steinke 2020).

    Inverts a table of the distribution by uniform numbers of 192 bits, of which 64 decide as a rule. A draw is off by
    less than 2^-160 in total variation.

    Args:
        variance: σ², from 1/4 to 2^32.
        size: Number of draws.
        secret: 32 bytes from which they follow.
        bound: As in :func:`noised`.
    """
    words = np.frombuffer(stream(derive(secret, b"noise", bound), 8 * size), "<u8")
    key_of_rest = derive(secret, b"more", bound)
    return inverted(variance, words, lambda position: stream(key_of_rest, 16 * (position + 1))[-16:])


def inverted(
    variance: Fraction, words: npt.NDArray[np.uint64], lower_bits: Callable[[int], bytes]
) -> npt.NDArray[np.int64]:
    """Return the draws of given uniform numbers, int64 (n,).

    Args:
        variance: σ².
        words: The upper 64 bits of each, uint64 (n,).
        lower_bits: Returns the other 128 bits of the number at a position, little-endian.
    """
    table = _table(variance)
    draws = np.searchsorted(table, words, side="right")
    undecided = np.flatnonzero((draws > 0) & (table[np.maximum(draws, 1) - 1] == words))
    if undecided.size:  # with a probability of about 2^-64 for each draw and entry of the table
        boundaries = list(_boundaries(variance))
        for position in undecided.tolist():
            number = int(words[position]) << MORE | int.from_bytes(lower_bits(position), "little")
            draws[position] = bisect_right(boundaries, number)
    return draws.astype(np.int64) - _reach(variance)


@lru_cache(maxsize=4)
def _table(variance: Fraction) -> npt.NDArray[np.uint64]:
    """Return the upper 64 bits of the boundaries, uint64 (2T,)."""
    table = np.fromiter((boundary >> MORE for boundary in _boundaries(variance)), np.uint64, 2 * _reach(variance))
    table.flags.writeable = False
    return table


def _boundaries(variance: Fraction) -> Iterator[int]:
    """Return ⌊2^192·P[g ≤ j]⌋ for j = -T … T - 1, in order."""
    weights = _weights(variance)
    total = 2 * sum(weights) - weights[0]
    below = 0
    for weight in [*weights[:0:-1], *weights[:-1]]:
        below += weight
        yield (below << FIRST + MORE) // total


def _weights(variance: Fraction) -> list[int]:
    """Return 2^320·exp(-k²/2σ²) for k = 0 … T, off by less than 2^70: w(k + 1) = w(k)·f(k), f(k + 1) = f(k)·f(0)²."""
    one = 1 << _WEIGHT
    with localcontext() as context:
        context.prec = 150
        exponent = Decimal(-variance.denominator) / Decimal(2 * variance.numerator)
        first = int((exponent.exp() * one).to_integral_value(ROUND_FLOOR))
    squared, factor, weights = first * first >> _WEIGHT, first, [one]
    for _ in range(_reach(variance)):
        weights.append(weights[-1] * factor >> _WEIGHT)
        factor = factor * squared >> _WEIGHT
    return weights


def _reach(variance: Fraction) -> int:
    return _root_above(REACH**2 * variance)


def _root_above(square: Fraction | int) -> int:
    """Return the smallest whole number whose square is at least ``square``."""
    whole = math.ceil(square)
    root = math.isqrt(whole)
    return root + (root * root < whole)


def seed_of(seed: int, client: str, round: int) -> bytes:
    """Return what stands for a client's secret where a run is to be repeated by its seed: it protects nobody."""
    return hashlib.sha256(f"sepal noise|{seed}|{client}|{round}".encode()).digest()
