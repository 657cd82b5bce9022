"""SepalStrategy: the Flower Strategy that runs the rounds of every method.

It decides who takes part, sends and receives messages, writes records and checkpoints, and resumes a run. The method's
server algorithm (:mod:`sepal.protocol.method`) decides what is sent and how uploads are aggregated.
:func:`sepal.server.run_state.advance` computes the next state, :class:`sepal.server.report.Report` the figures.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sepal.errors import ConfigError, DamagedError, ProtocolError, RoundError, SepalError, StateError
from sepal.protocol.flower.replies import bound_replies
from sepal.protocol.messages import Content, Order, Reply, read_reply, write_order
from sepal.protocol.method import ClientInfo, Kind, Method, Metrics, Plan, Task
from sepal.protocol.threads import set_threads
from sepal.server.downloads import largest_reply, most_message_bytes
from sepal.server.drawing import Ahead, Draw, await_nodes, newly
from sepal.server.exchange import Compose, Exchange, LocalGrid, Take
from sepal.server.ledger import check_size
from sepal.server.observer import Observer
from sepal.server.report import Report, metrics_line
from sepal.server.roster import PATIENCE, Connections, draw_novel, spare, wait
from sepal.server.round import Deliver, Round
from sepal.server.rules import check_replies, require_capacity
from sepal.server.run_state import RoundRecord, RoundStart, RunState, admit, advance, start_round
from sepal.server.run_store import MemoryRunStore, RunStore
from sepal.server.status import Status
from sepal.server.stopping import Stopping
from sepal.server.uploads import RoundUploads, replayed_uploads
from sepal.storage.serialize import digest_arrays

log = logging.getLogger("sepal")


class SepalStrategy(Strategy):
    """Runs ``method`` over any Flower Grid.

    Args:
        method: The method's record.
        task: Model layout, initial weights and configuration.
        store: Stores what is needed to resume; by default in memory only.
        observers: Called after every round.
        settle: With ``clients = 0``, the run starts once nobody new has registered for this many seconds.
        pause: Seconds before a client that did not reply is asked again.
        agreed: The keys on which clients must agree with the server; empty: no check.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        store: RunStore | None = None,
        observers: Sequence[Observer] = (),
        settle: float = 3.0,
        pause: float = 1.0,
        agreed: str = "",
    ) -> None:
        set_threads(task.config.threads)
        self.task, self.config, self._method = task, task.config, method
        self.algorithm = method.make_server(task)
        self.store: RunStore = store or MemoryRunStore()
        self._observers, self._settle, self._pause = observers, settle, pause
        weights = digest_arrays(task.start)
        self._connections = Connections(weights, agreed, tell=self._tell)
        self._exchange: Exchange | None = None
        self._ahead = Ahead(self._read_answer)
        self._current: Round | None = None
        stored = self.store.latest()
        if stored and stored.weights != weights:
            expected = f"digest {stored.weights[:12]}, with which the run was started"
            raise StateError("initial weights", expected, f"{weights[:12]}: another model, seed or file")
        self._fresh = stored is None
        self._progress = stored or RunState(uuid.uuid4().hex, 0, self.algorithm.init(), weights)
        self._read_records()
        self._spent = 0.0

    def _read_records(self) -> None:
        """Compute what follows from the records of the rounds up to the checkpoint."""
        self._report, self._stopping = Report(), Stopping.of(self.config, self._method, self.algorithm.plan)
        for record in self.store.records(self._progress.round):
            self._add(record)

    def _add(self, record: RoundRecord) -> None:
        """Add a completed round to the figures and to what decides whether the run ends."""
        self._stopping = self._stopping.plus(record)
        report = self._report.plus(record, self.algorithm.plan(record.round).phase)
        self._report = replace(report, stopped=self._stopping.stopped)

    @property
    def progress(self) -> RunState:
        """The run's state after the last completed round."""
        return self._progress

    @property
    def report(self) -> Report:
        """The run's figures up to the last completed round."""
        return self._report

    def status(self) -> Status:
        """Return what the run is doing; may be called from any thread."""
        round, progress = self._current, self._progress
        present, roster = len(self._connections.nodes), len(progress.roster)
        if round is None or progress.closed:
            return Status(progress.round + 1, "closed" if progress.closed else "waiting", roster, present)
        return Status(round.number, round.phase, roster, present, round.asked, len(round.waiting))

    def start(  # Flower's signature; arguments that do not apply are refused
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
        should_stop: Callable[[int, Result], bool] | None = None,
    ) -> Result:
        """Run all rounds and the closing round. Return the global model and the figures of the last evaluation.

        A run may end earlier, by ``stop-after`` or ``should_stop``; the closing round follows all the same.

        Args:
            grid: Any Flower Grid.
            initial_arrays: None or W_0. Clients derive W_0 from the seed or a file; to start from other weights, set
                ``initial-weights``.
            num_rounds: Overrides ``rounds``.
            timeout: Overrides ``timeout``, seconds.
            train_config: Must be empty; clients are configured by the run config.
            evaluate_config: Must be empty.
            evaluate_fn: Must be None.
            should_stop: Called after each round with its number and what ``start`` would return; true ends the run.
                The signature is that of Flower 1.43. That it was true is stored in the round's record; otherwise a
                resumed run asks about its last round again.

        Raises:
            RosterError: Too few clients registered, or one of them does not fit the run.
            RoundError: A round got too few replies.
        """
        extra = {"train_config": train_config, "evaluate_config": evaluate_config, "evaluate_fn": evaluate_fn}
        for name, value in extra.items():
            if value:
                raise ConfigError(name, "nothing: run config and plan say what clients do", value)
        self._change(num_rounds, timeout)
        self._check_initial(initial_arrays)
        self._exchange = Exchange(grid)
        if not isinstance(grid, LocalGrid):
            from sepal.protocol.flower.nodes import names  # imports Flower's database: a second

            self._connections.bound = partial(names, grid)
            bound_replies(largest_reply(self.task))
        self.summary()
        self._open(grid)
        while not self._progress.closed:
            self._ask_to_stop(should_stop)
            self._round(grid)
        return self._result()

    # The run's beginning

    def _change(self, rounds: int | None, timeout: float | None) -> None:
        """Override ``rounds`` or ``timeout``. The algorithm is built again, because its schedule may depend on them."""
        changes = {key: value for key, value in (("rounds", rounds), ("timeout", timeout)) if value is not None}
        if changes:
            self.config = self.config.model_copy(update=changes)
            self.task = replace(self.task, config=self.config)
            self.algorithm = self._method.make_server(self.task)
            self._read_records()
        done, limit = self._progress.round - 1, self.config.rounds
        if self._progress.closed and not (done == limit or (self._stopping.stopped and done < limit)):
            raise ConfigError("rounds", f"{done}: the run has ended", limit)

    def _ask_to_stop(self, should_stop: Callable[[int, Result], bool] | None) -> None:
        """Ask whether the run ends after the last completed round, and store it in that round's record if so."""
        round = self._progress.round
        if should_stop is None or round == 0 or self._stopping.stopped or not should_stop(round, self._result()):
            return
        if record := self.store.replay(round):
            self.store.commit(replace(record, stopped=True))
        self._stopping = self._stopping.asked()

    def _check_initial(self, arrays: ArrayRecord | None) -> None:
        given = None if arrays is None else {name: array.numpy() for name, array in arrays.items()}
        if given is not None and digest_arrays({**given, **self.task.frozen}) != self._progress.weights:
            raise ConfigError("initial_arrays", "the run config's initial weights (see initial-weights)", "others")

    def _open(self, grid: Grid) -> None:
        """Replay the recorded rounds of a stored run, wait for clients, and write a new run's first checkpoint."""
        config, found = self.config, self._connections
        if not self._fresh:
            for observer in self._observers:
                observer.opened(self._progress, config.rounds)
            if self._progress.closed:  # killed after the closing round's checkpoint
                self._tell_closed()
                return
            self._replay()
            if self._progress.closed:
                return
        progress = self._progress
        if self._method.uses_capacity:  # later, in the middle of a round, it would end the run
            second = self.algorithm.plan(2)  # a method may treat the first round apart
            found.fits = lambda client: self.algorithm.upload_schema(self._progress.server, client, second)
        found.stores.update(progress.stores)
        self._pin_data()
        nodes: Callable[[], list[int]] = lambda: list(grid.get_node_ids())  # noqa: E731
        if self._draws(grid):
            found.least, found.most = require_capacity(self._method, config.width, progress.roster), config.clients
            await_nodes(nodes, config.clients_per_round, config.timeout)
            if self._fresh:
                self._begin(progress)
            return
        needed: Sequence[str] | int = config.clients if self._fresh else progress.members
        enough = 0 if config.on_missing == "retry" else min(config.min_replies, len(progress.members))
        if not self._fresh:  # an unknown client that cannot hold the model must not stop a resumed run
            found.least = require_capacity(self._method, config.width, progress.roster)
            self._close_roster()
        wait(found, nodes, self._ask, needed, config.timeout, self._settle, enough, self._note_evicted)
        if self._fresh:
            found.least = require_capacity(self._method, config.width, found.infos)
            joined = [found.infos[name] for name in sorted(found.infos)]
            novel = tuple(draw_novel(found.infos, config.novel_clients, config.seed))
            check_replies(config, len(joined) - len(novel))
            self._begin(admit(self.algorithm, replace(progress, novel=novel), joined, dict(found.stores)))
            self._close_roster()
            self._pin_data()

    def _begin(self, progress: RunState) -> None:
        """Write a new run's first checkpoint."""
        self._progress, self._fresh = progress, False
        self.store.checkpoint(progress)
        for observer in self._observers:
            observer.opened(progress, self.config.rounds)

    def _draws(self, grid: Grid) -> bool:
        """Return whether clients are asked who they are when they are first drawn. In process, asking costs nothing."""
        return self.config.roster == "drawn" and not isinstance(grid, LocalGrid)

    def _pin_data(self) -> None:
        self._connections.data = {name: client.data for name, client in self._progress.roster.items()}

    def _close_roster(self) -> None:
        """From now on, admit only the clients of the roster, unless it is open."""
        if self.config.clients and self.config.roster != "open":
            self._connections.invited = frozenset(self._progress.roster)

    def _note_evicted(self) -> frozenset[str]:
        """Return the clients that were evicted, and refuse them from now on."""
        self._connections.evicted = self.store.evicted() | set(self._progress.evicted)
        return self._connections.evicted

    def _tell(self, node: int, reason: str) -> None:
        """Tell a node why it was refused, in a query that it need not answer. It appears in the node's log."""
        records = write_order(Order(self._progress.run, Kind.QUERY, Plan(0, reason[:256])), Content())
        if self._exchange:
            self._exchange.notify(node, Kind.QUERY, records, str(self._progress.round + 1), PATIENCE)

    def _replay(self) -> None:
        """Replay the rounds completed after the checkpoint, up to the first record that cannot be read."""
        try:
            while record := self.store.replay(self._progress.round + 1):
                start = self._start(record.round, record.joined, record.stores)
                self._finish(record, start, replayed_uploads(start, record, self.store, self.task))
        except DamagedError as reason:  # clients still have every version and reply since the checkpoint
            log.warning("%s; round %d is run again", reason, self._progress.round + 1)

    def _ask(self, nodes: Sequence[int], timeout: float = PATIENCE) -> dict[int, Reply | SepalError]:
        """Query nodes for the roster."""
        replies = self._ahead.take(nodes)
        nodes = [node for node in nodes if node not in replies]
        if not nodes:
            return replies
        order = self._query()
        records = write_order(order, Content())

        def take(node: int, content: RecordDict) -> None:
            replies[node] = self._read_answer(node, order, content)

        limit = min(timeout, self.config.timeout)
        silent = self._deliver(limit, nodes, lambda node: (Kind.QUERY, records), take)
        known = {node: reason for node, reason in self._connections.silent.items() if node not in nodes}
        self._connections.silent = {**known, **silent}
        return replies

    def _query(self) -> Order:
        return Order(self._progress.run, Kind.QUERY, Plan(self._progress.round))

    def _read_answer(self, node: int, order: Order, content: RecordDict) -> Reply | SepalError:
        try:
            check_size(content, most_message_bytes(self.task))
            return _answer_to(order, read_reply(content)[0])
        except SepalError as reason:  # the name in a reported error is the node's own choice
            key = f"node {node}: {reason.key}" if "error" in content.config_records else reason.key
            return type(reason)(key, reason.expected, reason.got)

    def _deliver(
        self,
        timeout: float,
        nodes: Sequence[int],
        compose: Compose,
        take: Take,
        enough: Callable[[], bool] = lambda: False,
    ) -> dict[int, str]:
        if self._exchange is None:
            raise RoundError("grid", "start() to be called first", "no grid")
        return self._exchange.deliver(nodes, compose, str(self._progress.round + 1), timeout, take, enough)

    # One round

    def _start(self, round: int, joined: Sequence[ClientInfo], stores: Mapping[str, str]) -> RoundStart:
        plan, closing = self.algorithm.plan(round), round > self.config.rounds
        if self._stopping.stopped and not closing:  # it closes as at its limit, not with what the schedule has now
            plan, closing = replace(self.algorithm.plan(self.config.rounds + 1), round=round), True
        return start_round(self.algorithm, self._progress, plan, closing, joined, stores)

    def _round(self, grid: Grid) -> None:
        drawn = self._draw(grid) if self._draws(grid) else None
        present = list(grid.get_node_ids())
        self._refresh(grid, None if drawn is None else present)
        infos, others = self._connections.infos, self._progress.roster.keys() | self._connections.evicted
        joined = [infos[name] for name in sorted(infos.keys() - others)]
        stores = {client.name: self._connections.stores[client.name] for client in joined}
        start = self._start(self._progress.round + 1, joined, stores)
        hurries = not isinstance(grid, LocalGrid)
        round = Round(start, self.task, self.store, joined, stores, self._connections.evicted, drawn, hurries)
        if drawn is not None and round.waiting - self._connections.nodes.keys():  # after a restart of the server
            self._refresh(grid)
        self._current = round
        begun, patience = time.monotonic(), self.config.deadline or math.inf
        deadline = begun + self.config.timeout
        settled: Callable[[], bool] = lambda: round.settle(time.monotonic() - begun > patience)  # noqa: E731
        upcoming = self._upcoming(present) if drawn else []
        while True:
            remaining = max(1.0, deadline - time.monotonic())
            deliver: Deliver = partial(self._deliver, remaining, enough=settled)
            round.send(self._connections.nodes, self._ahead.beside(deliver, upcoming, self._query()))
            upcoming = []
            self._note_evicted()
            round.evict(self._connections.evicted)
            if settled() or self.config.on_missing == "skip" or time.monotonic() > deadline:
                break
            time.sleep(self._pause)
            self._refresh(grid, None if drawn is None or round.full else present)
        names = self._connections.names
        for node, late in self._exchange.latecomers() if self._exchange else []:
            if not self._ahead.note(node, late):
                round.note_late(names.get(node, f"node {node}"), late)
        record = round.record(self._spent)
        ended = time.monotonic()
        self.store.commit(record)
        self._finish(record, start, round.uploads, round.outcome)
        self._spent = time.monotonic() - ended

    def _refresh(self, grid: Grid, before: Sequence[int] | None = None) -> None:
        """Ask the nodes that are not known yet; with ``before``, only those that have come since."""
        self._note_evicted()
        online = list(grid.get_node_ids())
        self._warn(self._connections.refresh(online, self._ask, None if before is None else newly(online, before)))

    def _draw(self, grid: Grid) -> list[str]:
        """Draw the round's clients from the nodes, the spare ones last; nobody if the round draws nobody."""
        self._note_evicted()
        number, how = self._progress.round + 1, self._how(self._progress.round + 1)
        if how is None:
            return []
        names, refusals = how.clients(self._connections, lambda: list(grid.get_node_ids()), self._ask, number)
        self._warn(refusals)
        known = self._progress.roster.keys()
        log.info("round %d: %d clients drawn, %d for the first time", number, len(names), len(set(names) - known))
        return names

    def _how(self, number: int) -> Draw | None:
        """Return how round ``number`` draws its clients; None if it draws nobody."""
        config = self.config
        if number > config.rounds or self._stopping.stopped or self.algorithm.plan(number).who != "sampled":
            return None
        wanted = config.clients_per_round
        least = wanted if config.on_missing == "retry" else config.min_replies
        return Draw(config.seed, wanted + spare(config), least, config.timeout, self._pause)

    def _upcoming(self, online: Sequence[int]) -> list[int]:
        """Return the nodes that the next round will probably draw and that were never asked."""
        number, known = self._progress.round + 2, set(self._connections.names)
        how = self._how(number)
        return [node for node in how.order(online, number)[: how.count] if node not in known] if how else []

    @staticmethod
    def _warn(refusals: Sequence[SepalError]) -> None:
        for refusal in refusals:
            log.warning("refused: %s", refusal)

    def _finish(
        self,
        record: RoundRecord,
        start: RoundStart,
        uploads: RoundUploads,
        outcome: tuple[Any, Metrics] | None = None,
    ) -> None:
        """Apply a recorded round to the state. Replayed rounds use the same code as live ones."""
        self._progress, method = advance(start, record, uploads, outcome)
        if record.joined:
            self._pin_data()
        self._add(record)
        if self._stopping.stopped and not start.closing and record.round < self.config.rounds:
            log.info("ends after round %d: %s", record.round, self._stopping.stopped.reason)
        line = metrics_line(record, start.plan, start.closing, method, self._report.totals)
        for observer in self._observers:
            observer.round(self._progress, record, line)
        last = record.round == self.config.rounds  # from which the run can be extended
        if start.closing or last or record.round % self.config.checkpoint_every == 0:
            self.store.checkpoint(self._progress)
        if start.closing:
            self._tell_closed()

    def _tell_closed(self) -> None:
        for observer in self._observers:
            observer.closed(self._progress, self._report)

    def _result(self) -> Result:
        result = Result()
        model = self.algorithm.model(self._progress.server)
        if model:
            result.arrays = ArrayRecord({name: Array(value) for name, value in model.items()})
        accuracy = self._report.accuracy
        numbers: dict[str, Any] = {f"{v}.{key}": n for v, values in accuracy.items() for key, n in values.items()}
        if numbers:
            result.evaluate_metrics_clientapp[self._report.accuracy_round] = MetricRecord(numbers)
        return result

    # Flower's other abstract methods. start() does not use them; they are refused, because they would not checkpoint.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise ConfigError: call :meth:`start` instead."""
        raise _use_start("configure_train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise ConfigError: call :meth:`start` instead."""
        raise _use_start("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise ConfigError: call :meth:`start` instead."""
        raise _use_start("configure_evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Raise ConfigError: call :meth:`start` instead."""
        raise _use_start("aggregate_evaluate")

    def summary(self) -> None:
        """Log what is about to run."""
        config, what = self.config, f"{self._method.name} on {self.config.dataset}"
        log.info("%s: %d rounds, seed %d, run %s", what, config.rounds, config.seed, self._progress.run)


def _use_start(step: str) -> ConfigError:
    """Return the error for a strategy that wraps this one to change dense arrays, which a sparse payload lacks."""
    expected = "start() alone, which checkpoints: a wrapper such as differential privacy works on dense arrays"
    return ConfigError(step, expected, "a call of its own")


def _answer_to(order: Order, reply: Reply) -> Reply:
    """Return ``reply`` if it answers the query ``order``.

    Raises:
        ProtocolError: It is of another run, round or kind.
    """
    pairs = {"run": (order.run, reply.run), "kind": (order.kind, reply.kind), "round": (order.plan.round, reply.round)}
    for key, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise ProtocolError(f"{reply.client.name}: {key}", repr(ours), repr(theirs))
    return reply
