"""Keys of a round: X25519 pairs, what two of them agree on (HKDF-SHA256), and ciphertexts (AES-256-GCM)."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sepal.errors import ProtocolError
from sepal.secure.shamir import SHARE

KEY, TAG = 32, 16  # bytes
PLAIN = 2 * SHARE  # of the two shares in a ciphertext
CIPHERTEXT = PLAIN + TAG
PUBLIC = 2 * KEY  # of a client's two public keys
NAME = b"sepal secure 1|"
_NONCE = bytes(12)  # each key encrypts one text


@dataclass(frozen=True)
class KeyPairs:
    """A client's private keys of one round, 32 bytes each."""

    encryption: bytes
    masking: bytes

    @classmethod
    def new(cls) -> KeyPairs:
        """Return fresh keys from the operating system."""
        return cls(os.urandom(KEY), os.urandom(KEY))

    @property
    def public(self) -> bytes:
        """Both public keys, 64 bytes."""
        return public_of(self.encryption) + public_of(self.masking)


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def derive(secret: bytes, purpose: bytes, context: bytes, more: bytes = b"") -> bytes:
    """Return a key of 32 bytes: HKDF-SHA256 without salt, with info ``sepal secure 1|PURPOSE|`` and the rest."""
    return HKDF(SHA256(), KEY, None, NAME + purpose + b"|" + context + more).derive(secret)


def agree(private: bytes, public: bytes, purpose: bytes, context: bytes, ids: bytes) -> bytes:
    """Return the key that two clients derive for ``purpose``.

    Raises:
        ProtocolError: The public key is one with which nothing can be agreed on, such as 0.
    """
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("key", "a public key of X25519", "one of low order") from None
    return derive(shared, purpose, context, ids)


def info(purpose: bytes, context: bytes, ids: bytes) -> bytes:
    """Return what a ciphertext is bound to."""
    return NAME + purpose + b"|" + context + ids


def encrypt(key: bytes, plain: bytes, bound: bytes) -> bytes:
    """Return a ciphertext with a tag; ``key`` must not be used again."""
    return AESGCM(key).encrypt(_NONCE, plain, bound)


def decrypt(key: bytes, ciphertext: bytes, bound: bytes) -> bytes | None:
    """Return the text; None if it was encrypted with another key, for another purpose, or changed."""
    try:
        return AESGCM(key).decrypt(_NONCE, ciphertext, bound)
    except InvalidTag:
        return None


def commitment(secret: bytes, update: bytes) -> bytes:
    """Return HMAC-SHA256 of an update's digest: it names the update to nobody who lacks the secret."""
    return hmac.new(secret, update, hashlib.sha256).digest()


def halves(public: bytes) -> tuple[bytes, bytes]:
    """Return a client's two public keys, from the 64 bytes that it has advertised."""
    return public[:KEY], public[KEY:]
