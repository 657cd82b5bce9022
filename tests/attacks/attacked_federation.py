"""A federation of which one client lies, and the ways to change an honest reply."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import Error, Message

from sepal.protocol.messages import read_order, read_reply, version, write_reply
from sepal.protocol.types import Kind
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation

EVIL, ROUND = "client-1", 2


class Hostile(Federation):
    """A federation of which one client's replies of one round go through ``attack``."""

    def __init__(self, attack, kind="queue", rounds=4, when=None, clients=4, **settings):
        settings = {"evaluate_every": 0, "timeout": 5.0, **settings}
        super().__init__(FAKES[kind][0], rounds=rounds, clients=clients, settings=settings)
        self.attack, self.lines, self.records = attack, [], []
        self.when = when or (lambda order: order.kind is Kind.TRAIN and order.plan.round == ROUND)

    def _handle(self, message):
        reply = super()._handle(message)
        order, download = read_order(message.content)
        if self.nodes[message.metadata.dst_node_id] != EVIL or not self.when(order):
            return reply
        return self.attack(message, order, download, reply)

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.lines.append(line)
        self.records.append(record)

    def closed(self, progress, line):
        pass

    def run(self, store=None, strategy=None):
        strategy = strategy or self.server(store)
        strategy._observers = [self]
        return super().run(strategy=strategy)

    def entries(self, round=ROUND):
        return [e for e in self.records[round - 1].ledger if e.client == EVIL and e.direction == "up"]


def silence(message, order, download, reply):
    return Message(Error(5, "Node Unavailable"), reply_to=message)


def changed(change):
    """An attack that changes the honest reply's head and content, and names the version that would go with them."""

    def attack(message, order, download, reply):
        head, content = change(*read_reply(reply.content))
        return Message(write_reply(head, content), reply_to=message)

    return attack


def renamed(head, content):
    """With the version that honestly belongs to the changed content."""
    return replace(head, version=version(head.round, head.base, head.download, content.digest())), content
