"""When a run ends before its limit: the rule on hand-made curves, `should_stop`, and the closing round after either."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.config import RunConfig
from sepal.protocol.messages import Reply
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.server.ledger import LedgerEntry
from sepal.server.run_state import RoundRecord
from sepal.server.run_store import DiskRunStore
from sepal.server.stopping import Stopping
from sepal.storage.serialize import digest
from sepal.strategies import registry
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed, Nodes


def record(round, percent, view="received", full=False, purpose="training"):
    """A round with one client, of 1000 validation examples; None: it sends no accuracy."""
    counts = {f"{view}.validation-correct": 10.0 * (percent or 0), f"{view}.validation-examples": 1000.0}
    reply = Reply("run", round, Kind.TRAIN, ClientInfo("c", 5), metrics=counts if percent is not None else {})
    ledger = (LedgerEntry(round, "c", purpose, "up", 1, 1, 1),)
    return RoundRecord(round, ("c",), (), {}, {"c": reply}, ledger, full, {})


def ends(percents, after, **keys):
    """The round after which a run with these accuracies in % ends; None if it goes on."""
    stopping = Stopping(after, "received", full=False, first=1)
    for round, percent in enumerate(percents, 1):
        stopping = stopping.plus(record(round, percent, **keys))
        if stopping.stopped:
            return round
    return None


@pytest.mark.parametrize(
    ("percents", "after", "last"),
    [
        ([50] * 40, 3, 8),  # the first mean, of rounds 1-5, is the rise; 5 + 3
        ([50] * 40, 1, 6),
        ([50] * 40, 0, None),
        ([50] * 7, 3, None),  # one round too few
        (range(40), 3, None),  # a point a round: so does the mean of five
        ([50 + 0.1 * r for r in range(40)], 3, 8),  # .3 points in three rounds are no rise
        ([50 + 0.1 * r for r in range(40)], 7, None),  # .6 points after six rounds are one, again and again
        ([50] * 6 + [52] + [50] * 33, 3, 8),  # a lucky round of +2 lifts the mean by .4
        ([50] * 6 + [53] + [50] * 33, 3, 10),  # one of +3 by .6, in round 7
        ([50] * 5 + [60] * 35, 3, 13),  # means 50, 52 … 58, and 60 in round 10
        ([90] * 5 + [50, 60, 70, 80, 89] + [90] * 30, 3, 8),  # a fall, and back to where it was: no rise
        ([50, None] * 20, 3, 13),  # five points in rounds 1, 3 … 9; the first at least three later is in 13: 9, 11, 13
        ([None] * 40, 3, None),  # sepal join --no-accuracies
    ],
)
def test_a_run_ends_when_the_mean_of_five_points_has_not_risen(percents, after, last):
    assert ends(percents, after) == last


def test_points_are_the_deployed_models_in_rounds_that_do_not_evaluate_everybody():
    """Rounds of another kind, view or purpose change nothing: the flat curve goes on counting beneath them."""
    for odd in ({"view": "trained"}, {"full": True}, {"purpose": "closing"}):
        assert ends([50] * 40, 3, **odd) is None
        stopping = Stopping(3, "received", full=False, first=1)
        for round in range(1, 8):
            stopping = stopping.plus(record(round, 50)).plus(record(round, 90, **odd))
        assert stopping.plus(record(8, 50)).stopped


@pytest.mark.parametrize(
    ("method", "keys", "view", "full"),
    [
        ("fedavg", {}, "received", False),
        ("fedavg-ft", {}, "trained", False),  # deploys the trained model
        ("fedpse", {}, "trained", False),  # deploys the kept one, which only full evaluations score
        ("fedavg", {"evaluate_sampled": False}, "received", True),
        ("fedavg", {"evaluate_every": 1}, "received", True),
    ],
)
def test_the_view_is_that_of_the_deployed_model(method, keys, view, full):
    config = RunConfig(rounds=20, stop_after=3, **keys)
    stopping = Stopping.of(config, registry.get(method), Plan)
    assert (stopping.view, stopping.full, stopping.first, stopping.after) == (view, full, 1, 3)


def test_only_the_methods_last_phase_counts():
    phases = ["a", "b", "a", "a", "a"]
    config = RunConfig(rounds=5, stop_after=1)
    stopping = Stopping.of(config, registry.get("fedavg"), lambda round: Plan(round, phases[round - 1]))
    assert stopping.first == 3
    for round in range(1, 8):
        stopping = stopping.plus(record(round, 50))
        assert not stopping.stopped  # five points in rounds 3 to 7
    assert stopping.plus(record(8, 50)).stopped


# should_stop


def federation(kind="queue", tmp_path=None, rounds=6, **settings):
    values = {"checkpoint_every": 2, "evaluate_every": 0, "timeout": 5.0, **settings}
    return Federation(FAKES[kind][0], rounds=rounds, settings=values, directory=tmp_path and tmp_path / "clients")


def serve(subject, store=None, should_stop=None, rounds=None):
    strategy = subject.server(store)
    strategy.start(Nodes(subject), should_stop=should_stop, num_rounds=rounds)
    return strategy


def outcome(strategy):
    return digest(strategy.progress.server), dict(strategy.report.digests), strategy.progress.round


def test_a_caller_may_end_the_run_after_any_round():
    """It is asked as Flower 1.43 asks: with the round, and with what `start` would return."""
    subject, calls = federation(), []

    def should_stop(round, result):
        calls.append((round, sorted(result.arrays)))
        return round == 3

    strategy = serve(subject, should_stop=should_stop)
    assert calls == [(1, ["w"]), (2, ["w"]), (3, ["w"])]
    assert {round for round, _ in subject.trained} == {1, 2, 3}
    assert (strategy.progress.round, strategy.progress.closed) == (4, True)
    assert strategy.report.stopped.by == "should_stop"
    assert len(strategy.report.digests) == 4, "every client keeps its state"


def test_a_run_that_is_never_asked_to_end_has_all_its_rounds():
    whole = serve(federation(), should_stop=lambda round, result: False)
    assert (outcome(whole), whole.report.stopped) == (outcome(serve(federation())), None)


@pytest.mark.parametrize("killed_at", [3, 4])
def test_a_run_that_was_asked_to_end_ends_there_after_a_kill(killed_at, tmp_path):
    """Killed in round 3, or in the closing round 4: then nobody asks again, and the record of round 3 says it."""
    whole = serve(federation(), should_stop=lambda round, result: round == 3)
    subject = federation(tmp_path=tmp_path)
    subject.killed_at = killed_at

    def store():
        return DiskRunStore(tmp_path / "server", subject.method.server_state)

    with pytest.raises(Killed):
        serve(subject, store(), lambda round, result: round == 3)
    subject.killed_at = 0
    resumed = serve(subject, store(), (lambda round, result: round == 3) if killed_at == 3 else None)
    assert outcome(resumed) == outcome(whole)
    again = serve(subject, store())
    assert (outcome(again), again.report.stopped.by) == (outcome(whole), "should_stop"), "an ended run is known as one"


def test_the_closing_round_is_that_of_the_limit(monkeypatch):
    """Not what the schedule has for the round after the last one: in DM-PFL, that may be a readjustment of masks."""
    subject = federation()
    strategy = subject.server()
    monkeypatch.setattr(strategy.algorithm, "plan", lambda round: Plan(round, f"phase {round}"))
    plans = []
    inputs = strategy._run.inputs
    monkeypatch.setattr(strategy._run, "inputs", lambda *args: plans.append(inputs(*args)) or plans[-1])
    strategy.start(Nodes(subject), should_stop=lambda round, result: round == 2)
    rounds = [(planned.plan.round, planned.plan.phase, planned.closing) for planned in plans]
    assert rounds == [(1, "phase 1", False), (2, "phase 2", False), (3, "phase 7", True)]


def test_a_round_that_ended_the_run_survives_the_disk(tmp_path):
    store = DiskRunStore(tmp_path, FAKES["queue"][0].server_state)
    store.commit(replace(record(1, 50), stopped=True))
    assert store.replay(1).stopped
