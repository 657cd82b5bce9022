"""``roster = "drawn"``: a round's clients are drawn from the registered nodes, and asked who they are when first drawn.

With other rosters every node is asked before round 1, which takes minutes for a thousand clients. Clients are drawn by
name there, so a deployment draws the same ones as a run in process. A name is not known before its node has been asked,
so here nodes are drawn, by their ids. Those are random: two runs with the same seed draw different clients. A resumed
run replays its records, which name the clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import RecordDict

from sepal.config import RunConfig
from sepal.errors import RosterError, RoundError, SepalError
from sepal.protocol.messages import Content, Order, Reply, write_order
from sepal.protocol.method import Kind
from sepal.rng import derive
from sepal.server.exchange import Compose, Take
from sepal.server.roster import Ask, Connections
from sepal.server.round import Deliver
from sepal.server.sampling import spare

log = logging.getLogger("sepal")


def await_nodes(online: Callable[[], Sequence[int]], needed: int, timeout: float) -> None:
    """Wait until ``needed`` nodes have registered; nobody is asked anything.

    Raises:
        RosterError: Fewer have after ``timeout`` seconds.
    """
    start, said = time.monotonic(), -5.0
    while (present := len(online())) < needed:
        now = time.monotonic() - start
        if now > timeout:
            raise RosterError("clients", f"{needed} registered within {timeout:g} s (clients-per-round)", present)
        if now - said >= 5:
            said = now
            log.info("waiting for clients: %d of %d have registered", present, needed)
        time.sleep(0.1)


@dataclass(frozen=True)
class Draw:
    """How a round's clients are drawn.

    Attributes:
        seed: The run's seed.
        count: How many clients are asked to train, the spare ones included.
        least: How many there must be.
        timeout: Seconds to wait for them.
        pause: Seconds before the nodes are looked at again.
    """

    seed: int
    count: int
    least: int
    timeout: float
    pause: float

    @classmethod
    def of(cls, config: RunConfig, pause: float) -> Draw:
        """Return how the rounds of a run draw; rounds that ask again need all of ``clients-per-round``."""
        wanted = config.clients_per_round
        least = wanted if config.on_missing == "retry" else config.min_replies
        return cls(config.seed, wanted + spare(config), least, config.timeout, pause)

    def clients(
        self, connections: Connections, online: Callable[[], Sequence[int]], ask: Ask, round: int
    ) -> tuple[list[str], list[SepalError]]:
        """Return the clients' names in the order in which they were drawn, and why nodes were refused.

        Args:
            connections: Updated in place.
            online: Returns the ids of the registered nodes.
            ask: Queries nodes.
            round: The round.

        Raises:
            RoundError: There are too few.
        """
        begun, refusals = time.monotonic(), list[SepalError]()
        while True:
            names = self._once(connections, online(), ask, round, refusals)
            if len(names) >= self.least:
                return names, refusals
            if time.monotonic() - begun > self.timeout:
                raise RoundError(f"round {round}", f"{self.least} clients within {self.timeout:g} s", len(names))
            time.sleep(self.pause)

    def order(self, online: Sequence[int], round: int) -> list[int]:
        """Return the nodes in the order in which ``round`` draws them."""
        nodes = sorted(online)
        return [nodes[number] for number in derive(self.seed, "draw", round).permutation(len(nodes))]

    def _once(
        self, connections: Connections, online: Sequence[int], ask: Ask, round: int, refusals: list[SepalError]
    ) -> list[str]:
        """Draw nodes uniformly, ask those that are new together, and draw on for those that cannot take part."""
        left = self.order(online, round)
        drawn: list[str] = []
        while left and len(drawn) < self.count:
            missing = self.count - len(drawn)
            some, left = left[:missing], left[missing:]
            refusals += connections.refresh(online, ask, some)
            names = {node: name for name, node in connections.nodes.items()}
            drawn += [names[node] for node in some if node in names]
        return drawn


@dataclass
class Ahead:
    """Nodes that the next round will draw and that were never asked: they are asked while this round trains.

    Otherwise each round would first wait until its new clients have looked for messages.

    Attributes:
        read: Returns a node's answer from the content of its reply to an order.
        asked: Node id to the order that it has not answered yet.
        answers: Node id to its answer.
    """

    read: Callable[[int, Order, RecordDict], Reply | SepalError]
    asked: dict[int, Order] = field(default_factory=dict)
    answers: dict[int, Reply | SepalError] = field(default_factory=dict)

    def note(self, node: int, content: RecordDict) -> bool:
        """Keep a node's answer; return whether it was asked."""
        order = self.asked.pop(node, None)
        if order is not None:
            self.answers[node] = self.read(node, order, content)
        return order is not None

    def take(self, nodes: Sequence[int]) -> dict[int, Reply | SepalError]:
        """Return the answers that ``nodes`` have given, once. The others are asked again, and no answer is awaited."""
        for node in nodes:
            self.asked.pop(node, None)
        return {node: self.answers.pop(node) for node in nodes if node in self.answers}

    def beside(self, deliver: Deliver, nodes: Sequence[int], order: Order) -> Deliver:
        """Return a ``deliver`` that also asks ``nodes`` who they are."""
        records = write_order(order, Content())

        def both(others: Sequence[int], compose: Compose, take: Take) -> Mapping[int, str]:
            self.asked |= dict.fromkeys(nodes, order)
            missing = deliver(
                [*nodes, *others],  # questions are small
                lambda node: (Kind.QUERY, records) if node in nodes else compose(node),
                lambda node, content: None if self.note(node, content) else take(node, content),
            )
            return {node: reason for node, reason in missing.items() if node not in nodes}

        return both


def newly(online: Sequence[int], before: Collection[int]) -> list[int]:
    """Return the nodes that have registered since ``before``: among them may be a client that was restarted."""
    return sorted(set(online) - set(before))
