"""The server's part in a round of secure sums: pure functions over what clients have sent.

Who has answered which step is in the arguments: U1 are the members, U2 those whose ciphertexts are in, U3 those whose
masked inputs are in. The caller stores each set before it sends the first message of the next step.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sepal.errors import ProtocolError
from sepal.secure import formats
from sepal.secure.formats import LEAST_CLIENTS, Terms, fewest_clients
from sepal.secure.keys import KEY, PUBLIC, agree, public_of
from sepal.secure.masks import own_mask, pair_mask
from sepal.secure.ring import Ring, Sum
from sepal.secure.shamir import combine, lagrange, threshold


@dataclass(frozen=True)
class Member:
    """A client of U1.

    Attributes:
        name: The client's name; ids are positions among sorted names.
        public: Its two public keys, 64 bytes.
        commitment: To its update, 32 bytes.
        weight: w, its weight in the mean.
    """

    name: str
    public: bytes
    commitment: bytes
    weight: float


@dataclass(frozen=True)
class Members:
    """U1, and what its sum is about.

    Attributes:
        members: Sorted by name.
        terms: Without the total of the weights, which follows from the members.
    """

    members: tuple[Member, ...]
    terms: Terms

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        if names != sorted(set(names)):
            raise ValueError("members sorted by name, each once")

    @cached_property
    def names(self) -> list[str]:
        """The members' names by id."""
        return [member.name for member in self.members]

    @cached_property
    def _keys(self) -> dict[int, bytes]:
        return {number: member.public for number, member in enumerate(self.members)}

    @cached_property
    def context(self) -> bytes:
        """What all keys are bound to."""
        return self.terms.context(self._keys)

    @property
    def ring(self) -> Ring:
        """The ring of the sum."""
        return Ring(self.terms.entries, self.terms.bits, self.terms.figures)

    @property
    def fewest(self) -> int:
        """How many must stay."""
        return fewest_clients(len(self.members), self.terms.colluders)

    def too_few(self, clients: int) -> str:
        """Return why the round is void with so many clients left; empty if it is not."""
        if len(self.members) < LEAST_CLIENTS:
            return f"{len(self.members)} clients, at least {LEAST_CLIENTS} are needed"
        if clients < self.fewest:
            return f"{clients} of {len(self.members)} clients left, {self.fewest} are needed"
        return ""

    def share_question(self, number: int) -> tuple[bytes, dict[str, int | float | str]]:
        """Return payload and scalars of the order ``share`` to a client."""
        member = self.members[number]
        scalars: dict[str, int | float | str] = {
            "id": number,
            "weight": member.weight,
            "total": self.terms.total,
            "update": member.commitment.hex(),
        }
        return formats.write_entries({i: key for i, key in self._keys.items() if i != number}), scalars

    def read_ciphertexts(self, number: int, data: bytes) -> dict[int, bytes]:
        """Return recipient to ciphertext, of client ``number``.

        Raises:
            ProtocolError: They are not one for each other client.
        """
        ciphertexts = formats.read_ciphertexts("share", data)
        if ciphertexts.keys() != self._keys.keys() - {number}:
            raise ProtocolError("share", "a ciphertext for each other client", f"{len(ciphertexts)} of them")
        return ciphertexts

    def mask_question(self, number: int, ciphertexts: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """Return the payload of the order ``mask`` to a client: what the others of U2 have encrypted for it."""
        return formats.write_entries(
            {dealer: dealt[number] for dealer, dealt in ciphertexts.items() if dealer != number}
        )

    def unmask_question(self, present: Collection[int], counted: Collection[int]) -> bytes:
        """Return the payload of the order ``unmask``, the same for all of U3.

        Args:
            present: U2.
            counted: U3.
        """
        return formats.write_present(sorted(present), counted)

    def read_shares(self, present: Collection[int], data: bytes) -> dict[int, bytes]:
        """Return dealer to share, of one client of U3.

        Raises:
            ProtocolError: They are not those of clients of U2.
        """
        shares = formats.read_shares("unmask", data)
        if not shares.keys() <= set(present):
            raise ProtocolError("unmask", "shares of clients that have dealt some", "others")
        return shares

    def unmask(
        self,
        masked: bytes,
        present: Collection[int],
        counted: Collection[int],
        answers: Mapping[int, Mapping[int, bytes]],
    ) -> bytes:
        """Return the sum over U3, a vector.

        Args:
            masked: The sum of the masked inputs of U3.
            present: U2.
            counted: U3.
            answers: Holder to dealer to share.

        Raises:
            ProtocolError: Too few shares of a client, or shares that do not give its secret: the round is void.
        """
        if self.too_few(len(counted)) or not set(counted) <= set(present) <= self._keys.keys():
            raise ProtocolError("clients", "enough of those that were present", f"{len(counted)} of them")
        needed = threshold(len(self.members), self.terms.colluders)
        size, total = self.ring.size, Sum(self.ring, masked)
        weights: dict[tuple[int, ...], Sequence[int]] = {}
        for dealer in sorted(present):
            name = self.members[dealer].name
            shares = {holder + 1: held[dealer] for holder, held in sorted(answers.items()) if dealer in held}
            if len(shares) < needed:
                raise ProtocolError(f"{name}: shares", f"at least {needed}", len(shares))
            chosen = dict(list(shares.items())[:needed])
            places = tuple(chosen)
            if places not in weights:
                weights[places] = lagrange(places)
            secret = combine(chosen, weights[places])
            if dealer in counted:
                total.subtract(own_mask(secret, self.context, dealer, self.members[dealer].commitment, size))
                continue
            if public_of(secret) != self.members[dealer].public[KEY:]:
                raise ProtocolError(f"{name}: shares", "those of its mask key", "others")
            for peer in counted:  # who have added or subtracted the mask that they share with it
                pair = pair_mask(secret, self.members[peer].public[KEY:], self.context, dealer, peer, size)
                (total.subtract if peer < dealer else total.add)(pair)
        return total.vector()


def check_public(data: bytes) -> bytes:
    """Return a client's two public keys.

    Raises:
        ProtocolError: There are not 64 bytes, they are twice the same key, or nobody could agree on anything with one:
            the other clients would all refuse the round.
    """
    if len(data) != PUBLIC or data[:KEY] == data[KEY:]:
        raise ProtocolError("keys", f"two public keys, {PUBLIC} bytes", f"{len(data)} bytes")
    for public in (data[:KEY], data[KEY:]):
        agree(os.urandom(KEY), public, b"check", b"", b"")
    return data
