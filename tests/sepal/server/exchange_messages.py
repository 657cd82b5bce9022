"""What the tests of exchanges send to a node, and its answer."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from sepal.protocol.types import Kind


def answer(message, value=0):
    return Message(RecordDict({"x": ConfigRecord({"value": value})}), reply_to=message)


def compose(node):
    return Kind.TRAIN, RecordDict({"ask": ConfigRecord({"node": node})})
