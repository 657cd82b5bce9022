"""Persistent worker processes with one thread each, which is a third faster than one process with two threads.

Any worker can answer for any client with the same result. A client's state is in the worker that answered last, so
clients stay with their worker unless another one would be idle; then the state is moved via the disk.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from flwr.app import Message

from sepal import user_modules
from sepal.engines import processes
from sepal.engines.in_process.grid import first_batch
from sepal.engines.in_process.worker import Clients
from sepal.errors import StateError
from sepal.flower.replies import enter_run
from sepal.seeding import generators_kept
from sepal.strategies.assembly import Assembly

log = logging.getLogger("sepal")


@dataclass(frozen=True)
class WorkerSetup:
    """The arguments of a worker."""

    assembly: Assembly
    directory: Path
    limit: int
    device: str = ""
    batch: int = 1
    level: int = logging.WARNING  # of the lines that are logged


def serve(connection: Connection, worker: WorkerSetup) -> None:
    """Answer requests until told to stop or until the parent ends: the main function of a worker process.

    Separate threads receive requests and send replies, so that the worker need not wait for the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops its workers
    enter_run()
    user_modules.enable()
    os.environ["OMP_NUM_THREADS"] = str(worker.assembly.setup.config.threads)
    inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    outbox: SimpleQueue[tuple[Any] | None] = SimpleQueue()
    lines = _collect_log(worker.level)
    clients = Clients(worker.assembly, worker.directory, worker.limit, worker.device, worker.batch)
    stopped = Event()
    Thread(target=_receive_all, args=(connection, inbox, stopped), daemon=True).start()
    sender = Thread(target=_send_all, args=(connection, outbox, lines), daemon=True)
    sender.start()
    with generators_kept():  # needed here: this process has no caller that keeps them
        while True:
            verb, argument = inbox.get()
            if stopped.is_set():
                break
            if verb == "answer":
                outbox.put((clients.answer_all(argument),))
            elif verb == "release":
                clients.release(argument)
                outbox.put((None,))
            elif verb == "flush":
                clients.flush()
                outbox.put((None,))
    outbox.put(None)
    sender.join()


def _receive_all(connection: Connection, inbox: SimpleQueue[tuple[str, Any]], stopped: Event) -> None:
    with suppress(EOFError, OSError):  # the parent has ended or was interrupted
        while (request := connection.recv())[0] != "stop":
            inbox.put(request)
    stopped.set()  # queued requests are not answered
    inbox.put(("stop", None))


def _send_all(connection: Connection, outbox: SimpleQueue[tuple[Any] | None], lines: SimpleQueue[Any]) -> None:
    """Send each answer with the lines that were logged since the one before."""
    with suppress(OSError):
        while (item := outbox.get()) is not None:
            connection.send((item[0], [lines.get() for _ in range(lines.qsize())]))


def _collect_log(level: int) -> SimpleQueue[Any]:
    """Let what Sepal logs in this process wait in a queue, for the parent: it alone knows what was said before."""
    lines: SimpleQueue[Any] = SimpleQueue()
    log.addHandler(QueueHandler(lines))
    log.propagate = False
    log.setLevel(level)
    return lines


