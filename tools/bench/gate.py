"""pFedGate's gated model relative to the plain one: a training step, inference, and the knapsack's share of a step.

Times are medians of CPU seconds of one thread, because wall time on a shared machine says little. All actions take
turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from sepal import models
from sepal.models.gated import GatedModule
from sepal.strategies.pfedgate.blocks import Blocks, split
from sepal.strategies.pfedgate.knapsack import Knapsack
from sepal.training.multiply_adds import multiply_adds

DATA = {"lenet-cifar10": ((3, 32, 32), 10), "cnn-emnist": ((1, 28, 28), 62), "cnn-cifar100": ((3, 32, 32), 100)}
BATCH, PARTS, REPEATS = 128, 5, 15
KEEPS = (1.0, 0.5, 0.3)


class GateCase(NamedTuple):
    """A way of gating."""

    keep: float
    gating: Literal["sample", "batch", "client"]
    solver: Literal["exact", "greedy-value"] = "exact"
    cost: Literal["weights", "multiply-adds"] = "weights"


def forward_costs(name: str) -> Mapping[str, int]:
    """Return the multiply-adds of one example's forward pass by name of weight."""
    model = models.build(name, *DATA[name]).requires_grad_(False)
    return multiply_adds(model, torch.zeros(1, *DATA[name][0]))


def gated(name: str, kind: GateCase) -> tuple[GatedModule, Blocks]:
    """Return a new gated model of ``DATA``, and its blocks."""
    model = models.build(name, *DATA[name])
    blocks = split(models.layout(model), PARTS, kind.keep)
    costs = None if kind.cost == "weights" else blocks.costs(forward_costs(name))
    choose = Knapsack(blocks, kind.keep, kind.solver, costs)
    return GatedModule(model, DATA[name][0], blocks.by_tensor(), choose, gating=kind.gating), blocks


def seconds(actions: Mapping[Any, Callable[[], object]], repeats: int = REPEATS) -> dict[Any, float]:
    """Return the median CPU seconds of each action; the actions take turns, so that all meet the same conditions."""
    durations: dict[Any, list[float]] = {name: [] for name in actions}
    for number in range(repeats + 2):
        for name, action in actions.items():
            begun = time.process_time()
            action()
            if number > 1:
                durations[name].append(time.process_time() - begun)
    return {name: statistics.median(times) for name, times in durations.items()}


def step(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Return a training step of ``module`` with SGD."""
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    module.train()

    def action() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return action


def infer(module: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Return inference of ``module`` on ``x``; a gated module pools ``x`` first, for gating by client."""
    if isinstance(module, GatedModule):
        module.pool([x])
    module.eval()

    def action() -> None:
        with torch.no_grad():
            module(x)

    return action


def row(title: str, ratio: float, most: float | None = None, **figures: Any) -> dict[str, Any]:
    """Return a row of the table; ``most`` is the goal."""
    goal = "" if most is None else f"at most {most:g}"
    return {"what": title, "ratio": ratio, "goal": goal, "met": None if most is None else ratio <= most, **figures}


def measure_steps(name: str) -> list[dict[str, Any]]:
    """Return rows for a training step at each budget: over the plain one, by sample over by batch, and the solver."""
    x, y = torch.randn(BATCH, *DATA[name][0]), torch.randint(0, DATA[name][1], (BATCH,))
    actions: dict[Any, Callable[[], object]] = {"plain": step(models.build(name, *DATA[name]), x, y)}
    for keep in KEEPS:
        for gating in ("batch", "sample"):
            module, blocks = gated(name, GateCase(keep, gating))
            actions[keep, gating] = step(module, x, y)
        actions[keep, "solver"] = partial(module.choose, torch.rand(BATCH, len(blocks.names)).numpy())
    medians = seconds(actions)
    rows = []
    for keep in KEEPS:
        batch, sample, solver = (medians[keep, which] for which in ("batch", "sample", "solver"))
        where = f"{name}, s = {keep:g}, batch of {BATCH}"
        rows += [
            row(f"step by batch over plain, {where}", batch / medians["plain"], ms=1e3 * batch),
            row(f"step by sample over plain, {where}", sample / medians["plain"], ms=1e3 * sample),
            row(f"step by sample over by batch, {where}", sample / batch, 1.4),
            row(f"knapsack's share of a step by sample, {where}", solver / sample, 0.1, ms=1e3 * solver),
        ]
    return rows


def measure_inference(name: str) -> list[dict[str, Any]]:
    """Return rows for inference at each budget over the plain model's, with the share that stays on for the batch."""
    kinds = [GateCase(1.0, "client"), GateCase(1.0, "sample")]
    for keep in KEEPS[1:]:
        kinds += [GateCase(keep, "client"), GateCase(keep, "client", "greedy-value")]
        kinds += [GateCase(keep, "client", cost="multiply-adds"), GateCase(keep, "batch"), GateCase(keep, "sample")]
    x, work = torch.randn(BATCH, *DATA[name][0]), forward_costs(name)
    modules = {kind: gated(name, kind) for kind in kinds}
    actions: dict[Any, Callable[[], object]] = {kind: infer(module, x) for kind, (module, _) in modules.items()}
    medians = seconds({"plain": infer(models.build(name, *DATA[name]), x), **actions})
    rows = []
    for kind, (module, blocks) in modules.items():
        with torch.no_grad():
            on, costs = module.sparse_weights(x)[1], blocks.costs(work)
        title = f"inference over plain, {name}, s = {kind.keep:g} of {kind.cost}, by {kind.gating}, {kind.solver}"
        figures = {"weights": blocks.share(on), "multiply_adds": costs[on].sum() / costs.sum()}
        rows.append(row(title, medians[kind] / medians["plain"], ms=1e3 * medians[kind], **figures))
    return rows


def measure() -> list[dict[str, Any]]:
    """Return the rows of all models, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [line for name in DATA for line in measure_steps(name) + measure_inference(name)]
    finally:
        torch.set_num_threads(threads)
