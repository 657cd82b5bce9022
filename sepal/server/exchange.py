"""One exchange of messages over a Flower Grid: push, then pull until all nodes have answered or the deadline passes.

Flower's own ``send_and_receive`` polls every three seconds and ignores late replies. This loop polls ten times a second
and matches replies by ``reply_to_message_id``, because the source of an error reply is the SuperLink. Messages are
composed and replies pulled a few at a time, so memory does not grow with the number of clients.

From a SuperLink, replies are pulled one by one. It marks all replies of a call as delivered before Flower decodes them,
so one reply that cannot be decoded would lose the others.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from sepal.errors import one_line
from sepal.protocol.method import Kind

log = logging.getLogger("sepal")

Compose: TypeAlias = Callable[[int], tuple[Kind, RecordDict]]
Take: TypeAlias = Callable[[int, RecordDict], None]

WAVE = 8  # messages composed, pushed or pulled at a time
WAVE_BYTES = 8 << 20

MESSAGE_TYPES = {
    Kind.QUERY: MessageType.QUERY,
    Kind.TRAIN: MessageType.TRAIN,
    Kind.ADAPT: f"{MessageType.TRAIN}.adapt",
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


@dataclass
class Lost:
    """Nodes whose reply could not be read. Each is asked a second time, because the reply may have been lost."""

    _asked: set[int] = field(default_factory=set)
    _next: list[int] = field(default_factory=list)

    def note(self, node: int) -> bool:
        """Return whether ``node`` is to be asked again."""
        if node in self._asked:
            return False
        self._asked.add(node)
        self._next.append(node)
        return True

    def again(self) -> list[int]:
        """Return the nodes to ask again, once."""
        found, self._next = self._next, []
        return found


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
    _late: list[tuple[int, RecordDict]] = field(default_factory=list)

    def latecomers(self) -> list[tuple[int, RecordDict]]:
        """Return the late replies since the last call, as (node id, content)."""
        late, self._late = self._late, []
        return late

    def notify(self, node: int, kind: Kind, records: RecordDict, group: str, ttl: float) -> None:
        """Send a message to which no reply is expected."""
        message = Message(records, dst_node_id=node, message_type=MESSAGE_TYPES[kind], ttl=ttl, group_id=group)
        list(self.grid.push_messages([message]))

    def deliver(self, nodes: Sequence[int], compose: Compose, group: str, timeout: float, take: Take) -> dict[int, str]:
        """Send a message to each node and pass every reply to ``take`` as it arrives.

        Messages are composed and pushed at most 8 at a time, fewer if they exceed 8 MiB, so that memory does not grow
        with the number of nodes.

        Args:
            nodes: Node ids.
            compose: Returns kind and content of the message to a node; called once for each node, and a second time if
                the node's reply could not be read, because the reply may have been lost on the way.
            group: Flower's group id, the round.
            timeout: Seconds; also the messages' time to live.
            take: Called with node id and content of each reply.

        Returns:
            Node id to reason, for the nodes that gave no reply.
        """
        deadline = time.monotonic() + timeout
        local = self.grid if isinstance(self.grid, LocalGrid) else None
        waiting: dict[str, int] = {}
        missing: dict[int, str] = {}
        left = deque(local.arrange(nodes) if local else nodes)
        size, lost = 1, Lost()
        while left or waiting:
            if left:
                wave = list(self._wave(left, compose, group, timeout, size))
                size = min(2 * size, WAVE)  # one message first, so that a client can start while the next are composed
                sent = [message.metadata.dst_node_id for message in wave]
                for node, name in zip(sent, self.grid.push_messages(wave), strict=True):
                    if name:
                        waiting[name] = node
                    else:
                        missing[node] = "not accepted by the SuperLink"
                del wave
            found = self._collect(waiting, lost, missing, take)
            left.extend(lost.again())
            if waiting and not left and time.monotonic() > deadline:
                missing |= dict.fromkeys(waiting.values(), f"no reply within {timeout:g} s")
                self._stale |= waiting
                break
            if waiting and not left and not found:
                local.wait(self.poll) if local else time.sleep(self.poll)
        return missing

    def _wave(self, left: deque[int], compose: Compose, group: str, timeout: float, most: int) -> Iterator[Message]:
        """Compose the next messages: at most ``most``, fewer if they reach ``WAVE_BYTES``."""
        size, count = 0, 0
        while left and count < most and size < WAVE_BYTES:
            node = left.popleft()
            kind, records = compose(node)
            about: dict[str, Any] = {"message_type": MESSAGE_TYPES[kind], "ttl": timeout, "group_id": group}
            yield Message(records, dst_node_id=node, **about)
            size += sum(len(array.data) for record in records.array_records.values() for array in record.values())
            count += 1

    def _collect(self, waiting: dict[str, int], lost: Lost, missing: dict[int, str], take: Take) -> int:
        """Process the replies that have arrived and return their number."""
        found = 0
        names = [*waiting, *self._stale]
        most = WAVE if isinstance(self.grid, LocalGrid) else 1  # a few at a time, so that memory stays bounded
        for begin in range(0, len(names), most):
            batch = names[begin : begin + most]
            try:
                replies = list(self.grid.pull_messages(batch))
            except Exception as error:  # Flower decodes replies here, so a malformed one can raise any exception
                reason = one_line(f"a reply that cannot be read: {type(error).__name__}: {error}", 300)
                log.warning("%s", reason)
                for name in batch:
                    self._stale.pop(name, None)
                    if (node := waiting.pop(name, None)) is not None and not lost.note(node):
                        missing[node] = reason
                continue
            for reply in replies:
                self._sort(reply, waiting, missing, take)
            found += len(replies)
        return found

    def _sort(self, reply: Message, waiting: dict[str, int], missing: dict[int, str], take: Take) -> None:
        name = reply.metadata.reply_to_message_id
        node = waiting.pop(name, None)
        if node is None:
            asker = self._stale.pop(name, None)
            if asker is not None and not reply.has_error():
                self.late += 1
                self._late.append((asker, reply.content))
        elif reply.has_error():
            missing[node] = one_line(f"error {reply.error.code}: {reply.error.reason}", 300)
        else:
            take(node, reply.content)
