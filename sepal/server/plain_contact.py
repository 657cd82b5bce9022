"""What MethodStrategy knows of the nodes of a grid: who they are, what they were sent, why replies do not count."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from sepal.errors import RosterError, SepalError, printable
from sepal.protocol.messages import CAUSE, INITIAL, KEYS, SIZES, Content, Order, Reply, read_reply, write_order
from sepal.protocol.types import Kind, Plan, Scalar
from sepal.server.answers import check_answer
from sepal.server.roster import PATIENCE, Connections, PendingQuery

log = logging.getLogger("flwr")  # where Flower's users look
MOST_WORDS = 20_000  # characters, at most, of a client's cause that are logged: the end, where the error is


@dataclass
class PlainContact:
    """The nodes of a run.

    Attributes:
        arrays: W_0, which a client gets with the first question.
        keys: The keys that it gets with them.
        timeout: Seconds to wait for an answer.
        connections: Which node answers for which client.
        size: Shape of an example, as ``1x28x28``, and number of the model's outputs, as all clients say; None before.
    """

    arrays: ArrayRecord
    keys: Mapping[str, Scalar]
    timeout: float
    connections: Connections = field(default_factory=Connections)
    size: tuple[str, int] | None = None
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _sent: list[Message] = field(default_factory=list)
    _causes: set[bytes] = field(default_factory=set)

    def connected(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that are connected."""
        return [name for name in names if name in self.connections.nodes]

    def meet(self, grid: Grid, patience: float = PATIENCE) -> list[SepalError]:
        """Ask the nodes that are not known yet who they are; return and log why some are refused.

        Args:
            grid: The nodes.
            patience: Seconds that all of them together may take, at most ``timeout``; whoever is silent is asked again
                in a later round.
        """
        ask = lambda nodes, timeout=PATIENCE: self._ask(grid, nodes, min(patience, self.timeout))  # noqa: E731
        refusals = self.connections.refresh(list(grid.get_node_ids()), ask)
        for refusal in refusals:
            self.tell("refused", str(refusal))
        return refusals

    def _ask(self, grid: Grid, nodes: Sequence[int], timeout: float) -> Mapping[int, Reply | SepalError | PendingQuery]:
        order = Order(self._id, Kind.QUERY, Plan(0))
        messages = []
        for node in nodes:
            records = write_order(order, Content())
            if node not in self.connections.names:  # one that was away would begin anew, and forget what it has
                records[INITIAL], records[KEYS] = self.arrays, ConfigRecord(dict(self.keys))
            messages.append((node, MessageType.QUERY, records))
        answers: dict[int, Reply | SepalError | PendingQuery] = {}
        for message in grid.send_and_receive(self.messages(messages, 0), timeout=timeout):
            node = self._node(message)
            if reason := self.failure(f"node {node}", message):
                answers[node] = RosterError(f"node {node}", "an answer", reason)
                continue
            try:
                reply = read_reply(message.content)[0]
                check_answer(order, reply)
                answers[node] = reply
            except SepalError as error:  # the name in a reported error is the node's own choice
                key = f"node {node}: {error.key}" if "error" in message.content else error.key
                answers[node] = type(error)(key, error.expected, error.got)
        return self._of_one_size(answers)

    def _of_one_size(
        self, answers: Mapping[int, Reply | SepalError | PendingQuery]
    ) -> Mapping[int, Reply | SepalError | PendingQuery]:
        """Return the answers, with an error in place of each whose examples have another size than those of the others.

        The first answers agree on it by their number, so that a single client keeps no others out.
        """
        sizes = {node: _size(reply) for node, reply in answers.items() if isinstance(reply, Reply)}
        if self.size is None and sizes:
            self.size = Counter(sizes.values()).most_common(1)[0][0]
        checked = dict(answers)
        for node, (shape, outputs) in sizes.items():
            reply = answers[node]
            if (shape, outputs) != self.size and self.size and isinstance(reply, Reply):
                expected = "examples of shape {} and a model with {} outputs, as other clients have".format(*self.size)
                got = f"shape {shape}, {outputs} outputs"
                checked[node] = RosterError(f"{reply.client.name}: data", expected, got)
        return checked

    def messages(self, contents: Sequence[tuple[int, str, RecordDict]], server_round: int) -> list[Message]:
        """Return messages, of node id, type and content each, and remember to which nodes they go."""
        group = str(server_round)
        self._sent = [Message(r, dst_node_id=node, message_type=kind, group_id=group) for node, kind, r in contents]
        return self._sent

    def _node(self, reply: Message) -> int:
        """Return the node that was asked: an error reply can have the SuperLink as its source."""
        nodes_by_message = {message.metadata.message_id: message.metadata.dst_node_id for message in self._sent}
        return nodes_by_message.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def named(self, replies: Sequence[Message]) -> Iterator[tuple[str, Message]]:
        """Yield each reply with the name of the client that was asked."""
        for reply in replies:
            node = self._node(reply)
            if name := self.connections.names.get(node):
                yield name, reply
            else:
                self.tell(f"node {node}", "a reply of a node that was not asked")

    def failure(self, name: str, reply: Message) -> str:
        """Log the full cause if a reply reports an error; return why a reply has no content, or nothing."""
        if reply.has_error():
            reason = f"error {reply.error.code}: {reply.error.reason}"
            self.tell(name, reason)
            return reason
        if "error" in reply.content:
            cause = reply.content.get(CAUSE)
            self.tell(name, str(cause["text"]) if isinstance(cause, ConfigRecord) and "text" in cause else "an error")
        return ""

    def tell(self, name: str, cause: str) -> None:
        """Log why a client's reply does not count, each cause once.

        Lines after the first begin with ``|``, so that a client writes none that look like another's or the run's.
        """
        words, digest = cause[-MOST_WORDS:], hashlib.sha256(cause.encode(errors="replace")).digest()
        if digest not in self._causes:
            self._causes.add(digest)
            log.error("%s: %s", name, "\n  | ".join(map(printable, words.split("\n"))))


def _size(reply: Reply) -> tuple[str, int]:
    """Return what a client says of its examples' shape and of its model's number of outputs; 0 for what is none."""
    shape, outputs = (reply.facts.get(key, "") for key in SIZES)
    return shape, int(outputs) if outputs.isdecimal() and len(outputs) < 10 else 0
