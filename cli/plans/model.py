"""The parts of a plan: blocks of runs, what another scale changes in them, and which variants are ranked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from sepal.cli.arguments import Value, flatten_tables
from sepal.cli.plans.converged import CONVERGED, resolved
from sepal.errors import ConfigError

Keys = dict[str, Any]
Chosen = Mapping[str, Mapping[str, Mapping[str, Value]]]  # block → variant → values that its trials chose
Scale = Literal["quick", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("quick", "cpu", "full")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=,-]*$")]


class Published(BaseModel):
    """Accuracies that the paper reports, in %, by variant.

    They are plain means over clients, means weighted by test examples, or that of the bottom decile of clients.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    cell: str = ""
    views: tuple[str, ...] = Field(min_length=1)
    figure: Literal["mean", "weighted", "bottom_decile"] = "mean"
    values: dict[Name, float]


class Block(BaseModel):
    """One table: every cell of the grid × variant × seed is a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name | Literal[""]  # empty: the only block of a file
    title: str = ""
    variants: tuple[Name, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    keys: Keys = {}
    grid: dict[str, tuple[Value, ...]] = {}  # dotted keys are quoted
    grids: dict[Name, dict[str, tuple[Value, ...]]] = {}  # of single variants, beyond ``grid``
    published: tuple[Published, ...] = ()
    tables: tuple[str, ...] = ()  # of the paper, for `python -m experiments.paper --table`: "1", "figure 4"
    trials: str = ""  # name of the block whose cells are trials
    headline: Name | None = None  # the variant whose own figures are shown by round
    scales: tuple[Scale, ...] = SCALES

    def grid_of(self, variant: str) -> dict[str, tuple[Value, ...]]:
        """Return the lists of values of a variant, by key."""
        return {**self.grid, **self.grids.get(variant, {})}

    def cells(self, variant: str) -> Iterator[dict[str, Value]]:
        """Yield every combination of the values of a variant, by key."""
        grid = self.grid_of(variant)
        yield from (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


class AtScale(BaseModel):
    """What another scale changes in a plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    blocks: tuple[Name, ...] = ()
    seeds: tuple[int, ...] = ()
    keys: Keys = {}
    published: bool = True


class Ranks(BaseModel):
    """Which blocks variants are ranked over, and on which figures."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    blocks: tuple[Name, ...] = Field(min_length=1)
    megabytes: dict[Name, Annotated[float, Field(gt=0)]] = {}
    against: tuple[Name, ...] = ()


class Plan(BaseModel):
    """A plan file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    hours: float = Field(default=24.0, gt=0)
    note: str = ""
    target: float | None = Field(default=None, gt=0, lt=1)  # accuracy, for the rounds and MB until it is reached
    view: Literal["received", "trained", "pooled", "kept"] = "trained"  # of the target and of paired differences
    tuned: str = ""
    tune: StrictBool = False  # whether trials in the deployed view come first (:mod:`sepal.cli.plans.tuning`)
    keys: Keys = {}
    variants: dict[Name, Keys] = {}
    scale: dict[Literal["quick", "full"], AtScale] = {}
    ranks: Ranks | None = None
    block: tuple[Block, ...] = Field(min_length=1)

    @property
    def known_scales(self) -> list[Scale]:
        """The scales that the plan supports."""
        named = {each for block in self.block if block.scales != SCALES for each in block.scales}
        return [each for each in SCALES if each in {"cpu", *self.scale, *named}]

    @property
    def trial_blocks(self) -> set[str]:
        """The names of the blocks whose cells are trials."""
        return {block.trials for block in self.block} - {""}

    def at(self, scale: Scale) -> Plan:
        """Return the plan at a scale: the blocks that it has there, with the scale's changes.

        Raises:
            ConfigError: The plan does not support that scale.
        """
        if scale not in self.known_scales:
            raise ConfigError("--scale", f"{' or '.join(self.known_scales)}, which {self.title} has", scale)
        change = self.scale.get(scale, AtScale()) if scale != "cpu" else AtScale()
        wanted = {block.name for block in self.block if block.name in (change.blocks or (block.name,))}
        wanted |= {block.trials for block in self.block if block.name in wanted}
        there = [block for block in self.block if scale in block.scales and block.name in wanted]
        words = ", ".join(f"{key} = {value}" for key, value in flatten_tables(change.keys))
        said = f"At scale {scale}, with {words}; titles are those of the paper's data. " if words else ""
        update = {"block": tuple(self._scaled(block, change) for block in there), "note": said + self.note}
        return self.model_copy(update=update)

    def _scaled(self, block: Block, change: AtScale) -> Block:
        keys, seeds = dict(flatten_tables(change.keys)), change.seeds
        if block.name in self.trial_blocks:  # trials keep their rounds and seeds
            keys, seeds = {key: value for key, value in keys.items() if key != "rounds"}, ()
        update = {"keys": {**block.keys, **keys}, "seeds": seeds or block.seeds}
        return block.model_copy(update=update if change.published else {**update, "published": ()})

    def of_table(self, table: str) -> Plan:
        """Return the plan with only the blocks of one table of the paper and the blocks of their trials.

        Raises:
            ConfigError: No block belongs to that table.
        """
        known = sorted({each for block in self.block for each in block.tables})
        if table not in known:
            expected = f"one of {', '.join(known)}" if known else "no such option, because the plan names no tables"
            raise ConfigError("--table", expected, table)
        needed = {block.trials for block in self.block if table in block.tables and block.trials}
        blocks = tuple(block for block in self.block if table in block.tables or block.name in needed)
        return self.model_copy(update={"block": blocks})

    def runs(self, only: str = "", chosen: Chosen | None = None) -> Iterator[PlannedRun]:
        """Yield the runs in the order of the file: by block, seed, cell and variant.

        Args:
            only: Name of one block; empty: all.
            chosen: The values that trials have chosen (:func:`sepal.cli.plans.trials.chosen`).

        Raises:
            ConfigError: ``only`` does not name a block.
        """
        if only and only not in [block.name for block in self.block]:
            raise ConfigError("--only", f"one of {', '.join(block.name for block in self.block)}", only)
        found: Chosen = chosen or {}
        for block in self.block:
            if only not in ("", block.name):
                continue
            for seed, cells in itertools.product(block.seeds, zip_longest(*map(block.cells, block.variants))):
                for variant, cell in zip(block.variants, cells, strict=True):
                    if cell is not None:  # grids of single variants may have different sizes
                        yield self._run(block, cell, variant, seed, found.get(block.name, {}).get(variant))

    def _run(
        self, block: Block, cell: Mapping[str, Value], variant: str, seed: int, best: Mapping[str, Value] | None
    ) -> PlannedRun:
        own = self.variants.get(variant, {"method": variant})
        tables = (self.keys, block.keys, best or {}, cell, own)
        flat = [dict(flatten_tables(table)) for table in tables]
        keys = {key: value for table in flat for key, value in table.items()}
        if any(table.get("rounds") == CONVERGED for table in flat):
            keys = resolved(keys)
        place = cell_name(cell)
        name = "-".join(filter(None, (block.name, place, variant, f"seed{seed}")))
        name = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
        keys |= {"seed": seed, "name": name}
        return PlannedRun(block.name, place, variant, seed, keys, best or {}, not block.trials or best is not None)


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
