"""``sepal tune``: tune each method on a small grid, with the same number of trials, on validation data alone.

A plan as for `sepal compare`, with these additions::

    trials = 6                   # per method; without it, all grids must have the same size
    views = { ditto = "trained" }   # optional: the view that a method is judged by; by default the one it deploys
    [grid]                       # lists of values, tried for every method
    lr = [0.01, 0.03, 0.1]
    [grid.ditto]                 # further lists for one method, in all combinations with the others
    lambda = [0.1, 1.0]

The rounds are those of ``[settings]``; test data is never looked at. It writes ``chosen.toml``, which a plan includes
with ``tuned = "…/chosen.toml"``, and ``grid.ndjson``, with a line for each trial.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from sepal.errors import ConfigError
from sepal.protocol.views import MODELS
from sepal.rng import derive
from sepal.storage.files import write_atomically
from sepal.study import search
from sepal.study.plans.model import PlanFile, PlannedRun
from sepal.study.plans.plan import make_plan, read_table
from sepal.study.plans.settings import Table, combinations, own_keys, split, with_names
from sepal.study.search import mean_validation, measure_in
from sepal.tasks.scoring import ACCURACY, Measure


@dataclass(frozen=True)
class Trial:
    """One setting of a method.

    Attributes:
        settings: The grid's values, flat.
        validation: Mean accuracy on validation data after the last round, over seeds; None until all seeds have ended.
    """

    method: str
    variant: str
    settings: Mapping[str, Any]
    validation: float | None = None


@dataclass(frozen=True)
class Search:
    """A plan whose variants are trials.

    Attributes:
        file: The plan file's name.
        views: Method → the view by whose validation accuracy its settings are chosen.
    """

    file: str
    plan: PlanFile
    trials: tuple[Trial, ...]
    views: Mapping[str, str]

    def check_validation(self, runs: list[PlannedRun]) -> None:
        """Refuse a plan without validation data, or with a swept setting outside the grid.

        Raises:
            ConfigError: The plan is refused; the error names the key.
        """
        for run in runs:
            if run.keys.get("split.validation", 0.1) == 0:
                raise ConfigError(f"{self.file}: split.validation", "more than 0: trials are chosen by it", 0)
        if len({run.cell for run in runs}) > 1:
            raise ConfigError(f"{self.file}: settings", "lists in [grid] alone", f"the setting {runs[0].cell}")

    def judged(self, out: Path, runs: list[PlannedRun]) -> list[Trial]:
        """Return the trials with the validation accuracy of the runs in ``out``."""
        places = {
            trial.variant: [out / run.name for run in runs if run.variant == trial.variant] for trial in self.trials
        }
        return [
            replace(trial, validation=mean_validation(places[trial.variant], self.views[trial.method]))
            for trial in self.trials
        ]

    def measure(self, out: Path, runs: list[PlannedRun]) -> Measure:
        """Return the metric by which trials are judged: that of the runs in ``out``."""
        return measure_in(out / run.name for run in runs)

    def write(self, out: Path, runs: list[PlannedRun], trials: list[Trial]) -> list[Path]:
        """Write the whole grid, and the chosen settings of every method whose trials have all ended."""
        seeds = sorted({run.seed for run in runs})
        rounds = runs[0].keys.get("rounds", "the data set's default number of")
        words = f"{'at most ' * bool(runs[0].keys.get('stop-after'))}{rounds} rounds"
        grid, chosen = out / "grid.ndjson", out / "chosen.toml"
        best, measure = choose(trials, self.measure(out, runs)), self.measure(out, runs)
        rows = [
            {
                "method": t.method,
                "settings": dict(t.settings),
                "view": self.views[t.method],
                "validation": t.validation,
                "rounds": rounds,
                "seeds": seeds,
                "chosen": t is best.get(t.method),
            }
            for t in trials
        ]
        write_atomically(grid, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        count = len(trials) // len(self.views)
        head = f"# Chosen by `sepal tune {self.file}`: {count} trials a method, {words}, seeds {seeds}, "
        head += (
            f"on {runs[0].keys.get('dataset', 'digits')}.\n"
            f"# By validation {measure.name} alone; all trials: grid.ndjson.\n"
        )
        settings = {method: dict(trial.settings) for method, trial in best.items()}
        write_atomically(chosen, (head + tomli_w.dumps({"settings": settings})).encode())
        return [chosen, grid]


def choose(trials: list[Trial], measure: Measure = ACCURACY) -> dict[str, Trial]:
    """Return the best trial of each method, the first in a tie; leave out methods with a trial missing."""
    best: dict[str, Trial] = {}
    for method in dict.fromkeys(trial.method for trial in trials):
        method_trials = [trial for trial in trials if trial.method == method]
        if all(trial.validation is not None for trial in method_trials):
            best[method] = search.choose(method_trials, lambda trial: measure.sign * (trial.validation or 0.0))
    return best


def read_search(path: Path) -> Search:
    """Return the search that a plan file describes.

    Raises:
        ConfigError: It cannot be read, names an unknown key, or does not give each method the same number of trials.
    """
    from sepal.strategies import registry

    table = with_names(path.name, read_table(path))
    grid, trials, views = table.pop("grid", None), table.pop("trials", None), table.pop("views", {})
    table.pop("tune", None)  # the plan may also be one of `sepal compare`
    methods = table.get("methods")
    if not isinstance(grid, Mapping) or not grid:
        raise ConfigError(f"{path.name}: grid", "a table of lists", "none" if grid is None else grid)
    if trials is not None and (not isinstance(trials, int) or isinstance(trials, bool) or trials < 1):
        raise ConfigError(f"{path.name}: trials", "a whole number, at least 1", trials)
    if not isinstance(methods, list) or not methods:
        raise ConfigError(f"{path.name}: methods", "a list of methods", methods)
    for name, view in dict(views).items():
        if name not in methods or view not in MODELS:
            raise ConfigError(f"{path.name}: views.{name}", f"one of the methods, with {' or '.join(MODELS)}", view)
    settings = table.get("settings", {})
    shared, of_methods = split(path.name, methods, grid)
    fixed = split(path.name, methods, settings)[1]
    chosen_by = {n: registry.deployed(str(fixed.get(n, {}).get("method", n))) or "trained" for n in methods}
    chosen_by |= dict(views)
    all_trials: list[Trial] = []
    variants: dict[str, Any] = {}
    for name, chosen in _trials(path.name, methods, shared, of_methods, fixed, trials).items():
        method = str(fixed.get(name, {}).get("method", name))
        fixed_keys = own_keys(method, fixed.get(name, {}), f"{path.name}: settings.{name}")
        for label, values in chosen:
            variant = ",".join(filter(None, (name, label)))
            variants[variant] = {"method": method, **fixed_keys, **values}
            all_trials.append(Trial(name, variant, values))
    shared_settings = {key: value for key, value in settings.items() if key not in methods}
    table |= {"methods": list(variants), "settings": {**shared_settings, **variants}}
    return Search(path.name, make_plan(path, table), tuple(all_trials), chosen_by)


def _trials(
    file: str,
    methods: list[str],
    shared: Table,
    of_methods: Mapping[str, Table],
    fixed: Mapping[str, Table],
    count: int | None,
) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return each method's trials, the same number for each; from a larger grid, they are drawn at random."""
    grids = {}
    for name in methods:
        method = str(fixed.get(name, {}).get("method", name))
        grids[name] = list(
            combinations({**shared, **own_keys(method, of_methods.get(name, {}), f"{file}: grid.{name}")})
        )
    for name, grid in grids.items():
        if count is None and len(grid) != len(grids[methods[0]]):
            expected = f"as many trials as for {methods[0]}, {len(grids[methods[0]])}, or `trials`"
            raise ConfigError(f"{file}: grid of {name}", expected, len(grid))
        if count is not None and len(grid) < count:
            raise ConfigError(f"{file}: grid of {name}", f"at least trials = {count} combinations", len(grid))
        if count is not None:
            drawn = derive(0, "tune", name).choice(len(grid), count, replace=False)
            grids[name] = [grid[index] for index in np.sort(drawn)]
    return grids
