"""The roster: which clients take part, by names that outlive their Flower node ids.

A client that restarts without a node key gets a new node id from Flower, and the old id stays listed for a while.
So nodes are queried in every round and mapped to client names. The identity of its state store tells a restarted
client from a second client with the same name. Whoever has not answered yet keeps nobody else waiting.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sepal.config.agreement import disagreement
from sepal.errors import ChangedDataError, ProtocolError, RosterError, SepalError, UnfitError, causes_of
from sepal.flower.simulation import starts_ray
from sepal.protocol.messages import MOST_VERSIONS, Reply, is_version, version_round
from sepal.protocol.peer import ourselves
from sepal.protocol.types import ClientInfo

log = logging.getLogger("sepal")

PATIENCE = 60.0  # seconds to wait for a new client's first answer, which includes its start-up
PEER = "protocol"  # the fact of an answer that the server adds: the number of the client's protocol
_LONGEST_REST = 64  # refreshes


class EvictedError(RosterError):
    """A client was evicted by an operator. Unlike other unsuitable clients, it does not keep a run from starting."""


class AwayError(RosterError):
    """A client cannot work for now, as one whose disk is full: like one that is not there, it is asked again."""


@dataclass(frozen=True)
class PendingQuery:
    """A node was asked and may still answer.

    Attributes:
        since: When it was asked, in seconds of the monotonic clock.
    """

    since: float


class Ask(Protocol):
    """Queries nodes. Returns node id to reply, error or ``PendingQuery``; nodes that do not answer are left out."""

    def __call__(
        self, nodes: Sequence[int], timeout: float = PATIENCE
    ) -> Mapping[int, Reply | SepalError | PendingQuery]:
        """Return the answers that have come, of those that come within ``timeout`` seconds."""
        ...


@dataclass
class Connections:
    """Which node currently answers for which client. Queried every round, so not part of the run's state.

    Attributes:
        weights: Digest of W_0 and frozen tensors; a client that reports another one is refused.
        agreed: The keys on which clients must agree with the server (:mod:`sepal.config.agreement`); empty: no check.
        inert: Values with which keys change nothing (:func:`sepal.config.agreement.inert_values`).
        nodes: Client name to node id.
        stores: Client name to the identity of its state store, fixed when the client is first seen.
        infos: Client name to roster entry.
        least: Smallest capacity that can hold the model; see :func:`sepal.server.rules.require_capacity`.
        fits: Raises for a client whose capacity the method cannot use.
        invited: The only clients that may take part; None for all.
        most: The largest number of clients that may take part; 0 for any.
        evicted: Clients that may not take part.
        data: Client name to the digest of its data, for the clients of the roster.
        refuses_by_round: Whether a client of the roster that has other data is connected all the same, and each of its
            replies refused (:func:`sepal.server.answers.check_reply`) until its data are as before. In process data
            change between two starts only, and the run is not continued.
        accepts_changes: Whether a client of the roster may have other data (``data-changes = "accept"``).
        bound: Returns the only client name that a node may have, by node id; nodes without a key of a name are absent.
        tell: Tells a node why it was refused.
        names: Node id to client name, for every node that ever answered; Flower never uses an id again.
        silent: Node id to the reason why its last query that ended has no answer.
        version_of: Returns the version that the server has of a client's state; empty if it has none.
        lost: The clients that lacked this version when they were asked last.
        best_of: Returns the version of a client's state from which the best full evaluation began; empty if none did.
        lost_best: The clients that lacked that one when they were asked last.
        newest_round: Returns the newest round that a client may have answered; None: it is not checked. With
            ``privacy.noise``, uploads of later rounds are in no record of this server, so its ε would leave them out.
        pending: Node id to when it was asked, in seconds of the monotonic clock, for those that may still answer.
    """

    weights: str = ""
    agreed: str = ""
    inert: Mapping[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    infos: dict[str, ClientInfo] = field(default_factory=dict)
    least: float = 0.0
    fits: Callable[[ClientInfo], object] = lambda client: None
    invited: frozenset[str] | None = None
    most: int = 0
    evicted: frozenset[str] = frozenset()
    data: Mapping[str, str] = field(default_factory=dict)
    refuses_by_round: bool = False
    accepts_changes: bool = False
    bound: Callable[[], Mapping[int, str]] = dict
    tell: Callable[[int, str], None] = lambda node, reason: None
    names: dict[int, str] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    version_of: Callable[[str], str] = lambda name: ""
    lost: set[str] = field(default_factory=set)
    best_of: Callable[[str], str] = lambda name: ""
    lost_best: set[str] = field(default_factory=set)
    newest_round: Callable[[], int | None] = lambda: None
    pending: dict[int, float] = field(default_factory=dict)
    _turn: int = 0
    _resting: dict[int, tuple[int, int]] = field(default_factory=dict)  # node id to (until which turn, for how long)
    _undecided: dict[int, Reply] = field(default_factory=dict)  # of nodes whose name another node has

    def refresh(
        self, online: Sequence[int], ask: Ask, among: Collection[int] | None = None, again: bool = False
    ) -> list[SepalError]:
        """Query the nodes that are not yet known (only those ``among``), and return why nodes were refused.

        A node that did not answer or was refused is skipped for 1, 2, 4, … refreshes before it is asked again.

        Args:
            online: The ids of the registered nodes.
            ask: Queries nodes.
            among: Which of them are queried; None for all.
            again: Whether this only looks whether nodes have answered that were asked before: no refresh that counts.
        """
        if not again:
            self._turn += 1
        online_nodes = set(online)
        self.nodes = {n: node for n, node in self.nodes.items() if node in online_nodes and n not in self.evicted}
        self._resting = {node: rest for node, rest in self._resting.items() if node in online_nodes}
        named_nodes = set(self.nodes.values())
        eligible = online_nodes if among is None else online_nodes & set(among)
        fresh = [node for node in online if node in eligible and node not in named_nodes and self._rested(node)]
        undecided = {node: self._undecided.pop(node) for node in fresh if node in self._undecided}
        self._undecided = {node: reply for node, reply in self._undecided.items() if node in online_nodes}
        unasked = [node for node in fresh if node not in undecided]
        answers = {**(ask(unasked) if unasked else {}), **undecided}
        self.pending = {
            node: since for node, since in self.pending.items() if node in online_nodes and node not in fresh
        }
        bound = self.bound() if any(isinstance(answer, Reply) for answer in answers.values()) else {}
        refusals = []
        for node in sorted(fresh):
            answer = answers.get(node)
            key_name = bound.get(node, "")
            reason = self._refusal(node, answer, key_name, ask) if isinstance(answer, Reply) else answer
            if isinstance(reason, PendingQuery):
                self.pending[node] = reason.since
                if isinstance(answer, Reply):
                    self._undecided[node] = answer
                continue
            if reason:
                refusals.append(reason)
                if not isinstance(reason, AwayError):  # it has said so itself
                    self.tell(node, str(reason))
            connects = self.refuses_by_round and isinstance(reason, ChangedDataError)
            if not isinstance(answer, Reply) or (reason and not connects):
                rest = min(_LONGEST_REST, 2 * self._resting.get(node, (0, 0))[1] or 1)
                self._resting[node] = self._turn + rest, rest
                continue
            name = answer.client.name
            if name in self.nodes:  # the old node id, still listed
                self._resting[self.nodes[name]] = self._turn + _LONGEST_REST, _LONGEST_REST
            self.names[node] = name
            self.nodes[name], self.infos[name], self.stores[name] = node, answer.client, answer.facts["store"]
            self._note_lost(name, answer.facts.get("versions"))
        return refusals

    def _note_lost(self, name: str, listed: str | None) -> None:
        """Note which of its versions a client lacks, by those that it has listed; None if it lists none."""
        for version_of, names in ((self.version_of, self.lost), (self.best_of, self.lost_best)):
            if listed is not None and _lacks(version_of(name), listed.split("\n")):
                names.add(name)
            else:
                names.discard(name)

    def pin(self, roster: Mapping[str, ClientInfo]) -> None:
        """Refuse clients of ``roster`` from now on that have other data than it says."""
        self.data = {name: client.data for name, client in roster.items()}

    def newcomers(self, roster: Mapping[str, ClientInfo]) -> tuple[list[ClientInfo], dict[str, str]]:
        """Return the clients that are not in ``roster`` and not evicted, by name, and the identity of their stores."""
        names = sorted(self.infos.keys() - roster.keys() - self.evicted)
        return [self.infos[name] for name in names], {name: self.stores[name] for name in names}

    def _rested(self, node: int) -> bool:
        return self._resting.get(node, (0, 0))[0] <= self._turn

    def awaited(self, nodes: Collection[int], patience: float) -> int:
        """Return how many of ``nodes`` were asked for the first time, and less than ``patience`` seconds ago."""
        now = time.monotonic()
        return sum(now - self.pending.get(node, -math.inf) < patience for node in nodes if node not in self._resting)

    def overdue(self, nodes: Collection[int], patience: float) -> int:
        """Return how many of ``nodes`` were asked for the first time, at least ``patience`` seconds ago, in vain."""
        pending_count = sum(node in self.pending and node not in self._resting for node in nodes)
        return pending_count - self.awaited(nodes, patience)

    def _refusal(self, node: int, reply: Reply, key_name: str, ask: Ask) -> SepalError | PendingQuery | None:
        """Return why ``node`` is refused as the client it claims to be; None if it is accepted."""
        name, store, weights = reply.client.name, reply.facts.get("store", ""), reply.facts.get("weights", "")
        if (reason := self._refused_name(node, name, key_name)) is not None:
            return reason
        if not store:
            return ProtocolError(f"{name}: store", "the identity of its state store", "none")
        if self.stores.get(name, store) != store:
            return RosterError(f"client {name}", "one client of that name", f"a second one (node {node})")
        changed = self._changed(reply.client)
        if changed and not self.refuses_by_round:
            return changed
        if self.agreed:
            age = int(reply.facts[PEER]) - ourselves().protocol
            config = reply.facts.get("config", "")
            if differs := disagreement(name, self.agreed, config, age, self.inert):
                return differs
        if self.weights and weights and weights != self.weights:
            expected = f"digest {self.weights[:12]} (frozen tensors included)"
            return RosterError(f"{name}: initial weights", expected, weights[:12])
        return self._ahead(reply) or self._too_small(reply.client) or self._second(node, reply, ask) or changed

    def _ahead(self, reply: Reply) -> RosterError | None:
        most, listed = self.newest_round(), reply.facts.get("versions", "")
        rounds = [version_round(version) for version in listed.split("\n") if is_version(version)]
        if most is None or max(rounds, default=0) <= most:
            return None
        expected = f"states of at most round {most}: this server goes on from an older copy (begin a new run)"
        return RosterError(f"{reply.client.name}: states", expected, f"one of round {max(rounds)}")

    def _changed(self, client: ClientInfo) -> ChangedDataError | None:
        began = self.data.get(client.name, client.data)
        return (
            None
            if began == client.data or self.accepts_changes
            else ChangedDataError.of(client.name, began, client.data)
        )

    def _second(self, node: int, reply: Reply, ask: Ask) -> SepalError | PendingQuery | None:
        """Return why ``node`` is refused if another node of its name answers; ``PendingQuery`` as long as it may."""
        name = reply.client.name
        other_node = self.nodes.get(name)
        if other_node is None:
            return None
        answer = ask([other_node], PATIENCE / 3).get(other_node)
        if isinstance(answer, PendingQuery):
            return answer
        if isinstance(answer, Reply):
            got = f"a second one (node {node}) on the same state directory"
            return RosterError(f"client {name}", "one client of that name", got)
        return None  # the other node is listed but does not answer: the client was restarted

    def _refused_name(self, node: int, name: str, key_name: str) -> SepalError | None:
        """Return why ``node`` may not take part under ``name``; ``key_name`` is the name of its key, if it has one."""
        if key_name and key_name != name:
            expected = f"{key_name}, the name of its node's key (nodes/{key_name}.pub)"
            return RosterError(f"client {name}", expected, f"{name} (node {node})")
        if name in self.evicted:
            return EvictedError(f"client {name}", "a client that was not evicted", f"one that was (node {node})")
        if self.invited is not None and name not in self.invited:
            expected = f"one of the {len(self.invited)} clients of the start (roster = closed)"
            return RosterError(f"client {name}", expected, f"another one (node {node})")
        known_names = self.infos.keys() | self.data.keys()
        if self.most and name not in known_names and len(known_names) >= self.most:
            return RosterError(f"client {name}", f"one of at most {self.most} clients (clients)", "one more")
        return None

    def _too_small(self, client: ClientInfo) -> SepalError | None:
        """Return why the client's capacity is too small; None if it is not."""
        if client.capacity < self.least:
            expected = f"at least {self.least:g}, to hold the model that all clients have"
            return RosterError(f"{client.name}: capacity", expected, client.capacity)
        try:
            self.fits(client)
        except SepalError as reason:
            return RosterError(f"{client.name}: {reason.key}", reason.expected, reason.got)
        return None


