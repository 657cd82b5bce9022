"""A round of clients that train at once (``engine.batch``) over the same round one by one, on CPU and accelerator.

One process. On the CPU, CPU seconds count, because wall time on a shared machine says little; on an accelerator, wall
time. Runs take turns, and each run's first round is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from sepal.training.devices import choose_device
from tools.bench.engine import FLAT

CLIENTS, ROUNDS, REPEATS = 20, 4, 2
AT_ONCE = (5, 20)
SERIES: Mapping[str, Any] = {
    **FLAT,
    "own.shape": "9x128",
    "own.classes": 6,
    "own.data": "tools.bench.data:load_series",
    "model": "har-cnn",
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "digits": {
        **{key: value for key, value in FLAT.items() if not key.startswith("own.")},
        "dataset": "digits",
        "model": "digits-cnn",
        "batch-size": 16,
        "partition.name": "dirichlet",
    },
    "HAR's shapes": {**SERIES, "batch-size": 32},
    "Fashion-MNIST's CNN": {**FLAT, "batch-size": 50},
}


class Rounds:
    """Keeps the seconds of each complete round."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: list[float] = []
        self._clock, self._last = clock, clock()

    def opened(self, progress: Any, total: int) -> None:
        """Start the clock."""
        self._last = self._clock()

    def round(self, progress: Any, record: Any, line: Any) -> None:
        """Store the seconds since the last round."""
        now = self._clock()
        self.seconds.append(now - self._last)
        self._last = now

    def closed(self, progress: Any, line: Any) -> None:
        """Do nothing at the end."""


def seconds(
    keys: Mapping[str, Any], device: str, at_once: int, rounds: int = ROUNDS, clock: Callable[[], float] | None = None
) -> list[float]:
    """Return the seconds of each training round but the first."""
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    watching = Rounds(clock or (time.process_time if device == "cpu" else time.perf_counter))
    flat = {**keys, "clients": CLIENTS, "rounds": rounds, "device": device, "engine.batch": at_once}
    run_in_process(assemble(flat), observers=[watching])
    return watching.seconds[1:rounds]


def measure(
    device: str = "", repeats: int = REPEATS, kinds: Mapping[str, Mapping[str, Any]] = KINDS
) -> list[dict[str, Any]]:
    """Return a row for each model, device and number of clients at once; without a device for all that are there."""
    rows = []
    for where in [device] if device else dict.fromkeys(("cpu", choose_device("auto"))):
        for name, keys in kinds.items():
            durations: dict[int, list[float]] = {count: [] for count in (1, *AT_ONCE)}
            for _ in range(repeats):
                for count in durations:
                    durations[count] += seconds(keys, where, count)
            middle = {count: statistics.median(values) for count, values in durations.items()}
            for count in AT_ONCE:
                rows.append(
                    {
                        "what": f"{name}, {count} of {CLIENTS} clients at once over one by one, {where}",
                        "ratio": middle[count] / middle[1],
                        "goal": "" if where == "cpu" else "below 1",
                        "met": None if where == "cpu" else middle[count] < middle[1],
                        "at_once_seconds": middle[count],
                        "one_by_one_seconds": middle[1],
                    }
                )
    return rows
