"""An exchange that looks for replies: what is lost, who is asked again, and how often a SuperLink is asked."""

from __future__ import annotations

import pytest

from sepal.flower.replies import enter_run, set_message_id
from sepal.server.exchange import OVERDUE, Exchange
from tests.sepal.server.exchange_messages import answer, compose


class SuperLink:
    """A grid that marks replies as delivered before it decodes them, as Flower's does."""

    def __init__(self, broken, times=99):
        enter_run()
        self.broken, self.times = broken, dict.fromkeys(broken, times)
        self.replies, self.sent = {}, []

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = f"m{len(self.sent)}"
            set_message_id(message, name)
            self.sent.append(message.metadata.dst_node_id)
            self.replies[name] = answer(message)
            names.append(name)
        return names

    def pull_messages(self, names):
        replies = [self.replies.pop(name) for name in names if name in self.replies]
        for reply in replies:
            node = reply.metadata.src_node_id
            if self.times.get(node, 0) > 0:
                self.times[node] -= 1
                raise KeyError("ArrayRecord")
        return replies


def test_a_reply_that_cannot_be_decoded_loses_no_other_reply():
    grid, got = SuperLink({7}), {}
    missing = Exchange(grid, poll=0.001).deliver([5, 6, 7, 8, 9], compose, "7", 5.0, got.setdefault)
    assert set(got) == {5, 6, 8, 9}
    assert missing == {7: "a reply that cannot be read: KeyError: 'ArrayRecord'"}
    assert sorted(grid.sent) == [5, 6, 7, 7, 8, 9], "asked a second time, and not a third"


def test_a_node_whose_reply_was_lost_is_asked_again():
    grid, got = SuperLink({7}, times=1), {}
    missing = Exchange(grid, poll=0.001).deliver([5, 7], compose, "7", 5.0, got.setdefault)
    assert (set(got), missing) == ({5, 7}, {})


class Forgetful(SuperLink):
    """A grid that loses the message of each place in ``losses``: the node never gets it."""

    def __init__(self, losses):
        super().__init__({})
        self.losses = losses

    def push_messages(self, messages):
        names = super().push_messages(messages)
        for number in self.losses:
            self.replies.pop(f"m{number}", None)
        return names


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("sepal.server.exchange.OVERDUE", 0.05)


def test_a_node_that_takes_far_longer_than_before_is_asked_again(impatient):
    grid, got = Forgetful({3}), {}
    exchange = Exchange(grid, poll=0.001)
    assert exchange.deliver([5, 7], compose, "1", 5.0, {}.setdefault) == {}
    missing = exchange.deliver([5, 7], compose, "2", 5.0, got.setdefault)
    assert (set(got), missing) == ({5, 7}, {})
    assert grid.sent == [5, 7, 5, 7, 7], "only who did not answer"


def test_no_node_is_asked_again_within_a_minute():
    """As docs/deployment.md says; half of it is the longest pause between two polls that `sepal join --poll` takes."""
    assert OVERDUE == 60
    grid = Forgetful({3})
    exchange = Exchange(grid, poll=0.001)
    exchange.deliver([5, 7], compose, "1", 5.0, {}.setdefault)
    assert exchange.deliver([5, 7], compose, "2", 0.3, {}.setdefault) == {7: "no reply within 0.3 s"}
    assert grid.sent == [5, 7, 5, 7]


def test_a_node_is_asked_a_third_time_by_nobody(impatient):
    grid = Forgetful({3, 4, 5})
    exchange = Exchange(grid, poll=0.001)
    exchange.deliver([5, 7], compose, "1", 5.0, {}.setdefault)
    missing = exchange.deliver([5, 7], compose, "2", 0.3, {}.setdefault)
    assert missing == {7: "no reply within 0.3 s"}
    assert grid.sent == [5, 7, 5, 7, 7]


def test_a_node_of_which_nothing_is_known_is_not_asked_again(impatient):
    """It may be slow: nobody knows yet how long it takes to train."""
    grid = Forgetful({1})
    assert Exchange(grid, poll=0.001).deliver([5, 7], compose, "1", 0.3, {}.setdefault) == {7: "no reply within 0.3 s"}
    assert grid.sent == [5, 7]


def test_of_two_answers_to_one_order_the_first_counts_and_the_second_is_late(impatient):
    grid, got = Forgetful({1}), []
    exchange = Exchange(grid, poll=0.001)
    exchange.deliver([7], compose, "1", 5.0, {}.setdefault)
    pushed = []
    grid.push_messages = lambda messages, push=grid.push_messages: pushed.extend(messages) or push(messages)
    missing = exchange.deliver([7], compose, "2", 5.0, lambda node, records: got.append(node))
    assert (got, missing) == ([7], {}), "m1 was lost, m2 was answered"
    grid.losses = {}
    grid.replies["m1"] = answer(pushed[0])  # it was not lost after all
    exchange.deliver([7], compose, "3", 5.0, {}.setdefault)
    assert exchange.late == 1
    assert [node for node, _ in exchange.latecomers()] == [7]


def test_looking_in_vain_takes_at_most_half_of_a_superlinks_time(monkeypatch):
    grid, clock = SuperLink({}), [0.0]
    pulls, paused = [], []
    answers = grid.pull_messages

    def pull(names):
        clock[0] += 0.05
        pulls.append(names)
        return answers(names) if len(pulls) > 100 else []

    def sleep(seconds):
        paused.append(seconds)
        clock[0] += seconds

    grid.pull_messages = pull
    monkeypatch.setattr("sepal.server.exchange.time.sleep", sleep)
    monkeypatch.setattr("sepal.server.exchange.time.monotonic", lambda: clock[0])
    assert Exchange(grid, poll=0.1).deliver(range(20), compose, "1", 60.0, {}.setdefault) == {}
    assert max(paused) == pytest.approx(20 * 0.05), "a sweep over twenty nodes"
