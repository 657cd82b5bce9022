"""Nodes that register and never answer: what they cost the clients of a run, in seconds of a clock that tests turn."""

from __future__ import annotations

import pytest

from sepal.errors import RosterError, RoundError
from sepal.flower.replies import set_message_id
from sepal.server import contact, drawing, exchange, opening, questions, roster, round, strategy
from sepal.server.roster import PATIENCE
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Nodes
from tests.strategies.dmpfl import Watch

PLAIN = {"evaluate_every": 0, "timeout": 600.0}
DRAWN = {**PLAIN, "roster": "drawn", "clients_per_round": 2}


class Clock:
    """Replaces the module ``time`` of the server's modules: whoever sleeps finds that the time has passed."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    turned = Clock()
    for module in (contact, drawing, exchange, opening, questions, roster, round, strategy):
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", turned)
    return turned


class Deployed(Nodes):
    """Not in process. Nodes of the names ``silent-…`` are registered and say nothing, and those of ``slow`` later."""

    arrange = wait = None

    def __init__(self, federation, clock, slow=None):
        super().__init__(federation)
        self.clock, self.slow, self.due = clock, slow or {}, dict[str, float]()
        self.pushed = []

    def push_messages(self, messages):
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.pushed.append((node, message.metadata.message_type))
            if self._federation.nodes[node].startswith("silent"):
                names.append(f"unanswered-{len(self.pushed)}")
                set_message_id(message, names[-1])
                continue
            names += super().push_messages([message])
            self.due[names[-1]] = self.clock.now + self.slow.get(node, 0.0)
        return names

    def pull_messages(self, names):
        return super().pull_messages([name for name in names if self.due.get(name, 0.0) <= self.clock.now])


def add_silent(federation, *numbers):
    for number in numbers:
        federation.nodes[10_000 + number] = f"silent-{number}"


def run(clock, keys, rounds=6, clients=4, before=0, each_round=1, slow=None):
    """Return the strategy, the seconds at which each round ended, and the grid."""
    federation = Federation(FAKES["queue"][0], rounds=rounds, clients=clients, settings=keys)
    add_silent(federation, *range(before))
    server, ends = federation.server(), []

    def after(progress):
        ends.append(clock.now)
        add_silent(federation, *(1000 * progress.round + number for number in range(each_round)))

    server._observers = [Watch(after)]
    grid = Deployed(federation, clock, slow)
    server.start(grid)
    return server, ends, grid


@pytest.mark.parametrize("roster_kind", ["closed", "open"])
def test_a_silent_stranger_a_round_delays_no_round_of_clients_that_are_all_there(clock, roster_kind):
    server, ends, grid = run(clock, {**PLAIN, "roster": roster_kind})
    assert set(server.progress.roster) == {f"client-{n}" for n in range(4)}
    assert server.progress.closed
    assert ends[-1] < 5.0
    assert any(node > 10_000 for node, _ in grid.pushed), "it is asked all the same"


def test_a_run_starts_when_its_clients_are_there_whoever_else_is_silent(clock):
    _, ends, _ = run(clock, PLAIN, before=50)
    assert ends[-1] < 5.0


@pytest.mark.parametrize("each_round", [0, 1])
def test_a_run_of_all_who_come_waits_for_the_silent_once(clock, each_round):
    _, ends, _ = run(clock, {**PLAIN, "clients": 0}, before=50, each_round=each_round)
    assert ends[0] < PATIENCE + 5.0
    assert ends[-1] - ends[0] < 5.0


def test_a_hundred_silent_nodes_delay_a_drawn_round_by_one_patience_at_most(clock):
    server, ends, grid = run(clock, DRAWN, rounds=12, clients=12, before=100, each_round=0)
    assert server.progress.closed
    lasted = [after - before for before, after in zip([0.0, *ends], ends, strict=False)]
    assert max(lasted) <= PATIENCE + 5.0
    assert ends[-1] < len(ends) * PATIENCE / 2, "and not each round"
    assert all(sum(node == stranger for node, _ in grid.pushed) < 8 for stranger in range(10_000, 10_100))


def test_a_silent_newcomer_a_round_is_drawn_and_soon_replaced(clock):
    server, ends, _ = run(clock, DRAWN, rounds=12, clients=12)
    assert server.progress.closed
    assert ends[-1] < 12 * 15.0
    assert len(server.progress.roster) > 6


@pytest.mark.parametrize("keys", [PLAIN, {**PLAIN, "clients": 5}, {**PLAIN, "clients": 5, "on_missing": "skip"}])
def test_timeout_holds_at_the_start_whoever_is_silent(clock, keys):
    with pytest.raises(RosterError, match="within 10 s"):
        run(clock, {"clients": 5, **keys, "timeout": 10.0}, before=5)
    assert clock.now < 12.0


@pytest.mark.parametrize("waits", ["retry", "skip"])
def test_timeout_holds_for_a_draw_whoever_is_silent(clock, waits):
    keys = {**DRAWN, "clients_per_round": 3, "min_replies": 3, "on_missing": waits, "timeout": 30.0}
    with pytest.raises(RoundError, match="3 clients within 30 s, got 2"):
        run(clock, keys, rounds=2, clients=2, before=20, each_round=0)
    assert clock.now < 35.0


def test_a_slow_client_is_waited_for_and_a_silent_one_beside_it_is_not(clock):
    server, ends, _ = run(clock, PLAIN, before=1, slow={100: 30.0})
    assert ends[0] == pytest.approx(60.0, abs=2.0), "30 s until it has said who it is, and 30 s for its reply"
    assert server.progress.closed
