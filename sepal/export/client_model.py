"""One client's model, from its run: for any method whose predictor says which networks it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.host import ClientHost
from sepal.client_app.secure_sums import NoVault
from sepal.client_app.state_store import Stored
from sepal.errors import ConfigError, StateError, printable
from sepal.export.extraction import ClientModel, extract
from sepal.export.stored_states import NewestState, last_trained, newest_state, received_predictor, start_after
from sepal.method.algorithms import ClientAlgorithm
from sepal.protocol.payloads import seal
from sepal.protocol.types import Kind, Plan, Predictor
from sepal.protocol.views import MODELS
from sepal.runs.about import with_images_as_begun
from sepal.server.run_state import RoundStart, RunState
from sepal.storage.home import home
from sepal.strategies.assembly import Assembly, assemble
from sepal.strategies.registry import as_begun


def client_model(
    path: Path, config: Mapping[str, Any], client: str, device: str = "cpu", view: str = "", round: int | None = None
) -> ClientModel:
    """Return a client's model of the run at ``path``, bit for bit the one that the closing evaluation tested.

    Of an earlier round it is the one that the closing evaluation would have tested if the run had ended with it.

    Args:
        path: The run directory.
        config: The run's flat keys.
        client: The client's name.
        device: Where its predictions are computed.
        view: ``received``, ``trained`` or ``kept``; empty for the method's deployed model. Before the closing
            evaluation there is only ``kept``, the model after the client's last training.
        round: The earlier round; None for the last one.

    Raises:
        ConfigError: The models of that round are not kept, the client has no such model here, or its networks are
            combined in an unknown way.
        StateError: What the server sent last cannot be made again.
    """
    with with_images_as_begun(path):
        assembly = assemble(as_begun(config))
    number = assembly.client_number(client)
    newest = newest_state(path, assembly, client, round=round)
    if number is None or newest is None:
        expected = f"one with states in {path / 'clients'} or {home() / 'state'} (`sepal join --export` writes a model)"
        raise ConfigError("client", expected, f"{client}, whose states are not here")
    if newest.stored is None:
        raise ConfigError("client", "one whose state can be read", f"{client}, whose state is damaged")
    node = Node(number, assembly.setup.config.clients, name=client)
    host = build_host(Shared.around(assembly, device), node, "", newest.store, vault=NoVault())
    view = view or assembly.method.deployed
    if path not in newest.directory.parents and host.info.data != newest.stored.reply.client.data:
        expected = "the data that it trained on (`sepal join --export` writes its model where that is)"
        raise ConfigError("client", expected, f"{client}, whose data this machine's run config does not name")
    if round is None:
        predict = _predictor(printable(path.name), assembly, host, newest.stored, newest, view)
    else:
        predict = _earlier_predictor(assembly, host, newest.stored, newest, view)
    if predict is None:
        raise ConfigError("client", f"one that has a {view} model", f"{client}, which has none")
    model = extract(assembly, node, printable(path.name), predict, view, device)
    closed = newest.last if newest.last and newest.last.closed else None
    return replace(model, round=last_trained(path, closed) if closed else round or newest.round)


def _predictor(
    run: str, assembly: Assembly, host: ClientHost, newest: Stored, source: NewestState, view: str
) -> Predictor | None:
    """Return the predictor that the closing round evaluated as ``view``, as :mod:`sepal.client_app.host` made it."""
    if view not in MODELS:
        raise ConfigError("view", " or ".join(MODELS), view)
    reply, client, plan = newest.reply, newest.reply.client.name, Plan(newest.reply.round)
    closing = reply.kind is Kind.ADAPT  # no other round keeps the state of a client that does not upload
    last = _last_round(source.last, assembly) if view == "received" else None
    if view != "kept" and not (last if view == "received" else closing):
        expected = f"a run whose closing evaluation has tested this client's {view} model, or --view kept"
        raise ConfigError("run", expected, f"{run}, where {client} trained last in round {reply.round}")
    algorithm: ClientAlgorithm[Any] = host.algorithm
    if view == "trained":
        host.take_up(reply.round, newest.local)
        return algorithm.predictor(newest.state, None, plan)
    base = reply.base if closing else reply.version
    stored = source.store.load(base) if base else None
    if base and stored is None:
        raise ConfigError("client", "one whose state can be read", f"{client}, whose state {base} is not here")
    before = stored.state if stored else algorithm.init()
    host.take_up(reply.round, stored.local if stored else {})
    if last is None:
        return algorithm.predictor(before, None, plan)
    start = replace(last, state=replace(last.state, versions={client: base}))
    content = seal(start.download(client))
    if closing and content.digest() != reply.download:
        raise StateError(client, "the download of the closing round, as its checkpoint gives it", "another")
    return received_predictor(algorithm, before, content, start.plan_of(client))


def _earlier_predictor(
    assembly: Assembly, host: ClientHost, stored: Stored, source: NewestState, view: str
) -> Predictor | None:
    """Return the predictor of an earlier round's model, which the closing round after it would have evaluated."""
    if view not in ("kept", "received") or source.last is None:
        raise ConfigError("view", "kept or received, which a round before the run's end has", view)
    algorithm: ClientAlgorithm[Any] = host.algorithm
    start, client = start_after(source.last, assembly), stored.reply.client.name
    host.take_up(start.plan.round, stored.local)
    if view == "kept":
        return algorithm.predictor(stored.state, None, start.plan)
    return received_predictor(algorithm, stored.state, seal(start.download(client)), start.plan_of(client))


def _last_round(last: RunState | None, assembly: Assembly) -> RoundStart | None:
    """Return what the closing round of a run started from, by its last checkpoint; None before its end.

    It changes the server's state no further (:func:`sepal.server.run_state.advance`), so its checkpoint has that.
    """
    return start_after(last, assembly) if last and last.closed else None
