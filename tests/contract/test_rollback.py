"""A round from whose model most clients diverge is undone, and the run goes on with half the rate.

Three of four clients say in round 4 that they diverged, unless its rate is halved ``enough`` times. So round 3, which
made the model, is undone: the run repeats rounds 3 and 4 with half the rate, then with a quarter, and so on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from sepal.errors import DivergedError, RoundError
from sepal.protocol.messages import read_order, write_error
from sepal.protocol.types import Kind
from sepal.server.run_store import DiskRunStore, MemoryRunStore
from tests.contract.fakes import FAKES, QueueServer
from tests.contract.harness import Federation, Killed
from tests.contract.test_contract import KINDS, agrees, outcome

ALL = 10**6
BAD = 4  # the round in which clients diverge
FAILURES = 4  # on the way to one round, before the run ends


QUEUE = FAKES["queue"][0]


class Spoilt(QueueServer):
    """Its result of every round is NaN."""

    uses_capacity = True
    first = 1

    def aggregate(self, state, uploads, plan):
        after, metrics = super().aggregate(state, uploads, plan)
        return (replace(after, w=after.w * np.nan) if plan.round >= self.first and list(uploads) else after), metrics


class SpoiltLater(Spoilt):
    uses_capacity = True
    first = 2


class Diverging(Federation):
    """Three clients diverge in round ``bad``, unless the rate is halved ``enough`` times.

    The server dies when the ``killed_before``-th order to train reaches a client.
    """

    def __init__(self, kind, tmp_path=None, enough=1, bad=BAD, killed_before=0, well=("client-3",), **settings):
        directory = tmp_path / "clients" if tmp_path else None
        super().__init__(FAKES[kind][0], rounds=6, directory=directory, settings=settings)
        self.well = well
        self.enough, self.bad, self.killed_before = enough, bad, killed_before
        self.orders: list[tuple[int, int]] = []  # (round, halvings) of each order to train
        self.lines, self.undone_rounds = {}, []

    def _handle(self, message):
        order, _ = read_order(message.content)
        if order.kind is Kind.TRAIN:
            self.orders.append((order.plan.round, order.plan.halvings))
            if len(self.orders) == self.killed_before:
                raise Killed
            name = self.nodes[message.metadata.dst_node_id]
            if order.plan.round == self.bad and order.plan.halvings < self.enough and name not in self.well:
                return Message(write_error(DivergedError("w", "numbers", "NaN"), name), reply_to=message)
        return super()._handle(message)

    def opened(self, progress, total):
        self.lines = {round: line for round, line in self.lines.items() if round <= progress.round}

    def undone(self, progress, record):
        self.undone_rounds.append(record.round)
        self.lines = {round: line for round, line in self.lines.items() if round <= progress.round}

    def round(self, progress, record, line):
        assert record.round not in self.lines, "each round is shown once, or again after it was undone"
        self.lines[record.round] = line

    def closed(self, progress, report):
        pass

    def start(self, store):
        strategy = self.server(store)
        strategy._observers = [self]
        return self.run(strategy=strategy)


def on_disk(federation: Federation, tmp_path: Path) -> DiskRunStore:
    return DiskRunStore(tmp_path / "server", federation.method.server_state)


@KINDS
@pytest.mark.parametrize("enough", [1, 3])
@pytest.mark.parametrize("every", [1, 2, 10])
def test_both_sides_go_back_together(kind, enough, every, tmp_path):
    ends = []
    for where in ("memory", "disk"):
        federation = Diverging(kind, tmp_path if where == "disk" else None, enough, checkpoint_every=every)
        strategy = federation.start(on_disk(federation, tmp_path) if where == "disk" else MemoryRunStore())
        assert strategy.progress.closed
        assert agrees(kind, federation, strategy)
        assert sorted(federation.lines) == [1, 2, 3, 4, 5, 6, 7]
        ends.append((outcome(strategy), strategy.report.totals, strategy.report.diverged))
    assert ends[0] == ends[1]
    assert ends[0][2] == 3 * enough
    assert Counter(federation.orders) == {
        **{(round, 0): 4 for round in ((1, 3, 4, 5) if kind == "phase" else (1, 2, 3, 4, 5, 6))},
        **{(round, halvings): 4 for round in (3, 4) for halvings in range(1, enough + 1)},
    }, "round 5 has the whole rate again"


def test_what_was_undone_stands_in_the_ledger_and_the_figures():
    federation = Diverging("queue", enough=2)
    strategy = federation.start(MemoryRunStore())
    line, after = federation.lines[3], federation.lines[4]
    assert (line["diverged"], line["halvings"], after["halvings"], federation.lines[5]["halvings"]) == (6, 2, 2, 0)
    assert federation.undone_rounds == [3, 3]
    assert (strategy.report.diverged, strategy.report.undone) == (6, 1)
    assert strategy.report.totals.training.down_message > 0
    orders = sum(round in (3, 4) for round, _ in federation.orders)
    assert orders == 4 * 2 * 3, "rounds 3 and 4, three times"


@pytest.mark.parametrize("killed_before", range(13, 29))
def test_a_server_killed_at_any_order_ends_the_same(killed_before, tmp_path):
    """Orders 13 to 16 are those of round 4, 17 to 24 those of rounds 3 and 4 again, 25 to 28 of round 5."""
    whole = Diverging("lag", tmp_path / "whole", enough=1, checkpoint_every=2)
    expected = whole.start(on_disk(whole, tmp_path / "whole"))
    federation = Diverging("lag", tmp_path, enough=1, checkpoint_every=2, killed_before=killed_before)
    with pytest.raises(Killed):
        federation.start(on_disk(federation, tmp_path))
    strategy = federation.start(on_disk(federation, tmp_path))
    assert outcome(strategy) == outcome(expected)
    assert strategy.report.totals == expected.report.totals
    assert strategy.report.diverged == expected.report.diverged == 3
    assert agrees("lag", federation, strategy)


def test_the_first_round_is_repeated_itself():
    federation = Diverging("queue", bad=1)
    assert federation.start(MemoryRunStore()).progress.closed
    assert federation.orders[:8] == [(1, 0)] * 4 + [(1, 1)] * 4
    assert federation.orders[8] == (2, 0)


def test_a_run_that_does_not_recover_ends_and_says_what_to_set(tmp_path):
    federation = Diverging("queue", tmp_path, enough=ALL)
    message = r"round 4: expected a model from which most clients can train, got .*eighth.*: set a lower lr"
    with pytest.raises(RoundError, match=message):
        federation.start(on_disk(federation, tmp_path))
    assert {halvings for _, halvings in federation.orders} == {0, 1, 2, 3}
    before = len(federation.orders)
    with pytest.raises(RoundError, match=message):
        federation.start(on_disk(federation, tmp_path))
    assert len(federation.orders) == before + 4, "started again, it asks round 4 once more and ends"
    stored = (tmp_path / "server" / "records" / "000003").read_text().partition("\n")[2]
    assert json.loads(stored)["record"]["halvings"] == 3


def test_it_ends_at_once_or_goes_on_if_the_key_says_so():
    federation = Diverging("queue", enough=ALL, on_divergence="stop")
    with pytest.raises(RoundError, match="round 4: expected a model from which most clients can train"):
        federation.start(MemoryRunStore())
    assert {halvings for _, halvings in federation.orders} == {0}
    federation = Diverging("queue", enough=ALL, on_divergence="keep")
    assert federation.start(MemoryRunStore()).progress.closed
    assert federation.lines[4]["diverged"] == 3
    assert federation.lines[4]["population"] == 1, "the one that could train counts"


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_in_which_no_upload_ever_counts_is_not_complete(stored, tmp_path):
    """Every result is NaN, and ``keep`` goes on: the run ends with an error, also when it is started again."""
    federation = Federation(replace(QUEUE, server=Spoilt), rounds=3, settings={"on_divergence": "keep"})
    store = DiskRunStore(tmp_path, QUEUE.server_state) if stored else MemoryRunStore()
    strategy = federation.server(store)
    expected = (
        r"run: needed an upload that counts, but none in 3 rounds \(client-0: upload: expected a result .*lower lr"
    )
    with pytest.raises(RoundError, match=expected):
        federation.run(strategy=strategy)
    assert not strategy.progress.closed
    assert strategy.progress.round == 3
    if stored:
        with pytest.raises(RoundError, match="none in 3 rounds"):
            federation.run(DiskRunStore(tmp_path, QUEUE.server_state))


def test_a_round_without_enough_replies_tells_each_cause_once_with_its_clients():
    federation = Diverging("queue", enough=ALL, bad=1, well=(), on_divergence="keep")
    cause = "w: expected numbers, got NaN (client-0, client-1, client-2 and 1 more)"
    with pytest.raises(RoundError, match=f"^round 1: needed at least 1 reply, but 0: {re.escape(cause)}$"):
        federation.start(MemoryRunStore())


def test_one_upload_that_counts_completes_a_run():
    federation = Federation(replace(QUEUE, server=SpoiltLater), rounds=3, settings={"on_divergence": "keep"})
    assert federation.run().progress.closed


def test_a_minority_that_diverges_undoes_nothing():
    federation = Diverging("queue", enough=ALL, well=("client-1", "client-2", "client-3"))
    strategy = federation.start(MemoryRunStore())
    assert strategy.progress.closed
    assert not federation.undone_rounds
    assert strategy.report.diverged == 1


@pytest.mark.parametrize("min_replies", [3, 4])
def test_one_client_sends_a_run_back_only_where_min_replies_cannot_do_without_it(min_replies):
    """Not defended: where a round does not count without it, one client that says so four times ends the run."""
    others = ("client-1", "client-2", "client-3")
    federation = Diverging("queue", enough=ALL, well=others, min_replies=min_replies)
    if min_replies == 3:
        assert federation.start(MemoryRunStore()).progress.closed
        assert not federation.undone_rounds
    else:
        with pytest.raises(RoundError, match="also with an eighth of the learning rate"):
            federation.start(MemoryRunStore())
        assert len(federation.undone_rounds) == FAILURES - 1


class Liars(Diverging):
    """Most clients say that they diverged at the pairs (round, halvings) of ``where``."""

    def __init__(self, where, *arguments, **settings):
        super().__init__("queue", *arguments, bad=0, **settings)
        self.where = where

    def _handle(self, message):
        order, _ = read_order(message.content)
        at = (order.plan.round, order.plan.halvings)
        assert len(self.orders) < 4 * 100, "the run goes on without an end"
        if order.kind is Kind.TRAIN and at in self.where and self.nodes[message.metadata.dst_node_id] not in self.well:
            self.orders.append(at)
            name = self.nodes[message.metadata.dst_node_id]
            return Message(write_error(DivergedError("w", "numbers", "NaN"), name), reply_to=message)
        return super()._handle(message)


WHERE = {
    "the repeated round": {(4, 0), (3, 1)},
    "and the one before": {(4, 0), (3, 1), (2, 2)},
    "up and down": {(4, 0), (3, 1), (4, 2), (3, 3)},
    "every first attempt": {(round, 0) for round in range(1, 7)},
    "all but the last attempt": {(round, halvings) for round in range(1, 7) for halvings in range(3)},
}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE.keys())
def test_liars_cannot_keep_a_run_from_its_end(where, stored, tmp_path):
    """A repeated round may fail itself; the rate stays lowered up to the round that failed first."""
    federation = Liars(where, tmp_path if stored else None)
    reason = ""
    try:
        federation.start(on_disk(federation, tmp_path) if stored else MemoryRunStore())
    except RoundError as error:
        reason = str(error)
    assert not reason or "also with an eighth of the learning rate" in reason
    assert len(federation.undone_rounds) <= (FAILURES - 1) * 6, "the run has six rounds"
