"""Time and peak memory of a training step: a model with half of its channels, relative to the full one.

Each is measured in its own process with one thread, and they take turns. Memory is the kernel's peak (VmHWM), which
includes Python, torch, the batch and building the model. The rows also have what the process held before it built the
model, and CPU seconds, which other work on the machine disturbs less.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tools.bench.widths import memory

BATCH, WARM, STEPS, REPEATS = 64, 1, 4, 3
SHAPE, CLASSES = (3, 64, 64), 10
GOAL = 0.7


def wide() -> Any:
    """Return two 3 × 3 convolutions of 128 and 256 channels with norms, 256 hidden units: 17,079,562 parameters."""
    from sepal.models.cnn import TwoConv

    return TwoConv(SHAPE, CLASSES, channels=(128, 256), hidden=(256,), kernel=3, padding=1, batch_norm=True)


def whole(groups: Any) -> Any:
    """Keep everything."""
    return {}


def half_of_the_convolutions(groups: Any) -> Any:
    """Keep every second channel of the layers with a norm, as Sub-FedAvg Hy cuts them."""
    import numpy as np

    from sepal.masks.cuts import scales

    return {group.name: np.arange(0, group.size, 2) for group in groups if group.name in scales(groups)}


def half_of_the_width(groups: Any) -> Any:
    """Keep the first half of all channels and hidden units."""
    from sepal.masks.cuts import windows

    return windows(groups, 0.5)


def _run(choose: Callable[[Any], Any]) -> dict[str, float]:
    import torch
    from torch.nn import functional

    from sepal import models
    from sepal.masks.cuts import Cut

    torch.set_num_threads(1)
    x, y = torch.randn(BATCH, *SHAPE), torch.randint(0, CLASSES, (BATCH,))
    with torch.device("meta"):  # without memory for weights
        described = wide()
    groups = models.coupling(described)
    cut = Cut(models.layout(described), groups, choose(groups))
    before = memory("VmRSS")
    module = models.cut_model(wide, cut).train()
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.5)
    clocks = []
    for _ in range(WARM + STEPS):
        begun = time.monotonic(), time.process_time()
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        clocks.append((time.monotonic() - begun[0], time.process_time() - begun[1]))
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*clocks[WARM:], strict=True))
    peak = memory("VmHWM")  # read before multiply-adds are counted, which imports more
    count = sum(models.forward_multiply_adds(module, x[:1]).values())
    return {"seconds": seconds, "cpu": cpu_seconds, "peak": peak, "before": before, "multiply_adds": count}


def step(choose: Callable[[Any], Any]) -> dict[str, float]:
    """Return the figures of a process that trains with the chosen channels: seconds, MiB, forward multiply-adds."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_run, choose).result()


def measure(repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Return a row for the time and one for the memory of each way to keep half of the channels."""
    ways = (whole, half_of_the_convolutions, half_of_the_width)
    runs = [[step(way) for way in ways] for _ in range(repeats)]
    full, *cuts = ({key: statistics.median(run[i][key] for run in runs) for key in runs[0][i]} for i in range(3))
    rows = []
    for way, half in zip(ways[1:], cuts, strict=True):
        of = f"{way.__name__.replace('_', ' ')} over the full model: wide CNN with norms, 64 × 64 images, batch {BATCH}"
        rows.append(
            {
                "what": f"seconds of a step, {of}",
                **_against(half, full, "seconds"),
                "cpu_seconds": half["cpu"],
                "cpu_seconds_full": full["cpu"],
                "multiply_adds_ratio": half["multiply_adds"] / full["multiply_adds"],
            }
        )
        rows.append({"what": f"peak MiB, {of}", **_against(half, full, "peak"), "before_the_model": half["before"]})
    return rows


def _against(half: dict[str, float], full: dict[str, float], key: str) -> dict[str, Any]:
    ratio = half[key] / full[key]
    return {
        "ratio": ratio,
        "goal": f"at most {GOAL}",
        "met": ratio <= GOAL,
        f"{key}_half": half[key],
        f"{key}_full": full[key],
    }
