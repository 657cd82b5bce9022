"""The messages of a secure sum's steps: what is sent and accepted, and how often clients are asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from flwr.app import RecordDict

from sepal.errors import SepalError
from sepal.flower.replies import CLIENT_APP_FAILED
from sepal.method.interface import RunSetup
from sepal.protocol.messages import Content, Enclosed, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.server.answers import attributed, check_step, keys_of
from sepal.server.contact import Contact
from sepal.server.downloads import most_message_bytes
from sepal.server.ledger import check_size, message_bytes
from sepal.server.requests import Request
from sepal.server.round_ledger import RoundLedger
from sepal.server.run_state import RoundStart

log = logging.getLogger("sepal")
FAILED = tuple(f"error {code}:" for code in CLIENT_APP_FAILED)  # how sepal.server.exchange reports them
HEAD, ENTRY = 64 << 10, 128  # bytes of a reply to a step, and of what it has for each client of the round


class AskClients(Protocol):
    """Asks clients until all have answered or a step's time is over."""

    def __call__(self, messages: StepMessages) -> None:
        """Ask the clients ``messages.waiting``."""
        ...


@dataclass
class StepMessages:
    """The messages of one step.

    Attributes:
        kind: The step.
        questions: Client name to what it is asked.
        take: Called with name and content of each answer, which it may refuse.
        start: What the round starts from.
        setup: The run's configuration.
        requests: What the clients were asked in the round, by name.
        ledger: The round's.
        local: Whether clients are in this process or its workers.
        waiting: The clients that have not answered.
    """

    kind: Kind
    questions: Mapping[str, Content]
    take: Callable[[str, Content], None]
    start: RoundStart
    setup: RunSetup
    requests: Mapping[str, Request]
    ledger: RoundLedger
    local: bool
    waiting: set[str]

    def _request(self, name: str) -> Request:
        order = Order(self.start.state.run, self.kind, Plan(self.start.plan.round))
        return replace(self.requests[name], order=order)

    def compose(self, name: str) -> tuple[Kind, RecordDict]:
        """Return the message to client ``name``, and write it to the ledger."""
        request, content = self._request(name), self.questions[name]
        enclosed = Enclosed(request.order, content)
        self.ledger.sent(request, content, message_bytes(enclosed))
        return self.kind, enclosed if self.local else write_order(request.order, content)

    def accept(self, name: str, records: RecordDict) -> None:
        """Check a reply and take it; a client whose reply is refused is not asked again."""
        if name not in self.waiting:
            return
        self.waiting.discard(name)
        request, content, size = self._request(name), Content(), message_bytes(records)
        try:
            check_size(size, max(most_message_bytes(self.setup), HEAD + ENTRY * len(self.requests)))
            reply, content = read_reply(records, keys_of(self.setup))
            check_step(request.order, self.start.state.roster[name], self.questions[name], reply, content)
            self.take(name, content)
        except SepalError as reason:
            named = attributed(name, reason) if "error" in records else reason
            self.ledger.refused(request, content, size, str(named))
            log.warning("round %d: %s is lost in the step %s: %s", self.start.plan.round, name, self.kind.value, named)
            return
        self.ledger.accepted(request, content, size)

    def lose(self, name: str, reason: str) -> None:
        """Note that no reply came; a client whose app has failed is not asked again."""
        self.ledger.missing(self._request(name), reason)
        if reason.startswith(FAILED):
            self.waiting.discard(name)

    def close(self) -> None:
        """Say who has not answered."""
        for name in sorted(self.waiting):
            log.warning("round %d: %s has not answered in the step %s", self.start.plan.round, name, self.kind.value)


def ask_clients(messages: StepMessages, contact: Contact, pause: float, present: Sequence[int] | None) -> None:
    """Ask the clients of a step until all have answered or its time is over (``deadline``, else ``timeout``).

    Args:
        messages: The step's.
        contact: Sends them.
        pause: Seconds before a client that did not reply is asked again.
        present: As in :meth:`sepal.server.contact.Contact.refresh`.
    """
    config, nodes = messages.setup.config, contact.connections.nodes
    end = time.monotonic() + (config.deadline or config.timeout)
    while messages.waiting:
        names = {nodes[name]: name for name in sorted(messages.waiting & nodes.keys())}
        if names:
            _deliver(messages, contact, names, max(1.0, end - time.monotonic()))
        messages.waiting -= contact.note_evicted()
        if not messages.waiting or config.on_missing == "skip" or time.monotonic() > end:
            break
        time.sleep(pause)
        contact.refresh(present)
    messages.close()


def _deliver(messages: StepMessages, contact: Contact, names: Mapping[int, str], timeout: float) -> None:
    missing = contact.deliver(
        timeout,
        list(names),
        lambda node: messages.compose(names[node]),
        lambda node, records: messages.accept(names[node], records),
    )
    for node, reason in missing.items():
        messages.lose(names[node], reason)
