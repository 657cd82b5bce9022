"""Plans: TOML files that list runs and their keys, read by `sepal compare`, `tune` and `paper`.

One comparison::

    methods = ["fedpse", "fedavg", "thin"]
    seeds = [0, 1, 2]
    [settings]                   # keys of `sepal run`; a list is swept
    dataset = "digits"
    rounds = 20
    "partition.alpha" = [0.1, 0.3]
    [settings.fedpse]            # for one method; its own keys need no prefix, a list makes a variant of each value
    keep = [0.1, 0.2]
    [settings.thin]              # not a method's name: a variant of the method that it names
    method = "fedavg"
    width = 0.5

A method of one's own is among the methods as ``"module:Variable"``; its table and its runs have the name that it is
registered under.

``rounds = "converged"``, for all methods or for one, ends each run when its validation accuracy has stopped rising
(:mod:`sepal.server.stopping`), at most after ``limit = N`` rounds beside it (:mod:`sepal.study.plans.converged`)::

    [settings]
    rounds = "converged"
    limit = 100                  # optional; by default three times the data set's rounds

``[resources]`` says what a run asks of a cluster (:mod:`sepal.study.plans.resources`, ``docs/clusters.md``);
``one-processor = true`` refuses a comparison of runs on several kinds of processor::

    one-processor = true
    [resources]
    cores = 4
    time = "01:00:00"
    [resources.fedpse]           # for one method or variant
    memory = "16G"

``tune = true``, or `sepal compare --tune`, searches each method's rate first (:mod:`sepal.study.plans.tuning`)::

    tune = true
    [grid]                       # optional, as for `sepal tune`; by default five learning rates for each method
    lr = [0.05, 0.1, 0.2]
    [grid.fedpse]                # further lists for one method
    keep = [0.1, 0.2]

Several tables, as a paper has them (:mod:`referee.paper.plan` adds what a paper says)::

    hours = 1.5                  # no run is started after this many hours
    [keys]                       # for every run
    rounds = 20
    [variants.NAME]              # keys under a name; a method's own name needs no entry
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

Keys of a variant override those of the grid, which override the block's, which override the file's. ``tuned = "FILE"``
names a file that `sepal tune` wrote: its settings for a method apply unless the plan's own for that method override
them.

A block's ``trials = "BLOCK"`` names another block whose cells are trials: when they have ended, each variant runs with
the values of the cell in which its validation accuracy was best.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from sepal.config import Flat, parse, plainly
from sepal.config.run import SEARCH
from sepal.errors import ConfigError, nearest, suggest
from sepal.simulated_time import read_profile
from sepal.storage.regular import read_stream, read_text
from sepal.storage.toml_text import parse_toml
from sepal.study.plans.looking import is_looking
from sepal.study.plans.model import PlanFile, PlannedRun
from sepal.study.plans.settings import MOST_RUNS, Table, as_block, own_keys, with_names
from sepal.study.plans.tuning import with_trials
from sepal.study.run_keys import flatten_tables

P = TypeVar("P", bound=PlanFile)


def read_plan(path: Path, tune: bool = False, kind: type[P] = PlanFile) -> P:  # type: ignore[assignment]
    """Return the plan in ``path``, of a kind; ``tune`` sets its key of that name.

    Raises:
        ConfigError: It cannot be read, or is not a plan.
    """
    table = read_table(path)
    return make_plan(path, {**table, "tune": True} if tune else table, kind)


def make_plan(path: Path, table: Table, kind: type[P] = PlanFile) -> P:  # type: ignore[assignment]
    """Return the plan that ``table``, the content of ``path``, describes.

    Raises:
        ConfigError: It is not a plan; the error names the first wrong key.
    """
    table = {"title": path.stem, **with_names(path.name, table)}
    alone = "methods" in table or "settings" in table
    tune, grid, methods = table.get("tune") is True, table.get("grid"), table.get("methods")
    if grid is not None and not tune:
        raise ConfigError(f"{path.name}: grid", "tune = true with it, or --tune", "a grid alone")
    if tune and not alone:
        expected = "methods and [settings]; a [[block]] names its `trials`"
        raise ConfigError(f"{path.name}: tune", expected, "true with [[block]]")
    if alone:
        table = as_block(path.name, {key: value for key, value in table.items() if key != "grid"})
    try:
        plan = kind.model_validate(table)
    except ValidationError as reason:
        raise _bad_key(path.name, reason, alone, kind) from None
    for block in plan.block:
        count = len(block.seeds) * sum(math.prod(map(len, block.grid_of(name).values())) for name in block.variants)
        if count > MOST_RUNS:
            raise ConfigError(f"{path.name}: {block.name or 'settings'}", f"at most {MOST_RUNS} runs", count)
    if plan.tuned:
        plan = _with_tuned(plan, path.parent / plan.tuned, path.parent)
    plan.check(path.name)
    if tune:
        check_keys(path.name, list(plan.runs()))
        plan = with_trials(path.name, plan, list(methods or ()), grid)
    return plan


def read_table(path: Path, beside: Path | None = None) -> dict[str, Any]:
    """Return a plan file's content.

    Args:
        path: The file.
        beside: The directory of the plan that names it; None: the user has named it, and it may be a pipe.

    Raises:
        ConfigError: It cannot be read.
        StateError: Another plan has named it, and it is no regular file; or, where somebody looks at that plan, it is
            not in its directory.
    """
    try:
        return parse_toml(read_text(path, within=beside if is_looking() else None) if beside else read_stream(path))
    except OSError as reason:
        raise ConfigError("plan", "a TOML file", f"{path}: {reason.strerror}") from None
    except (ValueError, RecursionError) as reason:
        raise ConfigError("plan", "a TOML file", f"{path}: {reason}") from None


def _bad_key(file: str, reason: ValidationError, alone: bool, kind: type[PlanFile]) -> ConfigError:
    first = reason.errors()[0]
    key = f"{file}: {'.'.join(str(part) for part in first['loc'])}"
    key = key.replace("block.0.", "") if alone else key
    if first["type"] == "extra_forbidden":
        block = get_args(kind.model_fields["block"].annotation)[0]
        fields = (field.alias or name for name, field in kind.model_fields.items())
        valid_keys = [*fields, *block.model_fields, "methods", "seeds", "settings", "grid"]
        return ConfigError(key, "a known key", suggest("an unknown one", str(first["loc"][-1]), valid_keys))
    if first["type"] == "missing":
        return ConfigError(key, "a value", "none")
    return ConfigError(key, plainly(first["msg"]), str(first["input"])[:60])


def _with_tuned(plan: P, path: Path, beside: Path) -> P:
    """Return the plan with the settings that `sepal tune` chose; the plan's own for the same variant override them."""
    settings = read_table(path, beside).get("settings", {})
    if not isinstance(settings, dict) or not all(isinstance(table, dict) for table in settings.values()):
        raise ConfigError("tuned", "a file that `sepal tune` wrote", str(path))
    variants = dict(plan.variants)
    for name in {name for block in plan.block for name in block.variants}:
        variant_keys = variants.get(name, {"method": name})
        method = str(variant_keys.get("method", name))
        variants[name] = {
            **own_keys(method, settings.get(name) or settings.get(method) or {}),
            **dict(flatten_tables(variant_keys)),
        }
    return plan.model_copy(update={"variants": variants})


