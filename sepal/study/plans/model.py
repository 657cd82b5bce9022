"""The parts of a plan file: blocks of runs, and the runs that they describe."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from sepal.config import Mark, RunConfig, marked
from sepal.errors import ConfigError
from sepal.study.plans.converged import CONVERGED, resolved
from sepal.study.plans.resources import Resources, read_resources
from sepal.study.run_keys import Value, flatten_tables

Keys = dict[str, Any]
Chosen = Mapping[str, Mapping[str, Mapping[str, Value]]]  # block → variant → values that its trials chose
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=,-]*$")]


class PlanBlock(BaseModel):
    """One table: every cell of the grid × variant × seed is a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name | Literal[""]  # empty: the only block of a file
    title: str = ""
    variants: tuple[Name, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    keys: Keys = {}
    grid: dict[str, tuple[Value, ...]] = {}  # dotted keys are quoted
    grids: dict[Name, dict[str, tuple[Value, ...]]] = {}  # of single variants, beyond ``grid``
    trials: str = ""  # name of the block whose cells are trials
    calibrated: dict[Name, float] = {}  # in a block of trials: the rate that a variant keeps if no other is better

    def grid_of(self, variant: str) -> dict[str, tuple[Value, ...]]:
        """Return the lists of values of a variant, by key."""
        return {**self.grid, **self.grids.get(variant, {})}

    def cells(self, variant: str) -> Iterator[dict[str, Value]]:
        """Yield every combination of the values of a variant, by key."""
        grid = self.grid_of(variant)
        yield from (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


class PlanFile(BaseModel):
    """A plan file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    hours: float = Field(default=24.0, gt=0)
    note: str = ""
    target: float | None = Field(default=None, gt=0)  # of the headline, for the rounds and MB until it is reached
    view: Literal["received", "trained", "pooled", "kept"] = "trained"  # of the target and of paired differences
    tuned: str = ""
    tune: StrictBool = False  # whether trials in the deployed view come first (:mod:`sepal.study.plans.tuning`)
    one_processor: StrictBool = Field(default=False, alias="one-processor")  # of all runs that are compared
    resources: Keys = {}  # (:mod:`sepal.study.plans.resources`)
    keys: Keys = {}
    variants: dict[Name, Keys] = {}
    block: tuple[PlanBlock, ...] = Field(min_length=1)

    @property
    def trial_blocks(self) -> set[str]:
        """The names of the blocks whose cells are trials."""
        return {block.trials for block in self.block} - {""}

    def judged(self, run: PlannedRun) -> str:
        """Return the view of the validation accuracy by which a trial is judged."""
        return run.deployed if self.tune else "trained"

    def check(self, file: str) -> None:
        """Check what blocks say of each other, and the target.

        Args:
            file: The file's name, for the message.

        Raises:
            ConfigError: A block waits for trials of a block that is not before it, or no run can reach the target; or a
                table of resources is not one.
        """
        self.asked(file)
        names = [block.name for block in self.block]
        keys = {*self.keys, *(key for block in self.block for key in (*block.keys, *block.grid))}
        if self.target is not None and self.target >= 1 and keys.isdisjoint(marked(RunConfig, Mark.METRIC)):
            raise ConfigError(f"{file}: target", "less than 1, a share of right answers", self.target)
        for block in self.block:
            if block.trials and block.trials not in names[: names.index(block.name)]:
                raise ConfigError(f"{file}: {block.name}.trials", "the name of a block before it", block.trials)

    def asked(self, file: str = "") -> dict[str, Resources]:
        """Return what runs ask of a cluster, by variant (:func:`sepal.study.plans.resources.read_resources`).

        Raises:
            ConfigError: A key or a name is unknown, or a value has another form.
        """
        variants = dict.fromkeys(variant for block in self.block for variant in block.variants)
        return read_resources(file or self.title, self.resources, variants)

    def runs(self, only: str = "", chosen: Chosen | None = None) -> Iterator[PlannedRun]:
        """Yield the runs in the order of the file: by block, seed, cell and variant.

        Args:
            only: Name of one block; empty: all.
            chosen: The values that trials have chosen (:func:`sepal.study.plans.trials.chosen`).

        Raises:
            ConfigError: ``only`` does not name a block.
        """
        if only and only not in [block.name for block in self.block]:
            raise ConfigError("--only", f"one of {', '.join(block.name for block in self.block)}", only)
        choices: Chosen = chosen or {}
        for block in self.block:
            if only not in ("", block.name):
                continue
            for seed, cells in itertools.product(block.seeds, zip_longest(*map(block.cells, block.variants))):
                for variant, cell in zip(block.variants, cells, strict=True):
                    if cell is not None:  # grids of single variants may have different sizes
                        yield self._run(block, cell, variant, seed, choices.get(block.name, {}).get(variant))

    def _run(
        self, block: PlanBlock, cell: Mapping[str, Value], variant: str, seed: int, best: Mapping[str, Value] | None
    ) -> PlannedRun:
        variant_keys = self.variants.get(variant, {"method": variant})
        tables = (self.keys, block.keys, best or {}, cell, variant_keys)
        flat = [dict(flatten_tables(table)) for table in tables]
        keys = {key: value for table in flat for key, value in table.items()}
        if any(table.get("rounds") == CONVERGED for table in flat):
            keys = resolved(keys)
        cell_text = cell_name(cell)
        name = "-".join(filter(None, (block.name, cell_text, variant, f"seed{seed}")))
        name = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
        keys |= {"seed": seed, "name": name}
        return PlannedRun(block.name, cell_text, variant, seed, keys, best or {}, not block.trials or best is not None)


def cell_name(cell: Mapping[str, Value]) -> str:
    """Return the values of a cell as text: ``alpha=0.1,lr=0.05``."""
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in cell.items())


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        cell: The grid's values, as text.
        keys: Flat run-config keys, including the run's name.
        chosen: The keys that trials have chosen.
        ready: Whether it can be run: its trials, if it has any, have ended.
    """

    block: str
    cell: str
    variant: str
    seed: int
    keys: Mapping[str, Value]
    chosen: Mapping[str, Value] = field(default_factory=dict)
    ready: bool = True

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.keys["name"])

    @property
    def deployed(self) -> str:
        """View of the model that a user of a deployed client predicts with, by the run's method."""
        from sepal.strategies import registry

        return registry.deployed(str(self.keys.get("method", ""))) or "kept"
