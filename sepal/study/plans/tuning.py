"""``tune = true``: the same small search for each method before the runs of a plan, on validation data alone.

It becomes two blocks for every cell of the plan: trials (:mod:`sepal.study.plans.trials`), and the runs that wait for
them. A trial is a run of the plan with values of the grid and with seeds that are not reported. It is judged by the
validation accuracy of the model that the method deploys.

Without ``[grid]``, the learning rate is searched: five values around the one that is calibrated for the method, the
data and the model. Of the values that are within one standard error of the best, the one nearest to the calibrated rate
is chosen (Breiman et al., "Classification and Regression Trees", 1984, section 3.4.3, choose the simplest there): two
seeds cannot tell such values apart, and the calibration had more. A method whose own settings name a key of the grid
keeps its value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, TypeVar

from sepal.errors import ConfigError
from sepal.study.plans.converged import resolved
from sepal.study.plans.model import PlanBlock, PlanFile, cell_name
from sepal.study.plans.rates import completed
from sepal.study.plans.settings import own_keys, split
from sepal.study.run_keys import Value, flatten_tables
from sepal.study.search import two_digits

STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the calibrated rate
SEEDS, FIRST_SEED = 2, 1000  # of trials: the first ones from 1000 on that are not reported
TRIALS = "tune"
LR = "lr"
P = TypeVar("P", bound=PlanFile)
Grid = dict[str, tuple[Value, ...]]


def with_trials(file: str, plan: P, methods: Sequence[str], grid: Mapping[str, Any] | None) -> P:
    """Return a plan of one block with trials before it.

    Args:
        file: The plan file's name, for messages.
        plan: The plan.
        methods: The names that the plan compares; its variants begin with them.
        grid: The plan's ``[grid]``; None for learning rates.

    Raises:
        ConfigError: There is no validation data; a key is both swept and searched; or the grids of two methods have
            different sizes.
    """
    (block,) = plan.block
    if any(run.keys.get("split.validation", 0.1) == 0 for run in plan.runs()):
        raise ConfigError(f"{file}: split.validation", "more than 0: trials are chosen by it", 0)
    seeds = tuple(islice((seed for seed in count(FIRST_SEED) if seed not in block.seeds), SEEDS))
    blocks: list[PlanBlock] = []
    for cell in block.cells(block.variants[0]):
        name = re.sub(r"[^A-Za-z0-9_.+=,-]", "_", cell_name(cell))
        cell_block = block.model_copy(update={"name": name, "grid": {}, "keys": {**block.keys, **cell}})
        grids = dict(_grids(file, plan, cell_block, methods, grid, cell))
        if grids:
            trials: dict[str, Any] = {"name": f"{TRIALS}-{name}" if name else TRIALS}
            trials |= {"variants": tuple(grids), "grids": grids}
            if grid is None:
                trials["calibrated"] = {variant: lists[LR][STEPS.index(1)] for variant, lists in grids.items()}
            title = f"Trials{f', {name}' * bool(name)}"
            blocks.append(cell_block.model_copy(update={**trials, "seeds": seeds, "title": title}))
            cell_block = cell_block.model_copy(update={"trials": trials["name"]})
        blocks.append(cell_block)
    return plan.model_copy(update={"block": tuple(blocks)})


def around(rate: float) -> tuple[float, ...]:
    """Return five learning rates around ``rate``, in steps of two, with two digits each."""
    return tuple(two_digits(rate * step) for step in STEPS)


def _grids(
    file: str,
    plan: PlanFile,
    block: PlanBlock,
    methods: Sequence[str],
    grid: Mapping[str, Any] | None,
    swept: Iterable[str],
) -> Iterator[tuple[str, Grid]]:
    """Yield each variant with what is searched for it, unless its own settings name every key of it.

    Keys in ``swept`` cannot be searched.
    """
    shared, of_methods = split(f"{file}: grid", list(methods), grid or {})
    sizes: dict[str, int] = {}
    for variant in block.variants:
        variant_keys = dict(flatten_tables(plan.variants[variant]))
        name = max((method for method in methods if f"{variant},".startswith(f"{method},")), key=len)
        if grid is None:
            whole: Grid = {LR: around(_rate({**plan.keys, **block.keys, **variant_keys}))}
        else:
            lists = {
                **shared,
                **own_keys(str(variant_keys["method"]), of_methods.get(name, {}), f"{file}: grid.{name}"),
            }
            whole = {key: tuple(values) if isinstance(values, list) else (values,) for key, values in lists.items()}
        if both := [key for key in swept if key in whole]:
            raise ConfigError(f"{file}: settings.{both[0]}", "no list, as the trials search it", "a list")
        other_keys = {key: values for key, values in whole.items() if key not in variant_keys}
        if other_keys == whole:
            sizes[name] = math.prod(map(len, whole.values()))
            first = next(iter(sizes))
            if sizes[name] != sizes[first]:
                expected = f"as many trials as for {first}, {sizes[first]}"
                raise ConfigError(f"{file}: grid of {name}", expected, sizes[name])
        if other_keys:
            yield variant, other_keys


def _rate(keys: Mapping[str, Any]) -> float:
    """Return the calibrated learning rate of a run with the flat ``keys``."""
    return float(completed({key: value for key, value in resolved(keys).items() if key != LR})[0].lr)
