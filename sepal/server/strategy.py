"""SepalStrategy: runs the rounds of every method, so that a run can be stored and resumed.

It has ``start`` as Flower's strategies have it, and no steps of its own that Flower could call, which would not
checkpoint: :class:`sepal.server.plain.MethodStrategy` has those.

It decides who takes part, sends and receives messages, writes records and checkpoints, and resumes a run. The method's
server algorithm (:mod:`sepal.method.interface`) decides what is sent and how uploads are aggregated.
:class:`sepal.server.run.ServerRun` has the state and the figures, :class:`sepal.server.contact.Contact` speaks to the
nodes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from sepal.config import RunConfig
from sepal.config.agreement import inert_values
from sepal.errors import ConfigError, DamagedError, RoundError, StateError
from sepal.method.algorithms import ServerAlgorithm
from sepal.method.interface import Method, RunSetup
from sepal.protocol.types import Kind
from sepal.server.contact import Contact
from sepal.server.observer import Observer, UndoObserver
from sepal.server.opening import await_clients
from sepal.server.outcome import Outcome
from sepal.server.recovery import MOST_HALVINGS, remedy
from sepal.server.released_mean import ReleasedMean, replayed_release
from sepal.server.report import RunFigures
from sepal.server.roster import Connections
from sepal.server.round import Round
from sepal.server.run import ServerRun
from sepal.server.run_state import RoundRecord, RoundStart, RunState
from sepal.server.run_store import MemoryRunStore, RunStore
from sepal.server.secure_round import MEMBERS
from sepal.server.status import Status
from sepal.server.step_messages import ask_clients
from sepal.server.summed_uploads import SummedUploads, reading, replayed_sum, unpack
from sepal.server.uploads import RoundUploads, replayed_uploads
from sepal.storage.serialize import digest_arrays, restore
from sepal.training.threads import set_threads

log = logging.getLogger("sepal")


class SepalStrategy:
    """Runs ``method`` over any Flower Grid.

    Args:
        method: The method's record.
        setup: Model layout, initial weights and configuration.
        store: Stores what is needed to resume; by default in memory only.
        observers: Called after every round.
        settle: With ``clients = 0``, the run starts once nobody new has registered for this many seconds.
        pause: Seconds before a client that did not reply is asked again.
        agreed: The keys on which clients must agree with the server; empty: no check.
        secret: What noise with ``privacy.mode = "central"``, and a secret draw, follow from; empty: drawn anew, and
            lost with this process.
    """

    def __init__(
        self,
        method: Method,
        setup: RunSetup,
        store: RunStore | None = None,
        observers: Sequence[Observer] = (),
        settle: float = 3.0,
        pause: float = 1.0,
        agreed: str = "",
        secret: bytes = b"",
    ) -> None:
        set_threads(setup.config.threads)
        self._method, self._observers, self._settle, self._pause = method, observers, settle, pause
        self.store: RunStore = store or MemoryRunStore()
        self._run = ServerRun(method, setup, self.store, secret)
        inert = inert_values(setup.config, setup.hyper) if agreed else {}
        self._connections = Connections(self._run.state.weights, agreed, inert)
        self._connections.version_of = lambda name: self._run.state.versions.get(name, "")
        self._connections.best_of = lambda name: self._run.store.best_versions().get(name, "")
        if setup.config.privacy.noise:
            self._connections.newest_round = lambda: self._run.state.round + 1
        self._current: Round | None = None
        self._spent = 0.0

    @property
    def setup(self) -> RunSetup:
        """Model layout, initial weights and configuration."""
        return self._run.setup

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self._run.config

    @property
    def algorithm(self) -> ServerAlgorithm[Any]:
        """The method's server algorithm."""
        return self._run.algorithm

    @property
    def progress(self) -> RunState:
        """The run's state after the last completed round."""
        return self._run.state

    @property
    def report(self) -> RunFigures:
        """The run's figures up to the last completed round."""
        return self._run.report

    def status(self) -> Status:
        """Return what the run is doing; may be called from any thread."""
        round, progress = self._current, self._run.state
        present, roster = len(self._connections.nodes), len(progress.roster)
        if round is None or progress.closed:
            return Status(progress.round + 1, "closed" if progress.closed else "waiting", roster, present)
        waiting, absent = len(round.waiting), len(round.absent)
        return Status(round.number, round.phase, roster, present, round.request_count, waiting - absent, absent)

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
            RoundError: A round got too few replies, or no upload counted in any round.
        """
        extra = {"train_config": train_config, "evaluate_config": evaluate_config, "evaluate_fn": evaluate_fn}
        for name, value in extra.items():
            if value:
                raise ConfigError(name, "nothing: run config and plan say what clients do", value)
        self._run.change(num_rounds, timeout)
        self._check_initial(initial_arrays)
        contact = Contact(grid, self._run, self._connections, self._pause)
        self.summary()
        self._open(contact)
        while not self.progress.closed:
            self._ask_to_stop(should_stop)
            self._round(contact)
        return self._result()

    def _ask_to_stop(self, should_stop: Callable[[int, Result], bool] | None) -> None:
        """Ask whether the run ends after the last completed round, and store it in that round's record if so."""
        run, round = self._run, self.progress.round
        if should_stop is None or round == 0 or run.stopping.stopped:
            return
        if should_stop(round, self._result()):
            run.stop()

    def _check_initial(self, arrays: ArrayRecord | None) -> None:
        initial = None if arrays is None else {name: array.numpy() for name, array in arrays.items()}
        if initial is not None and digest_arrays({**initial, **self.setup.frozen}) != self.progress.weights:
            raise ConfigError("initial_arrays", "the run config's initial weights (see initial-weights)", "others")

    def _open(self, contact: Contact) -> None:
        """Replay the recorded rounds of a stored run, wait for clients, and write a new run's first checkpoint."""
        run = self._run
        if not run.fresh:
            self._tell_opened()
            if run.state.closed:  # killed after the closing round's checkpoint
                self._tell_closed()
                return
            self._replay()
            if run.state.closed:
                return
        state = await_clients(run, contact, self._settle)
        self._check_room(state, state.participants)  # whoever may train in any round
        if run.fresh:
            run.begin(state)
            self._tell_opened()

    def _replay(self, tell: bool = True) -> None:
        """Replay the rounds completed after the checkpoint, up to the first record that cannot be read.

        Args:
            tell: Whether observers are called; not if they have seen these rounds.
        """
        run = self._run
        try:
            while record := run.store.replay(run.state.round + 1):
                start = run.inputs(record.round, record.joined, record.stores, record.halvings)
                self._finish(record, start, self._replayed(start, record), tell=tell)
        except DamagedError as reason:  # clients still have every version and reply since the checkpoint
            log.warning("%s; round %d is run again", reason, run.state.round + 1)

    def _replayed(self, start: RoundStart, record: RoundRecord) -> RoundUploads | SummedUploads | ReleasedMean:
        store, setup = self._run.store, self._run.setup
        if self._run.central is not None:
            return SummedUploads([], None) if start.closing or record.void else replayed_release(start, store, setup)
        if setup.config.secure == "off":
            return replayed_uploads(start, record, store, setup)
        if record.void or start.closing or not any(reply.kind is Kind.TRAIN for reply in record.replies.values()):
            return SummedUploads([], None)
        return replayed_sum(start, record.round, store, setup)

    def _round(self, contact: Contact) -> None:
        run, connections = self._run, self._connections
        left = self._left_round()
        drawn = None
        if contact.draws:
            drawn = contact.draw() if left is None else list(left.sampled)
        present = contact.online()
        contact.refresh(None if drawn is None else present)
        joined, stores = connections.newcomers(run.state.roster)
        if left is not None:
            joined, stores = list(left.joined), dict(left.stores)
        self._restart_lost()
        halvings, until = run.lowered(run.state.round + 1)
        start = run.inputs(run.state.round + 1, joined, stores, halvings)
        if start.closing:
            run.check_trained()
        by_secret = run.drawn(start)
        chosen, about = drawn if by_secret is None else by_secret, (run.setup, run.store, joined, stores)
        round = Round(
            start,
            *about,
            connections.evicted,
            chosen,
            contact.local,
            until,
            run.central,
            run.report.released,
            run.simulated,
        )
        self._check_room(start.state, () if start.closing else [client.name for client in joined])
        self._refuse_lost(round.waiting)
        if drawn is not None and round.waiting - connections.nodes.keys():  # after a restart of the server
            contact.look_for(round.waiting)
        self._current = round
        back = None if drawn is None else present
        if drawn:
            contact.ask_ahead(present)
        if not round.take_up():
            self._exchange(contact, round, back)
        if run.config.on_divergence != "keep" and round.unstable:
            self._undo(round.failed(self._spent), "most clients diverged")
            return
        round.secure_sums(partial(ask_clients, contact=contact, pause=self._pause, present=back))
        record = round.record(self._spent)
        if round.spoilt and run.config.on_divergence != "keep":
            self._undo(round.failed(self._spent), round.spoilt, spoilt=True)
            return
        if record.diverged and not run.report.diverged:
            words = "round %d: the training of %d of %d clients diverged and does not count: %s"
            log.warning(words, record.round, len(set(record.diverged)), round.request_count, remedy(run.config))
        ended = time.monotonic()
        run.store.commit(record)
        self._finish(record, start, round.uploads, round.outcome)
        self._spent = time.monotonic() - ended

    def _exchange(self, contact: Contact, round: Round, present: Sequence[int] | None) -> None:
        """Send the round's orders until nobody is waited for any more, and note the replies that came too late."""
        config, begun = self.config, time.monotonic()
        patience, deadline = config.deadline or math.inf, begun + config.timeout
        settled: Callable[[], bool] = lambda: round.settle(time.monotonic() - begun > patience)  # noqa: E731
        while True:
            remaining = max(1.0, deadline - time.monotonic())
            round.send(self._connections.nodes, partial(contact.deliver, remaining, enough=settled))
            round.evict(contact.note_evicted())
            if settled() or config.on_missing == "skip" or time.monotonic() > deadline:
                break
            time.sleep(self._pause)
            contact.refresh(None if round.full else present)
        for name, late in contact.latecomers():
            round.note_late(name, late)

    def _check_room(self, state: RunState, names: Iterable[str]) -> None:
        """Raise if one of these clients may be asked to train, and its simulated device cannot hold the model."""
        run = self._run
        if run.simulated:
            size = 4 * sum(parameter.size for parameter in run.setup.layout)
            clients = [state.roster[name] for name in sorted(set(names).intersection(state.participants))]
            run.simulated.check_room(clients, size, not run.method.uses_capacity)

    def _left_round(self) -> RoundRecord | None:
        """Return the record so far of the next round, if a server was killed in the steps of its secure sum."""
        run = self._run
        data = run.store.part(run.state.round + 1, MEMBERS) if run.config.secure != "off" else None
        if data is None:
            return None
        with reading(run.state.round + 1, "the members of its secure sum"):
            return restore(RoundRecord, {}, unpack(data)[0]["record"])

    def _restart_lost(self) -> None:
        """Let the clients that have lost the version of their state be newcomers from now on, if the run says so."""
        run = self._run
        lost = sorted(self._connections.lost - set(run.state.evicted))
        lost_best = sorted(self._connections.lost_best - set(run.state.evicted))
        goes_on = run.config.privacy.noise and run.config.on_missing == "skip"  # no client ends the run for the others
        if run.config.lost_states == "refuse" or goes_on:
            return
        if lost_best:
            run.forget_best(lost_best)
            self._connections.lost_best.clear()
            words = "%d clients lack their state of the best full evaluation; of it they have the server's model: %s"
            log.warning(words, len(lost_best), _few(lost_best))
        if not lost:
            return
        run.restart(lost)
        self._connections.lost.clear()
        words = "round %d: %d clients lack their state of that time and start again from the server's model: %s"
        log.warning(words, run.state.round + 1, len(lost), _few(lost))

    def _refuse_lost(self, asked: Collection[str]) -> None:
        """End the run before a round whose orders cannot be followed; under ``skip`` it goes on without these clients.

        Raises:
            StateError: Clients of the round lack the state that it begins with.
        """
        run, lost = self._run, sorted(self._connections.lost)
        if self._connections.lost.intersection(asked) and run.config.on_missing == "retry":
            expected = f"clients that have the states of round {run.state.round}, to which the server has gone back"
            remedy = "with lost-states = restart they start again from the server's model"
            raise StateError("clients", expected, f"{len(lost)} that have lost them ({_few(lost)}): {remedy}")

    def _tell_changed(self, start: RoundStart) -> None:
        """Say in the round in which the first client's data have changed what that means for the run."""
        if self.progress.began and not start.state.began:
            words = "round %d: the data of %s have changed (data-changes = accept): the run can no longer be repeated"
            log.warning(words, self.progress.round, ", ".join(sorted(self.progress.began)[:5]))

    def _finish(
        self,
        record: RoundRecord,
        start: RoundStart,
        uploads: RoundUploads | SummedUploads | ReleasedMean,
        outcome: Outcome | None = None,
        tell: bool = True,
    ) -> None:
        """Apply a recorded round to the run. Replayed rounds use the same code as live ones."""
        line = self._run.apply(record, start, uploads, outcome)
        if tell:
            self._tell_changed(start)
        if record.joined:
            self._connections.pin(self.progress.roster)
        for observer in self._observers if tell else ():
            observer.round(self.progress, record, line)
        self._run.save()
        if start.closing:
            self._tell_closed()

    def _undo(self, failed: RoundRecord, reason: str, spoilt: bool = False) -> None:
        """Go back to the last model from which most clients could train, and lower the learning rate for these rounds.

        Args:
            failed: What the failed round has cost.
            reason: Why it failed.
            spoilt: Whether its own result is at fault, not the model from which it started.

        Raises:
            RoundError: ``on-divergence`` says so, or lower rates did not help.
        """
        run, key = self._run, f"round {failed.round}"
        names = ", ".join(sorted(set(failed.diverged))[:5])
        got = f"{reason} ({names})" if names and not spoilt else reason
        expected = "a model from which most clients can train"
        if failed.halvings >= MOST_HALVINGS:
            raise RoundError(key, expected, f"{got}, also with an eighth of the learning rate: {remedy(run.config)}")
        if run.config.on_divergence == "stop" or run.config.privacy.noise or run.config.secure != "off":
            raise RoundError(key, expected, f"{got}: {remedy(run.config)}")
        record = run.undo(failed, spoilt)
        if run.state.round < record.round - 1:
            self._replay(tell=False)
        words = "%s: %s: the run goes back to round %d, and goes on with 1/%d of the learning rate up to round %d"
        log.warning(words, key, got, run.state.round, 2**record.halvings, failed.round)
        for observer in self._observers:
            if isinstance(observer, UndoObserver):
                observer.undone(run.state, record)

    def _tell_opened(self) -> None:
        for observer in self._observers:
            observer.opened(self.progress, self.config.rounds)

    def _tell_closed(self) -> None:
        for observer in self._observers:
            observer.closed(self.progress, self.report)

    def _result(self) -> Result:
        result = Result()
        model = self.algorithm.model(self.progress.server)
        if model:
            result.arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in model.items()})
        accuracy = self.report.accuracy
        numbers: dict[str, Any] = {f"{v}.{key}": n for v, values in accuracy.items() for key, n in values.items()}
        if numbers:
            result.evaluate_metrics_clientapp[self.report.accuracy_round] = MetricRecord(numbers)
        return result

    def summary(self) -> None:
        """Log what is about to run."""
        config, title = self.config, f"{self._method.name} on {self.config.dataset}"
        log.info("%s: %d rounds, seed %d, run %s", title, config.rounds, config.seed, self.progress.run)
        if line := self._run.allowance():
            log.info("%s", line)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + ", …" * (len(names) > 5)
