"""Differential privacy of an upload: the update is clipped, and Gaussian noise is added to each of its entries.

The Gaussian mechanism with flat clipping: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent
Language Models", ICLR 2018 (https://arxiv.org/abs/1710.06963), section 2, but with the noise added by each client, so
that the server need not be trusted. A method selects and encodes what it sends from the noised update only. So
positions and values are post-processing of one Gaussian mechanism. ``docs/privacy.md`` says what this protects.

The noise is a function of a key, of the request and of the update itself. The same update in answer to the same request
has the same noise, so a message that is sent again tells the server nothing new. Another update, or another request,
has independent noise: the difference of two uploads never cancels it, and never tells that two updates are equal.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sepal.config import PrivacySettings
from sepal.errors import DivergedError
from sepal.wire.tensors import Values

BLOCK = 1 << 18  # numbers drawn at a time; only affects memory, and which numbers they are
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Released:
    """An update as clipped and noised, before the client selects what to send.

    Attributes:
        clipped: The update with a norm of at most ``privacy.clip``, float32 (d,). It must not leave the client.
        noised: The same with noise, float32 (d,).
    """

    clipped: Values
    noised: Values


def release(update: Values, settings: PrivacySettings, key: bytes, round: int, request: bytes = b"") -> Released:
    """Clip ``update``, float32 (d,), and add noise to all of its entries.

    Args:
        update: Everything that the upload depends on, as one vector: the change of the model, with an error residual if
            the method has one.
        settings: The keys ``privacy.*``, with a clip above 0.
        key: Determines the noise, together with round and update. Whoever knows it can remove the noise.
        round: The round.
        request: Digest of all that the server chose: the order and the download.

    An update that is not finite is taken as 0 where there is noise, because an error would tell the server of it.

    Raises:
        DivergedError: The update is not finite, and there is no noise.
    """
    if settings.noise and not np.isfinite(update).all():
        update = np.zeros_like(update)
    clipped = clip(update, settings.clip)
    noised = clipped
    if settings.noise:
        scale = struct.pack("<dd", settings.clip, settings.noise)
        head = b"sepal privacy noise" + round.to_bytes(8, "little") + scale
        content = hashlib.sha256(np.ascontiguousarray(update, "<f4").tobytes()).digest()
        drawn = gaussian(hmac.digest(key, head + content + request, "sha256"), update.size)
        noised = clipped + settings.noise * settings.clip * drawn
    return Released(clipped.astype(np.float32), noised.astype(np.float32))


def clip(update: Values, most: float) -> Doubles:
    """Return ``update`` · min(1, most / ‖update‖₂), float64 (d,).

    Raises:
        DivergedError: The norm is not finite.
    """
    wide = update.astype(np.float64)
    norm = float(np.sqrt(np.dot(wide, wide)))
    if not np.isfinite(norm):
        raise DivergedError("update", "finite entries after local training", f"a norm of {norm}")
    return wide * min(1.0, most / norm) if norm else wide


def gaussian(key: bytes, size: int) -> Doubles:
    """Return ``size`` independent standard normal numbers, float64 (size,), that are determined by ``key``.

    SHAKE-256 of the key gives the bits, and the Box-Muller transform the numbers. Unlike the generators of
    :mod:`sepal.rng`, a part of the numbers tells nothing about the others, and the server may know a part: where it
    knows that an update is 0, it sees the noise itself.
    """
    drawn = np.empty(size)
    for at in range(0, size, BLOCK):
        block = drawn[at : at + BLOCK]
        pairs = (block.size + 1) // 2
        words = np.frombuffer(hashlib.shake_256(key + at.to_bytes(8, "little")).digest(16 * pairs), "<u8")
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
        radius, angle = np.sqrt(-2.0 * np.log(uniform[:pairs])), 2.0 * np.pi * uniform[pairs:]
        block[:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: block.size]
    return drawn
