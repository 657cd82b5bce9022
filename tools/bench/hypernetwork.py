"""Pa3dFL's server relative to its clients' training; :mod:`tools.bench.widths` measures training by width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.widths import CLASSES, MODEL, SHAPE, alone, memory, step_of, timed

CLIENTS, SAMPLED, EXAMPLES, BATCH, EPOCHS = 100, 20, 400, 50, 5  # 50,000 images, .8 of each client's train
WIDTHS = (1 / 16, 1 / 4, 1 / 2, 1.0)
Kind = tuple[str, tuple[int, ...], int]  # a model's name, its input's shape, its classes
CIFAR: Kind = (MODEL, SHAPE, CLASSES)
FASHION: Kind = ("cnn-fmnist-pa3dfl", (1, 28, 28), 10)


def server(widths: tuple[float, ...], clients: int, rank: int, depth: int = 3, kind: Kind = CIFAR) -> dict[str, float]:
    """Return the seconds to generate for, and to step on, the sampled clients (of ``widths`` in turn), and peak memory.

    ``depth`` is the number of the encoder's linear layers; Table 9 has 1, 2 and 3.
    """
    from sepal import models
    from sepal.models.decomposed import Decomposed, initial_weights
    from sepal.strategies.pa3dfl.contract import Hyper
    from sepal.strategies.pa3dfl.hypernetwork import Hypernetwork

    name, shape, classes = kind
    plain = models.build(name, shape, classes)
    full = Decomposed(plain, shape)
    network = Hypernetwork(full.personal, 0, Hyper(rate=0.1, decoder_rank=rank, depth=depth))
    state = network.join(network.init(initial_weights(full, 0)), [f"client-{number}" for number in range(clients)])
    at = {width: {p.name: p.shape for p in Decomposed(plain, shape, width).personal} for width in widths}
    chosen = [(f"client-{number}", at[widths[number % len(widths)]]) for number in range(SAMPLED)]

    def generate() -> None:
        for client, shapes in chosen:
            network.generate(state, client, shapes)

    def uploads() -> Iterator[tuple[str, dict[str, Any]]]:
        for client, shapes in chosen:
            yield client, {name: np.full(shape, 0.01, np.float32) for name, shape in shapes.items()}

    small = Hypernetwork(full.personal, 0, Hyper(rate=0.1, decoder_rank=1, embedding=1, hidden=1, depth=depth))
    first = small.join(small.init(initial_weights(full, 0)), ["client-0"])
    warm = [("client-0", small.generate(first, "client-0", at[widths[0]]))]
    small.step(first, warm, np.copy)  # what libraries allocate at first use
    del small, first, warm
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # what was held before does not count as a peak
    before = memory("VmRSS")
    durations = {"generate": timed(generate, 3), "step": timed(lambda: network.step(state, uploads(), np.copy), 3)}
    over = memory("VmHWM") - before + network.bytes / 2**20  # the state itself was allocated before
    return {**durations, "bytes": network.bytes, "peak": over, "over_hypernetwork": over * 2**20 / network.bytes}


def measure(times: int = 15) -> list[dict[str, Any]]:
    """Return rows: the server's work over its clients' training, and its peak memory."""
    rows: list[dict[str, Any]] = []
    large = alone(server, (1.0,), CLIENTS, 0, 3, FASHION)
    rows.append(peak(f"hypernetwork for {SAMPLED} of {CLIENTS} clients of Fashion-MNIST, full width", large))
    small = {width: alone(step_of, "channels", width, BATCH, times)["seconds"] for width in WIDTHS}
    steps = EPOCHS * EXAMPLES // BATCH
    for title, widths, clients, rank, depth in (
        ("full width", (1.0,), CLIENTS, 0, 3),
        ("full width, encoder of 2 layers", (1.0,), CLIENTS, 0, 2),
        ("full width, encoder of 1 layer", (1.0,), CLIENTS, 0, 1),
        ("widths 1/16, 1/4, 1/2, 1 in turn", WIDTHS, CLIENTS, 0, 3),
        ("full width, 1,000 embeddings", (1.0,), 1000, 0, 3),
        ("full width, decoders of rank 8", (1.0,), CLIENTS, 8, 3),
    ):
        timings = alone(server, widths, clients, rank, depth)
        training = steps * sum(small[widths[number % len(widths)]] for number in range(SAMPLED))
        ratio = (timings["generate"] + timings["step"]) / training
        name = f"hypernetwork for {SAMPLED} of {clients} clients, {title}"
        verdict = ratio <= 0.1 if rank == 0 else None
        goal = "at most .1" if rank == 0 else ""
        figures = {key: timings[key] for key in ("generate", "step", "bytes")}
        rows.append({"what": f"{name}, over their training", "ratio": ratio, "goal": goal, "met": verdict, **figures})
        rows[-1]["training"] = training
        rows.append(peak(name, timings))
    return rows


def peak(name: str, figures: dict[str, float]) -> dict[str, Any]:
    """Return the row of a peak memory."""
    ratio = figures["over_hypernetwork"]
    row = {"what": f"{name}, peak memory over its bytes", "ratio": ratio, "goal": "at most 4", "met": ratio <= 4}
    return {**row, "mebibytes": figures["peak"]}
