"""Sepal from Python: ``sepal.run``, ``sepal.compare``, ``sepal.own``, on the same code as the ``sepal`` command.

    import sepal

    run = sepal.run(method="fedpse", dataset=sepal.own(load, shape=(30,), classes=2), model=build, clients=4, rounds=10)
    run.frame                    # a row for each client, round and view
    run.model("client-00003")    # torch module, ready to predict
    sepal.compare(["fedpse", "fedavg-ft"], seeds=range(3), dataset="digits").frontier()

A function for data or model may be written in a notebook's cell (:func:`sepal.user_modules.name_of`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sepal import user_modules
from sepal.api.results import Compared, Run
from sepal.errors import ConfigError, SepalError

Function = Callable[..., Any]


@dataclass(frozen=True)
class Own:
    """Private data of each client, from a function; see :func:`own`."""

    keys: Mapping[str, Any]


def own(
    load: Function | str,
    *,
    shape: Sequence[int],
    classes: int = 0,
    vocabulary: int = 0,
    task: Function | str = "classification",
) -> Own:
    """Return a data set for :func:`run`: each client's data comes from ``load``.

    Args:
        load: Returns (x_train, y_train, x_test, y_test); it may take the client's number, from 0. Or its name,
            ``package.module:function``.
        shape: Shape of one example.
        classes: Number of classes; of labels (multilabel), numbers to predict (regression; 0: one) or token ids
            (tokens; 0: ``vocabulary``).
        vocabulary: Number of token ids; 0 if the data is not text.
        task: What is learned: a task's name, or an own one (docs/tasks.md).
    """
    sides = "x".join(str(int(side)) for side in shape)
    keys = {"dataset": "own", "own.data": _target(load), "own.shape": sides, "own.classes": classes}
    keys |= {} if task == "classification" else {"task": _target(task)}
    return Own({**keys, "own.vocabulary": vocabulary})


def run(
    method: str = "fedpse",
    dataset: str | Own = "digits",
    model: Function | str = "auto",
    *,
    workers: int = 0,
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Run a federation in process; a run of the same ``name`` that has not ended is continued.

    Args:
        method: A method's name (`sepal methods`).
        dataset: A data set's name, or :func:`own`.
        model: A model's name, or a function (input shape, classes) → module.
        workers: Worker processes; 0: one per core. Results do not depend on it.
        progress: Whether to show a bar, or a line a round where there is no terminal.
        keys: Run-config keys (`sepal keys`), with ``_`` for ``-``; those of a group as a mapping: ``clients=20``,
            ``partition={"alpha": 0.1}``, ``fedpse={"keep": 0.05}``. A function (``augment=…``) may stand for its name.

    Raises:
        SepalError: A key is invalid, or the run cannot be completed.
    """
    from sepal.server_app.places import IN_PROCESS, default_base
    from sepal.study.run import execute, prepare
    from sepal.study.run_keys import gather

    base = default_base(IN_PROCESS)
    prepared = prepare(gather(None, (), _flat(method, dataset, model, keys), base), base)
    execute(prepared, workers, None, list(_displays(prepared) if progress else ()))
    return Run(prepared.path)


def load(run: str | Path) -> Run:
    """Return a run that there is: by its directory, or by its name.

    Raises:
        ConfigError: There is no such run.
    """
    from sepal.study.runs import find_run

    return Run(find_run(str(run)))


def compare(
    methods: Sequence[str],
    *,
    seeds: Iterable[int] = (0,),
    dataset: str | Own = "digits",
    model: Function | str = "auto",
    out: str | Path = "",
    tune: bool = False,
    jobs: int = 0,
    progress: bool = True,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **keys: Any,
) -> Compared:
    """Run methods × seeds, each in its own process, and return all side by side; what has ended is not run again.

    Args:
        methods: Names of methods, or of variants that ``settings`` describes.
        seeds: Seeds, which change data, weights and sampling.
        dataset: As for :func:`run`.
        model: As for :func:`run`.
        out: Directory of the runs; by default ``runs/compare``.
        tune: Whether each method's rate is first searched on validation data.
        jobs: Runs at a time; 0: one per core.
        progress: Whether to show bars.
        settings: Method or variant → keys for it alone, such as ``{"fedpse": {"keep": [0.01, 0.1]}}``; a list makes a
            variant of each value.
        keys: As for :func:`run`, for all methods; a list is swept.

    Raises:
        SepalError: A key is invalid, or a run failed.
    """
    from rich.console import Console

    from sepal.cli.progress import PlanDisplay
    from sepal.study.plans.model import PlanFile
    from sepal.study.plans.plan import make_plan
    from sepal.study.plans.trials import run_plan

    shared = _flat("", dataset, model, keys)
    own = {name: _keys(mapping) for name, mapping in (settings or {}).items()}
    table: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds), "settings": {**shared, **own}}
    place = Path(out or Path("runs") / "compare").absolute()
    plan: PlanFile = make_plan(Path("compare.toml"), {**table, "tune": True} if tune else table)
    displays = partial(PlanDisplay, Console(stderr=True, quiet=not progress))
    done = run_plan(plan, place, displays, jobs=jobs)
    if bad := done.lost:
        raise SepalError("compare", f"{len(done.runs)} runs that end", f"{len(bad)} that failed, the first: {bad[0]}")
    return Compared(place)


def _displays(prepared: Any) -> Iterable[Any]:
    from rich.console import Console

    from sepal.cli.progress import RoundDisplay

    settings = prepared.settings
    yield RoundDisplay(Console(file=sys.stderr), f"{settings.method} on {settings.dataset}", prepared.assembly.notes)


def _flat(method: str, dataset: str | Own, model: Function | str, keys: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict(dataset.keys) if isinstance(dataset, Own) else {"dataset": dataset}
    flat |= {"method": method} if method else {}
    if model != "auto":
        flat["model"] = _target(model)
    return {**flat, **_keys(keys)}


def _keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key.replace("_", "-"): value for key, value in flatten_mapping(keys).items()}
    return {key: user_modules.name_of(value) if callable(value) else value for key, value in flat.items()}


def flatten_mapping(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a mapping with dotted keys: ``{"partition": {"alpha": 1}}`` → ``{"partition.alpha": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten_mapping(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _target(function: Function | str) -> str:
    if isinstance(function, str):
        return function
    if not callable(function):
        raise ConfigError("model, data", "a function, or package.module:function", type(function).__name__)
    return user_modules.name_of(function)
