"""Nodes that nobody invited, and clients that leave for good: who is in the roster, and who may take one out."""

from __future__ import annotations

import time

import pytest

from sepal.errors import RosterError
from sepal.protocol.messages import read_order
from sepal.protocol.types import Kind
from sepal.server.contact import Contact
from sepal.server.run_store import DiskRunStore, evict
from tests.attacks.attacked_federation import Hostile, silence
from tests.contract.fakes import FAKES
from tests.contract.harness import Killed

METHOD = FAKES["queue"][0]


class Visited(Hostile):
    """A federation that a further client joins after round 1; it leaves after round 2."""

    def __init__(self, directory=None, **settings):
        super().__init__(None, when=lambda order: False, **settings)
        self.directory, self.refusals, self.left = directory, [], ()

    def round(self, progress, record, line):
        super().round(progress, record, line)
        if record.round == 1:
            self.join("stranger")
        if record.round == 2:
            self.leave("stranger")

    def leave(self, name):
        self.nodes = {node: node_name for node, node_name in self.nodes.items() if node_name != name}

    def _handle(self, message):
        order, _ = read_order(message.content)
        if order.kind is Kind.QUERY and order.plan.phase:
            self.refusals.append((self.nodes[message.metadata.dst_node_id], order.plan.phase))
        return super()._handle(message)


def test_a_node_that_nobody_invited_does_not_end_the_run_and_is_told_so():
    federation = Visited()
    progress = federation.run().progress
    assert progress.closed
    assert set(progress.roster) == {f"client-{n}" for n in range(4)}
    ((name, words),) = federation.refusals
    assert name == "stranger"
    assert words.startswith("client stranger: expected one of the 4 clients of the start (roster = closed)")


def test_a_resumed_run_is_as_closed_as_it_was(tmp_path):
    federation = Visited(tmp_path / "clients")
    federation.killed_at = 3
    store = lambda: DiskRunStore(tmp_path / "server", METHOD.server_state)  # noqa: E731
    with pytest.raises(Killed):
        federation.run(store())
    federation.killed_at = 0
    federation.join("another")
    progress = federation.run(store()).progress
    assert progress.closed
    assert set(progress.roster) == {f"client-{n}" for n in range(4)}


def test_an_open_run_that_waits_for_a_client_that_left_goes_on_once_it_is_evicted(tmp_path):
    """In round 3 it waits; the operator evicts the client while it does. After a kill, it is still evicted."""
    federation = Visited(tmp_path / "clients", roster="open", timeout=20.0)
    checkpoints = tmp_path / "server"
    handle = federation._handle

    def handle_and_evict(message):
        order, _ = read_order(message.content)
        if order.kind is Kind.TRAIN and order.plan.round == 3 and not (checkpoints / "evicted").exists():
            evict(checkpoints, "stranger")
        return handle(message)

    federation._handle = handle_and_evict
    federation.killed_at = 4
    with pytest.raises(Killed):
        federation.run(DiskRunStore(checkpoints, METHOD.server_state))
    assert federation.records[-1].evicted == ("stranger",)
    federation.killed_at = 0
    progress = federation.run(DiskRunStore(checkpoints, METHOD.server_state)).progress
    assert progress.closed
    assert progress.evicted == ("stranger",)
    assert "stranger" not in progress.members
    assert "stranger" not in federation.records[-1].replies


def test_a_client_evicted_between_two_starts_is_not_waited_for(tmp_path):
    federation = Visited(tmp_path / "clients", roster="open", timeout=1.0)
    checkpoints = tmp_path / "server"
    with pytest.raises(Exception, match="stranger missing"):
        federation.run(DiskRunStore(checkpoints, METHOD.server_state))
    with pytest.raises(RosterError, match="absent: stranger"):
        federation.run(DiskRunStore(checkpoints, METHOD.server_state))
    evict(checkpoints, "stranger")
    assert federation.run(DiskRunStore(checkpoints, METHOD.server_state)).progress.closed


def test_a_stranger_that_no_record_names_is_evicted_while_the_round_waits_for_it(tmp_path):
    """It joins after round 1 and never answers, so its first round would wait for ever: no record names it yet."""
    federation = Visited(tmp_path / "clients", roster="open", timeout=20.0)
    checkpoints = tmp_path / "server"
    handle = federation._handle
    answers = []

    def handle_and_evict(message):
        order, _ = read_order(message.content)
        if federation.nodes[message.metadata.dst_node_id] == "stranger" and order.kind is Kind.TRAIN:
            answers.append(evict(checkpoints, "stranger"))
            return silence(message, order, None, None)
        return handle(message)

    federation._handle = handle_and_evict
    progress = federation.run(DiskRunStore(checkpoints, METHOD.server_state)).progress
    assert answers == ["no record of the run has that name"]
    assert progress.closed
    assert progress.evicted == ("stranger",)
    assert all("stranger" not in record.replies for record in federation.records)


def test_a_node_that_is_yet_to_come_is_evicted_by_name_and_does_not_end_the_start(tmp_path):
    federation = Visited(tmp_path / "clients", roster="open")
    store = DiskRunStore(tmp_path / "server", METHOD.server_state)
    evict(tmp_path / "server", "stranger")
    federation.join("stranger")
    progress = federation.run(store).progress
    assert progress.closed
    assert set(progress.roster) == {f"client-{n}" for n in range(4)}
    assert {(name, words.partition(",")[0]) for name, words in federation.refusals} == {
        ("stranger", "client stranger: expected a client that was not evicted")
    }


def test_a_name_that_may_be_a_slip_of_the_pen_is_evicted_with_a_hint(tmp_path):
    Visited(tmp_path / "clients").run(DiskRunStore(tmp_path / "server", METHOD.server_state))
    assert "did you mean client-1" in evict(tmp_path / "server", "client1")
    assert evict(tmp_path / "server", "client-1") == ""
    with pytest.raises(RosterError, match="client: expected at most 64 letters"):
        evict(tmp_path / "server", "../client-1")


def test_an_eviction_in_the_last_moments_of_a_round_is_noticed(tmp_path, monkeypatch):
    """The operator evicts the client while the server still waits for it, and then the time is up."""
    federation = Visited(tmp_path / "clients", roster="open", timeout=1.0)
    checkpoints, deliver = tmp_path / "server", Contact.deliver

    def long(self, *arguments, **named):
        answers = deliver(self, *arguments, **named)
        if self._run.state.round == 2 and not (checkpoints / "evicted").exists():
            evict(checkpoints, "stranger")
            time.sleep(1.1)
        return answers

    monkeypatch.setattr(Contact, "deliver", long)
    progress = federation.run(DiskRunStore(checkpoints, METHOD.server_state)).progress
    assert progress.closed
    assert progress.evicted == ("stranger",)
