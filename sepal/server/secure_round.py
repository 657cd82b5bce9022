"""The steps of a round's secure sums, after its clients have trained (docs/secure-sums.md).

Each step's result is stored before the first message of the next one, so a server that was killed asks the same
questions of the same clients again. Nothing here sends a message: ``ask`` does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from sepal.config import RunConfig
from sepal.errors import ProtocolError, SepalError
from sepal.method.interface import RunSetup
from sepal.protocol.messages import Content
from sepal.protocol.summed import UPDATE, Entries, figure_count
from sepal.protocol.types import Kind, Payload, Upload
from sepal.secure import formats
from sepal.secure.formats import Terms
from sepal.secure.noise import Shares
from sepal.secure.ring import Sum, scale
from sepal.secure.server import Member, Members
from sepal.server.downloads import Downloads
from sepal.server.run_state import RoundStart
from sepal.server.run_store import RunStore
from sepal.server.summed_uploads import SUM, StoredSum, entries_of, pack, read_sums, reading, unpack, write_sums
from sepal.storage.serialize import restore

log = logging.getLogger("sepal")

# Asks clients one question each, by name, and passes on the answers, which may be refused with a SepalError; returns
# once all have answered or the step's time is over.
Ask: TypeAlias = Callable[[Kind, Mapping[str, Content], Callable[[str, Content], None]], None]
MEMBERS, SHARES, COUNTED, MASKED = "members", "shares", "counted", "masked"


@dataclass
class Group:
    """Clients that make one sum: those that train, or those that are evaluated alone.

    Attributes:
        trains: Which of the two.
        members: U1.
        ciphertexts: Dealer to recipient to ciphertext, of U2.
        masked: The sum of the masked inputs so far.
        counted: U3 so far.
        answers: Holder to dealer to share.
        void: Why there will be no sum.
        vector: The sum.
    """

    trains: bool
    members: Members
    ciphertexts: dict[int, dict[int, bytes]] = field(default_factory=dict)
    masked: Sum | None = None
    counted: set[int] = field(default_factory=set)
    answers: dict[int, dict[int, bytes]] = field(default_factory=dict)
    void: str = ""
    vector: bytes = b""

    def number(self, name: str) -> int:
        """Return a member's id."""
        return self.members.names.index(name)

    def named(self, numbers: Iterable[int]) -> list[str]:
        """Return members' names."""
        return [self.members.names[number] for number in sorted(numbers)]

    def check(self, left: int) -> None:
        """Make the sum void if too few clients are left."""
        self.void = self.void or self.members.too_few(left)

    @property
    def asked(self) -> bool:
        """Whether masked inputs were asked for: from then on, the server may have learned something."""
        return not self.members.too_few(len(self.ciphertexts))

    def check_noise(self) -> None:
        """Make the sum void if its noise could make it wrap: with fewer clients, each has a larger share."""
        terms = self.members.terms
        if terms.noise and (refused := _shares(terms, len(self.members.members)).refused(terms.bits)):
            self.void = self.void or str(ProtocolError(*refused))

    def check_range(self) -> None:
        """Make the sum void if most of its clients' updates are beyond ``secure-range``: training has diverged."""
        beyond = self.stored().beyond
        if 2 * beyond > len(self.counted):
            reach = f"at most {self.members.terms.range:g} (secure-range)"
            got = f"{beyond} of {len(self.counted)} that changed an entry by more, or to no number"
            self.void = f"clients: expected most to change each entry by {reach}, got {got}"

    def stored(self) -> StoredSum:
        """Return what is kept of it once the round has ended."""
        terms, counted = self.members.terms, set() if self.void else self.counted
        why = self.void or "lost before its masked input"
        return StoredSum(
            trains=self.trains,
            names=tuple(self.named(counted)),
            lost={m.name: why for number, m in enumerate(self.members.members) if number not in counted},
            weights=sum(self.members.members[number].weight for number in sorted(counted)),
            total=terms.total,
            clients=len(self.members.members),
            bits=terms.bits,
            range=terms.range,
            entries=terms.entries,
            figures=terms.figures,
            void=self.void,
            step=_shares(self.members.terms, len(self.members.members)).step if terms.noise else 0.0,
            asked=self.asked,
            vector=b"" if self.void else self.vector,
        )


