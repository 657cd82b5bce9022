"""What operators see of a process: figures for Prometheus, whether it is well, and its log as JSON lines.

All of it is off unless it is asked for. The figures need prometheus-client (extra ``operate``). They have no password,
so by default they are served on the loopback address only.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from sepal.errors import ConfigError
from sepal.operation.addresses import is_host, is_port

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from sepal.operation.listener import Listener

METRICS = "SEPAL_METRICS"  # [HOST:]PORT of a ServerApp's figures
CERTIFICATES = "SEPAL_CERTIFICATES"  # JSON: the server's certificate files, each with its end in seconds since 1970
LOG = "SEPAL_LOG"  # json; text: with a time before each line that a command prints
STATS = "SEPAL_STATS"  # file to which a client writes a line for each message
NO_ANSWER = "no answer to"  # in a client's line about an error, before the kind of the message and the error's word
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


def serve(
    address: str,
    collector: Collector,
    well: Callable[[], str] = str,
    key: str = METRICS,
    ready: Callable[[], str] | None = None,
) -> Listener:
    """Serve ``/metrics``, ``/healthz`` and ``/readyz`` until ``shutdown``, as :mod:`sepal.operation.listener` says.

    ``/healthz`` asks whether the process has to be started again, ``/readyz`` whether its work goes on.

    Args:
        address: ``[HOST:]PORT``.
        collector: Gives the figures.
        well: Returns what is wrong; empty if nothing is. ``/healthz`` then answers 200, otherwise 503.
        key: What asked for it, for errors.
        ready: Returns what the work waits for, in the same way; by default the same as ``well``.

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

    checks = {"/healthz": well, "/readyz": ready or well}

    class FiguresPage(Page):
        def answer(self) -> None:
            trouble = checks[self.path]() if self.path in checks else ""
            pages = {"/metrics": lambda: generate_latest(registry)} | dict.fromkeys(checks, (trouble or "ok").encode)
            page = pages.get(self.path)
            self.send_response(404 if page is None else 503 if trouble else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(page() if page else b"/metrics, /healthz or /readyz")

    try:
        server = Listener(place_of(address, key), FiguresPage)
    except OSError as reason:
        raise ConfigError(key, "a port of this machine that is free", f"{address}: {reason.strerror}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class JsonLines(logging.Formatter):
    """Formats each record as one line of JSON: time (UTC), level, logger, message and, if there was one, the error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        second = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = {"time": f"{second}.{int(record.msecs):03d}Z", "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII: some readers split lines at other characters, too, and terminals obey some


def log_is_json() -> bool:
    """Return whether ``SEPAL_LOG`` asks for JSON lines."""
    return os.environ.get(LOG) == "json"


def json_formatter() -> JsonLines:
    """Return a formatter whose times are in UTC."""
    formatter = JsonLines()
    formatter.converter = time.gmtime
    return formatter


def timed(text: str) -> str:
    """Return ``text`` as a command prints it: with ``SEPAL_LOG=text``, the time (UTC) is before each of its lines."""
    if os.environ.get(LOG) != "text":
        return text
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return "\n".join(f"{now} {line}" for line in text.split("\n"))


def json_line(text: str, fault: bool = False) -> str:
    """Return what a command says itself as a line of its log: an error, a warning where it begins so, or information.

    Args:
        text: The line.
        fault: Whether the command ends with it.
    """
    level = logging.ERROR if fault else logging.WARNING if text.startswith("sepal: warning: ") else logging.INFO
    message = text.removeprefix("sepal: ").removeprefix("warning: ")
    return json_formatter().format(logging.LogRecord("sepal", level, "", 0, message, None, None))


def log_as_json() -> bool:
    """Let the loggers ``sepal`` and ``flwr`` of this process write JSON lines if ``SEPAL_LOG`` says so; return that."""
    if not log_is_json():
        return False
    formatter = json_formatter()
    for name in ("sepal", "flwr"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.StreamHandler())
            logger.propagate = False
        for handler in logger.handlers:
            handler.setFormatter(formatter)
    return True
