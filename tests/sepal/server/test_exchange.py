"""One exchange over a grid: who answered, who did not and why, and what came too late."""

from __future__ import annotations

import time

import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict

from sepal.flower.replies import enter_run, set_message_id
from sepal.protocol.types import Kind
from sepal.server.exchange import MESSAGE_TYPES, WAVE, WAVE_BYTES, Exchange
from sepal.wire.records import to_array
from tests.sepal.server.exchange_messages import answer, compose


class Script:
    """A local grid whose replies come when the script says: node id → list of replies per pull, or nothing."""

    def __init__(self, ids=None, as_generator=False):
        enter_run()
        self.pushed, self.ids, self.as_generator = [], ids, as_generator
        self.pulls = []  # what each pull gives: functions of the messages pushed; nothing before all are
        self.expected = 0
        self.questions = []

    def arrange(self, nodes):
        return list(nodes)

    def wait(self, seconds):
        time.sleep(seconds)

    def push_messages(self, messages):
        assert isinstance(messages, list), "Flower takes the messages' number before it sends them"
        names = []
        for message in messages:
            name = f"m{len(self.pushed)}" if self.ids is None else self.ids.pop(0)
            set_message_id(message, name)
            self.pushed.append(message)
            names.append(name)
        return (name for name in names) if self.as_generator else names

    def pull_messages(self, names):
        if len(self.pushed) < self.expected:
            return []
        self.questions.append(sorted(names))
        replies = self.pulls.pop(0)(self.pushed) if self.pulls else []
        return (reply for reply in replies) if self.as_generator else replies


def deliver(grid, *nodes, timeout=5.0, exchange=None):
    exchange = exchange or Exchange(grid, poll=0.001)
    got = {}
    grid.expected = len(grid.pushed) + len(nodes)
    missing = exchange.deliver(nodes, compose, "7", timeout, got.setdefault)
    return got, missing, exchange


@pytest.mark.parametrize("as_generator", [False, True], ids=["list", "generator"])
def test_every_reply_reaches_its_node_whatever_their_order(as_generator):
    grid = Script(as_generator=as_generator)
    grid.pulls = [
        lambda sent: [answer(sent[1], 11)],
        lambda sent: [],
        lambda sent: [answer(sent[2], 12), answer(sent[0], 10)],
    ]
    got, missing, exchange = deliver(grid, 5, 6, 7)
    assert {node: records["x"]["value"] for node, records in got.items()} == {5: 10, 6: 11, 7: 12}
    assert missing == {}
    assert exchange.late == 0
    assert grid.questions == [["m0", "m1", "m2"], ["m0", "m2"], ["m0", "m2"]]


def test_messages_name_node_kind_group_and_time_to_live():
    grid = Script()
    grid.pulls = [lambda sent: [answer(sent[0])]]
    deliver(grid, 5, timeout=3.5)
    metadata = grid.pushed[0].metadata
    assert (metadata.dst_node_id, metadata.message_type, metadata.group_id, metadata.ttl) == (5, "train", "7", 3.5)
    assert MESSAGE_TYPES[Kind.ADAPT] == "train.adapt"
    assert set(MESSAGE_TYPES) == set(Kind)


def test_an_error_reply_is_matched_by_the_message_that_it_answers():
    """Error replies come with the SuperLink as their source."""
    grid = Script()

    def error(sent):
        reply = Message(Error(5, "Node\nUnavailable\x1b[2J" + "x" * 1000), reply_to=sent[1])
        reply.metadata.__dict__["_src_node_id"] = 1
        return [reply, answer(sent[0])]

    grid.pulls = [error]
    got, missing, _ = deliver(grid, 5, 6)
    assert list(got) == [5]
    assert list(missing) == [6]
    assert missing[6].startswith("error 5: Node Unavailable?[2Jxxx")
    assert len(missing[6]) <= 300


def test_a_message_that_the_superlink_did_not_take_is_missing_at_once():
    grid = Script(ids=["m0", ""])
    grid.pulls = [lambda sent: [answer(sent[0])]]
    got, missing, _ = deliver(grid, 5, 6)
    assert list(got) == [5]
    assert missing == {6: "not accepted by the SuperLink"}


def test_who_does_not_answer_in_time_is_missing():
    grid = Script()
    begun = time.monotonic()
    got, missing, _ = deliver(grid, 5, 6, timeout=0.05)
    assert 0.05 <= time.monotonic() - begun < 1
    assert got == {}
    assert missing == {5: "no reply within 0.05 s", 6: "no reply within 0.05 s"}


def test_a_late_reply_is_counted_and_not_taken_for_an_answer():
    grid = Script()
    _, _, exchange = deliver(grid, 5, 6, timeout=0.0)
    first = list(grid.pushed)
    grid.pulls = [
        lambda sent: [answer(first[0], 99)],
        lambda sent: [answer(first[0], 99), answer(sent[2], 1)],  # the late one once more
    ]
    got, missing, _ = deliver(grid, 5, exchange=exchange)
    assert got[5]["x"]["value"] == 1
    assert missing == {}
    assert exchange.late == 1
    assert [(node, records["x"]["value"]) for node, records in exchange.latecomers()] == [(5, 99)]
    assert exchange.latecomers() == []
    assert "m1" in grid.questions[-1], "the other one may still come"
    assert "m0" not in grid.questions[-1]


