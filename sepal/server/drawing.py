"""``roster = "drawn"``: a round's clients are drawn from the registered nodes, and asked who they are when first drawn.

With other rosters every node is asked before round 1, which takes minutes for a thousand clients. Clients are drawn by
name there, so a deployment draws the same ones as a run in process. A name is not known before its node has been asked,
so here nodes are drawn, by their ids. Those are random: two runs with the same seed draw different clients. A resumed
run replays its records, which name the clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sepal.config import RunConfig
from sepal.errors import RosterError, RoundError, SepalError
from sepal.rng import derive
from sepal.server.roster import Ask, Connections
from sepal.server.sampling import spare

log = logging.getLogger("sepal")

STEP = 10.0  # seconds that a draw waits for a new node before it draws another one in its place; a sixth of timeout
POLL = 0.1  # seconds between two looks for answers


def await_nodes(
    online: Callable[[], Sequence[int]],
    needed: int,
    timeout: float,
    key: str = "clients-per-round",
    log: logging.Logger = log,
) -> None:
    """Wait until ``needed`` nodes have registered; nobody is asked anything.

    Args:
        online: Returns the ids of the registered nodes.
        needed: Their number.
        timeout: Seconds before giving up.
        key: What sets the number.
        log: Gets a line every five seconds.

    Raises:
        RosterError: Fewer have after ``timeout`` seconds.
    """
    start, logged_at = time.monotonic(), -5.0
    while (present := len(online())) < needed:
        now = time.monotonic() - start
        if now > timeout:
            raise RosterError("clients", f"{needed} registered within {timeout:g} s ({key})", present)
        if now - logged_at >= 5:
            logged_at = now
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
        per_round = config.clients_per_round
        least = per_round if config.on_missing == "retry" else config.min_replies
        return cls(config.seed, per_round + spare(config), least, config.timeout, pause)

    def clients(
        self, connections: Connections, online: Callable[[], Sequence[int]], ask: Ask, round: int
    ) -> tuple[list[str], list[SepalError]]:
        """Draw nodes uniformly, ask those that are new together, and draw on for those that cannot take part.

        A new node that has not answered after a while is replaced, too: it may be anybody's and never answer.
        It takes part in a later round that draws it. As many more are asked each time as were asked in vain, so that
        few seconds pass until those that do answer are found among many that do not.

        Args:
            connections: Updated in place.
            online: Returns the ids of the registered nodes.
            ask: Queries nodes.
            round: The round.

        Returns:
            The clients' names in the order in which they were drawn, and why nodes were refused.

        Raises:
            RoundError: There are too few.
        """
        begun, refusals, order = time.monotonic(), list[SepalError](), list[int]()
        reach, again, step = self.count, False, min(STEP, self.timeout / 6)
        while True:
            online_nodes = online()
            before = set(order)
            order += [node for node in self.order(online_nodes, round) if node not in before]
            refusals += connections.refresh(online_nodes, ask, order[:reach], again)
            names = {node: name for name, node in connections.nodes.items()}
            drawn = [names[node] for node in order[:reach] if node in names][: self.count]
            awaited = connections.awaited(order[:reach], step)
            again = awaited > 0
            short = self.count - len(drawn) - awaited
            if short > 0 and reach < len(order):
                reach += max(short, connections.overdue(order[:reach], step))
                again = True
                continue
            if len(drawn) == self.count or (len(drawn) >= self.least and not awaited):
                return drawn, refusals
            if time.monotonic() - begun > self.timeout:
                raise RoundError(f"round {round}", f"{self.least} clients within {self.timeout:g} s", len(drawn))
            time.sleep(POLL if connections.pending else self.pause)

    def order(self, online: Sequence[int], round: int) -> list[int]:
        """Return the nodes in the order in which ``round`` draws them."""
        nodes = sorted(online)
        return [nodes[number] for number in derive(self.seed, "draw", round).permutation(len(nodes))]


def newly(online: Sequence[int], before: Collection[int]) -> list[int]:
    """Return the nodes that have registered since ``before``: among them may be a client that was restarted."""
    return sorted(set(online) - set(before))
