"""The clients of one process, built on demand, with their states in a bounded cache."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Message

from sepal.client.devices import device_memory
from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.host import ClientHost
from sepal.engines.in_process.cache import DEFAULT_LIMIT, StateCache
from sepal.errors import SepalError
from sepal.protocol.messages import read_order, write_error
from sepal.strategies.assembly import Assembly

HOSTS = 64  # hosts, with their clients' data, kept in memory


class Clients:
    """Answers messages for any client of a run.

    Args:
        assembly: The run's parts.
        directory: Directory of states on disk.
        limit: Bytes of states kept in memory.
        device: Device of all of them; empty for the run's.
    """

    def __init__(self, assembly: Assembly, directory: Path, limit: int = DEFAULT_LIMIT, device: str = "") -> None:
        self._shared = Shared.around(assembly, device)
        self._directory, self._limit = directory, limit
        self._cache: StateCache | None = None  # created when the first message names the run
        self._hosts: dict[int, ClientHost] = {}

    def answer(self, number: int, message: Message) -> Message:
        """Return the reply of client ``number``."""
        node = Node(number, self._shared.assembly.task.config.clients)
        try:
            with device_memory():
                host = self._hosts.pop(number, None) or self._build(node, message)
                self._hosts[number] = host
                if len(self._hosts) > HOSTS:
                    del self._hosts[next(iter(self._hosts))]
                return Message(host.handle(message.content), reply_to=message)
        except SepalError as error:
            return Message(write_error(error, node.client), reply_to=message)

    def _build(self, node: Node, message: Message) -> ClientHost:
        run = read_order(message.content)[0].run
        if self._cache is None:
            kind = self._shared.assembly.method.client_state
            self._cache = StateCache(self._directory / run, kind, self._limit)
        return build_host(self._shared, node, run, self._cache.client(node.client))

    def release(self, number: int) -> None:
        """Let another process take over client ``number``."""
        self._hosts.pop(number, None)
        if self._cache is not None:
            self._cache.release(Node(number, number + 1).client)

    def flush(self) -> None:
        """Write every client's newest state to disk."""
        if self._cache is not None:
            self._cache.flush()
