"""A round of 20 clients on one device: Sepal one by one and at once, PFLlib's way of training, and the bare steps."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from sepal import models
from tools.bench.batch import seconds
from tools.bench.data import load
from tools.bench.engine import CLIENTS, FLAT

ROUNDS, RATE = 4, 0.01


def wait(device: str) -> None:
    """Wait until the device has computed everything."""
    if device != "cpu":
        torch.accelerator.synchronize()


def timed(device: str, round: Callable[[], None], rounds: int = ROUNDS) -> list[float]:
    """Return the wall seconds of each round but the first."""
    durations = []
    for _ in range(rounds):
        wait(device)
        begun = time.perf_counter()
        round()
        wait(device)
        durations.append(time.perf_counter() - begun)
    return durations[1:]


def floor(batch: int, device: str) -> Callable[[], None]:
    """Return a round of bare steps: one model, data on the device, nothing but SGD."""
    module = models.build("cnn2", (1, 28, 28), 10).train().to(device)
    data = [tuple(torch.from_numpy(part).to(device) for part in load(client)[:2]) for client in range(CLIENTS)]

    def round() -> None:
        for x, y in data:
            optimizer = torch.optim.SGD(module.parameters(), RATE)
            order = torch.randperm(len(y)).to(device)
            for inputs, targets in zip(torch.split(x[order], batch), torch.split(y[order], batch), strict=True):
                step(module, optimizer, inputs, targets)

    return round


def sequential(batch: int, device: str) -> Callable[[], None]:
    """Return a round of FedAvg as PFLlib's: each client has a model, and moves batches of a DataLoader one by one."""
    server = models.build("cnn2", (1, 28, 28), 10).to(device)
    clients = [copy.deepcopy(server) for _ in range(CLIENTS)]
    data = [list(zip(*map(torch.from_numpy, load(client)[:2]), strict=True)) for client in range(CLIENTS)]

    def round() -> None:
        for module, examples in zip(clients, data, strict=True):
            with torch.no_grad():
                for new, old in zip(server.parameters(), module.parameters(), strict=True):
                    old.copy_(new)
            module.train()
            optimizer = torch.optim.SGD(module.parameters(), RATE)
            loader = DataLoader[Any](examples, batch, shuffle=True, drop_last=True)  # type: ignore[arg-type]
            for inputs, targets in loader:
                step(module, optimizer, inputs.to(device), targets.to(device))
        with torch.no_grad():
            for mean, *copies in zip(server.parameters(), *(module.parameters() for module in clients), strict=True):
                mean.copy_(torch.stack([part.detach() for part in copies]).mean(0))

    return round


def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """Make one step of SGD."""
    optimizer.zero_grad()
    functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def measure(device: str, batches: tuple[int, ...] = (10, 50)) -> Iterator[str]:
    """Yield the lines of a table of seconds per round."""
    yield from (
        f"{CLIENTS} clients × 600 images of 28 × 28, CNN of 582,026 parameters, FedAvg, one process, no evaluation, no",
        f"disk. Median wall seconds of {ROUNDS - 1} rounds, and over the floor.",
        "",
        "| batch | bare steps (floor) | as PFLlib trains | Sepal, one by one | Sepal, 16 at once |",
        "|---|---|---|---|---|",
    )
    for batch in batches:
        keys = {**FLAT, "batch-size": batch}
        durations = [timed(device, floor(batch, device)), timed(device, sequential(batch, device))]
        durations += [seconds(keys, device, count, ROUNDS, time.perf_counter) for count in (1, 16)]
        least, *others = map(statistics.median, durations)
        cells = [f"{least:.2f} s", *(f"{median:.2f} s ({median / least:.2f})" for median in others)]
        yield f"| {batch} | {' | '.join(cells)} |"
