"""A Flower Grid whose nodes are functions in this process: no SuperLink, no sockets, no Ray.

It behaves like a deployed grid: messages get ids, replies are matched by ``reply_to_message_id``, and an exception in a
client becomes an error reply.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from sepal.flower.replies import CLIENT_APP_RAISED, enter_run, set_message_id
from sepal.user_modules import described, in_own_code

log = logging.getLogger("sepal")

_logged: set[str] = set()  # what has been logged: many clients fail alike, and each is asked several times
Handle: TypeAlias = Callable[[Message], Message]


class Runner(Protocol):
    """Answers messages in other processes, in parallel to the server."""

    def arrange(self, nodes: Sequence[int]) -> list[int]:
        """Assign ``nodes`` to processes and return them in the order in which messages should be sent."""
        ...

    def submit(self, node: int, message: Message) -> None:
        """Queue a message; return when there is room for another one."""
        ...

    def replies(self, seconds: float = 0.0) -> list[Message]:
        """Return the replies that have arrived; wait up to ``seconds`` for the first one."""
        ...


class Batches:
    """A :class:`Runner` in this process: gathers messages and has them answered together.

    Args:
        answer_all: Returns the replies to messages of different clients, given with the clients' numbers.
        most: Number of messages answered together.
    """

    def __init__(self, answer_all: Callable[[Sequence[tuple[int, Message]]], list[Message]], most: int) -> None:
        self._answer_all, self._most = answer_all, most
        self._queue: deque[tuple[int, Message]] = deque()
        self._replies: list[Message] = []

    def arrange(self, nodes: Sequence[int]) -> list[int]:
        """Return ``nodes`` as they are."""
        return list(nodes)

    def submit(self, node: int, message: Message) -> None:
        """Queue a message; have them answered when there are enough."""
        self._queue.append((node - 1, message))
        if len(self._queue) == self._most:
            self._answer()

    def replies(self, seconds: float = 0.0) -> list[Message]:
        """Return the replies; if there is time to wait, no message follows, and those that are queued are answered."""
        if seconds:
            self._answer()
        replies, self._replies = self._replies, []
        return replies

    def _answer(self) -> None:
        while self._queue:
            self._replies += self._answer_all(first_batch(self._queue, self._most))


def first_batch(queue: deque[tuple[int, Message]], most: int) -> list[tuple[int, Message]]:
    """Take the first messages from ``queue``, at most ``most`` and one of each client."""
    batch: dict[int, Message] = {}
    while queue and len(batch) < most and queue[0][0] not in batch:
        number, message = queue.popleft()
        batch[number] = message
    return list(batch.items())


class InProcessGrid(Grid):
    """Grid over ``nodes``.

    Args:
        nodes: Node id to the function that answers its messages.
        runner: Answers messages in other processes; None to answer them in this process, one after another.
    """

    def __init__(self, nodes: Mapping[int, Handle], runner: Runner | None = None) -> None:
        enter_run()
        _logged.clear()  # a new run
        self._nodes, self._runner = dict(nodes), runner
        self._replies: dict[str, Message] = {}
        self._count = 0

    def arrange(self, nodes: Sequence[int]) -> list[int]:
        """Return ``nodes`` in the order in which messages should be sent."""
        return self._runner.arrange(nodes) if self._runner else list(nodes)

    def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a reply."""
        if self._runner:
            self._take(self._runner.replies(seconds))

    def set_run(self, run: object) -> None:
        """Do nothing: there is only one run."""

    @property
    def run(self) -> object:  # type: ignore[override]
        """None, because an in-process run has no record in a SuperLink."""
        return None

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message. Deprecated in Flower, but abstract in Grid."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let the messages be answered; replies are kept for :meth:`pull_messages`."""
        names = []
        for message in messages:
            self._count += 1
            set_message_id(message, f"m{self._count}")
            names.append(message.metadata.message_id)
            if self._runner:
                self._runner.submit(message.metadata.dst_node_id, message)
            else:
                self._take([self.answer(message)])
        return names

    def answer(self, message: Message) -> Message:
        """Return the reply of the message's node."""
        return answer(self._nodes[message.metadata.dst_node_id], message)

    def _take(self, replies: Iterable[Message]) -> None:
        self._replies |= {reply.metadata.reply_to_message_id: reply for reply in replies}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, each once."""
        if self._runner:
            self._take(self._runner.replies())
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages and pull their replies."""
        return self.pull_messages(self.push_messages(messages))


def answer(handle: Handle, message: Message) -> Message:
    """Return ``handle``'s reply; an exception becomes an error reply, as in a SuperNode.

    An exception of the user's own code is reported in one line when the round fails; any other is logged with its
    traceback, once in a process.
    """
    try:
        return handle(message)
    except Exception as reason:
        words = described(reason)
        if not in_own_code(reason) and words not in _logged:
            _logged.add(words)
            log.exception("client of node %d raised", message.metadata.dst_node_id)
        return Message(Error(CLIENT_APP_RAISED, words), reply_to=message)
