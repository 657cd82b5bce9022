"""What a client and a step cost, by captured steps and as usual, and captured steps of several clients on streams.

Two numbers of epochs give two points, and the line through them the milliseconds of a step and those that a client
costs beside its steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from sepal import models
from sepal.config import RunConfig
from sepal.protocol.types import ClientInfo, Weights
from sepal.training.hooks import Hooks
from sepal.training.network import Network
from sepal.training.programs import PendingSteps, Programs, recorder
from sepal.training.stacked import Job
from sepal.training.trainer import Trainer
from tools.bench.batch import Rounds
from tools.bench.data import load
from tools.bench.engine import FLAT
from tools.gpu.rounds import floor, timed, wait

CLIENTS, EPOCHS, ROUNDS = 16, (1, 3), 3
STREAMS = (1, 4, 16)


@dataclass
class StreamSlot:
    """A stream, the network that trains on it, and its captured steps."""

    stream: Any
    programs: Programs
    networks: dict[str, Network] = field(default_factory=dict)

    def on(self) -> AbstractContextManager[Any]:
        """Return what lets the device work on the stream; on a CPU nothing."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def _slot(device: str) -> StreamSlot:
    stream = None if device == "cpu" else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return StreamSlot(stream, Programs(recorder(device) or (lambda step: step)))


def trainers(device: str, batch: int, epochs: int) -> list[Trainer]:
    """Return clients with their data on the device, none of which captures its steps."""
    config = RunConfig(batch_size=batch, local_epochs=epochs, lr=0.01)
    clients = []
    for number in range(CLIENTS):
        x, y = (torch.from_numpy(part).to(device) for part in load(number)[:2])
        info = ClientInfo(f"client-{number}", len(y))
        make = partial(models.build, "cnn2", (1, 28, 28), 10)
        clients.append(Trainer(info, config, x, y, x[:0], y[:0], make, {}, device))
    return clients


def round_of(clients: Sequence[Trainer], slots: Sequence[StreamSlot] | None, weights: Weights) -> Callable[[], None]:
    """Return a round in which each client loads the weights, trains and reads its model; without slots as usual."""

    def usual() -> None:
        for trainer in clients:
            trainer.networks = clients[0].networks
            network = trainer.network()
            network.load(weights)
            trainer.fit(network.module, 1)
            network.read()

    def captured() -> None:
        for start in range(0, len(clients), len(slots or ())):
            begun = [
                (slot, _begin(trainer, slot, weights))
                for trainer, slot in zip(clients[start:], slots or (), strict=False)
            ]
            for slot, pending in begun:
                with slot.on():
                    pending.result()
                    slot.networks["model"].read()

    return captured if slots else usual


def _begin(trainer: Trainer, slot: StreamSlot, weights: Weights) -> PendingSteps:
    trainer.networks = slot.networks
    with slot.on():
        network = trainer.network()
        network.load(weights)
        module = network.module.train()
        optimizer = trainer.optimizer(module, 1)
        rows = partial(trainer.rows, 1, "train")
        job = Job(trainer, module, Hooks(), optimizer, trainer.config.local_epochs, rows)
        with trainer.randomness(1):
            pending = slot.programs.begin(job, [network])
    if pending is None:
        raise RuntimeError(f"not captured: {'; '.join(slot.programs.reasons)}")
    return pending


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return milliseconds of a step, and of a client beside its steps, of two points (steps, a client's seconds)."""
    (few, short), (many, long) = points
    step = (long - short) / (many - few)
    return 1000 * step, 1000 * (short - few * step)


def _steps(device: str, batch: int, ways: int | None) -> tuple[float, float]:
    """Measure training alone: as usual, or captured on some streams."""
    points = []
    slots = None if ways is None else [_slot(device) for _ in range(ways)]
    for epochs in EPOCHS:
        clients = trainers(device, batch, epochs)
        weights = Network(clients[0].make()).read()
        seconds = statistics.median(timed(device, round_of(clients, slots, weights), ROUNDS + 1)) / CLIENTS
        points.append((sum(len(clients[0].rows(1, "train", epoch)) for epoch in range(1, epochs + 1)), seconds))
    return line(points)


def _run(device: str, batch: int, capture: bool) -> tuple[float, float]:
    """Measure rounds of a whole run of FedAvg in one process, without evaluation."""
    import time

    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    points = []
    for epochs in EPOCHS:
        watching = Rounds(time.perf_counter)
        flat = {**FLAT, "clients": CLIENTS, "rounds": ROUNDS + 1, "device": device, "engine.batch": 1}
        flat |= {"batch-size": batch, "local-epochs": epochs, "engine.capture": capture}
        run_in_process(assemble(flat), observers=[watching])
        seconds = statistics.median(watching.seconds[1 : ROUNDS + 1]) / CLIENTS
        points.append((epochs * -(-len(load(0)[1]) // batch), seconds))
    return line(points)


def measure(device: str, batches: tuple[int, ...] = (10, 50)) -> Iterator[str]:
    """Yield the lines of a table for each size of a batch."""
    yield from (
        f"{CLIENTS} clients × 600 images of 28 × 28, CNN of 582,026 parameters, SGD, one process. Median of {ROUNDS}",
        f"rounds of {EPOCHS[0]} and of {EPOCHS[1]} epochs; wall time. Training alone: weights in, steps, weights out.",
        "",
        "| batch | what | ms a step | ms a client beside its steps |",
        "|---|---|---|---|",
    )
    for batch in batches:
        bare = statistics.median(timed(device, floor(batch, device), ROUNDS + 1)) / 20 / -(-600 // batch)
        yield f"| {batch} | bare steps (floor) | {1000 * bare:.3f} | |"
        ways: list[tuple[str, Callable[[], tuple[float, float]]]] = [
            ("training, as usual", partial(_steps, device, batch, None)),
            *((f"training, captured, streams: {ways}", partial(_steps, device, batch, ways)) for ways in STREAMS),
            ("a run, as usual", partial(_run, device, batch, False)),
            ("a run, captured", partial(_run, device, batch, True)),
        ]
        for title, measured in ways:
            try:
                step, client = measured()
            except RuntimeError as error:  # CUDA's own, or what was not captured: the other rows still count
                yield f"| {batch} | {title} | failed: {str(error).splitlines()[0][:200]} | |"
                continue
            yield f"| {batch} | {title} | {step:.3f} | {client:.2f} |"
            wait(device)
