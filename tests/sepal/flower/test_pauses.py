"""A SuperLink's dates move with a pause or a jump of its clock, and nothing ends before they have."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from flwr.server.superlink.linkstate import sql_linkstate
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.state.schema.corestate_models import Task
from flwr.supercore.state.schema.linkstate_models import Node
from sqlalchemy import select

from sepal.flower import pauses
from sepal.flower.pauses import JUMP, SETTLE, TICK, ClockWatch, patient, spared
from sepal.flower.versions import FlowerChangedError

METHODS = (
    (sql_corestate.SqlCoreState, "_cleanup_expired_task_tokens"),
    (sql_corestate.SqlCoreState, "get_task_by_token"),
    (sql_linkstate.SqlLinkState, "_check_and_tag_offline_nodes"),
)


class Clocks:
    """A wall clock and a steady one, in seconds."""

    def __init__(self):
        self.wall, self.steady = 1000.0, 50.0

    def watch(self):
        return ClockWatch(lambda: self.wall, lambda: self.steady)

    def tick(self, wall=TICK, steady=TICK):
        self.wall += wall
        self.steady += steady


def test_time_that_passes_as_it_should_is_no_gap():
    clocks = Clocks()
    watch = clocks.watch()
    for _ in range(100):
        clocks.tick()
        watch.look()
    clocks.tick(JUMP, JUMP)
    assert watch.take() == 0
    assert watch.settled()


@pytest.mark.parametrize(
    ("wall", "steady"), [(3600, 1), (-3600, 1), (120, 120), (120, 1)], ids=["ahead", "back", "paused", "suspended"]
)
@pytest.mark.parametrize("looked", [True, False])
def test_a_gap_is_taken_once_and_nothing_ends_until_it_is_written(wall, steady, looked):
    clocks = Clocks()
    watch = clocks.watch()
    clocks.tick(wall, steady)
    if looked:
        watch.look()
    assert watch.take() == wall
    assert not watch.settled()
    assert watch.take() == 0
    clocks.tick(SETTLE, SETTLE)
    assert watch.settled()


def test_nothing_expires_and_nobody_is_turned_away_while_dates_move(monkeypatch):
    clocks, calls = Clocks(), []
    watch = clocks.watch()
    monkeypatch.setattr(pauses, "mend", lambda state, watch: watch.take())
    monkeypatch.setattr(pauses, "time", SimpleNamespace(sleep=lambda seconds: clocks.tick(seconds, seconds)))
    expire = spared(lambda state: calls.append("expired"), watch)
    find = patient(lambda state, token: calls.append(token), watch)
    clocks.tick(3600, 1)
    expire(None)
    assert calls == []
    find(None, "token")
    assert calls == ["token"]
    assert watch.settled()
    expire(None)
    assert calls == ["token", "expired"]


class Jump:
    """Flower's link state in a file, with a task and a node that were heard just now, and clocks that jump."""

    def __init__(self, tmp_path, monkeypatch):
        for kind, name in METHODS:
            monkeypatch.setattr(kind, name, getattr(kind, name))  # so that they are put back
        self.offset, self.silent = 0.0, []
        for module in (sql_corestate, sql_linkstate):
            monkeypatch.setattr(module, "now", lambda: datetime.now(UTC) + timedelta(seconds=self.offset))
        watch = ClockWatch(lambda: time.time() + self.offset)
        monkeypatch.setattr(pauses, "ClockWatch", lambda: watch)
        monkeypatch.setattr(ClockWatch, "run", lambda watch: None)
        self.state = sql_linkstate.SqlLinkState(str(tmp_path / "state.db"), SimpleNamespace(), None)
        self.state.initialize()
        monkeypatch.setattr(self.state, "_on_task_tokens_expired", self.silent.extend)
        heard = datetime.now(UTC)
        dates = dict.fromkeys(("pending_at", "starting_at", "running_at"), heard)
        with self.state.session() as session:
            task = Task(task_id=1, type="server-app", run_id=1, token="token", **dates)
            task.active_until = heard + timedelta(seconds=60)
            session.add(task)
            session.add(Node(node_id=2, status="online", online_until=heard.timestamp() + 60, heartbeat_interval=30.0))

    def alive(self):
        """Return whether the task and the node are alive, each asked as Flower does."""
        task = self.state.get_task_by_token("token") is not None and self.state.acknowledge_task_heartbeat(1)
        self.state._check_and_tag_offline_nodes()
        with self.state.session() as session:
            return task and not self.silent, session.scalars(select(Node.status)).one() == "online"


@pytest.fixture
def jump(tmp_path, monkeypatch):
    return Jump(tmp_path, monkeypatch)


def test_without_this_flower_ends_all_that_it_has_not_heard_of_in_the_time_that_was_jumped(jump):
    assert jump.alive() == (True, True)
    jump.offset = 3600
    assert jump.alive() == (False, False)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_after_a_jump_tasks_and_nodes_are_alive_for_as_long_as_before(jump, seconds):
    pauses.forgive_pauses()
    jump.offset = seconds
    assert jump.alive() == (True, True)
    jump.offset = seconds + 4  # less than a jump
    assert jump.alive() == (True, True)
    with jump.state.session() as session:
        until = session.scalars(select(Node.online_until)).one()
    assert 55 < until - time.time() - seconds < 65
    jump.offset = 0
    assert jump.alive() == (True, True)


def test_another_link_state_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(sql_linkstate.SqlLinkState, "_check_and_tag_offline_nodes")
    monkeypatch.setattr(pauses.threading, "Thread", None)
    for kind, name in METHODS[:1]:
        monkeypatch.setattr(kind, name, getattr(kind, name))
    with pytest.raises(FlowerChangedError, match=r"SqlLinkState\._check_and_tag_offline_nodes"):
        pauses.forgive_pauses()
