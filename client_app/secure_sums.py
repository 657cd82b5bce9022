"""A client's part in secure sums: what it trained goes into a vault and waits there for the steps of its round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sepal.config import RunConfig
from sepal.errors import ProtocolError, StateError
from sepal.protocol.messages import Content, Order
from sepal.protocol.payloads import unsendable
from sepal.protocol.summed import UPDATE, Entries
from sepal.protocol.types import Kind, Payload, Weights
from sepal.secure.client import Figures, Opening, SecureClient, Vault
from sepal.secure.keys import commitment
from sepal.secure.noise import seed_of
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


@dataclass(frozen=True, eq=False)
class Summand:
    """What a client adds to a sum.

    Attributes:
        upload: The upload that it stands for.
        entries: The entries that are summed.
        change: What the upload changes there, float32 (d,).
        counts: Whether that is what the client has trained; if not, the sum says so by a figure.
    """

    upload: Payload
    entries: Entries
    change: npt.NDArray[np.float32]
    counts: bool = True


NO_UPDATE = Summand(Payload(), Entries({}, {}, {}), np.empty(0, np.float32))  # of a client that only evaluates


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

    def digest(self, upload: Content, work: str) -> str:
        """Return what stands for an upload in the name of a version, and in the reply: 64 hexadecimal digits.

        Of two orders to work it differs also where the uploads are equal: a client that counts as unchanged twice from
        the same model would tell so.

        Args:
            upload: The upload, encoded.
            work: Digest of the order that it answers.
        """
        return commitment(self.key, f"{work}|{upload.digest()}".encode()).hex()

    def countable(self, download: Payload, upload: Payload, finite: bool) -> Summand:
        """Return what a client adds to a sum after training.

        An update counts as no change if an entry of it changes by more than ``secure-range``, if it has values that no
        server takes, or if training ended in no finite numbers. Only the sum says so, by how many clients' it was: an
        error of this client, whatever it is about, would tell the server how far its entries have moved, as often as
        it asks under other keys or from other weights. With noise not even the sum says so: its figures have none, and
        a change of any size is clipped.

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
        noise, change = self.config.privacy.distributed, entries.change(upload.tensors)
        reach = math.inf if noise else self.config.secure_range
        if finite and not unsendable(upload) and within(change, reach):
            return Summand(upload, entries, change)
        start = entries.tensors(np.zeros(entries.count))
        none = Payload({name: replace(one, values=start[name].values) for name, one in upload.tensors.items()})
        return Summand(none, entries, np.zeros_like(change), counts=noise)

    def begin(self, order: Order, request: str, summand: Summand, uploaded: str, figures: Figures) -> Content:
        """Keep an upload and figures for the round's sum, and return what is sent: two public keys, a commitment.

        Args:
            order: The order that led to them.
            request: Its digest.
            summand: What :meth:`countable` returned, or ``NO_UPDATE``.
            uploaded: What :meth:`digest` returned for its upload.
            figures: The client's figures on views, in the order of the sum.
        """
        config, entries = self.config, summand.entries
        clip, noise = config.privacy.of_shares if entries.count else (0.0, 0.0)
        repeated = noise and self.key == ON_ONE_MACHINE
        opening = Opening(
            round=order.plan.round,
            request=request,
            model=entries.digest(),
            bits=config.secure_bits,
            range=config.secure_range,
            colluders=config.secure_colluders,
            commitment=bytes.fromhex(uploaded),
            rounding=rounding_seed(config.seed, self.name, order.plan.round),
            update=summand.change,
            figures=(*figures, int(not summand.counts)),
            weight=self.weigh() if order.kind is Kind.TRAIN else 0.0,
            clip=clip,
            noise=noise,
            noise_secret=seed_of(config.seed, self.name, order.plan.round) if repeated else b"",
        )
        return Content(SecureClient(order.run, self.vault).begin(opening), {UPDATE: uploaded})

    def answer(self, order: Order, content: Content) -> Content:
        """Answer one step of the round's sum.

        Raises:
            ProtocolError: An honest server would not ask this now.
        """
        client = SecureClient(order.run, self.vault)
        return Content(client.answer(order.kind.value, order.plan.round, content.data, content.scalars))
