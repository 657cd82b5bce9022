"""Replies from a SuperLink: one question for all of them, and each pulled alone; over Flower's own grid."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import http_grid

from sepal.flower.replies import at_hand, enter_run, set_message_id
from sepal.protocol.types import Kind
from sepal.server.exchange import TOGETHER, Exchange


class Client:
    """A SuperLink behind Flower's client: the reply to each message is there at once, and given out once.

    Args:
        broken: Nodes whose replies cannot be decoded.
        refuses_together: Whether a question for several replies fails, and gives none of them out.
        lost: Questions whose answers are lost on their way, by number: their replies are gone.
    """

    def __init__(self, broken=(), refuses_together=False, lost=()):
        self.replies, self.objects, self.questions, self.confirmed, self.pushed = {}, {}, [], [], []
        self.broken, self.refuses_together, self.lost, self.gone = set(broken), refuses_together, set(lost), set()

    def PushMessages(self, request):
        names = []
        for proto, tree in zip(request.messages_list, request.message_object_trees, strict=True):
            names.append(tree.object_id)
            self.pushed.append(proto.metadata.dst_node_id)
            self.reply(proto.metadata.dst_node_id, tree.object_id)
        return SimpleNamespace(message_ids=names, session_id="s", objects_to_push=[])

    def reply(self, node, message_id):
        order = Message(RecordDict(), dst_node_id=node, message_type="train")
        set_message_id(order, message_id)
        message = Message(RecordDict({"x": ConfigRecord({"node": node})}), reply_to=order)
        set_message_id(message, message.object_id)
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        if node in self.broken:
            parts = dict.fromkeys(parts, b"ConfigRecord  1\x00?")
        self.objects |= parts
        self.replies[message_id] = message_to_proto(remove_content_from_message(message)), get_object_tree(message)

    def PushObject(self, request):
        raise AssertionError("none was asked for")

    def PullMessages(self, request):
        names = list(request.message_ids)
        self.questions.append(names)
        if self.refuses_together and len(names) > 1:
            raise RuntimeError("500")
        replies = [self.replies.pop(name) for name in names if name in self.replies]
        replies += [self.unavailable(name) for name in names if name in self.gone]
        if len(self.questions) - 1 in self.lost:
            self.gone |= set(names)
            raise ConnectionError("the answer is lost")
        messages, trees = zip(*replies, strict=True) if replies else ((), ())
        return http_grid.PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def unavailable(self, message_id):
        """What a SuperLink says of a message that it has deleted."""
        order = Message(RecordDict(), dst_node_id=1, message_type="train")
        set_message_id(order, message_id)
        message = Message(Error(3, "gone"), reply_to=order)
        set_message_id(message, message.object_id)
        self.objects |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        return message_to_proto(message), get_object_tree(message)

    def PullObject(self, request):
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=self.objects[request.object_id]
        )

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


def grid_of(client):
    enter_run()
    grid = http_grid.HttpGrid(token="t")
    grid._client, grid._run = client, SimpleNamespace(run_id=1)
    return grid


def compose(node):
    return Kind.TRAIN, RecordDict({"ask": ConfigRecord({"node": node})})


def deliver(client, *nodes):
    got = {}
    missing = Exchange(grid_of(client), poll=0.001).deliver(nodes, compose, "1", 5.0, got.setdefault)
    return {node: records["x"]["node"] for node, records in got.items()}, missing


def test_the_superlink_is_asked_once_for_the_replies_of_all_nodes():
    client = Client()
    got, missing = deliver(client, 5, 6, 7, 8, 9, 10, 11)
    assert (got, missing) == ({node: node for node in range(5, 12)}, {})
    assert [len(names) for names in client.questions] == [1, 2, 4], "the waves in which messages are pushed"
    assert len(client.confirmed) == 7


def test_a_superlink_is_asked_about_a_few_dozen_messages_at_a_time():
    """It deletes replies before it sends them: a lost answer loses these and no more."""
    client = Client()
    exchange = Exchange(grid_of(client), poll=0.001)
    names = [f"m{number}" for number in range(2 * TOGETHER + 1)]
    for number, name in enumerate(names):
        client.reply(number, name)
    assert [len(batch) for batch, _ in exchange._looks(names)] == [1] * len(names)
    assert [len(question) for question in client.questions] == [TOGETHER, TOGETHER, 1]


def test_nodes_whose_replies_were_lost_with_an_answer_are_asked_again_once():
    client = Client(lost=[2])
    got, missing = deliver(client, 5, 6, 7, 8, 9, 10, 11)
    assert (got, missing) == ({node: node for node in range(5, 12)}, {})
    assert sorted(client.pushed) == [5, 6, 7, 8, 8, 9, 9, 10, 10, 11, 11]


def test_a_node_whose_reply_is_gone_twice_is_missing():
    client = Client(lost=[0, 2])
    got, missing = deliver(client, 5)
    assert (got, missing, client.pushed) == ({}, {5: "error 3: gone"}, [5, 5])


def test_a_reply_that_cannot_be_decoded_loses_no_other_that_came_with_it():
    client = Client(broken=[6])
    got, missing = deliver(client, 5, 6, 7, 8, 9)
    assert got == {5: 5, 7: 7, 8: 8, 9: 9}
    assert set(missing) == {6}
    assert missing[6].startswith("a reply that cannot be read: ")
    assert sorted(client.pushed) == [5, 6, 6, 7, 8, 9], "asked a second time, and not a third"


def test_where_one_reply_breaks_the_question_for_all_each_is_asked_for_alone():
    client = Client(refuses_together=True)
    got, missing = deliver(client, 5, 6, 7)
    assert (got, missing) == ({5: 5, 6: 6, 7: 7}, {})
    assert [len(names) for names in client.questions] == [1, 2, 1, 1]


def test_the_grid_keeps_its_own_client():
    client = Client()
    grid = grid_of(client)
    client.reply(5, "m0")
    ((name, pull),) = at_hand(grid, ["m0", "m1"])
    assert name == "m0"
    assert [reply.content["x"]["node"] for reply in pull()] == [5]
    assert grid._client is client


@pytest.mark.parametrize("grid", [object(), None])
def test_of_another_grid_nothing_is_asked(grid):
    assert at_hand(grid, ["m0"]) is None
