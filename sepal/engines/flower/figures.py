"""A client's figures for Prometheus, from the process that keeps its SuperNode running (``sepal join --metrics``).

Messages are answered in processes of their own, which end. Each appends a line for its message to a file
(:func:`sepal.client_app.app.handle`); this process adds the lines up when it is asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class ClientFigures:
    """A collector of prometheus-client.

    Args:
        path: The file with a line for each message; emptied.
        up: Whether the SuperNode is running.
        processes: Returns the client's processes.
    """

    def __init__(self, path: Path, up: Callable[[], bool], processes: Callable[[], list[psutil.Process]]) -> None:
        self._path, self._up, self._processes = path, up, processes
        self._read, self._round = 0, 0
        self._messages: Counter[tuple[str, str]] = Counter()
        self._sums: Counter[str] = Counter()
        path.write_bytes(b"")

    def _catch_up(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                message = json.loads(line)
                self._messages[message["kind"], message["result"]] += 1
                self._sums.update({key: message[key] for key in ("up", "down", "seconds")})
                self._round = message["round"] or self._round

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        self._catch_up()
        yield GaugeMetricFamily("sepal_client_up", "1 if the SuperNode is running", int(self._up()))
        yield GaugeMetricFamily("sepal_round", "Round of the last message", self._round)
        messages = CounterMetricFamily("sepal_messages", "Messages answered", labels=["kind", "result"])
        for labels, count in sorted(self._messages.items()):
            messages.add_metric(labels, count)
        yield messages
        size = CounterMetricFamily("sepal_payload_bytes", "Bytes of payloads", labels=["direction"])
        for way in ("up", "down"):
            size.add_metric([way], self._sums[way])
        yield size
        yield CounterMetricFamily("sepal_work_seconds", "Seconds of answering", self._sums["seconds"])
        memory = 0
        for process in self._processes():
            with suppress(psutil.Error):
                memory += process.memory_info().rss
        yield GaugeMetricFamily("sepal_client_memory_bytes", "Resident memory of all its processes", memory)
