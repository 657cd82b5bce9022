"""The roster: which clients take part, by names that outlive their Flower node ids.

Flower hands out node ids; a client that restarts without a node key comes back under a new one, and the old one is
listed for a while. So node ids are asked anew every round and mapped to names, and a name is told apart from a second
client of that name by the identity of its state store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sepal.errors import RosterError
from sepal.messages import Reply
from sepal.method import ClientInfo
from sepal.rng import derive

log = logging.getLogger("sepal")

Ask = Callable[[Sequence[int]], Mapping[int, Reply]]


@dataclass
class Connections:
    """Which node answers for which client, now. Not part of the run's state: asked anew every round.

    Attributes:
        nodes: Node id by client name.
        stores: Identity of the client's state store by name, pinned at first sight.
        infos: Roster entry by name.
        weights: Digest of W_0 that each client reports.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    infos: dict[str, ClientInfo] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    _refused: dict[int, str] = field(default_factory=dict)

    def refresh(self, online: Sequence[int], ask: Ask) -> list[str]:
        """Query the nodes not yet known, and return what was refused, a line each."""
        known = set(self.nodes.values())
        self.nodes = {name: node for name, node in self.nodes.items() if node in set(online)}
        fresh = [node for node in online if node not in known and node not in self._refused]
        refusals = []
        for node, reply in sorted(ask(fresh).items(), key=lambda item: item[1].client.name) if fresh else []:
            name, store = reply.client.name, reply.facts.get("store", "")
            if self.stores.setdefault(name, store) != store:
                self._refused[node] = name
                refusals.append(f"client {name}: expected one client of that name, got a second one (node {node})")
                continue
            self.nodes[name], self.infos[name] = node, reply.client
            self.weights[name] = reply.facts.get("weights", "")
        return refusals


def wait(
    connections: Connections,
    online: Callable[[], Sequence[int]],
    ask: Ask,
    needed: Sequence[str] | int,
    timeout: float,
    settle: float = 3.0,
) -> None:
    """Wait until the clients that the run needs are registered and have answered.

    Args:
        connections: Filled in place.
        online: Gives the node ids that are registered now.
        ask: Queries nodes.
        needed: Names (a resumed run), a number of clients, or 0 for all that are registered: then the number must
            stay the same for ``settle`` seconds.
        timeout: Seconds.
        settle: Seconds.

    Raises:
        RosterError: Too few at the timeout, too many, or two under one name.
    """
    start, said, since, before = time.monotonic(), 0.0, time.monotonic(), -1
    while True:
        refusals = connections.refresh(list(online()), ask)
        if refusals:
            raise RosterError("clients", "one client of each name", "; ".join(refusals))
        present, now = len(connections.nodes), time.monotonic()
        if present != before:
            before, since = present, now
        if isinstance(needed, int):
            if needed and present > needed:
                raise RosterError("clients", f"exactly {needed}", f"{present}: {', '.join(sorted(connections.nodes))}")
            if (needed and present == needed) or (not needed and present and now - since >= settle):
                return
            wanted = f"{needed}" if needed else "all"
            hint = f" (Flower's simulation: --federation-config 'num-supernodes={needed}')" if needed else ""
        else:
            absent = sorted(set(needed) - set(connections.nodes))
            if not absent:
                return
            wanted, hint = f"{len(needed)}", f"; absent: {', '.join(absent[:5])}"
        if now - start > timeout:
            raise RosterError("clients", f"{wanted} within {timeout:g} s", f"{present}{hint}")
        if now - said > 5 or not said:
            said = now
            log.info("waiting for clients: %d of %s have answered%s", present, wanted, hint)
        time.sleep(0.1)


def sample(roster: Mapping[str, ClientInfo], count: int, seed: int, round: int) -> list[str]:
    """Return the names of this round's clients, sorted: all (``count`` 0 or too large), or ``count`` drawn evenly."""
    names = sorted(roster)
    if not count or count >= len(names):
        return names
    drawn = derive(seed, "sample", round).choice(len(names), count, replace=False)
    return sorted(names[number] for number in drawn)
