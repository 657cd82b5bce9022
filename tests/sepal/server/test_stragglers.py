"""Over-sampling and the deadline: the first replies make the round, late ones are refused by name, a replay agrees."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import pytest
from flwr.app import Message, RecordDict

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.state_store import DiskStateStore
from sepal.config import RunConfig
from sepal.config.rules import check_together
from sepal.errors import ConfigError, RoundError
from sepal.names import client_name
from sepal.protocol.messages import write_error
from sepal.server.exchange import Exchange, LocalGrid
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed, Nodes
from tests.strategies.dmpfl import Watch
from tests.strategies.federation import FLAT

KINDS = pytest.mark.parametrize("kind", FAKES)


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch):
    monkeypatch.setattr("sepal.server.contact.Exchange", partial(Exchange, poll=0.005))


KEYS = {"clients_per_round": 2, "oversample": 1.5, "evaluate_every": 0}


class Deployed(Nodes):
    """Replies arrive once all messages of a wave are out; those of ``late`` during the next round, or never."""

    arrange = wait = None

    def __init__(self, federation, late=(), never=()):
        super().__init__(federation)
        assert not isinstance(self, LocalGrid)
        self.late, self.never, self.orders, self.withheld = set(late), set(never), [], {}
        self.looked_for = set()

    def push_messages(self, messages):
        messages = list(messages)
        names = list(super().push_messages(messages))
        for name, message in zip(names, messages, strict=True):
            of = int(message.metadata.group_id), self._federation.nodes[message.metadata.dst_node_id]
            if message.metadata.message_type == "train":
                self.orders.append(of)
            if of in self.late | self.never and message.metadata.message_type != "query":
                self.withheld[name] = of, self._replies.pop(name)
        self.looked_for = set()
        return names

    def pull_messages(self, names):
        names = list(names)
        if not self.looked_for.issuperset(names):  # so that all are asked before anybody answers
            self.looked_for.update(names)
            return []
        now = max((round for round, _ in self.orders), default=0)
        for name, ((round, client), reply) in list(self.withheld.items()):
            if (round, client) in self.late and now > round:
                self._replies[name] = reply
                del self.withheld[name]
        return super().pull_messages(names)


def federation(kind="queue", **settings):
    return Federation(FAKES[kind][0], rounds=6, clients=6, settings={**KEYS, **settings})


def run(subject, late=(), never=(), store=None):
    strategy, watch = subject.server(store), Watch()
    strategy._observers = [*strategy._observers, watch]
    grid = Deployed(subject, late, never)
    strategy.start(grid)
    return strategy, watch.records, grid


def late_of(record):
    return [(e.client, e.message > 0, e.reason) for e in record.ledger if e.status == "late"]


def drawn(kind, round):
    """Who is asked in a round without over-sampling."""
    subject = federation(kind, oversample=1.0)
    subject.run()
    return [name for asked_round, name in subject.trained if asked_round == round]


@KINDS
def test_the_first_replies_make_the_round_and_the_late_one_is_named(kind):
    counted = drawn(kind, 1)
    subject = federation(kind)
    strategy, records, _ = run(subject, late={(1, counted[0])})
    (spare,) = set(records[0].sampled) - set(counted)
    assert sorted(records[0].replies) == sorted([counted[1], spare])
    assert (counted[0], False, "the first 2 replies made the round") in late_of(records[0])
    late_names = [
        name for record in records[1:] for name, arrived, _ in late_of(record) if arrived and name == counted[0]
    ]
    assert late_names, "the reply itself is entered when it comes"
    assert (1, counted[0]) in subject.trained, "it did the work"
    assert FAKES[kind][1](strategy.progress.server, subject.states(strategy), closed=True)
    assert not [entry for record in records for entry in record.ledger if entry.status in ("refused", "missing")]


@KINDS
def test_without_late_clients_it_is_the_run_without_oversampling(kind):
    """Replies that come together count in the order in which their clients were asked: the spare ones last."""
    strategy, records, _ = run(federation(kind))
    plain, _, _ = run(federation(kind, oversample=1.0))
    assert digest(strategy.progress.server) == digest(plain.progress.server)
    assert dict(strategy.report.digests) == dict(plain.report.digests)
    spare = [entry for record in records[:-1] for entry in late_of(record)]
    assert spare
    assert all(arrived for _, arrived, _ in spare), "asked, answered, and refused by name"


def test_in_process_nobody_is_asked_in_vain():
    subject = federation(deadline=0.001)
    strategy = subject.run()
    plain = federation(oversample=1.0)
    assert digest(plain.run().progress.server) == digest(strategy.progress.server)
    assert subject.trained == plain.trained


def test_a_full_evaluation_waits_for_everybody_and_asks_no_spare():
    subject = federation(evaluate_every=2)
    _, records, _ = run(subject)
    assert [len(record.sampled) for record in records] == [3, 2, 3, 2, 3, 2, 6]
    assert all(len(record.replies) == 6 for record in records if record.full)


def test_a_client_that_never_answers_does_not_hold_a_round_but_the_last():
    counted = drawn("queue", 1)
    subject = federation(timeout=0.3)
    never = {(round, counted[0]) for round in range(1, 7)}
    strategy, records, _ = run(subject, never=never)
    assert strategy.progress.round == 7
    assert all(len(record.replies) == 2 for record in records[:-1])


def test_the_deadline_ends_a_round_with_at_least_min_replies():
    counted = drawn("queue", 1)
    settings = {"oversample": 1.0, "deadline": 0.3, "timeout": 20.0}
    begun = time.monotonic()
    _, records, _ = run(federation(**settings), never={(1, counted[0])})
    assert time.monotonic() - begun < 15
    assert sorted(records[0].replies) == [counted[1]]
    assert late_of(records[0]) == [(counted[0], False, "expected a reply within 0.3 s (deadline)")]
    with pytest.raises(RoundError, match=r"round 1: expected a reply of every client within 1 s"):
        run(federation(**{**settings, "timeout": 1.0, "min_replies": 2}), never={(1, counted[0])})


@pytest.mark.parametrize("error", ["raises", "sends nonsense"])
def test_a_spare_client_makes_up_for_one_that_fails(error):
    counted = drawn("queue", 2)

    class Failing(Deployed):
        def answer(self, message):
            reply = super().answer(message)
            name = self._federation.nodes[message.metadata.dst_node_id]
            if (name, message.metadata.group_id, message.metadata.message_type) != (counted[0], "2", "train"):
                return reply
            bad = write_error(ConfigError("disk", "room", "none"), name) if error == "raises" else RecordDict()
            return Message(bad, reply_to=message)

    strategy, watch = federation().server(), Watch()
    strategy._observers = [watch]
    subject = federation()
    strategy.start(Failing(subject))
    (spare,) = set(watch.records[1].sampled) - set(counted)
    assert sorted(watch.records[1].replies) == sorted([counted[1], spare])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"oversample": 1.3, "clients_per_round": 0}, "oversample: expected 1 with clients-per-round = 0"),
        ({"deadline": 700.0}, "deadline: expected at most timeout = 600"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        check_together(RunConfig(**keys))


# Killed after the record and before the aggregation, with real methods


@dataclass
class Digits(Federation):
    """Real clients on a few digits, with states on disk."""

    name: str = "fedavg"

    def __post_init__(self):
        flat = {**FLAT, "method": self.name, "clients": self.clients, "rounds": self.rounds, "batch-size": 16}
        flat |= {"clients-per-round": 2, "oversample": 1.5, "evaluate-every": 0, "checkpoint-every": 3}
        self.assembly = assemble({**flat, "timeout": 60.0, "lr": 0.1, **self.settings})
        self.method, self.setup = self.assembly.method, self.assembly.setup
        self.shared = Shared.around(self.assembly, "cpu")
        self.nodes = {100 + number: client_name(number) for number in range(self.clients)}
        kind = self.method.client_state
        self.stores = {name: DiskStateStore(self.directory / name, kind) for name in self.nodes.values()}

    def host(self, name):
        return build_host(self.shared, Node(int(name[-5:]), self.clients), "", self.stores[name])


class KilledAfter(DiskRunStore):
    at = 0

    def commit(self, record):
        super().commit(record)
        if record.round == self.at:
            raise Killed


@pytest.mark.parametrize("name", ["fedavg", "fedpse", "subfedavg", "dmpfl"])
def test_killed_after_the_record_the_same_replies_count(name, tmp_path):
    """A resumed server must not take the late reply, although the client's state on disk has moved on."""

    def subject(where):
        return Digits(None, rounds=5, clients=5, directory=tmp_path / where, name=name)

    def store(where, at=0):
        killed_store = KilledAfter(tmp_path / where / "server", subject("scratch").method.server_state)
        killed_store.at = at
        return killed_store

    _, records, _ = run(subject("first"))
    round = next(r.round for r in records if len(r.sampled) == 3 and r.round > 1)
    late = {(r.round, sorted(r.replies)[0]) for r in records if r.round in (1, round) and len(r.sampled) == 3}
    whole, before, _ = run(subject("whole"), late, store=store("whole"))
    assert {entry[0] for r in before for entry in late_of(r) if not entry[1]} == {name for _, name in late}
    again = subject("killed")
    with pytest.raises(Killed):
        run(again, late, store=store("killed", round))
    trained = len(again.trained)
    strategy, _, _ = run(again, late, store=store("killed"))
    assert min(r for r, _ in again.trained[trained:]) > round, "the recorded round is not asked again"
    assert digest(strategy.progress.server) == digest(whole.progress.server)
    assert dict(strategy.report.digests) == dict(whole.report.digests)
    assert strategy.progress.versions == whole.progress.versions
