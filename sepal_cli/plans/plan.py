"""Plans: TOML files that say which runs there are, and with which keys. `sepal compare`, `tune` and `paper` read them.

One comparison::

    methods = ["fedpse", "fedavg", "thin"]
    seeds = [0, 1, 2]
    [settings]                   # keys of `sepal run`; a list is swept
    dataset = "digits"
    rounds = 20
    "partition.alpha" = [0.1, 0.3]
    [settings.fedpse]            # of one method; its own keys need no prefix, a list makes a variant of each value
    keep = [0.1, 0.2]
    [settings.thin]              # a name that is no method: a variant of the method that it names
    method = "fedavg"
    width = 0.5

Several tables, as a paper has them::

    hours = 1.5                  # no run begins after it
    [keys]                       # of every run
    rounds = 20
    [variants.NAME]              # keys under a name; a method's own name needs none
    method = "fedpse"
    "fedpse.ewa" = false
    [[block]]                    # a table: every cell of the grid × variant × seed is a run
    name = "n5"
    variants = ["fedpse", "NAME", "fedavg"]
    seeds = [0, 1, 2]
    [block.keys]
    clients = 5
    [block.grid]                 # optional: lists of values, all combinations
    "partition.lambda" = [1.0, 0.5, 0.0]
    [[block.published]]          # optional: what the paper reports, in %, and the views beside it
    cell = "lambda=1.0"
    views = ["received", "trained"]
    values = { fedpse = 92.43, fedavg = 80.68 }

Keys of a variant win over those of the grid, these over the block's, these over the file's. ``tuned = "FILE"`` names a
file that `sepal tune` wrote: its settings of a method are taken where the plan's own for that method say nothing.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sepal.config import Flat, parse
from sepal.errors import ConfigError, nearest, suggest
from sepal_cli.arguments import Value, flatten_tables
from sepal_cli.plans.settings import MOST_RUNS, Table, as_block, own_keys

Keys = dict[str, Any]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=,-]*$")]


class Published(BaseModel):
    """Accuracies that the paper reports, in %, by variant."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cell: str = ""
    views: tuple[str, ...] = Field(min_length=1)
    values: dict[Name, float]


class Block(BaseModel):
    """One table: every cell of the grid × variant × seed is a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name | Literal[""]  # empty: the only one of a file
    title: str = ""
    variants: tuple[Name, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    keys: Keys = {}
    grid: dict[str, tuple[Value, ...]] = {}  # dotted keys quoted
    published: tuple[Published, ...] = ()


class Plan(BaseModel):
    """A plan file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    hours: float = Field(default=24.0, gt=0)
    note: str = ""
    target: float | None = Field(default=None, gt=0, lt=1)  # accuracy, for rounds and MB until it is reached
    view: Literal["received", "trained", "pooled", "kept"] = "trained"  # that reaches it, and of paired differences
    tuned: str = ""
    keys: Keys = {}
    variants: dict[Name, Keys] = {}
    block: tuple[Block, ...] = Field(min_length=1)

    def runs(self, only: str = "") -> Iterator[PlannedRun]:
        """Yield the runs in the order of the file: by block, seed, cell and variant.

        Raises:
            ConfigError: ``only`` is no block.
        """
        if only and only not in [block.name for block in self.block]:
            raise ConfigError("--only", f"one of {', '.join(block.name for block in self.block)}", only)
        for block in self.block:
            if only not in ("", block.name):
                continue
            for seed, values in itertools.product(block.seeds, itertools.product(*block.grid.values())):
                cell = dict(zip(block.grid, values, strict=True))
                for variant in block.variants:
                    yield self._run(block, cell, variant, seed)

    def _run(self, block: Block, cell: Mapping[str, Value], variant: str, seed: int) -> PlannedRun:
        own = self.variants.get(variant, {"method": variant})
        tables = (self.keys, block.keys, cell, own)
        keys = {key: value for table in tables for key, value in flatten_tables(table)}
        place = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in cell.items())
        name = "-".join(filter(None, (block.name, place, variant, f"seed{seed}")))
        name = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
        return PlannedRun(block.name, place, variant, seed, {**keys, "seed": seed, "name": name})


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        cell: The grid's values, as a text.
        keys: Flat run-config keys, the run's name among them.
    """

    block: str
    cell: str
    variant: str
    seed: int
    keys: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.keys["name"])


def read_plan(path: Path) -> Plan:
    """Return the plan in ``path``.

    Raises:
        ConfigError: It cannot be read, or is not a plan.
    """
    return make_plan(path, read_table(path))


def make_plan(path: Path, table: Table) -> Plan:
    """Return the plan that ``table``, the content of ``path``, describes.

    Raises:
        ConfigError: It is not a plan; the first key that is wrong is named.
    """
    table = {"title": path.stem, **table}
    alone = "methods" in table or "settings" in table
    if alone:
        table = as_block(path.name, table)
    try:
        plan = Plan.model_validate(table)
    except ValidationError as reason:
        raise _bad_key(path.name, reason, alone) from None
    for block in plan.block:
        count = math.prod(map(len, (block.seeds, block.variants, *block.grid.values())))
        if count > MOST_RUNS:
            raise ConfigError(f"{path.name}: {block.name or 'settings'}", f"at most {MOST_RUNS} runs", count)
    if plan.tuned:
        plan = _with_tuned(plan, path.parent / plan.tuned)
    _check_cells(plan, path.name)
    return plan


def read_table(path: Path) -> dict[str, Any]:
    """Return a plan file's content.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as reason:
        raise ConfigError("plan", "a TOML file", f"{path}: {reason.strerror}") from None
    except (ValueError, RecursionError) as reason:
        raise ConfigError("plan", "a TOML file", f"{path}: {reason}") from None