def _lacks(version: str, listed: Sequence[str]) -> bool:
    """Return whether a client that lists these versions, the newest first, lacks one of its own.

    A full list may have no room for older ones.
    """
    if not version or version in listed:
        return False
    oldest = listed[-1]
    return len(listed) < MOST_VERSIONS or not is_version(oldest) or version_round(version) >= version_round(oldest)


def wait(
    connections: Connections,
    online: Callable[[], Sequence[int]],
    ask: Ask,
    needed: Sequence[str] | int,
    timeout: float,
    settle: float = 3.0,
    enough: int = 0,
    gone: Callable[[], Collection[str]] = tuple,
    again: bool = True,
) -> None:
    """Wait until the clients that the run needs have registered and answered.

    Args:
        connections: Updated in place.
        online: Returns the node ids that are currently registered.
        ask: Queries nodes.
        needed: Client names (for a resumed run), a number of clients, or 0 to start once nobody new has registered
            for ``settle`` seconds.
        timeout: Seconds before giving up.
        settle: Seconds without a new client; ``PATIENCE`` as long as nodes may still answer.
        enough: Start with this many known clients once nobody new has registered for ``settle`` seconds; 0 waits for
            all.
        gone: Returns the clients that are no longer needed, because they were evicted.
        again: Whether a node that answers with an error may answer otherwise if it is asked again; not in process.

    Raises:
        RosterError: Too few clients at the timeout, or answers with errors; too many, or two with the same name.
        SepalError: A client of a new run cannot take part; the error says why. A resumed run ignores clients that it
            does not know.
    """
    start, logged_at, since, before = time.monotonic(), 0.0, time.monotonic(), -1
    refused: dict[str, None] = {}
    while True:
        evicted = gone()
        refusals = connections.refresh(list(online()), ask)
        unfit = [refusal for refusal in refusals if not isinstance(refusal, EvictedError | AwayError)]
        if unfit and isinstance(needed, int):
            raise _of_all(unfit, needed or len(unfit) + len(connections.nodes))
        changed = [refusal for refusal in refusals if isinstance(refusal, ChangedDataError)]
        _note_changed(changed, () if isinstance(needed, int) or enough else needed, connections.refuses_by_round)
        _tell_away(refusals, refused)
        refused |= dict.fromkeys(map(str, refusals))
        present, now = len(connections.nodes), time.monotonic()
        if present != before:
            before, since = present, now
        settled = now - since >= (PATIENCE if connections.pending else settle)
        errors = _errors(connections, again or bool(enough))
        if isinstance(needed, int):
            if needed and present > needed:
                raise RosterError("clients", f"exactly {needed}", f"{present}: {', '.join(sorted(connections.nodes))}")
            if (needed and present == needed) or (not needed and present and settled):
                return
            needed_text = f"{needed}" if needed else "all"
            hint = simulation_hint(needed, present) if starts_ray() else ""
            hint = f"; nodes answer: {'; '.join(errors[:3])}" if errors else hint
        else:
            wanted_names = set(needed) - set(evicted)
            absent = sorted(wanted_names - set(connections.nodes))
            present = len(wanted_names) - len(absent)
            if not absent or (enough and present >= enough and settled):
                return
            needed_text, hint = f"{len(wanted_names)}", "; ".join([f"; absent: {', '.join(absent[:5])}", *refused])
        if now - start > timeout:
            raise RosterError("clients", f"{needed_text} within {timeout:g} s", f"{present}{hint}")
        if now - logged_at > 5 or not logged_at:
            logged_at = now
            log.info("waiting for clients: %d of %s have answered%s", present, needed_text, hint)
        time.sleep(0.1)


