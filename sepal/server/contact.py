"""The server's contact with the nodes of a grid: it asks who they are, and delivers a round's messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flwr.app import RecordDict
from flwr.serverapp import Grid

from sepal.errors import SepalError
from sepal.flower.replies import bound_replies
from sepal.protocol.client_errors import AWAY
from sepal.protocol.messages import Content, Enclosed, Order, Reply, error_word, read_reply, sender_of, write_order
from sepal.protocol.peer import Peer, ourselves
from sepal.protocol.types import Kind, Plan
from sepal.server.answers import check_answer, keys_of
from sepal.server.downloads import largest_reply, most_message_bytes
from sepal.server.drawing import POLL, Draw, newly
from sepal.server.exchange import Compose, Exchange, LocalGrid, Take
from sepal.server.ledger import check_size, message_bytes
from sepal.server.questions import Questions
from sepal.server.roster import PATIENCE, PEER, AwayError, Connections, PendingQuery
from sepal.server.run import ServerRun

log = logging.getLogger("sepal")


class Contact:
    """Asks the nodes of ``grid`` who they are, and sends them messages of ``run``.

    Args:
        grid: Any Flower Grid.
        run: Says which round it is, and who was evicted.
        connections: Which node answers for which client; updated in place.
        pause: Seconds before a draw that found too few clients is repeated.
    """

    def __init__(self, grid: Grid, run: ServerRun, connections: Connections, pause: float) -> None:
        self._grid, self._run, self.connections, self._pause = grid, run, connections, pause
        self.local = isinstance(grid, LocalGrid)
        self._exchange = Exchange(grid)
        self._protocols: dict[int, int] = {}  # node to the number in its last answer
        self._questions = Questions(self._exchange, self._query, self._read_answer, connections.silent)
        connections.tell = self._tell
        if not self.local:
            from sepal.flower.nodes import names  # imports Flower's database: a second

            connections.bound = partial(names, grid)
            bound_replies(largest_reply(run.setup))

    @property
    def draws(self) -> bool:
        """Whether clients are asked who they are when they are first drawn. In process, asking costs nothing."""
        return self._run.config.roster == "drawn" and not self.local

    def online(self) -> list[int]:
        """Return the ids of the registered nodes."""
        return list(self._grid.get_node_ids())

    def note_evicted(self) -> frozenset[str]:
        """Return the clients that were evicted, and refuse them from now on."""
        self.connections.evicted = self._run.store.evicted() | set(self._run.state.evicted)
        return self.connections.evicted

    def refresh(self, before: Sequence[int] | None = None) -> None:
        """Ask the nodes that are not known yet; with ``before``, only those that have come since.

        Nobody is waited for: who answers later is there in a later refresh. In process, all answer at once.
        """
        self.note_evicted()
        online = self.online()
        self._questions.forget(online)
        _warn(self.connections.refresh(online, self.ask, None if before is None else newly(online, before)))

    def look_for(self, names: Collection[str]) -> None:
        """Ask all nodes until the clients ``names`` are there, nobody is left to answer, or ``PATIENCE`` is over.

        After a restart of the server, which knows its clients by names that none of the nodes has told it yet.
        """
        begun = time.monotonic()
        self.refresh()
        while set(names) - self.connections.nodes.keys() and self.connections.pending:
            if time.monotonic() - begun > min(PATIENCE, self._run.config.timeout):
                break
            time.sleep(POLL)
            _warn(self.connections.refresh(self.online(), self.ask, again=True))

    def ask(self, nodes: Sequence[int], timeout: float = PATIENCE) -> Mapping[int, Reply | SepalError | PendingQuery]:
        """Query nodes for the roster (:class:`sepal.server.roster.Ask`)."""
        limit = min(timeout, self._run.config.timeout)
        if not self.local:
            return self._questions.ask(nodes, limit)
        replies: dict[int, Reply | SepalError] = {}
        order, _ = self._query()
        records = Enclosed(order, Content())

        def take(node: int, content: RecordDict) -> None:
            replies[node] = self._read_answer(node, order, content)

        silent = self.deliver(limit, nodes, lambda node: (Kind.QUERY, records), take)
        others = {node: reason for node, reason in self.connections.silent.items() if node not in nodes}
        self.connections.silent = {**others, **silent}
        return replies

    def ask_ahead(self, online: Sequence[int]) -> None:
        """Ask the nodes that the next round will probably draw, while this one trains.

        Otherwise each round would first wait until its new clients have looked for messages.
        """
        number = self._run.state.round + 2
        if self._run.samples(number):
            how = Draw.of(self._run.config, self._pause)
            upcoming = how.order(online, number)[: how.count]
            unknown = [node for node in upcoming if node not in self.connections.names]
            self._questions.send_ahead(unknown, min(PATIENCE, self._run.config.timeout))

    def _query(self) -> tuple[Order, str]:
        return Order(self._run.state.run, Kind.QUERY, Plan(self._run.state.round)), self._group

    def _read_answer(self, node: int, order: Order, content: RecordDict) -> Reply | SepalError:
        try:
            check_size(message_bytes(content), most_message_bytes(self._run.setup))
            reply = read_reply(content, keys_of(self._run.setup))[0]
            check_answer(order, reply)
            return self._noted(node, reply, sender_of(content))
        except SepalError as reason:  # the name in a reported error is the node's own choice
            key = f"node {node}: {reason.key}" if "error" in content else reason.key
            kind = AwayError if error_word(content) in AWAY else type(reason)
            return kind(key, reason.expected, reason.got)

    def _noted(self, node: int, reply: Reply, sender: Peer) -> Reply:
        """Return an answer with the number of its sender's protocol, and log a client of another release."""
        before = self._protocols.get(node)  # a node that was away is asked again
        if sender != ourselves() if before is None else sender.protocol != before:
            log.info("%s has %s, this server %s", reply.client.name, sender, ourselves())
        self._protocols[node] = sender.protocol
        return replace(reply, facts={**reply.facts, PEER: str(sender.protocol)})

    def _tell(self, node: int, reason: str) -> None:
        """Tell a node why it was refused, in a query that it need not answer. It appears in the node's log."""
        records = write_order(Order(self._run.state.run, Kind.QUERY, Plan(0, reason[:256])), Content())
        self._exchange.notify(node, Kind.QUERY, records, self._group, PATIENCE)

    @property
    def _group(self) -> str:
        return str(self._run.state.round + 1)

    def deliver(
        self,
        timeout: float,
        nodes: Sequence[int],
        compose: Compose,
        take: Take,
        enough: Callable[[], bool] = lambda: False,
    ) -> dict[int, str]:
        """Send a message to each node and pass on the replies (:meth:`sepal.server.exchange.Exchange.deliver`)."""

        def noted(node: int, records: RecordDict) -> None:
            self._note_protocol(node, sender_of(records))
            take(node, records)

        return self._exchange.deliver(nodes, compose, self._group, timeout, noted, enough)

    def _note_protocol(self, node: int, sender: Peer) -> None:
        """Log a client of another protocol than before: with a key, an upgraded one comes back as the same node."""
        if sender.protocol and sender.protocol != self._protocols.setdefault(node, sender.protocol):
            self._protocols[node] = sender.protocol
            name = self.connections.names.get(node, f"node {node}")
            log.info("%s has %s, this server %s", name, sender, ourselves())

    def latecomers(self) -> Iterator[tuple[str, RecordDict]]:
        """Yield the replies that came too late since the last call, with the name of the client or node."""
        for node, late in self._exchange.latecomers():
            yield self.connections.names.get(node, f"node {node}"), late

    def draw(self) -> list[str]:
        """Draw the round's clients from the nodes, the spare ones last; nobody if the round draws nobody."""
        self.note_evicted()
        number = self._run.state.round + 1
        if not self._run.samples(number):
            return []
        how = Draw.of(self._run.config, self._pause)
        names, refusals = how.clients(self.connections, self.online, self.ask, number)
        _warn(refusals)
        fresh = len(set(names) - self._run.state.roster.keys())
        log.info("round %d: %d clients drawn, %d for the first time", number, len(names), fresh)
        return names


def _warn(refusals: Sequence[SepalError]) -> None:
    for refusal in refusals:
        log.warning("refused: %s", refusal)
