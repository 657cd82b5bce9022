"""What operators see of a process: figures for Prometheus, whether it is well, and its log as JSON lines.

All of it is off unless it is asked for. The figures need prometheus-client (extra ``operate``). They have no password,
so by default they are served on the loopback address only.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from sepal.errors import ConfigError
from sepal.operation.addresses import is_host, is_port

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from sepal.operation.listener import Listener

METRICS = "SEPAL_METRICS"  # [HOST:]PORT of a ServerApp's figures
LOG = "SEPAL_LOG"  # json
STATS = "SEPAL_STATS"  # file to which a client writes a line for each message
CLOSING = "the closing evaluation begins"  # how a client's line ends, by which its reply is told from a round's


class Collector(Protocol):
    """Gives the figures of a process when they are asked for."""

    def collect(self) -> Iterable[Metric]:
        """Return the figures as they are now."""
        ...


def place_of(text: str, key: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``; the host is 127.0.0.1 unless it is given.

    Raises:
        ConfigError: It is something else; the error names ``key``.
    """
    host, _, port = text.rpartition(":")
    if not is_port(port) or not is_host(host or "localhost"):
        raise ConfigError(key, "[HOST:]PORT", text)
    return host.strip("[]") or "127.0.0.1", int(port)


def serve(place: str, collector: Collector, well: Callable[[], str] = str, key: str = METRICS) -> Listener:
    """Serve ``/metrics`` and ``/healthz`` in a thread until ``shutdown``, as :mod:`sepal.operation.listener` says.

    Args:
        place: ``[HOST:]PORT``.
        collector: Gives the figures.
        well: Returns what is wrong; empty if nothing is. ``/healthz`` then answers 200, otherwise 503.
        key: What asked for it, for errors.

    Raises:
        ConfigError: The place is not one, is taken, or prometheus-client is not installed.
    """
    from sepal.operation.listener import Listener, Page  # http.server is behind it

    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    except ImportError as missing:
        raise ConfigError(key, "prometheus-client: pip install prometheus-client", str(missing)) from None
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)

    class Figures(Page):
        def answer(self) -> None:
            trouble = well() if self.path == "/healthz" else ""
            pages = {"/metrics": lambda: generate_latest(registry), "/healthz": (trouble or "ok").encode}
            page = pages.get(self.path)
            self.send_response(404 if page is None else 503 if trouble else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(page() if page else b"/metrics or /healthz")

    try:
        server = Listener(place_of(place, key), Figures)
    except OSError as reason:
        raise ConfigError(key, "a port of this machine that is free", f"{place}: {reason.strerror}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class JsonLines(logging.Formatter):
    """Formats each record as one line of JSON: time (UTC), level, logger, message and, if there was one, the error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = {"time": f"{time}.{int(record.msecs):03d}Z", "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII: some readers split lines at other characters, too, and terminals obey some


def log_as_json() -> bool:
    """Let the loggers ``sepal`` and ``flwr`` of this process write JSON lines if ``SEPAL_LOG`` says so; return that."""
    if os.environ.get(LOG) != "json":
        return False
    import time

    formatter = JsonLines()
    formatter.converter = time.gmtime
    for name in ("sepal", "flwr"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.StreamHandler())
            logger.propagate = False
        for handler in logger.handlers:
            handler.setFormatter(formatter)
    return True
