"""Nodes are asked who they are in the background.

Anybody who reaches the port may register nodes that never answer, so no round waits for an unknown node: questions are
posted (:meth:`sepal.server.exchange.Exchange.post`), and answers are taken when they have come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from flwr.app import RecordDict

from sepal.errors import SepalError
from sepal.protocol.messages import Content, Order, Reply, write_order
from sepal.protocol.types import Kind
from sepal.server.exchange import Exchange
from sepal.server.roster import PendingQuery


@dataclass
class Questions:
    """Questions to nodes, and their answers until somebody takes them.

    Attributes:
        exchange: Sends the questions.
        query: Returns the order that asks a node who it is.
        read: Returns a node's answer from the content of its reply to an order.
        silent: Node id to the reason why a question has no answer, until the node answers: whoever looks while it is
            asked again must see the reason, too.
    """

    exchange: Exchange
    query: Callable[[], tuple[Order, str]]
    read: Callable[[int, Order, RecordDict], Reply | SepalError]
    silent: dict[int, str] = field(default_factory=dict)
    _question_times: dict[int, float] = field(default_factory=dict)  # node id to seconds of the monotonic clock
    _answers: dict[int, Reply | SepalError] = field(default_factory=dict)
    _ahead: set[int] = field(default_factory=set)
    _next_look: float = 0.0

    def send_ahead(self, nodes: Sequence[int], ttl: float) -> None:
        """Ask ``nodes``. :meth:`ask` asks those again that have not answered by then: a question may be lost."""
        self._ahead.update(nodes)
        self._send(nodes, ttl)

    def _send(self, nodes: Sequence[int], ttl: float) -> None:
        """Ask those of ``nodes`` that have no open question and no answer that waits to be taken."""
        fresh = [node for node in nodes if node not in self._question_times and node not in self._answers]
        if not fresh:
            return
        order, group = self.query()

        def take(node: int, content: RecordDict) -> None:
            if self._question_times.pop(node, None) is not None:
                self.silent.pop(node, None)
                self._answers[node] = self.read(node, order, content)

        def fail(node: int, reason: str) -> None:
            self._question_times.pop(node, None)
            self.silent[node] = reason

        self._question_times |= dict.fromkeys(fresh, time.monotonic())
        self.exchange.post(fresh, Kind.QUERY, write_order(order, Content()), group, ttl, take, fail)
        self._next_look = 0.0

    def ask(self, nodes: Sequence[int], timeout: float) -> dict[int, Reply | SepalError | PendingQuery]:
        """Ask ``nodes`` and return what they have answered by now, each answer once.

        Args:
            nodes: Node ids.
            timeout: Seconds for which a node may answer.

        Returns:
            Node id to its answer, or since when it is waited for. Nodes that gave no answer in time are left out.
        """
        self._look()
        for node in self._ahead.intersection(nodes):
            self._ahead.remove(node)
            self._question_times.pop(node, None)
        self._send(nodes, timeout)
        self._look()
        answers: dict[int, Reply | SepalError | PendingQuery] = {}
        now = time.monotonic()
        for node in nodes:
            if node in self._answers:
                answers[node] = self._answers.pop(node)
            elif node in self._question_times and now - self._question_times[node] < timeout:
                answers[node] = PendingQuery(self._question_times[node])
            elif self._question_times.pop(node, None) is not None:
                self.silent[node] = f"no reply within {timeout:g} s"
        return answers

    def forget(self, online: Collection[int]) -> None:
        """Forget the nodes that are gone."""
        online_nodes = set(online)
        for entries in (self.silent, self._question_times, self._answers):
            for node in entries.keys() - online_nodes:
                del entries[node]
        self._ahead &= online_nodes

    def _look(self) -> None:
        """Take the answers that have arrived, and leave the SuperLink alone for at least as long as that took."""
        if self._question_times and time.monotonic() >= self._next_look:
            in_vain = self.exchange.look()
            self._next_look = time.monotonic() + max(self.exchange.poll, in_vain)
