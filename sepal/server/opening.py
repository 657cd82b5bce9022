"""Which clients a run starts or goes on with: those it needs are waited for, and those of a new run are admitted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sepal.errors import DataError
from sepal.server.contact import Contact
from sepal.server.drawing import await_nodes
from sepal.server.roster import Connections, wait
from sepal.server.rules import check_replies, require_capacity
from sepal.server.run import ServerRun
from sepal.server.run_state import RunState, admit
from sepal.server.sampling import draw_novel

log = logging.getLogger("sepal")


def await_clients(run: ServerRun, contact: Contact, settle: float) -> RunState:
    """Wait until the clients that ``run`` needs have registered, and refuse from now on those that may not take part.

    Args:
        run: A new run, or one whose recorded rounds were replayed.
        contact: Its connections are updated in place.
        settle: Seconds without a new client, after which the run starts where it has no fixed number of them.

    Returns:
        The run's state with the clients of a new run admitted; that of any other run is as it was.

    Raises:
        SepalError: Too few clients registered, or one of them does not fit the run.
    """
    state, method, config, connections = run.state, run.method, run.config, contact.connections
    if method.uses_capacity:  # later, in the middle of a round, it would end the run
        second = run.algorithm.plan(2)  # a method may treat the first round apart
        connections.fits = lambda client: run.algorithm.upload_schema(run.state.server, client, second)
    connections.stores.update(state.stores)
    connections.refuses_by_round = not contact.local
    connections.accepts_changes = config.data_changes == "accept"
    connections.pin(state.roster)
    if contact.draws:
        connections.least, connections.most = require_capacity(method, config.width, state.roster), config.clients
        await_nodes(contact.online, config.clients_per_round, config.timeout)
        return state
    if run.fresh:
        _wait(run, contact, config.clients, settle)
        connections.least = require_capacity(method, config.width, connections.infos)
        state = admitted(run, connections)
    else:  # an unknown client that cannot hold the model must not stop it
        connections.least = require_capacity(method, config.width, state.roster)
    connections.pin(state.roster)
    if config.clients and config.roster != "open":
        connections.invited = frozenset(state.roster)
    if not run.fresh:
        _wait(run, contact, state.members, settle)
    return state


def _wait(run: ServerRun, contact: Contact, needed: Sequence[str] | int, settle: float) -> None:
    config = run.config
    enough = 0 if config.on_missing == "retry" else min(config.min_replies, len(run.state.members))
    connections, gone = contact.connections, contact.note_evicted
    wait(connections, contact.online, contact.ask, needed, config.timeout, settle, enough, gone, not contact.local)


def admitted(run: ServerRun, connections: Connections) -> RunState:
    """Return the state of a new run with the clients that have registered, some of them novel.

    Raises:
        SepalError: None of them has training examples, or too few train.
    """
    config = run.config
    joined = [connections.infos[name] for name in sorted(connections.infos)]
    novel = tuple(draw_novel(connections.infos, config.novel_clients, config.seed))
    idle = [client.name for client in joined if not client.examples]
    if len(idle) == len(joined):
        raise DataError("clients", "one with training examples", f"{len(idle)} without any")
    if idle:
        named = ", ".join([*idle[:3], *(["…"] if len(idle) > 3 else [])])
        log.warning("%d of %d clients have no training examples and never train: %s", len(idle), len(joined), named)
    check_replies(config, len(joined) - len({*novel, *idle}))
    return admit(run.algorithm, replace(run.state, novel=novel), joined, dict(connections.stores))
