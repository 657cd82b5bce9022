"""Sepal from Python: ``sepal.run``, ``sepal.compare``, ``sepal.own``, on the same code as the ``sepal`` command.

    import sepal

    run = sepal.run(method="fedpse", dataset=sepal.own(load, shape=(30,), classes=2), model=build, clients=4, rounds=10)
    run.frame                    # a row for each client, round and view
    run.model("client-00003")    # torch module, ready to predict
    sepal.compare(["fedpse", "fedavg-ft"], seeds=range(3), dataset="digits").frontier()

A function for data or model may be written in a notebook's cell (:func:`sepal.api.keys.name_of`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepal.api.keys import Function, OwnKeys, code_key, flat_keys, listed, own, settings_keys
from sepal.api.results import Compared, Run

__all__ = ["Compared", "OwnKeys", "Run", "compare", "load", "own", "run"]

log = logging.getLogger("sepal")


def run(
    method: str = "",
    dataset: str | OwnKeys = "digits",
    model: Function | str = "auto",
    *,
    workers: int = 0,
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Run a federation in process; a run of the same ``name`` that has not ended is continued.

    Args:
        method: A method's name (`sepal methods`); by default FedAvg + fine-tuning, or that of the run to be continued.
        dataset: A data set's name, or :func:`own`.
        model: A model's name, or a function (input shape, classes) → module.
        workers: Worker processes; 0: one per core. Results do not depend on it.
        progress: Whether to show a bar, or a line a round where there is no terminal. Without it, the lines of the
            start, such as where the rates come from, go to the logger ``sepal`` with level INFO.
        keys: Run-config keys (`sepal keys`), with ``_`` for ``-``; those of a group as a mapping: ``clients=20``,
            ``partition={"alpha": 0.1}``, ``fedpse={"keep": 0.05}``. A function (``augment=…``) may stand for its name.

    Raises:
        SepalError: A key is invalid, or the run cannot be completed.
    """
    from sepal.config.elsewhere import named_code
    from sepal.runs.places import IN_PROCESS, default_base
    from sepal.study.run import execute, prepare
    from sepal.study.run_keys import gather

    base = default_base(IN_PROCESS)
    prepared = prepare(gather(None, (), flat_keys(method, dataset, model, keys), base), base, workers)
    if not progress:
        _log(prepared.assembly.notes)
    execute(prepared, workers, None, list(_displays(prepared) if progress else ()))
    return Run(prepared.path, frozenset(named_code(prepared.settings.flat()).values()))


def load(run: str | Path, *, code: Iterable[Function | str] = ()) -> Run:
    """Return an existing run by its directory or name. Nothing that its keys name is imported.

    Args:
        run: Its directory or name.
        code: The functions and classes with which it was run, for :meth:`Run.model`, or their names,
            ``package.module:NAME``; any other code that its keys name is refused. Functions of a notebook or script
            need not be listed if this session has passed them to :func:`run`. A run's directory has only their names.

    Raises:
        ConfigError: There is no such run.
    """
    from sepal.study.runs import find_run

    names = frozenset(code_key("code", function) for function in code)
    return Run(find_run(str(run)), names)


def compare(
    methods: Sequence[str],
    *,
    seeds: Iterable[int] = (0,),
    dataset: str | OwnKeys = "digits",
    model: Function | str = "auto",
    out: str | Path = "",
    tune: bool = False,
    jobs: int = 0,
    on: str = "local",
    progress: bool = True,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **keys: Any,
) -> Compared:
    """Run methods × seeds, each in its own process, and return all side by side; what has ended is not run again.

    Args:
        methods: Names of methods, or of variants that ``settings`` describes.
        seeds: Seeds, which change data, weights and sampling: ``range(2)``, and not how many.
        dataset: As for :func:`run`.
        model: As for :func:`run`.
        out: Directory of the runs; by default ``runs/compare``.
        tune: Whether each method's rate is first searched on validation data. What was chosen is shown, and is in the
            column ``lr`` of the frame.
        jobs: Runs at a time; 0: one per core, 100 jobs of a cluster, or what the hosts have room for.
        on: ``slurm`` for runs as jobs of Slurm, which go on if this is interrupted, and are taken up again by the same
            call; ``ray`` for tasks of a Ray cluster, or ``ssh`` for processes on the hosts that ``$SEPAL_HOSTS`` names,
            both of which end with this process. Functions for data or model are then those of a module.
        progress: Whether to show bars. Without it, the lines of the start are logged, as by :func:`run`.
        settings: Method or variant → keys for it alone, such as ``{"fedpse": {"keep": [0.01, 0.1]}}``; a list makes a
            variant of each value.
        keys: As for :func:`run`, for all methods; a list is swept.

    Raises:
        SepalError: A key is invalid, or a run failed.
    """
    from sepal.report.console import console
    from sepal.report.printing import say
    from sepal.report.progress import PlanDisplay
    from sepal.study.clusters.place import place_of
    from sepal.study.plans.model import PlanFile
    from sepal.study.plans.plan import make_plan
    from sepal.study.plans.trials import failure, run_plan

    shared = flat_keys("", dataset, model, keys)
    alone = {name: settings_keys(mapping) for name, mapping in (settings or {}).items()}
    table: dict[str, Any] = {
        "methods": listed("methods", methods, '["fedpse", "local"]'),
        "seeds": listed("seeds", seeds, "range(2) or [2]"),
        "settings": {**shared, **alone},
    }
    folder = Path(out or Path("runs") / "compare").absolute()
    plan: PlanFile = make_plan(Path("compare.toml"), {**table, "tune": True} if tune else table)

    def displays(notes: Sequence[str]) -> PlanDisplay:
        if not progress:
            _log(notes)
        return PlanDisplay(console(stderr=True, quiet=not progress), notes)

    place, jobs = place_of(on, jobs, plan)
    completed_runs = run_plan(plan, folder, displays, jobs=jobs, place=place)
    if bad := completed_runs.lost:
        raise failure("compare", len(completed_runs.runs), bad)
    compared = Compared(folder)
    for tuned in compared.comparison.tuning if progress else ():
        say(f"tuned: {tuned.label}{f', {tuned.cell}' * bool(tuned.cell)}: {tuned.chosen or 'nothing'}", err=True)
    return compared


def _log(notes: Iterable[str]) -> None:
    for note in notes:
        log.info("%s", note)


def _displays(prepared: Any) -> Iterable[Any]:
    from sepal.report.console import console
    from sepal.report.progress import RoundDisplay

    settings = prepared.settings
    yield RoundDisplay(console(file=sys.stderr), f"{settings.method} on {settings.dataset}", prepared.assembly.notes)
