"""One exchange of messages over a Flower Grid: push, then pull until all nodes have answered or the deadline passes.

Flower's own ``send_and_receive`` polls every three seconds and ignores late replies. This loop polls up to ten times a
second and matches replies by ``reply_to_message_id``, because the source of an error reply is the SuperLink. Messages
are composed and replies pulled a few at a time, so memory does not grow with the number of clients.

A SuperLink is asked for 32 messages at a time which replies it has, and each of those is pulled alone: Flower's own
call decodes all of them together, so one reply that cannot be decoded would lose the others. After a sweep that finds
nothing the loop pauses for at least as long as it took, so that the SuperLink is free for its nodes half of the time.

A SuperLink also marks a message as delivered when a node asks for it, so a connection that breaks at that moment loses
the message. A node that takes three times as long as its slowest reply so far is therefore asked once more, and so is a
node whose reply the SuperLink no longer has. That is safe: a client answers the same order with the same bits.

A message may also be posted: nobody waits for its reply, which is taken by whichever exchange or look comes next.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from sepal.errors import one_line
from sepal.flower.replies import REPLY_GONE, Pull, at_hand
from sepal.protocol.messages import arrays_bytes
from sepal.protocol.types import STEPS, Kind

log = logging.getLogger("sepal")

Compose: TypeAlias = Callable[[int], tuple[Kind, RecordDict]]
Take: TypeAlias = Callable[[int, RecordDict], None]

WAVE = 8  # messages composed, pushed or pulled at a time
WAVE_BYTES = 8 << 20
TOGETHER = 32  # messages that a SuperLink is asked about in one call
OVERDUE = 60.0  # seconds: no node is asked again before
SLOWNESS = 3.0  # times the longest that the node has taken for an order of this kind

MESSAGE_TYPES = {
    Kind.QUERY: MessageType.QUERY,
    Kind.TRAIN: MessageType.TRAIN,
    Kind.ADAPT: f"{MessageType.TRAIN}.adapt",
    **{step: f"{MessageType.TRAIN}.{step.value}" for step in STEPS},
}


@runtime_checkable
class LocalGrid(Protocol):
    """What the in-process grid offers in addition to Flower's interface."""

    def arrange(self, nodes: Sequence[int]) -> list[int]:
        """Return ``nodes`` in the order in which their messages should be sent."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until a reply has arrived, at most ``seconds``."""
        ...


@dataclass(frozen=True)
class Sent:
    """A message on its way: its node, its kind, and when it was sent, in seconds of the monotonic clock."""

    node: int
    kind: Kind
    at: float


@dataclass(frozen=True)
class Posted:
    """A message on its way whose reply nobody waits for.

    Attributes:
        node: Its node.
        until: Seconds of the monotonic clock; it is forgotten after that.
        take: Called with node id and content of the reply.
        fail: Called with node id and reason if there will be no reply.
    """

    node: int
    until: float
    take: Take
    fail: Callable[[int, str], None]


@dataclass
class Lost:
    """Nodes that are asked a second time, because their message or their reply may have been lost.

    Attributes:
        deadline: Seconds of the monotonic clock; nobody is asked again after it.
    """

    deadline: float
    _asked_again: set[int] = field(default_factory=set)
    _next: list[int] = field(default_factory=list)

    def note(self, node: int) -> bool:
        """Return whether ``node`` is to be asked again."""
        if node in self._asked_again or time.monotonic() > self.deadline:
            return False
        self._asked_again.add(node)
        self._next.append(node)
        return True

    def again(self) -> list[int]:
        """Return the nodes to ask again, once."""
        due, self._next = self._next, []
        return due


