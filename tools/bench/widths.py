"""A training step by width: Pa3dFL's decomposed model, FLANC's, and the cut plain one, relative to the full plain one.

This measures Table 2 of Pa3dFL: its CNN for CIFAR-100 with the 10 classes that the table counts, batch 128, random
images. Each figure comes from its own process with one thread; the models take turns, and medians are shown. Seconds
are CPU seconds, which other work on the machine disturbs less. Memory is the kernel's peak above what the process held
with the model built, the batch made and the libraries warmed up by a small plain model. Multiply-adds are counted by
torch over a forward pass of the batch; those of a decomposed model include the recovery of its weights, once per batch.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from sepal.rng import derive

MODEL, SHAPE, CLASSES = "cnn-cifar100-pa3dfl", (3, 32, 32), 100
TABLE_CLASSES, BATCH, TIMES, REPEATS = 10, 128, 8, 3
# p = √r. Table 2 has r = 1/256, 1/64, 1/4 and 1.
WIDTHS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
KINDS = {"channels": "Pa3dFL's model", "flanc": "Pa3dFL's model with FLANC's factors", "plain": "the plain model cut"}
GOAL = {1 / 4: 0.3}  # of Pa3dFL's model


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``function`` in a new process with one thread, whose peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_answer, args=(queue, function, arguments))
    process.start()
    result = queue.get()
    process.join()
    return result


def _answer(queue: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    queue.put(function(*arguments))


def memory(field: str) -> float:
    """Return a memory field of this process's status in MiB: ``VmRSS`` is the current one, ``VmHWM`` the peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def timed(function: Callable[[], Any], times: int) -> float:
    """Return the median CPU seconds that ``function`` takes, after two warm-up calls.

    With one thread, these are wall-clock seconds on an idle machine, and other work disturbs them less.
    """
    durations = []
    for _ in range(times + 2):
        begun = time.process_time()
        function()
        durations.append(time.process_time() - begun)
    return statistics.median(durations[2:])


def step_of(kind: str, width: float, batch: int, times: int, classes: int = CLASSES) -> dict[str, float]:
    """Return an SGD step's seconds and peak memory (MiB), the model's parameters, and its forward multiply-adds.

    Args:
        kind: ``channels``, Pa3dFL's model; ``flanc``, with FLANC's decomposition; ``plain``, cut to its first
            channels as HeteroFL cuts it.
        width: p.
        batch: Number of images.
        times: Number of timed steps.
        classes: Number of logits.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.flop_counter import FlopCounterMode

    from sepal import models
    from sepal.models.decomposed import Decomposed, cut, initial_weights
    from sepal.models.factors import Decomposition

    plain = models.build(MODEL, SHAPE, classes, width=width if kind == "plain" else 1.0)
    module = plain
    if kind != "plain":
        how = Decomposition(kind)
        module = Decomposed(plain, SHAPE, width, decomposition=how)
        first = initial_weights(Decomposed(plain, SHAPE, decomposition=how), 0)
        models.load_weights(module, cut(first, models.layout(module)))
    rng = derive(0, "bench-widths")
    images = torch.from_numpy(rng.standard_normal((batch, *SHAPE), np.float32))
    labels = torch.from_numpy(rng.integers(0, classes, batch))
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        if isinstance(module, Decomposed):
            of_global, of_local = module(images)
            loss = cross_entropy(of_global, labels) + cross_entropy(of_local, labels) + 0.01 * module.regulariser()
        else:
            loss = cross_entropy(module(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()

    torch.autograd.backward(cross_entropy(models.build(MODEL, SHAPE, classes, width=1 / 16)(images[:1]), labels[:1]))
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # what was held before does not count as a peak
    before = memory("VmRSS")
    seconds = timed(step, times)
    peak = memory("VmHWM") - before
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(images)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return {
        "seconds": seconds,
        "mebibytes": peak,
        "parameters": parameters,
        "multiply_adds": counter.get_total_flops() // 2,
    }


def measure() -> list[dict[str, Any]]:
    """Return a row for each width of the decomposed and plain models, relative to the full plain one."""
    ways = [(kind, width) for kind in KINDS for width in WIDTHS]
    runs = [[alone(step_of, *way, BATCH, TIMES, TABLE_CLASSES) for way in ways] for _ in range(REPEATS)]
    medians = {
        way: {key: statistics.median(run[at][key] for run in runs) for key in runs[0][at]}
        for at, way in enumerate(ways)
    }
    full = medians["plain", 1.0]
    return [_row(*way, figures, full) for way, figures in medians.items() if figures is not full]


def _row(kind: str, width: float, figures: dict[str, float], full: dict[str, float]) -> dict[str, Any]:
    ratio, most = figures["seconds"] / full["seconds"], GOAL.get(width) if kind == "channels" else None
    at = f"step of {KINDS[kind]} at width {Fraction(width)} (r = {Fraction(width) ** 2})"
    return {
        "what": f"{at}, over the plain full model's",
        "ratio": ratio,
        "goal": "" if most is None else f"at most {most}",
        "met": None if most is None else ratio <= most,
        **figures,
        "mebibytes_ratio": figures["mebibytes"] / full["mebibytes"],
        "multiply_adds_ratio": figures["multiply_adds"] / full["multiply_adds"],
        "parameters_ratio": figures["parameters"] / full["parameters"],
        "full_seconds": full["seconds"],
        "full_mebibytes": full["mebibytes"],
    }
