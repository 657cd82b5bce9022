"""A node's connection to the Fleet API, as a SuperNode has it, for the light clients of the load test.

A client connection as a library would replace it. Flower 1.39 has it in ``flwr.client.grpc_rere_client`` (gRPC), later
releases in ``flwr.supernode.fleet_http_connection`` (HTTP); both yield the same eight functions.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.task_identity import TaskIdentity

from sepal.flower.replies import set_message_id
from sepal.flower.versions import speaks_http


def connect(address: str, **options: Any) -> AbstractContextManager[tuple[Any, ...]]:
    """Return Flower's client connection to the Fleet API at ``address``.

    Args:
        address: HOST:PORT.
        options: ``root_certificates`` and ``authentication_keys``; by default plain text.
    """
    chosen = {"insecure": True, **options}
    if speaks_http():
        module = importlib.import_module("flwr.supernode.fleet_http_connection")
        http: AbstractContextManager[tuple[Any, ...]] = module.http_request_response(address, **chosen)
        return http
    from flwr.supercore.retry import make_simple_grpc_retry_invoker

    module = importlib.import_module("flwr.client.grpc_rere_client.connection")
    chosen = {"retry_invoker": make_simple_grpc_retry_invoker(), **chosen}
    grpc: AbstractContextManager[tuple[Any, ...]] = module.grpc_request_response(address, **chosen)
    return grpc


def enter_task() -> None:
    """Let this process make messages for many runs, as a light client does."""
    TaskIdentity.task_id = 1


def pulled(tree: Any, run: int, pull: Any, confirm: Any) -> Message:
    """Return the message with the object tree ``tree``, whose content is pulled with a connection's functions."""
    message: Message = pull_and_inflate_object_from_tree(
        tree, lambda name: pull(run, name), lambda name: confirm(run, name), return_type=Message
    )
    set_message_id(message, tree.object_id)
    return message


def push(reply: Message, run: int, send: Any, push_object: Any) -> int:
    """Send a reply with a connection's functions; return the bytes that the SuperLink asked for."""
    set_message_id(reply, reply.object_id)
    contents = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
    requested, session = send(reply, get_object_tree(reply), 0.0)
    for name in requested:
        push_object(run, session, name, contents[name])
    return sum(len(contents[name]) for name in requested)


def watch_no_channels() -> None:
    """Keep Flower 1.39's client connection from asking for its channel's state, which it only logs.

    gRPC watches the state in a thread that wakes five times a second: with 1,000 channels on one machine, that takes
    the CPU time that the SuperLink needs.
    """
    if speaks_http():
        return
    connection: Any = importlib.import_module("flwr.client.grpc_rere_client.connection")
    create = connection.create_channel

    def quiet(*args: Any, **options: Any) -> Any:
        channel = create(*args, **options)
        channel.subscribe = lambda *_: None
        return channel

    connection.create_channel = quiet