@dataclass
class Exchange:
    """Messages in flight over ``grid``, including those of earlier rounds that were never answered.

    Attributes:
        grid: The Flower Grid.
        poll: Seconds between two checks for replies.
        late: Number of replies that arrived after their round had ended.
    """

    grid: Grid
    poll: float = 0.1
    late: int = 0
    _stale: dict[str, int] = field(default_factory=dict)
    _longest: dict[tuple[int, Kind], float] = field(default_factory=dict)
    _late: list[tuple[int, RecordDict]] = field(default_factory=list)
    _posted: dict[str, Posted] = field(default_factory=dict)

    def latecomers(self) -> list[tuple[int, RecordDict]]:
        """Return the late replies since the last call, as (node id, content)."""
        late, self._late = self._late, []
        return late

    def notify(self, node: int, kind: Kind, records: RecordDict, group: str, ttl: float) -> None:
        """Send a message to which no reply is expected."""
        message = Message(records, dst_node_id=node, message_type=MESSAGE_TYPES[kind], ttl=ttl, group_id=group)
        list(self.grid.push_messages([message]))

    def post(
        self,
        nodes: Sequence[int],
        kind: Kind,
        records: RecordDict,
        group: str,
        ttl: float,
        take: Take,
        fail: Callable[[int, str], None],
    ) -> None:
        """Send a message to each node without waiting for replies.

        Args:
            nodes: Node ids.
            kind: Kind of the message.
            records: Its content.
            group: Flower's group id, the round.
            ttl: Seconds for which a node may answer.
            take: Called with node id and content of each reply, in a later call of this exchange.
            fail: Called with node id and reason if there will be no reply. It is not called when the time is over.
        """
        about: dict[str, Any] = {"message_type": MESSAGE_TYPES[kind], "ttl": ttl, "group_id": group}
        until = time.monotonic() + ttl
        for first in range(0, len(nodes), WAVE):
            wave = nodes[first : first + WAVE]
            names = self.grid.push_messages([Message(records, dst_node_id=node, **about) for node in wave])
            for node, name in zip(wave, names, strict=True):
                if name:
                    self._posted[name] = Posted(node, until, take, fail)
                else:
                    fail(node, "not accepted by the SuperLink")

    def look(self) -> float:
        """Take the replies that have arrived to messages without a wait; return the seconds spent if there was none."""
        return self._collect({}, Lost(0.0), {}, lambda node, content: None)[1]

    def deliver(
        self,
        nodes: Sequence[int],
        compose: Compose,
        group: str,
        timeout: float,
        take: Take,
        enough: Callable[[], bool] = lambda: False,
    ) -> dict[int, str]:
        """Send a message to each node and pass every reply to ``take`` as it arrives.

        Messages are composed and pushed at most 8 at a time, fewer if they exceed 8 MiB, so that memory does not grow
        with the number of nodes.

        Args:
            nodes: Node ids.
            compose: Returns kind and content of the message to a node. Called once for each node, and a second time if
                the node's reply could not be read or is overdue.
            group: Flower's group id, the round.
            timeout: Seconds; also the messages' time to live.
            take: Called with node id and content of each reply.
            enough: Whether no further reply is waited for; those that come all the same are late.

        Returns:
            Node id to reason, for the nodes that gave no reply.
        """
        deadline = time.monotonic() + timeout
        local = self.grid if isinstance(self.grid, LocalGrid) else None
        waiting: dict[str, Sent] = {}
        missing: dict[int, str] = {}
        left = deque(local.arrange(nodes) if local else nodes)
        size, lost = 1, Lost(deadline)
        while left or waiting:
            if left:
                wave = list(self._wave(left, compose, group, timeout, size))
                size = min(2 * size, WAVE)  # one message first, so that a client can start while the next are composed
                sent = [Sent(message.metadata.dst_node_id, kind, time.monotonic()) for kind, message in wave]
                for entry, name in zip(sent, self.grid.push_messages([message for _, message in wave]), strict=True):
                    if name:
                        waiting[name] = entry
                    elif not _is_awaited(entry.node, waiting):
                        missing[entry.node] = "not accepted by the SuperLink"
                del wave
            arrived, in_vain = self._collect(waiting, lost, missing, take)
            if local is None:
                self._note_overdue(waiting, lost)
            left.extend(lost.again())
            if enough():
                self._stale |= {name: sent.node for name, sent in waiting.items()}
                break
            if waiting and not left and time.monotonic() > deadline:
                missing |= {sent.node: f"no reply within {timeout:g} s" for sent in waiting.values()}
                self._stale |= {name: sent.node for name, sent in waiting.items()}
                break
            if waiting and not left and not (local and arrived):
                local.wait(self.poll) if local else time.sleep(max(self.poll, in_vain))
        return missing

    def _note_overdue(self, waiting: dict[str, Sent], lost: Lost) -> None:
        """Note the nodes whose reply takes far longer than any of their earlier ones."""
        now = time.monotonic()
        for sent in waiting.values():
            longest = self._longest.get((sent.node, sent.kind))
            if longest is not None and now - sent.at > max(OVERDUE, SLOWNESS * longest) and lost.note(sent.node):
                log.warning("node %d: no reply for %.0f s, asked again", sent.node, now - sent.at)

    def _wave(
        self, left: deque[int], compose: Compose, group: str, timeout: float, most: int
    ) -> Iterator[tuple[Kind, Message]]:
        """Compose the next messages: at most ``most``, fewer if they reach ``WAVE_BYTES``."""
        size, count = 0, 0
        while left and count < most and size < WAVE_BYTES:
            node = left.popleft()
            kind, records = compose(node)
            about: dict[str, Any] = {"message_type": MESSAGE_TYPES[kind], "ttl": timeout, "group_id": group}
            yield kind, Message(records, dst_node_id=node, **about)
            size += arrays_bytes(records)
            count += 1

    def _looks(self, names: list[str]) -> Iterator[tuple[list[str], Pull]]:
        """Yield the calls that pull replies, each with the messages whose replies it may give."""
        for begin in range(0, len(names), TOGETHER):
            together = names[begin : begin + TOGETHER]
            try:
                pairs = at_hand(self.grid, together)
            except Exception as error:  # one reply can break the call for all
                log.debug("replies are looked for one by one: %s: %s", type(error).__name__, error)
                pairs = None
            if pairs is not None:
                yield from (([name], pull) for name, pull in pairs)
                continue
            most = WAVE if isinstance(self.grid, LocalGrid) else 1  # a few at a time, so that memory stays bounded
            for first in range(0, len(together), most):
                batch = together[first : first + most]
                yield batch, partial(self.grid.pull_messages, batch)

    def _collect(self, waiting: dict[str, Sent], lost: Lost, missing: dict[int, str], take: Take) -> tuple[int, float]:
        """Process the replies that have arrived; return their number, and the seconds spent if there was none."""
        arrived, begun = 0, time.monotonic()
        self._posted = {name: posted for name, posted in self._posted.items() if posted.until >= begun}
        for batch, pull in self._looks([*waiting, *self._stale, *self._posted]):
            try:
                replies = list(pull())
            except Exception as error:  # Flower decodes replies here, so a malformed one can raise any exception
                reason = one_line(f"a reply that cannot be read: {type(error).__name__}: {error}", 300)
                log.warning("%s", reason)
                for name in batch:
                    self._stale.pop(name, None)
                    if posted := self._posted.pop(name, None):
                        posted.fail(posted.node, reason)
                    sent = waiting.pop(name, None)
                    if sent is not None and not _is_awaited(sent.node, waiting) and not lost.note(sent.node):
                        missing[sent.node] = reason
                continue
            for reply in replies:
                self._sort(reply, waiting, lost, missing, take)
            arrived += len(replies)
        return arrived, 0.0 if arrived else time.monotonic() - begun

    def _sort(self, reply: Message, waiting: dict[str, Sent], lost: Lost, missing: dict[int, str], take: Take) -> None:
        name = reply.metadata.reply_to_message_id
        if posted := self._posted.pop(name, None):
            if reply.has_error():
                posted.fail(posted.node, _words(reply))
            else:
                posted.take(posted.node, reply.content)
            return
        sent = waiting.pop(name, None)
        if sent is None:
            asker = self._stale.pop(name, None)
            if asker is not None and not reply.has_error():
                self.late += 1
                self._late.append((asker, reply.content))
        elif reply.has_error():
            gone = reply.error.code in REPLY_GONE
            if not _is_awaited(sent.node, waiting) and not (gone and lost.note(sent.node)):
                missing[sent.node] = _words(reply)
        else:
            for message_id in [key for key, value in waiting.items() if value.node == sent.node]:
                self._stale[message_id] = waiting.pop(message_id).node
            spent = time.monotonic() - sent.at
            self._longest[sent.node, sent.kind] = max(spent, self._longest.get((sent.node, sent.kind), 0.0))
            take(sent.node, reply.content)


def _words(reply: Message) -> str:
    return one_line(f"error {reply.error.code}: {reply.error.reason}", 300)


def _is_awaited(node: int, waiting: dict[str, Sent]) -> bool:
    """Return whether another message to ``node`` is on its way."""
    return any(sent.node == node for sent in waiting.values())