class SecureRound:
    """The secure sums of one round.

    Args:
        start: What the round starts from.
        setup: Configuration and model layout.
        store: Stores each step.
        downloads: What clients were sent.
        record: Returns the round's record so far, which is stored with each step.
    """

    def __init__(
        self, start: RoundStart, setup: RunSetup, store: RunStore, downloads: Downloads, record: Callable[[], Any]
    ) -> None:
        self._start, self._setup, self._store = start, setup, store
        self._downloads, self._record = downloads, record
        self._groups: list[Group] = []
        self._sums: list[StoredSum] | None = None

    @property
    def _round(self) -> int:
        return self._start.plan.round

    @property
    def _config(self) -> RunConfig:
        return self._setup.config

    def open(self, advertised: Mapping[bool, Mapping[str, Content]], views: tuple[str, ...]) -> None:
        """Take U1, and store it.

        Args:
            advertised: Whether they train to the clients' replies: keys and a commitment.
            views: What the round evaluates.
        """
        for trains, replies in advertised.items():
            if replies:
                self._groups.append(Group(trains, self._members(trains, replies, figure_count(views))))
        for group in self._groups:
            group.check(len(group.members.members))
            group.check_noise()
        self._keep(MEMBERS, [_members_head(group) for group in self._groups])

    def _members(self, trains: bool, replies: Mapping[str, Content], figures: int) -> Members:
        names, config = sorted(replies), self._config
        weights = {name: self._weight(name) if trains else 0.0 for name in names}
        nothing = Entries({}, {}, {})
        entries = entries_of(self._start, self._downloads, self._setup, names[0]) if trains else nothing
        clip, noise = config.privacy.of_shares if entries.count else (0.0, 0.0)
        terms = Terms(
            run=self._start.state.run,
            round=self._round,
            model=entries.digest(),
            bits=config.secure_bits,
            range=config.secure_range,
            entries=entries.count,
            figures=figures,
            total=sum(weights.values()),
            colluders=config.secure_colluders,
            clip=clip,
            noise=noise,
        )
        if entries.count and not noise:
            scale(config.secure_bits, len(names), config.secure_range)  # refuses a ring that would wrap
        members = [
            Member(name, replies[name].data, bytes.fromhex(str(replies[name].scalars[UPDATE])), weights[name])
            for name in names
        ]
        return Members(tuple(members), terms)

    def _weight(self, name: str) -> float:
        if self._config.privacy.distributed:  # another weight would change the sum by more than the clip
            return 1.0
        algorithm: Any = self._start.algorithm  # which has `weigh`, as each that claims `summed_phases`
        return float(algorithm.weigh(Upload(self._start.state.roster[name], Payload())))

    def resume(self) -> dict[str, Any] | None:
        """Take up the round where a server that was killed has left it; return the record of the time, or None.

        Raises:
            DamagedError: What it has left cannot be used.
        """
        with reading(self._round, "the steps of its secure sum"):
            return self._resumed()

    def _resumed(self) -> dict[str, Any] | None:
        for name in (SUM, COUNTED, SHARES, MEMBERS):
            if (data := self._store.part(self._round, name)) is None:
                continue
            if name == SUM:
                self._sums, head = read_sums(data)
                return dict(head["record"])
            head = unpack(data)[0]
            self._groups = [
                _group(stored) for stored in unpack(self._store.part(self._round, MEMBERS) or b"")[0]["groups"]
            ]
            if name != MEMBERS:
                self._take_shares()
            if name == COUNTED:
                for group, stored in zip(self._groups, head["groups"], strict=True):
                    group.void = restore(str, {}, stored["void"])
                    for number in restore(tuple[int, ...], {}, stored["counted"]):
                        self._add(group, number, self._store.part(self._round, self._masked_name(group, number)) or b"")
            return dict(head["record"])
        return None

    def _take_shares(self) -> None:
        head, blobs = unpack(self._store.part(self._round, SHARES) or b"")
        for group, stored in zip(self._groups, head["groups"], strict=True):
            group.void = restore(str, {}, stored["void"])
            for number in restore(tuple[int, ...], {}, stored["dealers"]):
                group.ciphertexts[number] = formats.read_ciphertexts(SHARES, blobs.pop(0))

    def _keep(self, name: str, groups: list[dict[str, Any]], blobs: list[bytes] | None = None) -> None:
        self._store.keep_part(self._round, name, pack({"groups": groups, "record": self._record()}, blobs or []))

    def sums(self, ask: Ask) -> list[StoredSum]:
        """Take the steps that are left, and return the sums."""
        if self._sums is None:
            if self._store.part(self._round, SHARES) is None:
                self._share(ask)
            if self._store.part(self._round, COUNTED) is None:
                self._mask(ask)
            self._unmask(ask)
            self._sums = [group.stored() for group in self._groups]
            self._store.keep_part(self._round, SUM, write_sums(self._sums, {"record": self._record()}))
        self._store.drop_parts(self._round, MASKED)
        for part in self._sums:
            if part.void:
                what = "sum of updates" if part.trains else "sum of evaluations"
                log.warning("round %d: the %s is void: %s", self._round, what, part.void)
        return self._sums

    @property
    def _open(self) -> list[Group]:
        return [group for group in self._groups if not group.void]

    def _of(self, name: str) -> tuple[Group, int]:
        group = next(group for group in self._open if name in group.members.names)
        return group, group.number(name)

    def _share(self, ask: Ask) -> None:
        questions = {
            name: Content(*group.members.share_question(number))
            for group in self._open
            for number, name in enumerate(group.members.names)
        }

        def take(name: str, answer: Content) -> None:
            group, number = self._of(name)
            group.ciphertexts[number] = group.members.read_ciphertexts(number, answer.data)

        ask(Kind.SHARE, questions, take)
        for group in self._groups:
            group.check(len(group.ciphertexts))
        heads = [{"dealers": sorted(group.ciphertexts), "void": group.void} for group in self._groups]
        dealt = [group.ciphertexts[number] for group in self._groups for number in sorted(group.ciphertexts)]
        self._keep(SHARES, heads, [formats.write_entries(ciphertexts) for ciphertexts in dealt])

    def _mask(self, ask: Ask) -> None:
        for group in self._open:  # masked inputs from before a kill
            for number in group.ciphertexts:
                if data := self._store.part(self._round, self._masked_name(group, number)):
                    self._add(group, number, data)
        questions = {
            group.members.names[number]: Content(group.members.mask_question(number, group.ciphertexts))
            for group in self._open
            for number in sorted(group.ciphertexts.keys() - group.counted)
        }

        def take(name: str, answer: Content) -> None:
            group, number = self._of(name)
            group.members.ring.parts(answer.data)  # checks the length
            self._store.keep_part(self._round, self._masked_name(group, number), answer.data)
            self._add(group, number, answer.data)

        ask(Kind.MASK, questions, take)
        for group in self._groups:
            group.check(len(group.counted))
        self._keep(COUNTED, [{"counted": sorted(group.counted), "void": group.void} for group in self._groups])

    def _unmask(self, ask: Ask) -> None:
        questions = {
            name: Content(group.members.unmask_question(group.ciphertexts.keys(), group.counted))
            for group in self._open
            for name in group.named(group.counted)
        }

        def take(name: str, answer: Content) -> None:
            group, number = self._of(name)
            group.answers[number] = group.members.read_shares(group.ciphertexts.keys(), answer.data)

        ask(Kind.UNMASK, questions, take)
        for group in self._open:
            try:
                masked = group.masked.vector() if group.masked else b""
                group.vector = group.members.unmask(masked, group.ciphertexts.keys(), group.counted, group.answers)
            except SepalError as reason:
                group.void = str(reason)
            else:
                group.check_range()

    def _add(self, group: Group, number: int, vector: bytes) -> None:
        if group.masked is None:
            group.masked = Sum(group.members.ring)
        group.masked.add(vector)
        group.counted.add(number)

    @staticmethod
    def _masked_name(group: Group, number: int) -> str:
        return f"{MASKED}-{'train' if group.trains else 'evaluate'}-{number}"


def _shares(terms: Terms, clients: int) -> Shares:
    return Shares(terms.clip, terms.noise, terms.entries, clients, terms.colluders)


def _members_head(group: Group) -> dict[str, Any]:
    members = [
        [member.name, member.public.hex(), member.commitment.hex(), member.weight] for member in group.members.members
    ]
    return {"trains": group.trains, "members": members, "terms": asdict(group.members.terms), "void": group.void}


def _group(head: Mapping[str, Any]) -> Group:
    stored = (
        {"name": name, "public": bytes.fromhex(public), "commitment": bytes.fromhex(commitment), "weight": weight}
        for name, public, commitment, weight in head["members"]
    )
    members = Members(tuple(restore(Member, {}, member) for member in stored), restore(Terms, {}, head["terms"]))
    return Group(restore(bool, {}, head["trains"]), members, void=restore(str, {}, head["void"]))
