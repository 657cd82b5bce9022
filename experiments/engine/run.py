"""Run a federation in this process: the same strategy and client hosts as everywhere, over an in-process grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flwr.app import Message

from client_app.build import Node, Shared, build_host
from client_app.host import ClientHost
from experiments.engine.grid import Handle, InProcessGrid
from sepal.checkpoint import ServerStore
from sepal.errors import ConfigError, SepalError
from sepal.messages import read_order, write_error
from sepal.state import digest_arrays
from sepal.strategy import Observer, SepalStrategy
from sepal.training import choose_device, set_threads
from strategies.assembly import Assembly


def run_in_process(
    assembly: Assembly,
    *,
    store: ServerStore | None = None,
    observers: Sequence[Observer] = (),
    workers: int = 0,
    state_dir: Path | None = None,
) -> SepalStrategy:
    """Run to the end and return the strategy, whose ``progress`` holds the final state.

    Args:
        assembly: The run's parts; ``clients`` must say how many.
        store: What outlives this process; by default nothing does.
        observers: Told of every round.
        workers: Worker processes.
        state_dir: Where clients' states lie; None keeps them in memory.

    Raises:
        SepalError: As of :meth:`SepalStrategy.start`.
    """
    config = assembly.task.config
    if not config.clients:
        raise ConfigError("clients", "a number: in process there is nobody to register", 0)
    set_threads(config.threads)
    shared = Shared(assembly, choose_device(config.device))
    shared.weights_digest = digest_arrays(dict(assembly.task.weights))
    hosts: dict[int, ClientHost] = {}
    nodes = {number + 1: _node(shared, number, state_dir, hosts) for number in range(config.clients)}
    strategy = SepalStrategy(assembly.method, assembly.task, store, observers, settle=0.0)
    strategy.start(InProcessGrid(nodes))
    return strategy


def _node(shared: Shared, number: int, state_dir: Path | None, hosts: dict[int, ClientHost]) -> Handle:
    clients = shared.assembly.task.config.clients

    def handle(message: Message) -> Message:
        node = Node(number, clients)
        try:
            if number not in hosts:
                hosts[number] = build_host(shared, node, read_order(message.content)[0].run, state_dir)
            return Message(hosts[number].handle(message.content), reply_to=message)
        except SepalError as error:
            return Message(write_error(error, node.client), reply_to=message)

    return handle
