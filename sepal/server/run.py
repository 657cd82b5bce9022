"""A run apart from its clients: its state, its figures, whether it ends early, and what is stored of it.

Nothing here sends or receives a message; :class:`sepal.server.strategy.SepalStrategy` does.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sepal.config import RunConfig
from sepal.config.rules import why_no_best
from sepal.errors import ConfigError, RoundError, StateError
from sepal.method.interface import Method, RunSetup
from sepal.protocol.types import ClientInfo, Uploads
from sepal.server.accounting import before_the_run, check_budget, epsilon_after, exceeds_budget
from sepal.server.central_noise import CentralNoise
from sepal.server.outcome import Outcome
from sepal.server.recovery import first_undone, remedy, undone
from sepal.server.report import RunFigures, metrics_line
from sepal.server.rules import check_choosing, check_noised_rounds
from sepal.server.run_state import RoundRecord, RoundStart, RunState, advance, from_best, start_round
from sepal.server.run_store import RunStore
from sepal.server.simulated_rounds import SimulatedRounds
from sepal.server.stopping import Stopping
from sepal.storage.serialize import digest_arrays

log = logging.getLogger("sepal")
OTHER_WEIGHTS = (
    "another model, seed or file, data of another shape or number of classes, or another version of Sepal, which "
    "counts other tensors (such as frozen ones that are tied), began the run"
)


class ServerRun:
    """A run after its last completed round.

    Args:
        method: The method's record.
        setup: Model layout, initial weights and configuration.
        store: Stores what is needed to resume. A run that it has is continued.
        secret: What central noise and a secret draw follow from; empty: drawn anew, which a stored run does not admit.

    Attributes:
        state: The run's state.
        fresh: Whether nothing of it is stored yet.
        report: Its figures.
        stopping: Whether it ends early.
        central: The noise of ``privacy.mode = "central"``; None in another run.
        simulated: Judges rounds by simulated time; None in a run without.

    Raises:
        StateError: The stored run has other initial weights.
        ConfigError: What the method sends cannot have noise on its sum, not one round is within ``privacy.budget``, a
            run that is stored has no secret for the noise, or the profile of devices cannot be read.
    """

    def __init__(self, method: Method, setup: RunSetup, store: RunStore, secret: bytes = b"") -> None:
        self.method, self.setup, self.store = method, setup, store
        self.algorithm = method.make_server(setup)
        check_noised_rounds(self.algorithm, method, setup.config)
        check_choosing(self.algorithm, method, setup.config)
        check_budget(setup.config)
        self.central = (
            CentralNoise.of(setup.config, secret or _new_secret(store)) if setup.config.privacy.central else None
        )
        self.simulated = SimulatedRounds.of(setup.config)
        weights, stored = digest_arrays(setup.start), store.latest()
        if stored and stored.weights != weights:
            expected = f"digest {stored.weights[:12]}, with which the run was started"
            raise StateError("initial weights", expected, f"{weights[:12]}: {OTHER_WEIGHTS}")
        self.fresh = stored is None
        self.state = stored or RunState(uuid.uuid4().hex, 0, self.algorithm.init(), weights)
        self._before: tuple[RunState, RunFigures, Stopping, RoundRecord] | None = (
            None  # where the store replays nothing
        )
        self._read_records()

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.setup.config

    def _read_records(self) -> None:
        """Compute what follows from the records of the rounds up to the checkpoint."""
        scoring = self.setup.task.scoring
        self._halvings, self._lowered_until = 0, 0
        self.report = RunFigures(scoring=scoring)
        self.stopping = Stopping.of(self.config, self.method, self.algorithm.plan, scoring)
        for record in self.store.records(self.state.round):
            self._add(record)

    def _add(self, record: RoundRecord) -> None:
        """Add a completed round to the figures and to what decides whether the run ends."""
        self.stopping = self.stopping.plus(record)
        self._halvings, self._lowered_until = record.halvings, record.lowered_until
        report = self.report.plus(record, self.algorithm.plan(record.round).phase)
        if record.releases and exceeds_budget(self.config, report.released):
            self.stopping = self.stopping.stopped_by_budget(self.config.privacy.budget)
        self.report = replace(report, stopped=self.stopping.stopped)

    def change(self, rounds: int | None, timeout: float | None) -> None:
        """Override ``rounds`` or ``timeout``. The algorithm is built again, because its schedule may depend on them.

        Raises:
            ConfigError: The run has ended at another round, or clients' learning rate depends on ``rounds``.
        """
        if rounds not in (None, self.config.rounds) and (by := self.config.depends_on_rounds):
            raise ConfigError("num_rounds", f"rounds = {self.config.rounds}, on which {by} depends", rounds)
        changes = {key: value for key, value in (("rounds", rounds), ("timeout", timeout)) if value is not None}
        if changes:
            self.setup = replace(self.setup, config=self.config.model_copy(update=changes))
            self.algorithm = self.method.make_server(self.setup)
            self._read_records()
        done, limit = self.state.round - 1, self.config.rounds
        if self.state.closed and not (done == limit or (self.stopping.stopped and done < limit)):
            raise ConfigError("rounds", f"{done}: the run has ended", limit)

    def begin(self, state: RunState) -> None:
        """Write a new run's first checkpoint."""
        self.state, self.fresh = state, False
        self.store.checkpoint(state)

    def restart(self, names: Sequence[str]) -> None:
        """Forget the versions of clients that have lost them, in a checkpoint: the clients are newcomers again.

        Raises:
            ConfigError: The run has noise: what a client has sent since then would count for nobody.
        """
        if self.config.privacy.noise:
            expected = "refuse with privacy.noise: ε would leave out what these clients have sent since then"
            raise ConfigError("lost-states", expected, f"restart of {', '.join(names[:5])}")
        versions = {name: version for name, version in self.state.versions.items() if name not in names}
        restarting = tuple(sorted({*self.state.restarting, *names}))  # for the round's record, also after a kill
        self.state = replace(self.state, versions=versions, restarting=restarting)
        self.store.checkpoint(self.state)

    def forget_best(self, names: Sequence[str]) -> None:
        """Forget the versions of clients that have lost their state of the best full evaluation.

        With ``final-model = "best"`` they begin the closing round as newcomers.
        """
        if (best := self.store.best()) is not None:
            versions = {name: version for name, version in best.versions.items() if name not in names}
            self.store.keep_best(replace(best, versions=versions))

    def samples(self, round: int) -> bool:
        """Return whether ``round`` draws the clients that train, as far as the records tell."""
        ends = round > self.config.rounds or self.stopping.stopped
        return not ends and self.algorithm.plan(round).who == "sampled"

    def inputs(
        self, round: int, joined: Sequence[ClientInfo], stores: Mapping[str, str], halvings: int = 0
    ) -> RoundStart:
        """Return the inputs of ``round``, the next one.

        Args:
            round: Its number.
            joined: Clients that join the roster in it, sorted by name.
            stores: Identity of each new client's state store.
            halvings: How often the clients' learning rate is halved.
        """
        plan, closing = self.algorithm.plan(round), round > self.config.rounds
        if self.stopping.stopped and not closing:  # it closes as at its limit, not with what the schedule has now
            plan, closing = replace(self.algorithm.plan(self.config.rounds + 1), round=round), True
        state, best_round = self._best() if closing and self.config.final_model == "best" else (self.state, 0)
        clip = 0.0 if self.central is None or closing else self.state.clip or self.config.privacy.clip
        plan = replace(plan, halvings=halvings, clip=clip)
        start = start_round(self.algorithm, state, plan, closing, joined, stores)
        return replace(start, best_round=best_round)

    def drawn(self, start: RoundStart) -> list[str] | None:
        """Return whom the server's secret draws for a round; None if who trains does not depend on it."""
        if self.central is None or not self.central.poisson or start.closing:
            return None
        return self.central.drawn(start.state.participants, start.plan.round)

    def allowance(self) -> str:
        """Return a line about ε after all rounds, in a run whose rounds are releases; else nothing."""
        return before_the_run(self.config) if self.config.privacy.of_rounds else ""

    def _best(self) -> tuple[RunState, int]:
        """Return the state of the models that were best on validation data, and the round of that evaluation.

        They are those of the last round, and 0, where no model was evaluated or the stored one is of another round: a
        run that went back has no other than the newest.
        """
        best, stored = self.report.best.get(self.method.deployed), self.store.best()
        if best is None or stored is None or stored.round != best.round - 1:
            why = "no full evaluation has validation figures" if best is None else f"that of round {best.round} is lost"
            log.warning("final-model = best: %s; the last round's models are evaluated", why)
            return self.state, 0
        log.info("the closing round evaluates the models of round %d, the best on validation data", best.round)
        return from_best(self.algorithm, self.state, stored), best.round

    def check_trained(self) -> None:
        """Raise if clients have trained, and no upload has counted: a run that has learned nothing is not complete.

        Raises:
            RoundError: See above.
        """
        if self.report.trained or not self.report.totals.training.down_message:
            return
        rounds = f"{self.state.round} round{'s' * (self.state.round != 1)}"
        why = f" ({self.report.refusal})" if self.report.refusal else ""
        raise RoundError("run", "an upload that counts", f"none in {rounds}{why}: {remedy(self.config)}")

    def lowered(self, round: int) -> tuple[int, int]:
        """Return how often the learning rate of ``round``, the next one, is halved, and up to which round."""
        attempt = self.store.undone(round)
        if attempt:
            return attempt.halvings, attempt.lowered_until
        return (self._halvings, self._lowered_until) if round <= self._lowered_until else (0, 0)

    def undo(self, failed: RoundRecord, spoilt: bool) -> RoundRecord:
        """Go back to before the round whose model was at fault, which is repeated with half the learning rate.

        Afterwards :attr:`state` is the one before that round, or, where the store replays rounds, that of a checkpoint
        before it: then the recorded rounds up to it are to be replayed.

        Args:
            failed: The record of the round that failed.
            spoilt: Whether its own result was at fault, not the model from which it started.

        Returns:
            The record of what is undone.
        """
        records = self.store.undoable() if self.store.replays else [self._before[-1]] if self._before else []
        first = failed.round if spoilt else first_undone(records, failed.round)
        repeated = [record for record in records if record.round >= first]
        until = max(failed.round, failed.lowered_until)  # a repeated round may fail itself
        record = undone([*repeated, failed], failed.halvings + 1, until)
        self.store.undo(record)
        if repeated and self._before:
            self.state, self.report, self.stopping, _ = self._before
            self._halvings, self._lowered_until, self._before = 0, 0, None
        elif repeated and (stored := self.store.latest()):
            self.state = stored
            self._read_records()
        return record

    def apply(
        self, record: RoundRecord, start: RoundStart, uploads: Uploads, outcome: Outcome | None = None
    ) -> dict[str, Any]:
        """Advance by a recorded round, and return its line of metrics.jsonl. Replayed rounds use the same code.

        Args:
            record: What happened in the round.
            start: Its inputs.
            uploads: Its accepted uploads.
            outcome: What ``aggregate`` returns for them, if it is known.
        """
        if not self.store.replays:
            self._before = self.state, self.report, self.stopping, record
        self.state, metrics = advance(start, record, uploads, outcome)
        self._add(record)
        best = self.report.best.get(self.method.deployed)
        if not why_no_best(self.config) and not start.closing and best and best.round == record.round:
            self.store.keep_best(start.state, self.config.final_model == "best" or self.store.lasts)
        if self.stopping.stopped and not start.closing and record.round < self.config.rounds:
            log.info("ends after round %d: %s", record.round, self.stopping.stopped.reason)
        scoring = self.setup.task.scoring
        line = metrics_line(record, start.plan, start.closing, metrics, self.report.totals, scoring)
        if self.config.privacy.of_rounds and not start.closing:
            epsilons = epsilon_after(self.config, self.report.released)
            clip = start.plan.clip or self.config.privacy.clip
            line["privacy"] = {"clip": clip, "releases": record.releases, **epsilons}
        return line

    def save(self) -> None:
        """Write a checkpoint if the last round is one of those that have one."""
        last = self.state.round == self.config.rounds  # from which the run can be extended
        if self.state.closed or last or self.state.round % self.config.checkpoint_every == 0 or self.store.due():
            self.store.checkpoint(self.state)

    def stop(self) -> None:
        """End the run after the last completed round, because a caller asked, and store it in that round's record."""
        if record := self.store.replay(self.state.round):
            self.store.commit(replace(record, stopped=True))
        self.stopping = self.stopping.stopped_by_caller()


def _new_secret(store: RunStore) -> bytes:
    """Return a secret for a run in memory. That of a stored run must be stored, too, or its releases could not be told.

    Raises:
        ConfigError: The run is stored.
    """
    if store.lasts:
        expected = "local, or SepalStrategy(…, secret=…) with 32 secret bytes that are kept for the whole run"
        raise ConfigError("privacy.mode", expected, "central, with a store and without a secret")
    return os.urandom(32)
