"""Masks: key streams of AES-256-CTR, and the keys from which they follow."""

from __future__ import annotations

import struct

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from sepal.secure.keys import agree, derive


def stream(key: bytes, size: int) -> bytes:
    """Return the first ``size`` bytes of the key stream from counter 0; ``key`` has 32 bytes, and one use."""
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(size))


def packed(*ids: int) -> bytes:
    """Return ids as bytes."""
    return struct.pack(f"<{len(ids)}I", *ids)


def own_mask(b: bytes, context: bytes, client: int, commitment: bytes, size: int) -> bytes:
    """Return the mask that a client alone has, of ``size`` bytes; another update gets another one."""
    return stream(derive(b, b"self", context, packed(client) + commitment), size)


def pair_mask(private: bytes, public: bytes, context: bytes, client: int, peer: int, size: int) -> bytes:
    """Return the mask that two clients share, of ``size`` bytes: both derive the same one.

    Args:
        private: The mask key of ``client``.
        public: That of ``peer``.
        context: What the round is about.
        client: Its id.
        peer: The peer's id.
        size: Bytes.
    """
    ids = packed(min(client, peer), max(client, peer))
    return stream(agree(private, public, b"pair", context, ids), size)
