"""A client's part in secure sums: what it trained goes into a vault and waits there for the steps of its round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sepal.config import RunConfig
from sepal.errors import ProtocolError, StateError
from sepal.protocol.messages import Content, Order
from sepal.protocol.payloads import unsendable
from sepal.protocol.summed import UPDATE, Entries
from sepal.protocol.types import Kind, Payload, Weights
from sepal.secure.client import Figures, Opening, SecureClient, Vault
from sepal.secure.keys import commitment
from sepal.secure.ring import rounding_seed, within
from sepal.storage.files import read_unlinked, write_atomically

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
            return read_unlinked(self.path, MOST_SECRETS)
        except FileNotFoundError:
            return b""

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
        weigh: Returns what the client weighs in a mean by the method's own rule, whatever the server says.
    """

    name: str
    config: RunConfig
    first: Weights
    vault: Vault
    key: bytes
    weigh: Callable[[], float]

    def check(self, order: Order) -> None:
        """Check that a round may begin, before the client trains.

        Raises:
            StateError: A masked input of this round or a later one has left.
        """
        SecureClient(order.run, self.vault).check(order.plan.round)

    def digest(self, upload: Content) -> str:
        """Return what stands for an upload in the name of a version, and in the reply: 64 hexadecimal digits."""
        return commitment(self.key, upload.digest().encode()).hex()

    def countable(self, download: Payload, upload: Payload, finite: bool) -> tuple[Payload, bool]:
        """Return what a client adds to a sum after training, and whether that is what it has trained.

        An update counts as no change if an entry of it changes by more than ``secure-range``, if it has values that no
        server takes, or if training ended in no finite numbers. Only the sum says so, by how many clients' it was: an
        error of this client, whatever it is about, would tell the server how far its entries have moved, as often as
        it asks under other keys or from other weights.

        Args:
            download: What it trained from, decoded.
            upload: The upload.
            finite: Whether its state after training is finite.

        Raises:
            ProtocolError: The upload has more than values.
        """
        if upload.scalars:
            raise ProtocolError("upload", "values alone, with secure = sum", ", ".join(upload.scalars))
        entries = Entries.of(upload.tensors, download, self.first)
        if finite and not unsendable(upload) and within(entries.change(upload.tensors), self.config.secure_range):
            return upload, True
        start = entries.tensors(np.zeros(entries.count))
        return Payload({name: replace(one, values=start[name].values) for name, one in upload.tensors.items()}), False

    def begin(
        self,
        order: Order,
        request: str,
        download: Payload,
        upload: Payload,
        sealed: Content,
        figures: Figures,
        counts: bool,
    ) -> Content:
        """Keep an upload and figures for the round's sum, and return what is sent: two public keys, a commitment.

        Args:
            order: The order that led to them.
            request: Its digest.
            download: What it came with, decoded.
            upload: What :meth:`countable` returned; empty of a client that only evaluates.
            sealed: The upload, encoded.
            figures: The client's figures on views, in the order of the sum.
            counts: Whether the client's change counts.
        """
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
            update=entries.change(upload.tensors),
            figures=(*figures, int(not counts)),
            weight=self.weigh() if order.kind is Kind.TRAIN else 0.0,
        )
        return Content(SecureClient(order.run, self.vault).begin(opening), {UPDATE: number})

    def answer(self, order: Order, content: Content) -> Content:
        """Answer one step of the round's sum.

        Raises:
            ProtocolError: An honest server would not ask this now.
        """
        client = SecureClient(order.run, self.vault)
        return Content(client.answer(order.kind.value, order.plan.round, content.data, content.scalars))
