"""A client that is only a connection: it answers without data, training or a process of its own.

It speaks the Fleet API through Flower's own client connection, as a SuperNode does, and answers with replies that the
server accepts. Tests give it other answers to check that they are refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from flwr.app import Message

from sepal.flower.connection import connect, pulled, push
from sepal.protocol.messages import Content, Reply, read_order, version, write_reply
from sepal.protocol.types import ClientInfo, Kind

Answer: TypeAlias = Callable[[Message, int, int], list[Message]]


@dataclass
class PreparedAnswers:
    """Answers every order at once, with prepared uploads.

    Attributes:
        info: The client's roster entry.
        uploads: What it sends in answer to training orders, one after another. A SuperLink asks only for content that
            it does not have, so if clients sent the same upload at the same time, it would be sent only once.
        facts: Digests of initial weights and configuration, which the roster compares.
    """

    info: ClientInfo
    uploads: Iterator[Content]
    facts: Mapping[str, str]

    def __call__(self, message: Message, node: int, run: int) -> list[Message]:
        """Return the reply to a message of the server."""
        order, download = read_order(message.content)
        reply = Reply(order.run, order.plan.round, order.kind, self.info, order.base)
        content = Content()
        if order.kind is Kind.QUERY:
            reply = replace(reply, facts={**self.facts, "store": f"light-{self.info.name}"})
        else:
            content = next(self.uploads) if order.kind is Kind.TRAIN else content
            digest = download.digest()
            kept = order.kind is Kind.TRAIN or order.keep
            reached = version(order.plan.round, order.base, digest, content.digest()) if kept else ""
            reply = replace(reply, download=digest, version=reached)
        return [Message(write_reply(reply, content), reply_to=message)]


@dataclass
class LightClient:
    """One registered node, answering in a thread.

    Attributes:
        address: HOST:PORT of the Fleet API.
        answer: Makes the replies to a message, from the message, the node's id and the run's id.
        poll: Seconds between polls for a message; a SuperNode of Flower 1.39 polls every 3 s.
        connection: Further arguments of Flower's client connection, such as certificates and keys.
        turn: Held during calls. A waiting gRPC call wakes several times a second. A semaphore shared among the clients
            of a process keeps those that wait for a busy SuperLink from taking the CPU time that it needs.
        timings: ``down`` and ``up`` seconds and the bytes of each reply.
        failures: A line for each failure; a reply that the SuperLink did not accept is one.
    """

    address: str
    answer: Answer
    poll: float = 3.0
    connection: Mapping[str, Any] = field(default_factory=dict)
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext)
    timings: list[dict[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Connect and answer in a separate thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Disconnect."""
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            with connect(self.address, **self.connection) as connection:
                while not self._stop.is_set():
                    try:
                        with self.turn:
                            idle = not self._exchange(*connection)
                    except Exception as reason:
                        self.failures.append(f"{type(reason).__name__}: {reason}"[:300])
                        idle = True
                    if idle:
                        self._stop.wait(self.poll)
        except BaseException as reason:  # Flower ends the process if it cannot register
            self.failures.append(f"connection: {type(reason).__name__}: {reason}"[:300])

    def _exchange(
        self, node: int, receive: Any, send: Any, _run: Any, _fab: Any, pull: Any, push_object: Any, confirm: Any
    ) -> bool:
        """Poll for a message and answer it; return whether there was one."""
        received = receive()
        if received is None:
            return False
        outline, tree = received
        run, begun = outline.metadata.run_id, time.monotonic()
        message = pulled(tree, run, pull, confirm)
        down = time.monotonic() - begun
        for reply in self.answer(message, node, run):
            try:
                begun = time.monotonic()
                size = push(reply, run, send, push_object)
                self.timings.append({"down": down, "up": time.monotonic() - begun, "bytes": float(size)})
            except Exception as reason:  # later replies are still sent
                self.failures.append(f"{type(reason).__name__}: {reason}"[:300])
        return True
