"""What people want to know of a run, from the records of its rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.protocol.messages import Reply
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.server.ledger import LedgerEntry
from sepal.server.report import Best, RunFigures, metrics_line
from sepal.server.run_state import RoundRecord


def counts(view, validation, test):
    """Counts of a client with ten examples of each kind."""
    part = {} if validation is None else {"validation-correct": 10 * validation, "validation-examples": 10.0}
    return {f"{view}.{key}": value for key, value in {**part, "correct": 10 * test, "examples": 10.0}.items()}


def record(round, *metrics, full=True, sizes=(), state=""):
    replies = {
        f"c{number}": Reply("run", round, Kind.TRAIN, ClientInfo(f"c{number}", 5), state=state, metrics=client_metrics)
        for number, client_metrics in enumerate(metrics)
    }
    ledger = [LedgerEntry(round, "c0", purpose, direction, size, size + 1, 100) for purpose, direction, size in sizes]
    return RoundRecord(round, tuple(replies), (), {}, replies, tuple(ledger), full, {"total": 2.0, "server": 0.5})


def test_the_best_round_is_chosen_on_validation_and_reported_on_test():
    report = RunFigures()
    rounds = {1: (0.5, 0.9), 2: (0.8, 0.6), 3: (0.8, 1.0), 4: (0.7, 1.0)}  # round: (validation, test)
    for round, (validation, test) in rounds.items():
        trained, pooled = counts("trained", validation, test), counts("pooled", None, test)
        report = report.plus(record(round, {**counts("received", 0.0, test), **trained, **pooled}))
    assert report.best["trained"] == Best(2, 0.6, 0.8), "of equals the first"
    assert report.best["pooled"] == Best(2, 0.6, 0.8), "pooled follows the trained model"
    assert report.best["received"] == Best(1, 0.9, 0.0)
    figures = RunFigures().plus(record(1, counts("kept", 0.5, 0.9))).plus(record(2, counts("kept", 0.6, 0.8)))
    assert figures.best["kept"] == Best(2, 0.8, 0.6)
    assert (report.accuracy["trained"]["mean"], report.accuracy_round) == (1.0, 4)


def test_there_is_no_best_without_validation_data():
    assert RunFigures().plus(record(1, counts("trained", None, 0.5))).best == {}


def test_a_round_that_does_not_evaluate_everybody_leaves_the_accuracy_as_it_was():
    first = RunFigures().plus(record(1, counts("trained", 0.5, 0.5) | {"unseen-test-labels": 2.0}))
    after = first.plus(record(2, counts("trained", 0.9, 0.9), full=False))
    for name in ("best", "accuracy", "accuracy_round", "unseen"):
        assert getattr(after, name) == getattr(first, name)
    assert first.unseen == 1


def test_bytes_and_seconds_are_sums_and_digests_are_the_last():
    report = RunFigures().plus(record(1, {}, {}, sizes=[("training", "up", 10), ("training", "down", 20)], state="old"))
    report = report.plus(record(2, {}, sizes=[("training", "up", 1), ("closing", "down", 7)], state="new"))
    assert (report.totals.training.up, report.totals.training.down, report.totals.closing.down) == (11, 20, 7)
    assert report.totals.training.up_message == 13
    assert report.seconds == {"total": 4.0, "server": 1.0}
    assert report.digests == {"c0": "new", "c1": "old"}


def test_novel_clients_are_a_population_of_their_own():
    """Participants .8 and .6, novel .5 and .1: means .7 and .3, a gap of .4; `kept` has no gap, novel have none."""
    participants = [counts("trained", 0.5, 0.8), counts("trained", 0.5, 0.6) | counts("kept", None, 0.6)]
    round_record = record(9, *participants, counts("trained", 0.9, 0.5), counts("trained", 0.9, 0.1))
    round_record = replace(round_record, novel=("c2", "c3"))
    report = RunFigures().plus(round_record)
    assert report.accuracy["trained"]["mean"] == pytest.approx(0.7)
    assert report.accuracy["kept"]["clients"] == 1
    assert report.best["trained"].validation == pytest.approx(0.5)
    assert report.novel["accuracy"]["trained"]["mean"] == pytest.approx(0.3)
    assert report.novel["gap"] == pytest.approx({"trained": 0.4})
    line = metrics_line(round_record, Plan(9), True, {}, report.totals)
    assert line["populations"] == {"participants": 2, "novel": 2}
    assert line["novel"] == report.novel
    assert RunFigures().plus(record(9, *participants)).novel is None


@pytest.mark.parametrize("closing", [False, True])
def test_a_line_has_each_clients_own_bytes(closing):
    round_record = record(3, counts("trained", 0.5, 0.5), sizes=[("training", "up", 10), ("training", "down", 20)])
    line = metrics_line(
        round_record, Plan(3, "warm-up"), closing, {"loss": 1.0}, RunFigures().plus(round_record).totals
    )
    assert line["phase"] == ("closing" if closing else "warm-up")
    (client,) = line["clients"]
    assert (client["up"], client["down"], client["trained"], client["received"]) == (10, 20, 0.5, None)
    assert (line["method"], line["bytes"]["up"], line["accuracy"]["pooled"]) == ({"loss": 1.0}, 10, None)


def test_accuracy_by_quarter_of_the_capacities():
    """Capacities .25 (its quarter's upper bound), .2, .26 and 1: two quarters of one or two clients, none between."""
    round_record = record(1, *(counts("trained", None, test) for test in (0.5, 0.7, 0.2, 0.9)))
    capacities = dict(zip(round_record.replies, (0.25, 0.2, 0.26, 1.0), strict=True))
    replies = {
        name: replace(reply, client=replace(reply.client, capacity=capacities[name]))
        for name, reply in round_record.replies.items()
    }
    groups = RunFigures().plus(replace(round_record, replies=replies)).by_capacity
    assert list(groups) == ["0-0.25", "0.25-0.5", "0.75-1"]
    means = {name: (views["trained"]["mean"], views["trained"]["clients"]) for name, views in groups.items()}
    assert means == {"0-0.25": (pytest.approx(0.6), 2), "0.25-0.5": (0.2, 1), "0.75-1": (0.9, 1)}
    assert all(list(views) == ["trained"] for views in groups.values())
    assert RunFigures().plus(round_record).by_capacity == {}, "all have capacity 1"


def test_uploads_are_counted_by_client_and_phase_if_the_server_may_have_seen_them():
    """Accepted ones with content, and whatever was refused or late; not a reply without an upload, nor silence."""

    def up(client, purpose="training", payload=10, status="accepted", message=20, direction="up"):
        return LedgerEntry(1, client, purpose, direction, payload, message, 100, status)

    ledger = (
        *(up("a"), up("a", status="late", payload=0), up("b", status="refused"), up("c", payload=0)),
        *(up("d", status="missing", payload=0, message=0), up("e", "closing"), up("f", "evaluation")),
        up("g", direction="down"),
    )
    first = RunFigures().plus(replace(record(1), ledger=ledger), "2a")
    assert first.uploads == {"a": {"2a": 2}, "b": {"2a": 1}}
    assert first.plus(replace(record(2), ledger=ledger[:1]), "1").uploads["a"] == {"2a": 2, "1": 1}
