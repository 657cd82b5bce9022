"""Extracts a client's model from its run, for any method whose predictor says which networks it is made of."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sepal.client_app.build import Node, Shared, build_host, data_of, parts_of
from sepal.client_app.frozen_data import FrozenData
from sepal.client_app.host import ClientHost
from sepal.client_app.state_store import DiskStateStore, Stored
from sepal.data import FederatedData
from sepal.data.examples import ClientData, DatasetInfo, Examples
from sepal.data.federation import DealtData
from sepal.data.growing import GrowingData
from sepal.data.schema import parsed
from sepal.data.sources import FILES
from sepal.errors import ConfigError, StateError, one_line
from sepal.export.portable import DIGEST, Loaded, Origin, load, named, save
from sepal.method.algorithms import ClientAlgorithm
from sepal.method.interface import resolve
from sepal.models.lora import merged
from sepal.modules import frozen_tensors
from sepal.protocol.messages import Content, Order, is_version, version_round
from sepal.protocol.payloads import seal, unseal
from sepal.protocol.types import Kind, Plan, Predictor
from sepal.protocol.views import MODELS
from sepal.runs.stored_run import stored_summary
from sepal.runs.summary import versions
from sepal.server.run_state import RoundStart, RunState
from sepal.server.run_store.disk import checkpoints_of, read_best, read_checkpoint
from sepal.storage.home import home
from sepal.storage.regular import expanded, is_inside, is_regular
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import Assembly, assemble
from sepal.strategies.registry import as_begun
from sepal.training.network import NetworkPredictor
from sepal.training.target_scale import target_scale

log = logging.getLogger("sepal")

_RUN = re.compile("[0-9a-f]{32}")
# Largest difference in logits between the client's model and the exported one; of targets, in standard deviations.
NEAR = 1e-4


@dataclass
class ClientModel:
    """A client's model, extracted from its run.

    Attributes:
        networks: Their tensors, float32 by name, in the shapes of the client's modules; usually one network.
        inputs: Some of the client's training examples; of a table as they are in its file.
        logits: The client's own predictor's outputs for ``inputs``; numbers are in the unit of the targets.
        labels: Number of classes among all its training examples; 0 where targets are no classes.
        view: Which of the client's models it is: ``received``, ``trained`` or ``kept``.
        round: The last round of training that is in it; None if this machine cannot know it.
    """

    origin: Origin
    networks: list[dict[str, npt.NDArray[np.float32]]]
    inputs: npt.NDArray[Any]
    logits: npt.NDArray[np.float32]
    labels: int
    view: str
    round: int | None = None

    def facts(self, with_client: bool = False) -> dict[str, str]:
        """Return which model it is, for the metadata of its file: run, round, method, digest of the weights, version.

        Args:
            with_client: Whether to name the client.
        """
        built_by = versions()
        facts = {"run": self.origin.run, "method": self.origin.method, DIGEST: digest_arrays(named(self.networks))}
        facts |= {key: built_by[key] for key in ("sepal", "commit")}
        facts |= {} if self.round is None else {"round": str(self.round)}
        return facts | ({"client": self.origin.client} if with_client else {})


@dataclass(frozen=True)
class NewestState:
    """A client's newest state.

    Attributes:
        stored: The state with its reply; None if it is damaged.
        store: The store of both, in the directory ``place``.
        last: What the run's last checkpoint has, or that of the round that was asked for; None without one.
    """

    round: int
    stored: Stored | None
    store: DiskStateStore
    directory: Path
    last: RunState | None


def newest_state(
    path: Path, assembly: Assembly, client: str, elsewhere: bool = True, round: int | None = None
) -> NewestState | None:
    """Return the state of a client that the run's last checkpoint names, else its newest; None if none is here.

    Of an earlier round it is the state that this round's checkpoint names.

    A deployed client's are in the state directory, if it ran here as this user.

    Args:
        path: The run directory; links that lead out of it are not followed.
        assembly: The run's parts.
        client: The client's name.
        elsewhere: Whether to search the state directory, too.
        round: The earlier round; None for the last one.

    Raises:
        ConfigError: The models of that round are not kept.
    """
    last = progress_of(path, assembly, round)
    places = [folder for folder in path.glob(f"clients/*/{client}") if is_inside(folder, path)]
    if elsewhere and not any(map(_versions, places)) and last and _RUN.fullmatch(last.run):
        chosen = assembly.setup.config.state_dir
        places = [(expanded("state-dir", chosen) if chosen else home() / "state") / last.run / client]
    files = [file for folder in places for file in _versions(folder)]
    if not files:
        return None
    # Of a run that is being extended, its old closing state is there as well, and may be of a later round.
    recorded = [file for file in files if last and file.stem == last.versions.get(client)]
    if round is not None and not recorded:
        raise ConfigError("client", f"one with a state of round {round} here", client)
    newest = recorded[0] if recorded else max(files, key=lambda file: version_round(file.stem))
    store = DiskStateStore(newest.parent, assembly.method.client_state, durable=False)
    return NewestState(version_round(newest.stem), store.load(newest.stem), store, newest.parent, last)


def progress_of(path: Path, assembly: Assembly, round: int | None = None) -> RunState | None:
    """Return what the run's last checkpoint has; None if there is none.

    Args:
        path: The run directory.
        assembly: The run's parts.
        round: The round of an earlier checkpoint, or of the models that were best on validation data.

    Raises:
        ConfigError: The models of that round are not kept.
    """
    kind, checkpoints = assembly.method.server_state, checkpoints_of(path)
    states = (read_checkpoint(file, kind) for file in reversed(checkpoints))
    if round is None:
        return next(states, None)
    by_round = {state.round: state for state in states if state.round and not state.closed}
    if (best := read_best(path, kind)) and best.round:
        by_round.setdefault(best.round, best)
    if round not in by_round:
        kept = ", ".join(map(str, sorted(by_round))) or "none"
        raise ConfigError("--round", f"a round of {path.name} whose models are kept: {kept}", round)
    return by_round[round]


def _schema(info: DatasetInfo) -> str:
    """Return how a table becomes the model's inputs; empty where earlier versions read it so, too."""
    schema = parsed(info.schema)
    plain = schema.is_plain and schema.label in ("", "label")
    return "" if plain else schema.model_copy(update={"classes": ()}).text()


