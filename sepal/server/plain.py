"""MethodStrategy: a method as a Flower Strategy in memory, which Flower's own ``start`` drives.

The rounds are those of a durable run (:mod:`sepal.server.strategy`): the same :class:`~sepal.server.run.ServerRun` has
the state, and the same :class:`~sepal.server.round.Round` composes messages and checks replies. What the strategy and
its clients keep, and what is refused, is in docs/decisions/0033-plain-flower.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sepal.errors import ConfigError, RosterError, RoundError, SepalError, causes_of
from sepal.method.interface import Method, RunSetup
from sepal.protocol.messages import Order, read_reply, write_order
from sepal.protocol.types import Kind
from sepal.server.accuracy import view_figures
from sepal.server.answers import check_reply
from sepal.server.downloads import Downloads, room
from sepal.server.drawing import await_nodes
from sepal.server.exchange import MESSAGE_TYPES, Compose, Take
from sepal.server.observer import RoundLines
from sepal.server.opening import admitted
from sepal.server.plain_contact import PlainContact, log
from sepal.server.recovery import REMEDY
from sepal.server.round import Round
from sepal.server.rules import require_capacity
from sepal.server.run import ServerRun
from sepal.server.run_state import RoundStart
from sepal.server.run_store import MemoryRunStore
from sepal.server.sampling import sample
from sepal.training.threads import set_threads

Prepare: TypeAlias = Callable[["Beginning"], "Prepared"]


@dataclass(frozen=True)
class Beginning:
    """What a run starts from.

    Attributes:
        arrays: The whole ``state_dict`` of W_0.
        config: The keys of ``train_config``.
        rounds: Number of rounds.
        timeout: Seconds to wait for clients.
        shape: Shape of one example, such as ``1x28x28``; empty before a client has said it.
        classes: Number of the model's outputs; 0 before.
        clients: Number of clients at the start; 0 before.
    """

    arrays: ArrayRecord
    config: Mapping[str, Any]
    rounds: int
    timeout: float
    shape: str = ""
    classes: int = 0
    clients: int = 0


@dataclass(frozen=True)
class Prepared:
    """What the strategies' side makes of a :class:`Beginning`.

    Attributes:
        method: The method's record.
        setup: Model layout, initial weights and configuration.
        client_keys: The keys that clients get.
        notes: Lines to show when the run starts.
    """

    method: Method
    setup: RunSetup
    client_keys: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation that is under way: what it starts from, and each client's order and download's digest."""

    start: RoundStart
    orders: Mapping[str, tuple[Order, str]]


