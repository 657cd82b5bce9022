"""What serves HTTP in Sepal's own processes: a run's or a client's figures, and the page of a report.

Anybody who reaches the port may connect, and such a process keeps a run or a client going. So there are few callers at
a time, each has to say what it wants within seconds, and on this machine's own addresses no web page gets an answer.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sepal.operation.addresses import loopback

CALLERS = 16  # connections at a time
PATIENCE = 10.0  # seconds for a whole request, however often a byte comes, and for each part of an answer


def foreign(reached: str, name: str) -> bool:
    """Return whether a request is a web page's that reached an address of this machine under another site's name.

    Under DNS rebinding, a page's site resolves to a loopback address, but the name stays in ``Host``.

    Args:
        reached: The address at which the request arrived.
        name: Its ``Host``, with or without a port.
    """
    host, colon, port = name.rpartition(":")
    return loopback(reached) and not loopback(host if colon and port.isdecimal() else name)


class Page(BaseHTTPRequestHandler, ABC):
    """Answers one request; whatever its method, a web page's is refused with 403."""

    server: Listener

    def setup(self) -> None:
        """Limit each wait for the caller."""
        super().setup()
        self.connection.settimeout(PATIENCE)

    def parse_request(self) -> bool:
        """Return whether the request may be answered; from here on the caller has no time limit but an answer's."""
        good = super().parse_request()
        self.server.note_heard(self.connection)
        if good and foreign(self.connection.getsockname()[0], self.headers.get("Host", "localhost")):
            self.send_error(403)
            return False
        return good

    def do_GET(self) -> None:
        """Answer."""
        self.answer()

    @abstractmethod
    def answer(self) -> None:
        """Answer a request for ``path``."""

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  (the base class's name)
        """Say nothing: a request every few seconds is no news."""


class Listener(ThreadingHTTPServer):
    """Serves few callers at a time, each in a thread; one that takes long to say what it wants gives way to a new one.

    Args:
        address: Host and port.
        page: Answers a request.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], page: type[Page]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(CALLERS)
        self._unheard: dict[socket.socket, float] = {}  # connection to when it was accepted, the oldest first
        self._lock = threading.Lock()
        super().__init__(address, page)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is room for a caller; the one that has been talking for longest makes some."""
        if not self._free.acquire(blocking=False):
            with self._lock:
                oldest = next(iter(self._unheard), None)
                if oldest is not None:
                    self._cut(oldest)
            if not self._free.acquire(timeout=0.5):
                return False
        with self._lock:
            self._unheard[request] = time.monotonic()
        return True

    def note_heard(self, request: Any) -> None:
        """Note that a caller has said what it wants."""
        with self._lock:
            self._unheard.pop(request, None)

    def service_actions(self) -> None:
        """Cut off the callers that have talked for too long; called twice a second, and after each new caller."""
        with self._lock:
            for request, since in list(self._unheard.items()):
                if time.monotonic() - since > PATIENCE:
                    self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        del self._unheard[request]
        with suppress(OSError):  # it has left by itself
            request.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a caller."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.note_heard(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing if a caller left or was cut off: anybody could fill the log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
