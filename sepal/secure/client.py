"""The client's part in a round of secure sums: one state machine, stored before each answer.

Of a run and round at most one masked input leaves; the same question gets the same bytes, and another one in its place
is refused. What is no longer needed is erased with the next step.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.errors import DamagedError, ProtocolError, StateError
from sepal.secure import formats, keys
from sepal.secure.formats import Terms, fewest_clients
from sepal.secure.keys import KeyPairs, agree, decrypt, encrypt
from sepal.secure.masks import own_mask, packed, pair_mask
from sepal.secure.noise import Shares, noised
from sepal.secure.ring import MOST_FIGURE, Ring, Sum, rounded, scale
from sepal.secure.shamir import SECRET, SHARE, split, threshold

Figures: TypeAlias = Sequence[int | float]  # whole numbers, and shares from 0 to 1
SHARE_STEP, MASK_STEP, UNMASK_STEP = STEPS = ("share", "mask", "unmask")


class Vault(Protocol):
    """Where a client keeps what it must not lose and nobody else may read: one file, replaced as a whole."""

    def read(self) -> bytes:
        """Return its content; empty if there is none."""
        ...

    def write(self, data: bytes) -> None:
        """Replace its content; durable when this returns."""
        ...


@dataclass(frozen=True)
class Opening:
    """What a client begins a round with.

    Attributes:
        round: From 1.
        request: Digest of the order to train or to evaluate.
        model: As in :class:`sepal.secure.formats.Terms`.
        bits: As there.
        range: As there.
        colluders: As there.
        commitment: To the update; see :func:`sepal.secure.keys.commitment`.
        rounding: 32 bytes from which the rounding follows.
        update: The change, float32 (d,).
        figures: Whole numbers of at least 0, and shares from 0 to 1 as floats.
        weight: What the client weighs in the mean; 0 of a client that only evaluates.
        clip: As there.
        noise: As there.
        noise_secret: 32 bytes from which the noise follows, where it is to be that of another run; empty: drawn from
            the operating system.
    """

    round: int
    request: str
    model: str
    bits: int
    range: float
    colluders: int
    commitment: bytes
    rounding: bytes
    update: npt.NDArray[np.float32]
    figures: Figures
    weight: float
    clip: float = 0.0
    noise: float = 0.0
    noise_secret: bytes = b""


@dataclass(frozen=True)
class _Session:
    """What is stored. Fields of bytes that are empty have been erased, or not come yet.

    U1 are the clients that have advertised keys, U2 those of them that have dealt shares, U3 those whose masked inputs
    are in. ``b`` is what the client's own mask follows from; its letter is the paper's.
    """

    masked_round: int = 0  # the last round for which a masked input has left
    round: int = 0
    request: str = ""
    model: str = ""
    bits: int = 32
    range: float = 1.0
    colluders: int = 0
    entries: int = 0
    figures: tuple[int | float, ...] = ()
    commitment: bytes = b""
    rounding: bytes = b""
    public: bytes = b""
    encryption: bytes = b""
    masking: bytes = b""
    b: bytes = b""
    update: bytes = b""
    id: int = 0
    weight: float = 0.0
    total: float = 0.0
    others: Mapping[int, bytes] = field(default_factory=dict)  # id to public keys
    present: tuple[int, ...] = ()  # U2
    shares: Mapping[int, bytes] = field(default_factory=dict)  # dealer to the two shares that this client holds
    questions: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, bytes] = field(default_factory=dict)
    clip: float = 0.0
    noise: float = 0.0
    noise_secret: bytes = b""
    repeatable: bool = False  # whether the noise is to be that of another run, and so does not follow from keys

    @property
    def ring(self) -> Ring:
        return Ring(self.entries, self.bits, len(self.figures))

    @property
    def clients(self) -> int:
        """|U1|."""
        return len(self.others) + 1

    @property
    def fewest(self) -> int:
        """The fewest clients of a sum."""
        return fewest_clients(self.clients, self.colluders)

    @property
    def noise_shares(self) -> Shares:
        """The shares of noise of the sum."""
        return Shares(self.clip, self.noise, self.entries, self.clients, self.colluders)


class SecureClient:
    """One client in one run.

    Args:
        run: UUID of the run.
        vault: Keeps its secrets and answers.
    """

    def __init__(self, run: str, vault: Vault) -> None:
        self._run, self._vault = run, vault

    def check(self, round: int) -> None:
        """Check that a round may begin; to be called before the client trains.

        Raises:
            StateError: A masked input of this round, or of a later one, has left.
        """
        done = self._read().masked_round
        if round <= done:
            expected = f"a round after {done}, whose sum has this client in it: another sum would tell its update"
            raise StateError("round", expected, round)

    def forget(self) -> None:
        """Erase all secrets and answers. The last round of a masked input stays, so that no other leaves for it."""
        self._write(_Session(masked_round=self._read().masked_round))

    def begin(self, opening: Opening) -> bytes:
        """Begin a round, and return two public keys, 64 bytes.

        A round that has begun with the same request and update keeps its keys. With another one it begins anew, which
        is safe as long as no masked input has left.

        Raises:
            StateError: See :meth:`check`.
        """
        self.check(opening.round)
        before = self._read()
        begun = (before.round, before.request, before.commitment)
        if begun == (opening.round, opening.request, opening.commitment) and before.public:
            return before.public
        pairs = KeyPairs.new()
        self._write(
            _Session(
                masked_round=before.masked_round,
                round=opening.round,
                request=opening.request,
                model=opening.model,
                bits=opening.bits,
                range=opening.range,
                colluders=opening.colluders,
                entries=opening.update.size,
                figures=tuple(opening.figures),
                commitment=opening.commitment,
                rounding=opening.rounding,
                public=pairs.public,
                encryption=pairs.encryption,
                masking=pairs.masking,
                update=np.asarray(opening.update, "<f4").tobytes(),
                weight=opening.weight,
                clip=opening.clip,
                noise=opening.noise,
                noise_secret=(opening.noise_secret or os.urandom(SECRET)) if opening.noise else b"",
                repeatable=bool(opening.noise_secret),
            )
        )
        return pairs.public

    def answer(self, step: str, round: int, data: bytes, scalars: Mapping[str, Any]) -> bytes:
        """Answer a question of the round, or repeat the answer to it.

        Args:
            step: One of ``STEPS``.
            round: The round.
            data: The question's payload.
            scalars: Its scalars.

        Raises:
            ProtocolError: The question is not one that an honest server asks now.
        """
        session = self._read()
        if session.round != round:
            got = f"{round}: its secrets are lost" if session.round < round else round
            raise ProtocolError("round", f"{session.round}, which this client began last", got)
        text = json.dumps(dict(scalars), sort_keys=True)
        question = hashlib.sha256(f"{step}|{text}|".encode() + data).hexdigest()
        if step in session.questions:
            if session.questions[step] != question:
                raise ProtocolError(step, "the same question as before in this step", "another")
            return session.answers[step]
        if step != STEPS[len(session.questions)]:
            expected = STEPS[len(session.questions)] if len(session.questions) < len(STEPS) else "nothing more"
            raise ProtocolError("step", expected, step)
        act = {SHARE_STEP: self._share, MASK_STEP: self._mask, UNMASK_STEP: self._unmask}[step]
        after, reply = act(session, data, scalars)
        questions, answers = {**session.questions, step: question}, {**session.answers, step: reply}
        self._write(replace(after, questions=questions, answers=answers))
        return reply

    def _share(self, session: _Session, data: bytes, scalars: Mapping[str, Any]) -> tuple[_Session, bytes]:
        """Deal shares of b and of the mask key to all of U1."""
        peers, number = formats.read_keys(SHARE_STEP, data), scalars.get("id")
        weight, total = formats.check_weight(scalars.get("weight"), scalars.get("total"))
        if not isinstance(number, int) or sorted([*peers, number]) != list(range(len(peers) + 1)):
            raise ProtocolError(SHARE_STEP, "ids from 0 on, each once, with that of this client", "others")
        if weight != session.weight:  # with those of all others near 0, the sum would be this client's update
            raise ProtocolError("weight", f"{session.weight:g}, this client's own", weight)
        if scalars.get("update") != session.commitment.hex():
            raise ProtocolError("update", "this client's own commitment", "another")
        public_keys = [key for pair in [*peers.values(), session.public] for key in keys.halves(pair)]
        if len(set(public_keys)) != len(public_keys):
            raise ProtocolError(SHARE_STEP, "a client under one id, with keys of its own", "keys that occur twice")
        if len(peers) + 1 < (fewest := max(formats.LEAST_CLIENTS, fewest_clients(len(peers) + 1, session.colluders))):
            raise ProtocolError(SHARE_STEP, f"at least {fewest} clients", len(peers) + 1)
        after = replace(session, id=number, total=total, others=peers, b=os.urandom(SECRET))
        if session.noise:
            after.noise_shares.check(session.bits)
        else:
            scale(session.bits, after.clients, session.range)  # refuses more clients than the ring holds
        context, ids = self._context(after), range(after.clients)
        places, needed = [i + 1 for i in ids], threshold(after.clients, after.colluders)
        dealt = [split(secret, needed, places) for secret in (after.b, after.masking)]
        shares = {i: of_b + of_key for i, of_b, of_key in zip(ids, *dealt, strict=True)}
        ciphertexts = {}
        for peer, public in peers.items():
            sender_and_recipient = packed(number, peer)
            key = agree(after.encryption, keys.halves(public)[0], b"share", context, sender_and_recipient)
            ciphertexts[peer] = encrypt(key, shares[peer], keys.info(b"share", context, sender_and_recipient))
        return replace(after, shares={number: shares[number]}), formats.write_entries(ciphertexts)

    def _mask(self, session: _Session, data: bytes, scalars: Mapping[str, Any]) -> tuple[_Session, bytes]:
        """Open the others' shares, and return the masked vector."""
        ciphertexts, number = formats.read_ciphertexts(MASK_STEP, data), session.id
        if not session.others.keys() >= ciphertexts.keys():
            raise ProtocolError(MASK_STEP, "clients that have advertised keys", "others")
        present = sorted([*ciphertexts, number])
        self._check_enough(session, MASK_STEP, len(present))
        context, shares = self._context(session), dict(session.shares)
        for peer, ciphertext in ciphertexts.items():
            sender_and_recipient = packed(peer, number)
            public = keys.halves(session.others[peer])[0]
            key = agree(session.encryption, public, b"share", context, sender_and_recipient)
            plain = decrypt(key, ciphertext, keys.info(b"share", context, sender_and_recipient))
            if plain is not None:
                shares[peer] = plain
        if len(shares) < threshold(session.clients, session.colluders):
            expected = "shares of clients that were told the same of this round"
            raise ProtocolError(MASK_STEP, expected, f"{len(present) - len(shares)} that cannot be opened")
        masked = Sum(session.ring, self._vector(session))
        masked.add(own_mask(session.b, context, number, session.commitment, session.ring.size))
        for peer in ciphertexts:
            public = keys.halves(session.others[peer])[1]
            pair = pair_mask(session.masking, public, context, number, peer, session.ring.size)
            (masked.add if number < peer else masked.subtract)(pair)
        after = replace(session, masked_round=session.round, present=tuple(present), shares=shares)
        erased = replace(after, encryption=b"", masking=b"", b=b"", update=b"", noise_secret=b"")
        return replace(erased, figures=(0,) * len(session.figures)), masked.vector()

    def _unmask(self, session: _Session, data: bytes, scalars: Mapping[str, Any]) -> tuple[_Session, bytes]:
        """Return of each client of U2 one share: of b if it is in the sum, else of its mask key."""
        counted = formats.read_present(UNMASK_STEP, data, session.present)
        if session.id not in counted:
            raise ProtocolError(UNMASK_STEP, "a sum that has this client in it", "another")
        self._check_enough(session, UNMASK_STEP, len(counted))
        chosen = {
            dealer: both[:SHARE] if dealer in counted else both[SHARE:] for dealer, both in session.shares.items()
        }
        return replace(session, shares={}), formats.write_entries(chosen)

    def _check_enough(self, session: _Session, step: str, clients: int) -> None:
        if clients < session.fewest:
            raise ProtocolError(step, f"at least {session.fewest} of {session.clients} clients", clients)

    def _vector(self, session: _Session) -> bytes:
        update, factor = np.frombuffer(session.update, "<f4"), 0.0
        if session.entries and not session.noise:
            factor = scale(session.bits, session.clients, session.range)
            factor *= session.weight / session.total if session.total else 0.0
        if session.noise:  # bound to all keys: two sums of one update have independent noise
            bound = packed(session.clients) if session.repeatable else self._context(session)
            entries = noised(update, session.noise_shares, session.noise_secret, bound + session.commitment)
        else:
            entries = rounded(update, factor, session.rounding)
        most = MOST_FIGURE // session.clients
        figures = [int(f * most + 0.5) if isinstance(f, float) else f for f in session.figures]
        if any(not 0 <= figure <= most for figure in figures):
            raise ProtocolError("figures", f"counts of at most {most}", "a larger one")
        return session.ring.vector(entries, figures)

    def _context(self, session: _Session) -> bytes:
        terms = Terms(
            self._run,
            session.round,
            session.model,
            session.bits,
            session.range,
            session.entries,
            len(session.figures),
            session.total,
            session.colluders,
            session.clip,
            session.noise,
        )
        return terms.context({**session.others, session.id: session.public})

    def _read(self) -> _Session:
        data = self._vault.read()
        if not data:
            return _Session()
        digest, _, rest = data.partition(b"\n")
        if digest != hashlib.sha256(rest).hexdigest().encode():
            raise DamagedError("secrets of secure sums", "a file that is as it was written", "another")
        return _unpacked(rest)

    def _write(self, session: _Session) -> None:
        data = _packed(session)
        self._vault.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def _packed(session: _Session) -> bytes:
    """Return a session as a line of JSON, with the lengths of the bytes that follow it."""
    head: dict[str, Any] = {}
    blobs: list[bytes] = []
    for name, value in vars(session).items():
        if isinstance(value, bytes):
            head[name] = len(value)
            blobs.append(value)
        elif name in ("others", "shares", "answers"):
            head[name] = [[key, len(part)] for key, part in value.items()]
            blobs.extend(value.values())
        else:
            head[name] = value
    return json.dumps(head).encode() + b"\n" + b"".join(blobs)


def _unpacked(data: bytes) -> _Session:
    line, _, rest = data.partition(b"\n")
    head, at = json.loads(line), 0
    plain = _Session()

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return rest[at - size : at]

    values: dict[str, Any] = {}
    for name, default in vars(plain).items():
        if (value := head.get(name)) is None:  # of a release that had no such field
            values[name] = default
        elif isinstance(default, bytes):
            values[name] = take(value)
        elif name in ("others", "shares", "answers"):
            values[name] = {key: take(size) for key, size in value}
        else:
            values[name] = tuple(value) if isinstance(default, tuple) else value
    return _Session(**values)
