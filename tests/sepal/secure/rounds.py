"""A round of secure sums without a network: clients that may be lost in any step, and the server's functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sepal.secure.client import Opening, SecureClient
from sepal.secure.formats import Terms
from sepal.secure.server import Member, Members

KEYS, SHARE, MASK, UNMASK = range(4)


class Memory:
    """A vault in memory, which remembers all that it was asked to keep."""

    def __init__(self):
        self.data, self.written = b"", []

    def read(self):
        return self.data

    def write(self, data):
        self.data = data
        self.written.append(data)


@dataclass
class Round:
    """A round of clients with the updates ``updates``, float32 by name; all have the same weight.

    With ``noise`` the secret of a client's is in ``noise_secrets``; those of others come from the operating system.
    """

    updates: dict
    bits: int = 32
    range: float = 1.0
    colluders: int = 0
    number: int = 1
    clip: float = 0.0
    noise: float = 0.0
    noise_secrets: dict = field(default_factory=dict)
    figures: dict = field(default_factory=dict)
    vaults: dict = field(default_factory=dict)
    clients: dict = field(default_factory=dict)

    def opening(self, name, **changes):
        made = Opening(
            round=self.number,
            request="request",
            model="model",
            bits=self.bits,
            range=self.range,
            colluders=self.colluders,
            commitment=name.encode().ljust(32, b"."),
            rounding=name.encode().ljust(32, b"r"),
            update=np.asarray(self.updates[name], np.float32),
            figures=self.figures.get(name, ()),
            weight=1.0,
            clip=self.clip,
            noise=self.noise,
            noise_secret=self.noise_secrets.get(name, b""),
        )
        return replace(made, **changes)

    def client(self, name):
        if name not in self.clients:
            self.clients[name] = SecureClient("run", self.vaults.setdefault(name, Memory()))
        return self.clients[name]

    def members(self, lost=()):
        names = sorted(set(self.updates) - set(lost))
        public = {name: self.client(name).begin(self.opening(name)) for name in names}
        size = np.asarray(self.updates[names[0]]).size
        figures = len(self.figures.get(names[0], ()))
        terms = Terms(
            "run",
            self.number,
            "model",
            self.bits,
            self.range,
            size,
            figures,
            float(len(names)),
            self.colluders,
            self.clip,
            self.noise,
        )
        return Members(tuple(Member(name, public[name], self.opening(name).commitment, 1.0) for name in names), terms)

    def shared(self, members, lost=()):
        """Return dealer to recipient to ciphertext, of U2."""
        out = {}
        for number, name in enumerate(members.names):
            if name not in lost:
                data, scalars = members.share_question(number)
                reply = self.client(name).answer("share", self.number, data, scalars)
                out[number] = members.read_ciphertexts(number, reply)
        return out

    def masked(self, members, ciphertexts, lost=()):
        """Return id to masked input, of U3."""
        return {
            number: self.client(name).answer("mask", self.number, members.mask_question(number, ciphertexts), {})
            for number, name in enumerate(members.names)
            if number in ciphertexts and name not in lost
        }

    def answers(self, members, present, counted, lost=()):
        question = members.unmask_question(present, counted)
        return {
            number: members.read_shares(
                present, self.client(members.names[number]).answer("unmask", self.number, question, {})
            )
            for number in sorted(counted)
            if members.names[number] not in lost
        }

    def run(self, lost=()):
        """Return the sum, a vector, and the names of U3; ``lost`` maps a client to the step in which it is lost."""
        lost = dict(lost)
        in_step = [{name for name, step in lost.items() if step <= last} for last in range(4)]
        members = self.members(in_step[KEYS])
        ciphertexts = self.shared(members, in_step[SHARE])
        assert not members.too_few(len(ciphertexts))
        inputs = self.masked(members, ciphertexts, in_step[MASK])
        assert not members.too_few(len(inputs))
        answers = self.answers(members, set(ciphertexts), set(inputs), in_step[UNMASK])
        vector = members.unmask(added(members.ring, inputs.values()), set(ciphertexts), set(inputs), answers)
        return vector, [members.names[number] for number in inputs]


def added(ring, vectors):
    from sepal.secure.ring import Sum

    total = Sum(ring)
    for vector in vectors:
        total.add(vector)
    return total.vector()
