"""The Flower ClientApp. Every handler is the same: find the client, hand the message to its host."""

from __future__ import annotations

from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.build import Node, Shared, build_host, open_store
from sepal.errors import SepalError
from sepal.messages import read_order, write_error

app = ClientApp()


@lru_cache(maxsize=2)
def _shared(run_config: tuple[tuple[str, object], ...], device: str) -> Shared:
    """Keep the run's parts while this process lives: simulation actors answer many messages."""
    return Shared.of(dict(run_config), device)


def _handle(message: Message, context: Context) -> Message:
    name = "client"
    try:
        node = Node.of(context.node_config)
        name = node.client
        shared = _shared(tuple(sorted(context.run_config.items())), node.device)
        run = read_order(message.content)[0].run
        host = build_host(shared, node, run, open_store(shared, node, run))
        return Message(host.handle(message.content), reply_to=message)
    except SepalError as error:
        return Message(write_error(error, name), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer the roster's question."""
    return _handle(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, commit, and send an upload."""
    return _handle(message, context)


@app.train("adapt")
def adapt(message: Message, context: Context) -> Message:
    """Train in scratch; keep it only when asked."""
    return _handle(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate, and change nothing."""
    return _handle(message, context)
