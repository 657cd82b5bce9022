"""``roster = "drawn"``: a client is asked who it is when it is first drawn, and no round waits for the others."""

from __future__ import annotations

import pytest

from sepal.config import RunConfig
from sepal.config.rules import check_together
from sepal.errors import ConfigError, RosterError, RoundError
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed, Nodes
from tests.strategies.dmpfl import Watch

KEYS = {"roster": "drawn", "clients_per_round": 2, "evaluate_every": 0, "checkpoint_every": 2, "timeout": 5.0}


class Deployed(Nodes):
    """Not in process; counts who is asked who it is, by round."""

    arrange = wait = None

    def __init__(self, federation):
        super().__init__(federation)
        self.queries = []

    def push_messages(self, messages):
        for message in messages:
            if message.metadata.message_type == "query":
                self.queries.append((int(message.metadata.group_id), message.metadata.dst_node_id))
        return super().push_messages(messages)


def federation(kind="queue", clients=12, rounds=4, directory=None, **settings):
    return Federation(
        FAKES[kind][0], rounds=rounds, clients=clients, settings={**KEYS, **settings}, directory=directory
    )


def run(subject, store=None):
    strategy, watch, grid = subject.server(store), Watch(), Deployed(subject)
    strategy._observers = [watch]
    strategy.start(grid)
    return strategy, watch.records, grid


def joining_rounds(strategy, records, grid):
    """Round in which a client joined, and in which it was asked, from round 2 on."""
    asked_round = {grid._federation.nodes[node]: round for round, node in grid.queries}
    return [(record.round, asked_round[client.name]) for record in records[1:] for client in record.joined]


@pytest.mark.parametrize("kind", FAKES)
def test_only_those_drawn_are_asked_and_each_once(kind):
    subject = federation(kind)
    strategy, records, grid = run(subject)
    assert len([node for round, node in grid.queries if round == 1]) <= 4, "two, and those of round 2 meanwhile"
    if kind == "queue":  # every round draws
        assert all(first == last + 1 for first, last in joining_rounds(strategy, records, grid)), "asked a round ahead"
    assert len(set(grid.queries)) == len(grid.queries)
    assert len(grid.queries) == len(strategy.progress.roster) < 12
    drawn = [record for record in records[:-1] if record.joined]
    assert [client.name for record in drawn for client in record.joined] != []
    assert set(records[-1].sampled) == set(strategy.progress.roster), "the closing round asks who has taken part"
    assert FAKES[kind][1](strategy.progress.server, subject.states(strategy), closed=True)


def test_a_round_begins_with_as_many_as_it_needs():
    """The others have not registered when it starts, and take part once they have."""
    subject = federation(rounds=8)
    late = {node: subject.nodes.pop(node) for node in list(subject.nodes)[2:]}
    strategy, watch = subject.server(), Watch(lambda progress: subject.nodes.update(late))
    strategy._observers = [watch]
    strategy.start(Deployed(subject))
    assert set(watch.records[0].sampled) == {"client-0", "client-1"}
    assert len(strategy.progress.roster) > 3


def test_too_few_end_the_start_and_a_round():
    subject = federation(timeout=0.3)
    nodes = dict(subject.nodes)
    subject.nodes = dict(list(nodes.items())[:1])
    with pytest.raises(RosterError, match=r"clients: expected 2 registered within 0.3 s"):
        run(subject)
    subject.nodes = dict(list(nodes.items())[:2])
    strategy, watch = subject.server(), Watch(lambda progress: subject.nodes.clear())
    strategy._observers = [watch]
    with pytest.raises(RoundError, match=r"round 2: expected 2 clients within 0.3 s, got 0"):
        strategy.start(Deployed(subject))


def test_one_that_cannot_take_part_is_replaced_and_the_number_is_limited():
    subject = federation(clients=3, rounds=6)
    subject.join("stranger")
    subject.join("another")
    strategy, _, _ = run(subject)
    assert len(strategy.progress.roster) == 3, "clients = 3 of the 5 that have registered"
    assert strategy.progress.round == 7


def test_a_killed_run_goes_on_with_the_clients_it_has_named(tmp_path):
    whole, _, _ = run(federation(rounds=5))
    subject = federation(rounds=5, directory=tmp_path / "clients")
    state = subject.method.server_state
    subject.killed_at = 4
    with pytest.raises(Killed):
        run(subject, DiskRunStore(tmp_path / "server", state))
    subject.killed_at = 0
    strategy, _, _ = run(subject, DiskRunStore(tmp_path / "server", state))
    assert strategy.progress.roster == whole.progress.roster
    assert digest(strategy.progress.server) == digest(whole.progress.server)
    assert dict(strategy.report.digests) == dict(whole.report.digests)


def test_a_server_that_comes_back_for_the_closing_round_finds_its_clients(tmp_path):
    """It knows their names, and not which nodes they are; ``skip`` must not end the round without them."""
    subject = federation(on_missing="skip", directory=tmp_path / "clients")
    subject.killed_at = 5
    state = subject.method.server_state
    with pytest.raises(Killed):
        run(subject, DiskRunStore(tmp_path / "server", state))
    subject.killed_at = 0
    strategy, records, _ = run(subject, DiskRunStore(tmp_path / "server", state))
    assert set(records[-1].replies) == set(strategy.progress.roster)


def test_spare_clients_are_drawn_too():
    _, records, _ = run(federation(oversample=1.5))
    assert [len(record.sampled) for record in records[:-1]] == [3] * 4
    assert [len(record.replies) for record in records[:-1]] == [2] * 4


def test_in_process_it_is_a_closed_roster():
    drawn, closed = federation().run(), federation(roster="closed").run()
    assert len(drawn.progress.roster) == 12
    assert digest(drawn.progress.server) == digest(closed.progress.server)


@pytest.mark.parametrize("keys", [{}, {"clients_per_round": 2, "novel_clients": 0.2}])
def test_it_goes_with_a_sample_and_without_novel_clients(keys):
    with pytest.raises(ConfigError, match="roster: expected closed or open"):
        check_together(RunConfig(roster="drawn", **keys))


class Forgetful(Deployed):
    """Loses the first question to each node that is asked a round ahead: to all but the first two."""

    def push_messages(self, messages):
        before = {node for _, node in self.queries}
        messages = list(messages)
        names = list(super().push_messages(messages))
        for name, message in zip(names, messages, strict=True):
            first = message.metadata.message_type == "query" and message.metadata.dst_node_id not in before
            if first and len(before) >= 2:
                del self._replies[name]
        return names


@pytest.mark.parametrize("on_missing", ["skip", "retry"])
def test_a_client_whose_first_question_was_lost_loses_no_upload(on_missing):
    """Its reply to training was taken for the answer to the question. It is asked again when it is drawn."""
    subject = federation(on_missing=on_missing)
    strategy, watch, grid = subject.server(), Watch(), Forgetful(subject)
    strategy._observers = [watch]
    strategy.start(grid)
    assert len(strategy.progress.roster) > 3
    assert all(set(record.replies) == set(record.sampled) for record in watch.records)
    assert not [entry for record in watch.records for entry in record.ledger if entry.status != "accepted"]
