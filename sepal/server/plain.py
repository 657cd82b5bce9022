"""MethodStrategy: a method as a Flower Strategy in memory, which Flower's own ``start`` drives.

The rounds are those of a durable run (:mod:`sepal.server.strategy`): the same :class:`~sepal.server.run.Run` has the
state, and the same :class:`~sepal.server.round.Round` composes messages and checks replies. What the strategy and its
clients keep, and what is refused, is in docs/decisions/0033-plain-flower.md.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sepal.errors import ConfigError, RosterError, RoundError, SepalError, causes_of, printable
from sepal.method.interface import Method, Task
from sepal.protocol.messages import CAUSE, INITIAL, KEYS, SIZES, Content, Order, Reply, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.server.accuracy import view_figures
from sepal.server.answers import check_answer, check_reply
from sepal.server.downloads import Downloads, room
from sepal.server.drawing import await_nodes
from sepal.server.exchange import MESSAGE_TYPES, Compose, Take
from sepal.server.observer import RoundLog
from sepal.server.opening import admitted
from sepal.server.recovery import REMEDY
from sepal.server.roster import PATIENCE, Connections, Pending
from sepal.server.round import Round
from sepal.server.rules import require_capacity
from sepal.server.run import Run
from sepal.server.run_state import RoundStart
from sepal.server.run_store import MemoryRunStore
from sepal.server.sampling import sample
from sepal.training.threads import set_threads

log = logging.getLogger("flwr")  # where Flower's users look
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
        task: Model layout, initial weights and configuration.
        told: The keys that clients are told.
        notes: Lines to show when the run starts.
    """

    method: Method
    task: Task
    told: Mapping[str, Any]
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
        self._id = uuid.uuid4().hex  # of the queries, which begin before the run
        self._size: tuple[str, int] | None = None
        self._run: Run | None = None
        self._connections = Connections()
        self._round: tuple[Round, RoundStart] | None = None
        self._evaluation: _Evaluation | None = None
        self._sent: list[Message] = []
        self._causes: set[str] = set()

    @property
    def run(self) -> Run:
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
        beginning, found = Beginning(arrays, config, self._rounds, self._timeout), self._connections
        made = self._prepare(beginning)
        self._told, self._log = made.told, RoundLog(log)
        self._initial = self._arrays = arrays
        for note in made.notes:
            log.info("%s", note)
        await_nodes(lambda: list(grid.get_node_ids()), self._least, self._timeout, "min_available_nodes", log)
        self._meet(grid)
        shape, classes = self._size or ("", 0)
        made = self._prepare(replace(beginning, shape=shape, classes=classes, clients=len(found.nodes)))
        set_threads(made.task.config.threads)
        run = Run(made.method, made.task, MemoryRunStore())
        found.least = require_capacity(run.method, run.config.width, found.infos)
        if run.method.uses_capacity:
            second = run.algorithm.plan(2)  # as in sepal.server.opening
            found.fits = lambda client: run.algorithm.upload_schema(run.state.server, client, second)
        for client in found.infos.values():
            found.fits(client)
        run.begin(admitted(run, found))
        self._log.opened(run.state, self._rounds)
        self._run = run

    @property
    def _whole(self) -> bool:
        """Whether the method's global model has all tensors of W_0."""
        run = self.run
        return run.algorithm.model(run.state.server).keys() == run.task.weights.keys() <= self._initial.keys()

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
        run, connections = self.run, self._connections
        if server_round != run.state.round + 1:
            raise ConfigError("server_round", f"{run.state.round + 1}, as one round follows another", server_round)
        if arrays is not self._arrays:
            expected = "those that aggregate_train returned, or W_0: the method's state is not in them"
            raise ConfigError("arrays", expected, "others")
        if server_round > 1:
            self._meet(grid)
        joined, stores = connections.newcomers(run.state.roster)
        start = run.inputs(server_round, joined, stores)
        here = [name for name in start.state.participants if name in connections.nodes]
        count = max(1, int(len(here) * self._train))
        drawn = sample(here, count, run.config.seed, server_round)
        task = replace(run.task, config=run.config.model_copy(update={"clients_per_round": count}))
        round = Round(start, task, run.store, joined, stores, drawn=drawn, local=False)
        self._round, self._sent = (round, start), []

        def collect(nodes: Sequence[int], compose: Compose, take: Take) -> Mapping[int, str]:
            for node in nodes:
                kind, records = compose(node)
                self._sent.append(self._message(records, node, MESSAGE_TYPES[kind], server_round))
            return {}

        round.send(connections.nodes, collect)
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies, advance by the round, and return the global model, if there is one, and its figures.

        Raises:
            RoundError: Fewer than ``min-replies`` replies, or most clients diverged.
        """
        if self._round is None:
            raise ConfigError("aggregate_train", "replies to the messages of configure_train", "none were sent")
        (round, start), run, self._round = self._round, self.run, None
        silent = round.waiting & self._connections.nodes.keys()
        for name, reply in self._named(replies):
            silent.discard(name)
            if reason := self._told_failure(name, reply):
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
        self._connections.pin(run.state.roster)
        self._log.round(run.state, record, line)
        model = run.algorithm.model(run.state.server)
        if model:
            whole = dict(self._initial) if self._whole else {}
            self._arrays = ArrayRecord({**whole, **{name: Array(np.asarray(value)) for name, value in model.items()}})
        figures = self._figures([reply.found for reply in record.replies.values()], ("received", "trained"))
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
        run, connections = self.run, self._connections
        start = run.inputs(server_round + 1, (), {})
        here = [name for name in start.state.members if name in connections.nodes]
        self._sent, orders = [], {}
        if not self._evaluate or not here or (start.plan.who == "none" and not start.closing):
            return []
        downloads = Downloads(start, room(run.task))
        views = tuple(dict.fromkeys(("received", run.method.deployed)))
        for name in sample(here, max(1, int(len(here) * self._evaluate)), run.config.seed, server_round, "evaluate"):
            base, content = run.state.versions.get(name, ""), downloads.get(name).content
            order = Order(run.state.run, Kind.ADAPT, start.plan_of(name), base, base, views)
            orders[name] = order, content.digest()
            records = write_order(order, content)
            self._sent.append(self._message(records, connections.nodes[name], MessageType.EVALUATE, server_round))
            downloads.drop(name)
        self._evaluation = _Evaluation(start, orders)
        return self._sent

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the figures of the evaluation: ``accuracy`` is that of the model that the method deploys."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None:
            return None
        found, scoring = [], self.run.task.learning.scoring
        for name, message in self._named(replies):
            if name not in evaluation.orders or self._told_failure(name, message):
                continue
            order, download = evaluation.orders[name]
            try:
                reply, content = read_reply(message.content)
                check_reply(order, evaluation.start.state.roster[name], download, reply, content, scoring)
                found.append(reply.found)
            except SepalError as reason:
                self._tell(name, str(reason))
        deployed = self.run.method.deployed
        figures = self._figures(found, ("received", deployed) if deployed != "received" else ("received",))
        if (key := f"{deployed}-{scoring.measure.name}") in figures:
            figures = {scoring.measure.name: figures[key], **figures}
        return MetricRecord({**figures, "clients": len(found)}) if found else None

    def _figures(self, found: Sequence[Mapping[str, Any]], views: Sequence[str]) -> dict[str, float]:
        """Return the headline of each view over all clients' examples, as ``received-accuracy``."""
        scoring, figures = self.run.task.learning.scoring, {}
        for view in views:
            if values := view_figures(found, view, scoring=scoring):
                figures[f"{view}-{scoring.measure.name}"] = values["weighted"]
        return figures

    def _message(self, records: Any, node: int, kind: str, server_round: int) -> Message:
        return Message(records, dst_node_id=node, message_type=kind, group_id=str(server_round))

    def _meet(self, grid: Grid) -> None:
        """Ask the nodes that are not known yet who they are, and give them W_0 and the keys.

        Raises:
            RosterError: Too few of a new run's nodes take part.
        """
        found = self._connections
        refusals = found.refresh(list(grid.get_node_ids()), lambda nodes, timeout=PATIENCE: self._ask(grid, nodes))
        for refusal in refusals:
            self._tell("refused", str(refusal))
        if self._run is None and len(found.nodes) < self._least:
            expected = f"{self._least} that take part (min_available_nodes)"
            causes = f": {causes_of(refusals)}" if refusals else ""
            raise RosterError("clients", expected, f"{len(found.nodes)}{causes}")

    def _ask(self, grid: Grid, nodes: Sequence[int]) -> Mapping[int, Reply | SepalError | Pending]:
        order = Order(self._id, Kind.QUERY, Plan(0))
        self._sent = []
        for node in nodes:
            records = write_order(order, Content())
            records[INITIAL], records[KEYS] = self._initial, ConfigRecord(dict(self._told))
            self._sent.append(self._message(records, node, MessageType.QUERY, 0))
        answers: dict[int, Reply | SepalError | Pending] = {}
        for message in grid.send_and_receive(self._sent, timeout=self._timeout):
            node = self._node(message)
            if reason := self._told_failure(f"node {node}", message):
                answers[node] = RosterError(f"node {node}", "an answer", reason)
                continue
            try:
                answers[node] = self._checked(order, read_reply(message.content)[0])
            except SepalError as error:
                answers[node] = error
        return answers

    def _checked(self, order: Order, reply: Reply) -> Reply:
        """Return a client's answer, with examples of the same size as all others.

        Raises:
            SepalError: It is of another run, or of another size.
        """
        check_answer(order, reply)
        shape, classes = (reply.facts.get(key, "") for key in SIZES)
        size = shape, int(classes) if classes.isdecimal() and len(classes) < 10 else 0
        self._size = self._size or size
        if size != self._size:
            expected = "examples of shape {} and a model with {} outputs, as other clients have".format(*self._size)
            raise RosterError(f"{reply.client.name}: data", expected, f"shape {shape}, {classes} outputs")
        return reply

    def _node(self, reply: Message) -> int:
        """Return the node that was asked: an error reply can have the SuperLink as its source."""
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._sent}
        return asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def _named(self, replies: Iterable[Message]) -> Iterable[tuple[str, Message]]:
        """Yield each reply with the name of the client that was asked."""
        for reply in replies:
            node = self._node(reply)
            if name := self._connections.names.get(node):
                yield name, reply
            else:
                self._tell(f"node {node}", "a reply of a node that was not asked")

    def _told_failure(self, name: str, reply: Message) -> str:
        """Log the full cause if a reply reports an error; return why a reply has no content, or nothing."""
        if reply.has_error():
            reason = f"error {reply.error.code}: {reply.error.reason}"
            self._tell(name, reason)
            return reason
        if "error" in reply.content:
            cause = reply.content.get(CAUSE)
            self._tell(name, str(cause["text"]) if isinstance(cause, ConfigRecord) and "text" in cause else "an error")
        return ""

    def _tell(self, name: str, cause: str) -> None:
        """Log why a client's reply does not count, each cause once."""
        if cause not in self._causes:
            self._causes.add(cause)
            log.error("%s: %s", name, "\n".join(map(printable, cause.split("\n"))))
