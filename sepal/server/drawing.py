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

from sepal.errors import RosterError, RoundError, SepalError
from sepal.rng import derive
from sepal.server.roster import Ask, Connections

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

    def _once(
        self, connections: Connections, online: Sequence[int], ask: Ask, round: int, refusals: list[SepalError]
    ) -> list[str]:
        """Draw nodes uniformly, ask those that are new together, and draw on for those that cannot take part."""
        nodes = sorted(online)
        left = [nodes[number] for number in derive(self.seed, "draw", round).permutation(len(nodes))]
        drawn: list[str] = []
        while left and len(drawn) < self.count:
            missing = self.count - len(drawn)
            some, left = left[:missing], left[missing:]
            refusals += connections.refresh(online, ask, some)
            names = {node: name for name, node in connections.nodes.items()}
            drawn += [names[node] for node in some if node in names]
        return drawn


def newly(online: Sequence[int], before: Collection[int]) -> list[int]:
    """Return the nodes that have registered since ``before``: among them may be a client that was restarted."""
    return sorted(set(online) - set(before))
