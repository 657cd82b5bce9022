"""Secure sums of 1 M parameters among 10, 100 and 1,000 clients: one client's and the server's work, and their bytes.

One client does all of its steps. The others are their keys and what they send to that client: each would do the same
work on a machine of its own. The server unmasks the sum of all of them, with nobody lost.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from sepal.secure import formats
from sepal.secure.client import MASK_STEP, SHARE_STEP, UNMASK_STEP, Opening, SecureClient
from sepal.secure.formats import Terms
from sepal.secure.keys import KeyPairs, agree, encrypt, halves, info
from sepal.secure.masks import packed, stream
from sepal.secure.ring import Sum
from sepal.secure.server import Member, Members
from sepal.secure.shamir import SECRET, SHARE, shares_of, threshold

CLIENTS = (10, 100, 1000)
ENTRIES = 1_000_000
COLLUDERS, BITS, RANGE = 1, 32, 8.0
COMMITMENT = bytes(32)


class MemoryVault:
    """A vault in memory: a disk's seconds are not what is measured."""

    def __init__(self) -> None:
        self._data = b""

    def read(self) -> bytes:
        """Return its content."""
        return self._data

    def write(self, data: bytes) -> None:
        """Replace its content."""
        self._data = data


def measure() -> list[dict[str, Any]]:
    """Return two rows for each number of clients; the ratio is to the key streams of that many masks alone."""
    return [row for clients in CLIENTS for row in rows(clients, ENTRIES)]


def rows(clients: int, entries: int) -> list[dict[str, Any]]:
    """Return the rows of a client and of the server."""
    begun = time.perf_counter()
    for _ in range(clients):
        stream(os.urandom(32), entries * BITS // 8)
    streams = time.perf_counter() - begun
    client_seconds, up, down, members = one_client(clients, entries)
    server_seconds = server(members)
    head = f"{clients:,} clients, {entries / 1e6:g} M parameters"
    none = {"goal": "", "met": None}
    return [
        {
            "what": f"a client of {head}",
            "ratio": client_seconds / streams,
            **none,
            "seconds": client_seconds,
            "up_bytes": up,
            "down_bytes": down,
        },
        {"what": f"the server of {head}", "ratio": server_seconds / streams, **none, "seconds": server_seconds},
    ]


def one_client(clients: int, entries: int) -> tuple[float, int, int, Members]:
    """Return a client's seconds in all steps, its bytes up and down beside the model, and all members."""
    client, update = SecureClient("0" * 32, MemoryVault()), np.full(entries, 0.01, np.float32)
    begun = time.perf_counter()
    public = client.begin(
        Opening(1, "request", "model", BITS, RANGE, COLLUDERS, COMMITMENT, bytes(32), update, (), 1.0)
    )
    spent = time.perf_counter() - begun
    others = {number: KeyPairs.new() for number in range(1, clients)}
    terms = Terms("0" * 32, 1, "model", BITS, RANGE, entries, 0, float(clients), COLLUDERS)
    keys = {0: public, **{number: pairs.public for number, pairs in others.items()}}
    members = Members(tuple(Member(f"{n:05}", keys[n], COMMITMENT, 1.0) for n in range(clients)), terms)
    up, down = len(public), 0

    def ask(step: str, data: bytes, **scalars: float | str) -> bytes:
        nonlocal spent, up, down
        begun = time.perf_counter()
        reply = client.answer(step, 1, data, scalars)
        spent += time.perf_counter() - begun
        up, down = up + len(reply), down + len(data)
        return reply

    data, scalars = members.share_question(0)
    ask(SHARE_STEP, data, **scalars)
    ciphertexts = {}
    for number, pairs in others.items():
        sender_and_recipient = packed(number, 0)
        key = agree(pairs.encryption, halves(public)[0], b"share", members.context, sender_and_recipient)
        ciphertexts[number] = encrypt(key, os.urandom(2 * SHARE), info(b"share", members.context, sender_and_recipient))
    ask(MASK_STEP, formats.write_entries(ciphertexts))
    ask(UNMASK_STEP, formats.write_present(range(clients), range(clients)))
    return spent, up, down, members


def server(members: Members) -> float:
    """Return the server's seconds to add all masked inputs and to remove the clients' own masks."""
    everybody = range(len(members.members))
    # Polynomials of degree 1 give shares as good as any, and the server's work is the same.
    secrets = [int.from_bytes(os.urandom(SECRET), "little") for _ in everybody]
    holders = everybody[: threshold(len(members.members), COLLUDERS)]
    dealt = [shares_of([secret, 1], [holder + 1 for holder in holders]) for secret in secrets]
    answers = {holder: {dealer: dealt[dealer][holder] for dealer in everybody} for holder in holders}
    vector, total = bytes(members.ring.size), Sum(members.ring)
    begun = time.perf_counter()
    for _ in everybody:
        total.add(vector)
    members.unmask(total.vector(), everybody, everybody, answers)
    return time.perf_counter() - begun