def test_an_error_in_place_of_a_late_reply_is_forgotten():
    grid = Script()
    _, _, exchange = deliver(grid, 5, timeout=0.0)
    first = grid.pushed[0]
    grid.pulls = [lambda sent: [Message(Error(3, "expired"), reply_to=first)], lambda sent: [answer(sent[1])]]
    deliver(grid, 6, exchange=exchange)
    assert exchange.late == 0
    assert grid.questions[-1] == ["m1"]


def test_a_duplicate_and_a_reply_to_nothing_are_ignored():
    grid = Script()

    def twice(sent):
        stranger = answer(sent[0], 3)
        stranger.metadata.__dict__["_reply_to_message_id"] = "never-sent"
        return [answer(sent[0], 1), answer(sent[0], 2), stranger]

    grid.pulls = [twice, lambda sent: [answer(sent[1])]]
    received, grid.expected = [], 2
    exchange = Exchange(grid, poll=0.001)
    missing = exchange.deliver(
        [5, 6], compose, "1", 5.0, lambda node, records: received.append((node, records["x"]["value"]))
    )
    assert received == [(5, 1), (6, 0)]
    assert missing == {}
    assert exchange.late == 0


def test_nothing_to_send_asks_nobody():
    grid = Script()
    assert deliver(grid)[1] == {}
    assert grid.questions == []


class Prompt(Script):
    """A grid that has every reply as soon as the message is pushed; keeps count of what is composed and unread."""

    def __init__(self):
        super().__init__()
        self.composed = self.read = self.most_unread = 0
        self.waves, self.pulled = [], []

    def push_messages(self, messages):
        self.waves.append(len(messages))
        return super().push_messages(messages)

    def pull_messages(self, names):
        self.pulled.append(len(names))
        by_id = {message.metadata.message_id: message for message in self.pushed}
        self.read += len(names)
        return [answer(by_id[name]) for name in names]

    def compose(self, node, size=0):
        self.composed += 1
        self.most_unread = max(self.most_unread, self.composed - self.read)
        return Kind.TRAIN, RecordDict({"payload": ArrayRecord({"payload": to_array(bytes(size))})})


def test_messages_are_composed_in_waves_and_not_all_at_once():
    grid, got = Prompt(), {}
    missing = Exchange(grid, poll=0.001).deliver(range(1000), grid.compose, "1", 5.0, got.setdefault)
    assert missing == {}
    assert list(got) == list(range(1000))
    assert grid.waves[:5] == [1, 2, 4, WAVE, WAVE], "the first is on its way while the second is composed"
    assert grid.most_unread <= WAVE


def test_large_messages_make_small_waves():
    grid, got = Prompt(), {}
    Exchange(grid, poll=0.001).deliver(
        range(6), lambda node: grid.compose(node, WAVE_BYTES // 2), "1", 5.0, got.setdefault
    )
    assert grid.waves == [1, 2, 2, 1]
    assert len(got) == 6


def test_replies_are_pulled_a_few_at_a_time():
    grid = Script()
    grid.expected, got = 100, {}
    grid.pulls = [
        lambda sent, begin=begin: [answer(m) for m in sent[begin : begin + WAVE]] for begin in range(0, 100, WAVE)
    ]
    assert Exchange(grid, poll=0.001).deliver(range(100), compose, "1", 5.0, got.setdefault) == {}
    assert max(map(len, grid.questions)) == WAVE
    assert len(got) == 100


def posted(life=60.0, ids=None):
    """A grid and an exchange with a message to node 5 whose reply nobody waits for, and how that ends."""
    grid = Script(ids)
    exchange, ends = Exchange(grid, poll=0.001), []
    take = lambda node, records: ends.append((node, records["x"]["value"]))  # noqa: E731
    exchange.post([5], *compose(5), "1", life, take, lambda *end: ends.append(end))
    return grid, exchange, ends


def fail_to_decode(sent):
    raise ValueError("no message")


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (lambda sent: [answer(sent[0], 9)], (5, 9)),
        (lambda sent: [Message(Error(5, "gone"), reply_to=sent[0])], (5, "error 5: gone")),
        (fail_to_decode, (5, "a reply that cannot be read: ValueError: no message")),
    ],
)
def test_a_message_that_nobody_waits_for_ends_once(reply, end):
    grid, exchange, ends = posted()
    grid.pulls = [reply]
    exchange.look()
    exchange.look()
    assert ends == [end]
    assert (len(grid.questions), exchange.latecomers()) == (1, []), "nothing is left to look for"
    assert posted(ids=[""])[2] == [(5, "not accepted by the SuperLink")]


def test_a_reply_that_nobody_waits_for_is_taken_beside_others_and_not_after_its_time():
    grid, exchange, ends = posted()
    grid.pulls = [lambda sent: [answer(sent[0], 9), answer(sent[1], 1)]]
    got, missing, _ = deliver(grid, 6, exchange=exchange)
    assert (list(got), missing, ends) == ([6], {}, [(5, 9)])
    grid, exchange, ends = posted(life=-1.0)
    exchange.look()
    assert (grid.questions, ends) == ([], [])
