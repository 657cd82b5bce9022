"""A client's part in secure sums: what it trained goes into a vault and waits there for the steps of its round."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sepal.config import RunConfig
from sepal.errors import ProtocolError, StateError
from sepal.protocol.messages import Content, Order
from sepal.protocol.summed import UPDATE, Entries
from sepal.protocol.types import Payload, Weights
from sepal.secure.client import Figures, Opening, SecureClient, Vault
from sepal.secure.keys import commitment
from sepal.secure.ring import rounding_seed
from sepal.storage.files import write_atomically

ON_ONE_MACHINE = b"clients of one machine"  # the key of commitments where nobody hides from anybody
MOST_SECRETS = 8 << 30  # bytes
VAULT = "secure"  # the file in a client's directory of states


@dataclass(frozen=True)
class FileVault:
    """A file of mode 600.

    Attributes:
        path: The file.
        durable: Whether it is synced.
    """

    path: Path
    durable: bool = True

    def read(self) -> bytes:
        """Return its content; empty if there is none.

        Raises:
            StateError: It cannot be read, or is a symbolic link.
        """
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return file.read(MOST_SECRETS)
        except FileNotFoundError:
            return b""
        except OSError as reason:
            expected = "a readable file that is no symbolic link"
            raise StateError(str(self.path), expected, reason.strerror or str(reason)) from None

    def write(self, data: bytes) -> None:
        """Replace its content; durable when this returns."""
        write_atomically(self.path, data, self.durable, mode=0o600)


class NoVault:
    """The vault of a host that reads models and answers no message: it keeps nothing, so that no update can leave."""

    def read(self) -> bytes:
        """Return nothing."""
        return b""

    def write(self, data: bytes) -> None:
        """Refuse to keep secrets.

        Raises:
            StateError: Always.
        """
        raise StateError("secure", "a client that answers messages", "one whose models are read")


@dataclass(frozen=True)
class SecureSums:
    """One client's secure sums in one run.

    Attributes:
        name: The client's name.
        config: The run's configuration.
        first: W_0.
        vault: Keeps its secrets.
        key: What its commitments are made with, so that they confirm no guess.
    """

    name: str
    config: RunConfig
    first: Weights
    vault: Vault
    key: bytes = ON_ONE_MACHINE

    def check(self, order: Order) -> None:
        """Check that a round may begin, before the client trains.

        Raises:
            StateError: A masked input of this round or a later one has left.
        """
        SecureClient(order.run, self.vault).check(order.plan.round)

    def digest(self, upload: Content) -> str:
        """Return what stands for an upload in the name of a version, and in the reply: 64 hexadecimal digits."""
        return commitment(self.key, upload.digest().encode()).hex()

    def begin(
        self, order: Order, request: str, download: Payload, upload: Payload, sealed: Content, figures: Figures
    ) -> Content:
        """Keep an upload and figures for the round's sum, and return what is sent: two public keys, a commitment.

        Args:
            order: The order that led to them.
            request: Its digest.
            download: What it came with, decoded.
            upload: The upload; empty of a client that only evaluates.
            sealed: The upload, encoded.
            figures: The client's figures, in the order of the sum.

        Raises:
            DivergedError: An entry changes by more than ``secure-range``.
            ProtocolError: The upload has more than values.
        """
        if upload.scalars:
            raise ProtocolError("upload", "values alone, with secure = sum", ", ".join(upload.scalars))
        config, entries, number = self.config, Entries.of(upload.tensors, download, self.first), self.digest(sealed)
        opening = Opening(
            round=order.plan.round,
            request=request,
            model=entries.digest(),
            bits=config.secure_bits,
            range=config.secure_range,
            colluders=config.secure_colluders,
            commitment=bytes.fromhex(number),
            rounding=rounding_seed(config.seed, self.name, order.plan.round),
            update=entries.change(upload.tensors, config.secure_range),
            figures=figures,
        )
        return Content(SecureClient(order.run, self.vault).begin(opening), {UPDATE: number})

    def answer(self, order: Order, content: Content) -> Content:
        """Answer one step of the round's sum.

        Raises:
            ProtocolError: An honest server would not ask this now.
        """
        client = SecureClient(order.run, self.vault)
        return Content(client.answer(order.kind.value, order.plan.round, content.data, content.scalars))