def _versions(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.safetensors") if is_version(file.stem) and is_regular(file, folder)]


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
    assembly = assemble(as_begun(config))
    number = assembly.client_number(client)
    newest = newest_state(path, assembly, client, round=round)
    if number is None or newest is None:
        expected = f"one with states in {path / 'clients'} or {home() / 'state'} (`sepal join --export` writes a model)"
        raise ConfigError("client", expected, f"{client}, whose states are not here")
    if newest.stored is None:
        raise ConfigError("client", "one whose state can be read", f"{client}, whose state is damaged")
    node = Node(number, assembly.setup.config.clients, name=client)
    host = build_host(Shared.around(assembly, device), node, "", newest.store)
    view = view or assembly.method.deployed
    if path not in newest.directory.parents and host.info.data != newest.stored.reply.client.data:
        expected = "the data that it trained on (`sepal join --export` writes its model where that is)"
        raise ConfigError("client", expected, f"{client}, whose data this machine's run config does not name")
    if round is None:
        predict = _predictor(path.name, assembly, host, newest.stored, newest, view)
    else:
        predict = _earlier_predictor(assembly, host, newest.stored, newest, view)
    if predict is None:
        raise ConfigError("client", f"one that has a {view} model", f"{client}, which has none")
    model = extract(assembly, node, path.name, predict, view, device)
    closed = newest.last if newest.last and newest.last.closed else None
    return replace(model, round=_last_trained(path, closed) if closed else round or newest.round)


def common_model(
    path: Path, config: Mapping[str, Any], device: str = "cpu", view: str = "", round: int | None = None
) -> ClientModel:
    """Return the model that all clients of the run at ``path`` receive, from the server's files alone.

    It is the one that a client deploys, bit for bit.

    Args:
        path: The run directory.
        config: The run's flat keys.
        device: Where its predictions are computed.
        view: ``received``, or empty for that.
        round: An earlier round; None for the last one.

    Raises:
        ConfigError: Each client has a model of its own, or the models of that round are not kept.
    """
    assembly = assemble(as_begun(config))
    method, keys = assembly.method, assembly.setup.config
    if not method.one_model:
        reason = f"each has a model of its own with {method.name}"
    elif keys.target_scale == "client" or (assembly.info.table and keys.folder.standardize):
        reason = "each standardises its data by figures of its own"
    else:
        reason = ""
    if reason:
        raise ConfigError("client", f"a client's name, because {reason}", "none")
    if view not in ("", "received"):
        raise ConfigError("view", "received, the model that all clients have in common", view)
    last = progress_of(path, assembly, round)
    if last is None:
        raise ConfigError("run", "a run with a checkpoint", path.name)
    assembly = replace(assembly, data=_Drawn(assembly.info))
    node = Node(0, 1)
    with tempfile.TemporaryDirectory() as scratch:
        store = DiskStateStore(Path(scratch), method.client_state, durable=False)
        host = build_host(Shared.around(assembly, device), node, "", store)
        start = _start_after(last, assembly)
        plan, algorithm = start.plan, host.algorithm
        before = algorithm.init()
        content = seal(start.algorithm.newcomer(last.server, host.info, plan))
        host.take_up(plan.round, {})
        predict = _received(algorithm, before, content, plan)
        if predict is None:
            raise ConfigError("run", "one whose server has a model", path.name)
        model = extract(assembly, node, path.name, predict, "received", device)
    trained = _last_trained(path, last) if last.closed else last.round
    return replace(model, origin=replace(model.origin, client=""), labels=0, round=trained)


@dataclass(frozen=True)
class _Drawn:
    """Examples that stand for those that the server has not: the model is tried with them."""

    info: DatasetInfo
    private: str = "they are of nobody"
    seed: int = 0

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return some random examples of the data's shape."""
        generator, shape = np.random.default_rng(self.seed), (4, *self.info.input_shape)
        tokens = self.info.vocabulary
        x = generator.integers(0, tokens, shape) if tokens else generator.normal(size=shape).astype(np.float32)
        part = Examples(x, np.zeros(len(x), np.int64))
        return ClientData(part, part, part)

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Return the same."""
        return self.client(0, clients, "").test


def _last_trained(path: Path, closed: RunState) -> int:
    """Return the last round whose training is in the models of a run that has ended."""
    best = (stored_summary(path) or {}).get("best_round")
    return best - 1 if isinstance(best, int) else closed.round - 1


def extract(
    assembly: Assembly,
    node: Node,
    run: str,
    predict: Predictor,
    view: str,
    device: str = "cpu",
    source: FederatedData | None = None,
) -> ClientModel:
    """Return the model that a client's predictor is made of.

    Args:
        assembly: The run's parts.
        node: The client.
        run: The run's name, for the file.
        predict: Its predictor.
        view: Which of its models that is.
        device: Where its networks are.
        source: Its data, if they are not those of the node.

    Raises:
        ConfigError: Its networks are combined in an unknown way.
    """
    if not isinstance(predict, NetworkPredictor):
        got = f"{assembly.method.name}, whose predictions are not those of networks alone"
        raise ConfigError("client", "a model of one network", got)
    if predict.combine and predict.combine is not resolve(assembly.method.combination):
        got = f"{len(predict.networks)} networks that are used together"
        raise ConfigError("client", "a model of one network", got)
    info, keys, source = assembly.info, assembly.setup.config, source or data_of(assembly, node)
    parts = parts_of(assembly, node)
    data = source.client(node.partition, parts, node.client)
    scale, raw = target_scale(keys, data), data.train.first(64).x
    x = torch.from_numpy(np.array(raw))
    if isinstance(source, DealtData) and data.scale:
        raw = source.raw(node.partition, parts).train.x[:64]
    elif isinstance(source, FrozenData | GrowingData) and data.scale:
        raw = source.raw(node.partition, parts, node.client)
    origin = Origin(
        keys.model,
        tuple(info.input_shape),
        info.classes,
        info.vocabulary,
        keys.width,
        tuple(info.mean),
        tuple(info.std),
        keys.method,
        keys.dataset,
        run,
        node.client,
        keys.method if predict.combine else "",
        predict.numbers,
        tuple(info.class_names),
        tuple(data.scale.mean.tolist()) if data.scale else (),
        tuple(data.scale.factor.tolist()) if data.scale else (),
        keys.dataset in FILES and keys.folder.size is not None,
        keys.dataset in FILES and keys.folder.channels != "auto",
        tuple(info.columns),
        keys.task,
        keys.target_unit,
        keys.own.shape if info.inputs else "",
        data.scale is not None and keys.folder.missing == "mean",
        scale.mean if scale else (),
        scale.spread if scale else (),
        _schema(info),
    )
    whole = [
        {**network.read(), **frozen_tensors(network.module), **network.state.all()} for network in predict.networks
    ]
    networks = [merged(tensors, (keys.lora.alpha or keys.lora.rank) / (keys.lora.rank or 1)) for tensors in whole]
    labels = len(np.unique(data.train.y)) if info.labelled and isinstance(data.train, Examples) else 0
    outputs = predict(x.to(device))
    logits = (scale.undone(outputs) if scale else outputs).cpu().numpy()
    return ClientModel(origin, networks, np.array(raw), logits, labels, view)


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
    return _received(algorithm, before, content, start.plan_of(client))


def _received(algorithm: ClientAlgorithm[Any], before: Any, content: Content, plan: Plan) -> Predictor | None:
    return algorithm.predictor(before, unseal(content, algorithm.download_schema(before, plan)), plan)


def _earlier_predictor(
    assembly: Assembly, host: ClientHost, stored: Stored, source: NewestState, view: str
) -> Predictor | None:
    """Return the predictor of an earlier round's model, which the closing round after it would have evaluated."""
    if view not in ("kept", "received") or source.last is None:
        raise ConfigError("view", "kept or received, which a round before the run's end has", view)
    algorithm: ClientAlgorithm[Any] = host.algorithm
    start, client = _start_after(source.last, assembly), stored.reply.client.name
    host.take_up(start.plan.round, stored.local)
    if view == "kept":
        return algorithm.predictor(stored.state, None, start.plan)
    return _received(algorithm, stored.state, seal(start.download(client)), start.plan_of(client))


def _start_after(last: RunState, assembly: Assembly) -> RoundStart:
    """Return what the closing round starts from, if it is the one after ``last``, or ``last`` is after it."""
    algorithm, round = assembly.method.make_server(assembly.setup), last.round + (not last.closed)
    plan = replace(algorithm.plan(assembly.setup.config.rounds + 1), round=round)  # also if it ended early
    return RoundStart(algorithm, last, plan, closing=True)


def _last_round(last: RunState | None, assembly: Assembly) -> RoundStart | None:
    """Return what the closing round of a run started from, by its last checkpoint; None before its end.

    It changes the server's state no further (:func:`sepal.server.run_state.advance`), so its checkpoint has that.
    """
    return _start_after(last, assembly) if last and last.closed else None


def write_model(model: ClientModel, path: Path, with_client: bool = False) -> Loaded:
    """Write a client's model to ``path``, once it has been read again and answers right, and return it.

    Args:
        model: The model.
        path: The file.
        with_client: Whether the file names the client.

    Raises:
        ConfigError: It answers otherwise than the client's own predictor: its method does more than its module says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sepal-", dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        origin = model.origin if with_client else replace(model.origin, client="")
        save(written, origin, model.networks, model.facts(with_client))
        loaded = load(written, {model.origin.model, model.origin.task})
        near = NEAR * np.array(model.origin.target_spread) if model.origin.target_spread else NEAR
        right = bool(np.isclose(loaded(model.inputs), model.logits, atol=near).all())
        if right:
            written.replace(path)
    if not right:
        raise ConfigError("client", "a model that its tensors and its module alone describe", model.origin.method)
    return loaded


def write_deployed(
    shared: Shared, node: Node, order: Order, view: str, predict: Predictor | None, source: FederatedData | None = None
) -> None:
    """Write a client's deployed model to ``node.export``, if ``view`` is that; log why if it cannot be written.

    Args:
        shared: The run's parts.
        node: The client.
        order: That of the closing round. Of a run with ``final-model = best`` a client does not know whose round's
            models these are.
        view: Which of the client's models ``predict`` is.
        predict: Its predictor; None if it has no such model.
        source: The client's data, if they are not those of the node.
    """
    if view != shared.assembly.method.deployed:
        return
    try:
        if predict is None:
            raise ConfigError("client", f"one that has a {view} model", f"{node.client}, which has none")
        model = extract(shared.assembly, node, order.run, predict, view, shared.device, source)
        is_last = shared.assembly.setup.config.final_model == "last"
        write_model(replace(model, round=order.plan.round - 1 if is_last else None), expanded("export", node.export))
        log.info("%s: its %s model is in %s", node.client, view, node.export)
    except Exception as reason:  # whatever it is, the run is not ended by it
        log.error("%s: no model in %s: %s", node.client, node.export, one_line(str(reason) or repr(reason)))