def check_keys(file: str, runs: list[PlannedRun]) -> None:
    """Validate every run's keys, before any run is started.

    Args:
        file: Name of the plan file, for the message.
        runs: The plan's runs.

    Raises:
        ConfigError: A key is unknown or has an invalid value.
    """
    from sepal.strategies import registry
    from sepal.strategies.rules import check_method

    hypers = registry.Hypers()
    for run in {(run.block, run.cell, run.variant): run for run in runs}.values():
        method = str(run.keys.get("method"))
        if not registry.is_method(method):
            near = nearest(method, registry.table())
            words = f"a method, or a name with settings that say its method{f' (did you mean {near}?)' * bool(near)}"
            raise ConfigError(f"{file}: methods", words, method)
        flat: Flat = {key: value for key, value in run.keys.items() if key != "name"}
        if flat.get("lr") == SEARCH:
            expected = "a number, or 0: in a plan, `tune = true` searches for each method"
            raise ConfigError(f"{file}: {run.variant}: lr", expected, SEARCH)
        try:
            config = parse(flat, hypers)[0]
            check_method(registry.get(method), config)
            if config.devices and not is_looking():
                read_profile(config.devices)
        except ConfigError as error:
            where = f"{file}: {run.variant}{f', {run.cell}' * bool(run.cell)}: {error.key}"
            raise ConfigError(where, error.expected, error.got) from None
