"""What a client costs besides its training: many registered clients, each with one epoch over twenty images.

The floor is the same steps of bare SGD in one process. Both are CPU seconds of one process with one thread, measured in
turn, medians over rounds; the first round is left out. There is no clipping, no evaluation and no disk.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from sepal.rng import derive
from tools.bench.data import TEST
from tools.bench.engine import FLAT

IMAGES, BATCH, SAMPLED, ROUNDS = 20, 10, 50, 8
REGISTERED = (100, 1_000, 10_000)


def load(client: int) -> tuple[Any, ...]:
    """Return 20 training and 10 test images, float32 (n, 1, 28, 28), of client number ``client``."""
    import numpy as np

    rng = derive(0, "small", client)
    x = rng.standard_normal((IMAGES + TEST, 1, 28, 28), np.float32)
    y = rng.integers(0, 10, IMAGES + TEST)
    return x[:IMAGES], y[:IMAGES], x[IMAGES:], y[IMAGES:]


def tiny(shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Any:
    """Return a perceptron of 7,960 parameters, whose step costs next to nothing."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.ReLU(), nn.Linear(10, classes))


def pfl_cnn(shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> Any:
    """Return the CNN of 1,626,442 parameters of pfl-research's benchmark on CIFAR-10 (its ``simple_cnn``)."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12_544, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


MODELS = {"tiny": "tools.bench.small:tiny", "cnn2": "cnn2", "pfl-cnn": "tools.bench.small:pfl_cnn"}


class _Clock:
    """The CPU seconds at the end of each training round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def opened(self, progress: Any, total: int) -> None:
        self.seconds.append(time.process_time())

    def round(self, progress: Any, record: Any, line: Any) -> None:
        self.seconds.append(time.process_time())

    def closed(self, progress: Any, line: Any) -> None:
        """Do nothing: the closing round is not measured."""


def _engine(model: str, registered: int) -> list[float]:
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    clock = _Clock()
    keys = {"model": MODELS[model], "own.data": "tools.bench.small:load", "batch-size": BATCH}
    keys |= {"clients": registered, "clients-per-round": SAMPLED, "rounds": ROUNDS, "clip-gradient": 0.0}
    run_in_process(assemble({**FLAT, **keys, "evaluate-clients": SAMPLED}), observers=[clock])
    return [after - before for before, after in zip(clock.seconds[1:], clock.seconds[2:], strict=False)]


def _floor(model: str, registered: int) -> list[float]:
    import torch
    from torch.nn import functional

    from sepal import models

    torch.set_num_threads(1)
    module = (tiny() if model == "tiny" else models.build(model, (1, 28, 28), 10)).train()
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y, *_ in map(load, range(SAMPLED))]
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for x, y in data:
            optimizer = torch.optim.SGD(module.parameters(), 0.01)
            order = torch.randperm(len(y))
            for rows in torch.split(order, BATCH):
                optimizer.zero_grad()
                functional.cross_entropy(module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        seconds.append(time.process_time() - begun)
    return seconds[1:]


def _measured(way: Callable[[str, int], list[float]], model: str, registered: int, queue: Any) -> None:
    seconds = way(model, registered)
    queue.put((statistics.median(seconds) / SAMPLED, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def _in_process(way: Callable[[str, int], list[float]], model: str, registered: int) -> tuple[float, float]:
    """Return the CPU seconds of a client in a round, and the process's peak memory in MiB."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measured, args=(way, model, registered, queue))
    process.start()
    seconds, peak = queue.get()
    process.join()
    return float(seconds), float(peak)


def measure() -> list[dict[str, Any]]:
    """Return a row for each model and number of registered clients: a client's CPU time over that of its bare steps."""
    rows = []
    for model, counts in {"tiny": REGISTERED, "cnn2": REGISTERED[:2]}.items():
        for registered in counts:
            floors, engines = zip(*[_both(model, registered) for _ in range(3)], strict=True)
            floor, (seconds, peak) = statistics.median(floors), sorted(engines)[1]
            rows.append(
                {
                    "what": f"a client of {registered:,} registered, {model}, {IMAGES} images, over its bare steps",
                    "ratio": seconds / floor,
                    "goal": "",
                    "met": None,
                    "floor_ms": 1000 * floor,
                    "engine_ms": 1000 * seconds,
                    "peak_mb": peak,
                }
            )
    return rows


def _both(model: str, registered: int) -> tuple[float, tuple[float, float]]:
    return _in_process(_floor, model, registered)[0], _in_process(_engine, model, registered)
