"""A round of the in-process engine, relative to a floor: the same SGD steps in as many processes and nothing else."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Mapping
from typing import Any

from tools.bench.data import EXAMPLES, load

CLIENTS, ROUNDS = 20, 6
FLAT: Mapping[str, Any] = {
    "method": "fedavg",
    "dataset": "own",
    "own.shape": "1x28x28",
    "own.classes": 10,
    "own.data": "tools.bench.data:load",
    "model": "cnn2",
    "clients": CLIENTS,
    "lr": 0.01,
    "local-epochs": 1,
    "split.validation": 0.0,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "checkpoint-every": 1000,
}


class RoundClock:
    """Keeps each round's wall time, and the time from its creation until the first round starts."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = time.monotonic()
        self.startup = 0.0
        self._last = 0.0

    def opened(self, progress: Any, total: int) -> None:
        """Store the start-up time: the clients have registered."""
        self._last = time.monotonic()
        self.startup = self._last - self.started

    def round(self, progress: Any, record: Any, line: Any) -> None:
        """Store the time of a complete round, aggregation included."""
        now = time.monotonic()
        self.seconds.append(now - self._last)
        self._last = now

    def closed(self, progress: Any, line: Any) -> None:
        """Do nothing at the end."""


def engine_seconds(batch: int, workers: int, rounds: int = ROUNDS) -> tuple[list[float], float]:
    """Return the seconds of each training round but the first, and of the start-up."""
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    clock = RoundClock()
    assembly = assemble({**FLAT, "batch-size": batch, "rounds": rounds})
    run_in_process(assembly, observers=[clock], workers=workers)
    return clock.seconds[1:rounds], clock.startup


def floor_seconds(batch: int, processes: int, rounds: int = ROUNDS) -> list[float]:
    """Return the seconds of each round of bare SGD but the first: ``CLIENTS`` clients over ``processes``."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(processes + 1), context.Queue()
    shares = [list(range(CLIENTS))[number::processes] for number in range(processes)]
    children = [context.Process(target=_floor, args=(share, batch, rounds, barrier, queue)) for share in shares]
    for child in children:
        child.start()
    seconds = []
    for _ in range(rounds):
        barrier.wait()
        begun = time.monotonic()
        for _ in children:
            queue.get()
        seconds.append(time.monotonic() - begun)
    for child in children:
        child.join()
    return seconds[1:]


def _floor(clients: list[int], batch: int, rounds: int, barrier: Any, queue: Any) -> None:
    import torch
    from torch.nn import functional

    from sepal import models

    torch.set_num_threads(1)
    module = models.build("cnn2", (1, 28, 28), 10).train()
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y, *_ in map(load, clients)]
    for _ in range(rounds):
        barrier.wait()
        for x, y in data:
            optimizer = torch.optim.SGD(module.parameters(), 0.01)
            order = torch.randperm(EXAMPLES)
            shuffled, labels = x[order], y[order]
            for inputs, targets in zip(torch.split(shuffled, batch), torch.split(labels, batch), strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        queue.put(None)


def measure(workers: int = 2, repeats: int = 2) -> list[dict[str, Any]]:
    """Return a row for each batch size: seconds per round of engine and floor, measured in turn, and their ratio."""
    rows = []
    for batch in (10, 50):
        floor: list[float] = []
        engine: list[float] = []
        for _ in range(repeats):
            floor += floor_seconds(batch, workers)
            seconds, startup = engine_seconds(batch, workers)
            engine += seconds
        ratio = statistics.median(engine) / statistics.median(floor)
        rows.append(
            {
                "what": f"in-process round over SGD floor, batch {batch}, {workers} processes, no disk, no evaluation",
                "ratio": ratio,
                "goal": "at most 1.05",
                "met": ratio <= 1.05,
                "engine_seconds": statistics.median(engine),
                "floor_seconds": statistics.median(floor),
                "startup_seconds": startup,
            }
        )
    return rows