class Pool:
    """Worker processes that answer for clients.

    Args:
        setups: The arguments of each worker; at least 2.
    """

    def __init__(self, setups: Sequence[WorkerSetup]) -> None:
        workers, self._batch = len(setups), setups[0].batch
        self._home: dict[int, int] = {}
        self._connections: list[Connection] = []
        self._processes = []
        for worker in setups:
            parent_end, child_end = Pipe()
            self._processes.append(processes.start(serve, child_end, worker, daemon=True))
            child_end.close()
            self._connections.append(parent_end)
        self._queues: list[deque[tuple[int, Message]]] = [deque() for _ in range(workers)]
        self._under_way: list[int] = [0] * workers
        self._replies: list[Message] = []

    # sepal.engines.in_process.grid.Runner; a client's number is its node id minus 1

    def arrange(self, nodes: Sequence[int]) -> list[int]:
        """Assign ``nodes`` to workers; called while all workers are idle."""
        queues = self._assign([node - 1 for node in nodes])
        rows = zip_longest(*([nodes[position] for position in places] for places in queues.values()))
        return [node for row in rows for node in row if node is not None]

    def submit(self, node: int, message: Message) -> None:
        """Queue ``message``; wait for replies while more messages are queued than the workers take at once."""
        worker = self._home.setdefault(node - 1, node % len(self._connections))
        self._queues[worker].append((node - 1, message))
        self._feed(worker, self._batch)
        while sum(map(len, self._queues)) > len(self._queues) * self._batch:
            self._collect(None, self._batch)

    def replies(self, seconds: float = 0.0) -> list[Message]:
        """Return the replies that have arrived; wait up to ``seconds`` for the first one.

        If there is time to wait, no message follows, and workers get what is queued.
        """
        least = 1 if seconds else self._batch
        for worker in range(len(self._queues)):
            self._feed(worker, least)
        self._collect(0.0 if self._replies else seconds, least)
        replies, self._replies = self._replies, []
        return replies

    def _collect(self, seconds: float | None, least: int) -> None:
        busy = [connection for connection, count in zip(self._connections, self._under_way, strict=True) if count]
        for connection in wait(busy, seconds) if busy else []:
            worker = self._connections.index(connection)  # type: ignore[arg-type]
            self._replies += self._receive(worker)
            self._under_way[worker] -= 1
            self._feed(worker, least)

    def _feed(self, worker: int, least: int) -> None:
        """Send queued messages to ``worker``, a batch of at least ``least`` to answer and one waiting."""
        queue = self._queues[worker]
        while len(queue) >= least and self._under_way[worker] < 2:
            self._send(worker, "answer", first_batch(queue, self._batch))
            self._under_way[worker] += 1

    def _assign(self, numbers: Sequence[int]) -> dict[int, list[int]]:
        """Return worker → positions in ``numbers``; clients keep their last worker unless it has its share already."""
        loads = dict.fromkeys(range(len(self._connections)), 0)
        queues: dict[int, list[int]] = {worker: [] for worker in loads}
        share = -(-len(numbers) // len(loads))
        for position, number in enumerate(numbers):
            home = self._home.get(number)
            if home is None or loads[home] >= share:
                chosen = min(loads, key=lambda worker: (loads[worker], worker))
                if home is not None and home != chosen:
                    self._call(home, "release", number)
            else:
                chosen = home
            self._home[number] = chosen
            loads[chosen] += 1
            queues[chosen].append(position)
        return queues

    def _call(self, worker: int, verb: str, argument: object = None) -> Any:
        self._send(worker, verb, argument)
        return self._receive(worker)

    def _send(self, worker: int, verb: str, argument: object) -> None:
        try:
            self._connections[worker].send((verb, argument))
        except OSError:
            raise self._gone(worker) from None

    def _receive(self, worker: int) -> Any:
        try:
            answer, lines = self._connections[worker].recv()
        except (EOFError, OSError):
            raise self._gone(worker) from None
        for record in lines:
            if log.isEnabledFor(record.levelno):
                log.handle(record)
        return answer

    def _gone(self, worker: int) -> StateError:
        self._processes[worker].join(1)
        code = self._processes[worker].exitcode
        return StateError(f"worker {worker}", "a running process", f"one that ended with exit code {code}")

    def flush(self) -> None:
        """Let every worker write its clients' newest states to disk."""
        for worker in range(len(self._connections)):
            self._call(worker, "flush")

    def close(self) -> None:
        """Stop all workers."""
        for connection in self._connections:
            try:
                connection.send(("stop", None))
            except OSError:
                log.debug("a worker was gone already")
            connection.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