def _tell_away(refusals: Sequence[SepalError], told: Collection[str]) -> None:
    """Warn of the clients that cannot work for now; ``told`` are the lines of before."""
    kinds = {re.sub(r"\d+", "", line) for line in told}  # codes differ
    for refusal in refusals:
        if isinstance(refusal, AwayError) and re.sub(r"\d+", "", str(refusal)) not in kinds:
            log.warning("%s; waiting for it", refusal)


def _of_all(unfit: Sequence[SepalError], total: int) -> SepalError:
    """Return the one refusal, or an error that has every cause of several."""
    who = f"{len(unfit)} of {total} clients"
    return unfit[0] if len(unfit) == 1 else UnfitError(who, "take part", causes_of(unfit))


def simulation_hint(needed: int, present: int) -> str:
    """Return what may be wrong with Flower's simulation if the clients that a run needs do not answer."""
    address = os.environ.get("RAY_ADDRESS", "local")
    if not present and address != "local":  # without it, Sepal starts a Ray of its own (sepal.client_app.simulation)
        file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
        hint = f", and {file} names one that may have been left behind" if file.exists() else ""
        return f" (RAY_ADDRESS is {address}, another cluster of Ray{hint}: `ray stop` ends it; or unset RAY_ADDRESS)"
    return f" (Flower's simulation: --federation-config 'num-supernodes={needed}')" if needed else ""


def _errors(connections: Connections, again: bool) -> list[str]:
    """Return the errors with which nodes answer; unless they are asked ``again``, raise."""
    errors = list(dict.fromkeys(reason for reason in connections.silent.values() if reason.startswith("error")))
    if errors and not again:
        raise RosterError("clients", "answers", "; ".join(errors[:3]))
    return errors


def _note_changed(changed: Sequence[ChangedDataError], needed: Sequence[str], by_round: bool) -> None:
    """Raise if one of the clients ``needed`` has different data than before; warn where that costs only its rounds."""
    for refusal in changed:
        if by_round:
            log.warning("refused in each round until then: %s", refusal)
        elif refusal.key.removesuffix(": data") in needed:
            raise refusal  # waiting for the client would not help