def _bad_key(file: str, reason: ValidationError, alone: bool) -> ConfigError:
    first = reason.errors()[0]
    key = f"{file}: {'.'.join(str(part) for part in first['loc'])}"
    key = key.replace("block.0.", "") if alone else key
    if first["type"] == "extra_forbidden":
        known = [*Plan.model_fields, *Block.model_fields, "methods", "seeds", "settings"]
        return ConfigError(key, "a known key", suggest("an unknown one", str(first["loc"][-1]), known))
    return ConfigError(key, first["msg"], str(first["input"])[:60])


def _check_cells(plan: Plan, name: str) -> None:
    for block in plan.block:
        cells = list(dict.fromkeys(run.cell for run in plan.runs(block.name)))
        for each in block.published:
            if each.cell not in cells:
                raise ConfigError(f"{name}: {block.name}.published.cell", f"one of {', '.join(cells)}", each.cell)


def _with_tuned(plan: Plan, path: Path) -> Plan:
    """Return the plan with the settings that `sepal tune` chose, under those that the plan has for the same variant."""
    settings = read_table(path).get("settings", {})
    if not isinstance(settings, dict) or not all(isinstance(found, dict) for found in settings.values()):
        raise ConfigError("tuned", "a file that `sepal tune` wrote", str(path))
    variants = dict(plan.variants)
    for name in {name for block in plan.block for name in block.variants}:
        own = variants.get(name, {"method": name})
        method = str(own.get("method", name))
        variants[name] = {
            **own_keys(method, settings.get(name) or settings.get(method) or {}),
            **dict(flatten_tables(own)),
        }
    return plan.model_copy(update={"variants": variants})


def check_keys(file: str, runs: list[PlannedRun]) -> None:
    """Validate every run's keys, before any of them is begun.

    Args:
        file: Name of the plan file, for the message.
        runs: The plan's runs.

    Raises:
        ConfigError: A key is unknown or has a value that it cannot have.
    """
    from strategies import registry
    from strategies.assembly import check_private

    hypers = registry.Hypers()
    for run in {(run.block, run.cell, run.variant): run for run in runs}.values():
        method = str(run.keys.get("method"))
        if method not in registry.table():
            near = nearest(method, registry.table())
            words = f"a method, or a name with settings that say its method{f' (did you mean {near}?)' * bool(near)}"
            raise ConfigError(f"{file}: methods", words, method)
        flat: Flat = {key: value for key, value in run.keys.items() if key != "name"}
        try:
            check_private(registry.get(method), parse(flat, hypers)[0])
        except ConfigError as error:
            where = f"{file}: {run.variant}{f', {run.cell}' * bool(run.cell)}: {error.key}"
            raise ConfigError(where, error.expected, error.got) from None
