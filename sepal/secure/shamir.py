"""Shamir's secret sharing (1979) over a prime of 257 bits.

A secret of 32 bytes is the constant of a polynomial of degree t - 1 with coefficients from the operating system. The
holder at place x, from 1, has its value there; any t holders determine the secret, and fewer tell nothing of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from sepal.errors import ProtocolError

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33  # bytes


def threshold(clients: int, colluders: int) -> int:
    """Return t = max(⌊2n/3⌋, c) + 1.

    Args:
        clients: n, who hold a share each.
        colluders: c, how many of them may put their shares together and still have too few.
    """
    return max(2 * clients // 3, colluders) + 1


def split(secret: bytes, needed: int, places: Sequence[int]) -> list[bytes]:
    """Return the shares of ``secret`` for the holders at ``places``.

    Args:
        secret: 32 bytes.
        needed: t, how many shares determine it.
        places: From 1, each once.
    """
    if len(secret) != SECRET or not 1 <= needed <= len(set(places)) == len(places) or min(places) < 1:
        raise ValueError("a secret of 32 bytes, and at least t different places from 1")
    return shares_of([int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(needed - 1))], places)


def shares_of(coefficients: Sequence[int], places: Sequence[int]) -> list[bytes]:
    """Return the values of a polynomial at ``places``, 33 bytes each; its constant comes first (Horner's scheme)."""
    shares = []
    for place in places:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * place + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "little"))
    return shares


def lagrange(places: Sequence[int]) -> list[int]:
    """Return the weights by which the values at ``places`` give that at 0.

    They are the same for all secrets with the same holders.
    """
    if len(set(places)) != len(places):
        raise ValueError("different places")
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def combine(shares: Mapping[int, bytes], weights: Sequence[int]) -> bytes:
    """Return the secret, 32 bytes.

    Args:
        shares: Place to share, of t holders.
        weights: Of :func:`lagrange`, in the same order.

    Raises:
        ProtocolError: The shares are those of no secret.
    """
    values = [int.from_bytes(share, "little") for share in shares.values()]
    if any(len(share) != SHARE for share in shares.values()) or max(values, default=PRIME) >= PRIME:
        raise ProtocolError("share", f"a number of {SHARE} bytes below 2^256 + 297", "another")
    secret = sum(value * weight for value, weight in zip(values, weights, strict=True)) % PRIME
    if secret >= 1 << 8 * SECRET:
        raise ProtocolError("shares", f"those of a secret of {SECRET} bytes", "others")
    return secret.to_bytes(SECRET, "little")