class MethodStrategy(Strategy):
    """A method as a Flower Strategy. ``FedPSE(model=Net, keep=0.1)`` makes one.

    Args:
        name: The method's name.
        prepare: Makes the run's parts of what it starts from.
        fraction_train: Share of the connected clients that train in a round.
        fraction_evaluate: Share of them that evaluate after it; 0: no evaluation.
        min_available_nodes: Connected nodes for which a run waits before it starts.
        rounds: Number of rounds, for a loop other than ``start``.

    Raises:
        ConfigError: A share or number is out of range.
    """

    def __init__(
        self,
        name: str,
        prepare: Prepare,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_available_nodes: int = 2,
        rounds: int = 0,
    ) -> None:
        if not 0 < fraction_train <= 1:
            raise ConfigError("fraction_train", "a share in (0, 1]", fraction_train)
        if not 0 <= fraction_evaluate <= 1:
            raise ConfigError("fraction_evaluate", "a share in [0, 1]", fraction_evaluate)
        if min_available_nodes < 1:
            raise ConfigError("min_available_nodes", "at least 1", min_available_nodes)
        self._name, self._prepare = name, prepare
        self._train, self._evaluate, self._least = fraction_train, fraction_evaluate, min_available_nodes
        self._rounds, self._timeout = rounds, 3600.0
        self._clear()

    def _clear(self) -> None:
        self._run: ServerRun | None = None
        self._contact: PlainContact | None = None
        self._round: tuple[Round, RoundStart] | None = None
        self._evaluation: _Evaluation | None = None

    @property
    def contact(self) -> PlainContact:
        """The run's nodes."""
        if self._contact is None:
            raise ConfigError("strategy", "a run that has been started", "none")
        return self._contact

    @property
    def run(self) -> ServerRun:
        """The run's state and figures.

        Raises:
            ConfigError: No run has been started.
        """
        if self._run is None:
            raise ConfigError("strategy", "a run that has been started", "none")
        return self._run

    def summary(self) -> None:
        """Log what is about to run."""
        log.info("\t├──> Method: %s", self._name)
        log.info("\t└──> Sampling: fraction_train %g, fraction_evaluate %g", self._train, self._evaluate)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Begin a new run, and run Flower's own ``start``, which calls the four steps.

        Args:
            grid: Any Flower Grid.
            initial_arrays: ``ArrayRecord(model.state_dict())``: what all clients start from.
            num_rounds: Number of rounds.
            timeout: Seconds to wait for clients at the start and in each round.
            train_config: Keys of Sepal, such as ``lr``.
            evaluate_config: Must be empty.
            evaluate_fn: Evaluates the global model; refused if the method has no whole one.

        Raises:
            SepalError: A key or the model is invalid, too few clients take part, or training diverged.
        """
        self._clear()
        self._rounds, self._timeout = num_rounds, timeout
        self._begin(grid, initial_arrays, train_config or {})
        if evaluate_fn and not self._whole:
            expected = f"None: {self._name} has no whole global model; clients evaluate the models that they have"
            raise ConfigError("evaluate_fn", expected, "a function")
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn=evaluate_fn
        )

    def _begin(self, grid: Grid, arrays: ArrayRecord, config: Mapping[str, Any]) -> None:
        """Wait for clients, ask them who they are and what their examples look like, and begin the run."""
        if not self._rounds:
            expected = "start() of this strategy, or its argument rounds: a wrapper such as differential privacy works "
            raise ConfigError("num_rounds", f"{expected}on dense arrays, which it has not", "neither")
        beginning = Beginning(arrays, config, self._rounds, self._timeout)
        prepared = self._prepare(beginning)
        self._log, self._arrays = RoundLines(log), arrays
        self._contact = contact = PlainContact(arrays, prepared.client_keys, self._timeout)
        connections = contact.connections
        for note in prepared.notes:
            log.info("%s", note)
        await_nodes(lambda: list(grid.get_node_ids()), self._least, self._timeout, "min_available_nodes", log)
        refusals = contact.meet(grid, self._timeout)
        if len(connections.nodes) < self._least:
            causes = f": {causes_of(refusals)}" if refusals else ""
            expected = f"{self._least} that take part (min_available_nodes)"
            raise RosterError("clients", expected, f"{len(connections.nodes)}{causes}")
        shape, classes = contact.size or ("", 0)
        prepared = self._prepare(replace(beginning, shape=shape, classes=classes, clients=len(connections.nodes)))
        set_threads(prepared.setup.config.threads)
        run = ServerRun(prepared.method, prepared.setup, MemoryRunStore())
        connections.least = require_capacity(run.method, run.config.width, connections.infos)
        if run.method.uses_capacity:
            second = run.algorithm.plan(2)  # as in sepal.server.opening
            connections.fits = lambda client: run.algorithm.upload_schema(run.state.server, client, second)
        for client in connections.infos.values():
            connections.fits(client)
        run.begin(admitted(run, connections))
        self._log.opened(run.state, self._rounds)
        self._run = run

    @property
    def _whole(self) -> bool:
        """Whether the method's global model has all tensors of W_0."""
        run = self.run
        return run.algorithm.model(run.state.server).keys() == run.setup.weights.keys() <= self.contact.arrays.keys()

    def _drawn(self, connected: Sequence[str], share: float, server_round: int, purpose: str = "sample") -> list[str]:
        """Return a share of the clients that are connected, at least one of them, drawn for a round and purpose."""
        count = max(1, int(share * len(connected)))
        return sample(connected, count, self.run.config.seed, server_round, purpose)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round; clients that are new are asked who they are.

        Raises:
            ConfigError: The round or the arrays are not those that follow.
            RosterError: Too few clients take part.
        """
        if self._run is None:
            self._begin(grid, arrays, config)
        run, contact = self.run, self.contact
        if server_round != run.state.round + 1:
            raise ConfigError("server_round", f"{run.state.round + 1}, as one round follows another", server_round)
        if arrays is not self._arrays:
            expected = "those that aggregate_train returned, or W_0: the method's state is not in them"
            raise ConfigError("arrays", expected, "others")
        if server_round > 1:
            contact.meet(grid)
        joined, stores = contact.connections.newcomers(run.state.roster)
        start = run.inputs(server_round, joined, stores)
        connected = contact.connected(start.state.participants)
        if not connected and start.plan.who != "none":
            raise RoundError(f"round {server_round}", "a client that is connected", "none")
        drawn = self._drawn(connected, self._train, server_round)
        setup = replace(run.setup, config=run.config.model_copy(update={"clients_per_round": max(1, len(drawn))}))
        round = Round(start, setup, run.store, joined, stores, drawn=drawn, local=False)
        self._round = round, start
        contents: list[tuple[int, str, RecordDict]] = []

        def collect(nodes: Sequence[int], compose: Compose, take: Take) -> Mapping[int, str]:
            for node in nodes:
                kind, records = compose(node)
                contents.append((node, MESSAGE_TYPES[kind], records))
            return {}

        round.send(contact.connections.nodes, collect)
        return contact.messages(contents, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies, advance by the round, and return the global model, if there is one, and its figures.

        Raises:
            RoundError: Fewer than ``min-replies`` replies, or most clients diverged.
        """
        if self._round is None:
            raise ConfigError("aggregate_train", "replies to the messages of configure_train", "none were sent")
        (round, start), run, contact, self._round = self._round, self.run, self.contact, None
        silent = round.waiting & contact.connections.nodes.keys()
        for name, reply in contact.named(list(replies)):
            silent.discard(name)
            if reason := contact.failure(name, reply):
                round.lose(name, reason)
            else:
                round.accept(name, reply.content)
        for name in sorted(silent):
            round.lose(name, f"no reply within {self._timeout:g} s")
        diverged = "most clients diverged" if round.unstable else ""
        record = None if diverged else round.record()
        if record is None or round.spoilt:
            expected = "a model from which most clients can train"
            raise RoundError(f"round {server_round}", expected, f"{diverged or round.spoilt}: {REMEDY}")
        run.store.commit(record)
        line = run.apply(record, start, round.uploads, round.outcome)
        contact.connections.pin(run.state.roster)
        self._log.round(run.state, record, line)
        model = run.algorithm.model(run.state.server)
        if model:
            whole = dict(contact.arrays) if self._whole else {}
            self._arrays = ArrayRecord({**whole, **{name: Array(np.asarray(value)) for name, value in model.items()}})
        figures = self._figures([reply.figures for reply in record.replies.values()], ("received", "trained"))
        sent = {f"bytes-{way}": line["bytes"][way] for way in ("up", "down")}
        return self._arrays if model else None, MetricRecord({**figures, **sent, "clients": len(record.replies)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages by which clients evaluate what they would have in the next round.

        Raises:
            ConfigError: ``config`` is not empty.
        """
        if config:
            raise ConfigError("evaluate_config", "nothing: clients evaluate by themselves", ", ".join(config))
        run, contact = self.run, self.contact
        start = run.inputs(server_round + 1, (), {})
        connected = contact.connected(start.state.members)
        if not self._evaluate or not connected or (start.plan.who == "none" and not start.closing):
            return []
        downloads, contents, orders = Downloads(start, room(run.setup)), [], {}
        views = tuple(dict.fromkeys(("received", run.method.deployed)))
        for name in self._drawn(connected, self._evaluate, server_round, "evaluate"):
            base, content = run.state.versions.get(name, ""), downloads.get(name).content
            order = Order(run.state.run, Kind.ADAPT, start.plan_of(name), base, base, views)
            orders[name] = order, content.digest()
            contents.append((contact.connections.nodes[name], MessageType.EVALUATE, write_order(order, content)))
            downloads.drop(name)
        self._evaluation = _Evaluation(start, orders)
        return contact.messages(contents, server_round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the figures of the evaluation: ``accuracy`` is that of the model that the method deploys."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None:
            return None
        answers, contact, scoring = [], self.contact, self.run.setup.task.scoring
        for name, message in contact.named(list(replies)):
            if name not in evaluation.orders or contact.failure(name, message):
                continue
            order, download = evaluation.orders[name]
            try:
                reply, content = read_reply(message.content)
                check_reply(order, evaluation.start.state.roster[name], download, reply, content, scoring)
                answers.append(reply.figures)
            except SepalError as reason:
                contact.tell(name, str(reason))
        deployed = self.run.method.deployed
        figures = self._figures(answers, ("received", deployed) if deployed != "received" else ("received",))
        if (key := f"{deployed}-{scoring.measure.name}") in figures:
            figures = {scoring.measure.name: figures[key], **figures}
        return MetricRecord({**figures, "clients": len(answers)}) if answers else None

    def _figures(self, answers: Sequence[Mapping[str, Any]], views: Sequence[str]) -> dict[str, float]:
        """Return the headline of each view over all clients' examples, as ``received-accuracy``."""
        scoring, figures = self.run.setup.task.scoring, {}
        for view in views:
            if values := view_figures(answers, view, scoring=scoring):
                figures[f"{view}-{scoring.measure.name}"] = values["weighted"]
        return figures
