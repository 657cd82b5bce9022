"""Why a node has not answered stays to be read while it is asked again."""

from __future__ import annotations

from types import SimpleNamespace

from flwr.app import RecordDict

from sepal.protocol.messages import Order, Plan
from sepal.protocol.types import Kind
from sepal.server.questions import Questions

REFUSAL = "error 3: app bundle: expected no code"


class Nodes:
    """An exchange whose nodes answer when the test says."""

    poll = 0.0

    def __init__(self):
        self.posted = []

    def post(self, nodes, kind, records, group, ttl, take, fail):
        self.posted += [SimpleNamespace(node=node, take=take, fail=fail) for node in nodes]

    def look(self):
        return 0.0


def test_the_reason_of_a_node_stays_until_the_node_answers():
    """A run that gives up says what its nodes answer, also if they are being asked again at that moment."""
    nodes = Nodes()
    questions = Questions(nodes, lambda: (Order(1, Kind.QUERY, Plan(0)), "0"), lambda *arguments: "an answer")
    questions.ask([7], 5.0)
    nodes.posted[0].fail(7, REFUSAL)
    assert questions.ask([], 5.0) == {}
    questions.ask([7], 5.0)
    assert [question.node for question in nodes.posted] == [7, 7]
    assert questions.silent == {7: REFUSAL}
    nodes.posted[1].take(7, RecordDict())
    assert questions.ask([7], 5.0) == {7: "an answer"}
    assert questions.silent == {}
