"""The clients of one process, built on demand, with their states in a bounded cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flwr.app import Message

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.host import ClientHost
from sepal.engines.in_process.cache import DEFAULT_LIMIT, StateCache
from sepal.engines.in_process.grid import answer
from sepal.errors import SepalError
from sepal.protocol.messages import read_order, write_error
from sepal.strategies.assembly import Assembly
from sepal.training.devices import device_memory
from sepal.training.meeting import Meeting
from sepal.training.programs import programs_for

MOST_DATA = 256 << 20  # bytes of clients' data that a process keeps, or one client's if that is more
MOST_HOSTS = 4096  # hosts kept with it: of many clients with little data, the hosts are what takes memory


class Clients:
    """Answers messages for any client of a run.

    Args:
        assembly: The run's parts.
        directory: Directory of states on disk.
        limit: Bytes of states kept in memory.
        device: Device of all of them; empty for the run's.
        batch: Number of clients that train at once.
    """

    def __init__(
        self, assembly: Assembly, directory: Path, limit: int = DEFAULT_LIMIT, device: str = "", batch: int = 1
    ) -> None:
        self._shared = Shared.around(assembly, device)
        if batch > 1:
            self._shared.meeting = Meeting(assembly.setup.config.threads)
        self._shared.programs = programs_for(self._shared.device, assembly.setup.config.engine.capture)
        self._directory, self._limit = directory, limit
        self._cache: StateCache | None = None  # created when the first message names the run
        self._hosts: dict[int, ClientHost] = {}  # the one used last is the last
        self._data_bytes = 0

    def answer(self, number: int, message: Message) -> Message:
        """Return the reply of client ``number``."""
        try:
            with device_memory():
                return Message(self._host(number, message).handle(message.content), reply_to=message)
        except SepalError as error:
            return Message(write_error(error, self._node(number).client), reply_to=message)

    def answer_all(self, requests: Sequence[tuple[int, Message]]) -> list[Message]:
        """Return the replies of several clients, each asked once. They train at once where they can.

        An exception in one of them becomes its error reply, as in :func:`sepal.engines.in_process.grid.answer`.
        """
        actions = [partial(answer, partial(self.answer, number), message) for number, message in requests]
        if self._shared.meeting is None or len(actions) == 1:
            return [action() for action in actions]
        return self._shared.meeting.run(actions)

    def _node(self, number: int) -> Node:
        assembly = self._shared.assembly
        return Node(number, assembly.setup.config.clients).named(assembly)

    def _host(self, number: int, message: Message) -> ClientHost:
        host = self._drop(number) or self._build(self._node(number), message)
        self._hosts[number] = host
        self._data_bytes += host.data_bytes
        while len(self._hosts) > 1 and (len(self._hosts) > MOST_HOSTS or self._data_bytes > MOST_DATA):
            self._drop(next(iter(self._hosts)))
        return host

    def _drop(self, number: int) -> ClientHost | None:
        host = self._hosts.pop(number, None)
        if host is not None:
            self._data_bytes -= host.data_bytes
        return host

    def _build(self, node: Node, message: Message) -> ClientHost:
        run = read_order(message.content)[0].run
        if self._cache is None:
            kind = self._shared.assembly.method.client_state
            self._cache = StateCache(self._directory / run, kind, self._limit)
        cache, name = self._cache, node.client
        return build_host(self._shared, node, run, cache.client(name), vault=cache.vault(name))

    def release(self, number: int) -> None:
        """Let another process take over client ``number``."""
        self._drop(number)
        if self._cache is not None:
            self._cache.release(self._node(number).client)

    def flush(self) -> None:
        """Write every client's newest state to disk."""
        if self._cache is not None:
            self._cache.flush()
