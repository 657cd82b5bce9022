"""A light client that answers as an honest one does, and whose answers an attack may change on their way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

from cryptography.hazmat.primitives import serialization
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from sepal.client_app.app import app
from sepal.engines.flower.credentials import NodeCredentials
from sepal.strategies import registry
from tools.load.light import LightClient

HONEST, EVIL, GUEST = "client-00000", "client-00001", "guest"  # who has a registered key
POLL = 0.1  # seconds
ONE = threading.Lock()  # Flower keeps the identity of a task for the whole process

Attack: TypeAlias = Callable[[Message, Message], list[Message]]


class Honest:
    """Answers with the client app itself, in this process; ``attack`` gets the message and the honest answer."""

    def __init__(self, node_config: Mapping[str, object], run_config: Mapping[str, object], attack: Attack) -> None:
        self._node_config, self._run_config = dict(node_config), {**registry.defaults(), **run_config}
        self._attack = attack

    def __call__(self, message: Message, node: int, run: int) -> list[Message]:
        with ONE:
            TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run, 1, node
            context = Context(run, node, self._node_config, RecordDict(), self._run_config)
            return self._attack(message, app(message, context))


def light_client(
    address: str,
    credentials: NodeCredentials,
    node_config: Mapping[str, object],
    run_config: Mapping[str, object],
    attack: Attack = lambda message, reply: [reply],
) -> LightClient:
    """Return a node with a key, not yet started."""
    key = serialization.load_ssh_private_key(credentials.key.read_bytes(), None)
    connection = {
        "insecure": False,
        "root_certificates": credentials.authority.read_bytes(),
        "authentication_keys": (key, key.public_key()),
    }
    return LightClient(address, Honest(node_config, run_config, attack), POLL, connection)
