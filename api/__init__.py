"""Sepal from Python: ``sepal.run``, ``sepal.compare``, ``sepal.own``, on the same code as the ``sepal`` command.

    import sepal

    run = sepal.run(method="fedpse", dataset=sepal.own(load, shape=(30,), classes=2), model=build, clients=4, rounds=10)
    run.frame                    # a row for each client, round and view
    run.model("client-00003")    # torch module, ready to predict
    sepal.compare(["fedpse", "fedavg-ft"], seeds=range(3), dataset="digits").frontier()

A function for data or model may be written in a notebook's cell (:func:`sepal.user_modules.name_of`).
"""

from __future__ import annotations

import html
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepal import user_modules
from sepal.errors import ConfigError, SepalError

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from sepal.server_app.stored_run import StoredRun
    from sepal.study.comparison import Comparison

Function = Callable[..., Any]
HEIGHT = 720  # pixels of a report in a notebook


@dataclass(frozen=True)
class Own:
    """Private data of each client, from a function; see :func:`own`."""

    keys: Mapping[str, Any]


def own(load: Function | str, *, shape: Sequence[int], classes: int, vocabulary: int = 0) -> Own:
    """Return a data set for :func:`run`: each client's data comes from ``load``.

    Args:
        load: Returns (x_train, y_train, x_test, y_test); it may take the client's number, from 0. Or its name,
            ``package.module:function``.
        shape: Shape of one example.
        classes: Number of classes.
        vocabulary: Number of token ids; 0 if the data is not text.
    """
    sides = "x".join(str(int(side)) for side in shape)
    keys = {"dataset": "own", "own.data": _target(load), "own.shape": sides, "own.classes": classes}
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
            ``partition={"alpha": 0.1}``, ``fedpse={"keep": 0.05}``.

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


@dataclass(frozen=True)
class Run:
    """A run with its directory.

    Attributes:
        path: The run's directory (docs/run-directory.md).
    """

    path: Path

    @cached_property
    def stored(self) -> StoredRun:
        """Configuration, rounds and summary, as stored."""
        from sepal.server_app.stored_run import read_run

        return read_run(self.path)

    @property
    def summary(self) -> Mapping[str, Any]:
        """summary.json; empty until the run has ended."""
        return self.stored.summary or {}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Accuracies, a row for each client, round and view: ``round, client, view, accuracy`` (a fraction)."""
        import pandas as pd

        from sepal.protocol.views import CLOSING_VIEWS

        rows = [
            (line["round"], client["name"], view, value)
            for line in self.stored.lines
            for client in line["clients"]
            for view in CLOSING_VIEWS
            if (value := client.get(view)) is not None
        ]
        return pd.DataFrame(rows, columns=["round", "client", "view", "accuracy"])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Means over clients, bytes and seconds, a row for each round: the columns of `sepal show --csv`."""
        import pandas as pd

        from sepal.cli.files import by_round

        return pd.DataFrame(by_round(self.stored))

    def model(self, client: str) -> nn.Module:
        """Return a client's own model after its last training, in evaluation mode.

        Raises:
            ConfigError: The run has no such client, or its model cannot be exported.
        """
        from sepal.client_app.client_model import client_model
        from sepal.client_app.portable import load, save

        found = client_model(self.path, self.stored.config, client)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "model.safetensors"
            save(file, found.origin, found.networks)
            return load(file, {found.origin.model}).module.eval()

    def plot(self) -> Report:
        """Return the run's report, which a notebook shows."""
        return Report((str(self.path),))


@dataclass(frozen=True)
class Compared:
    """Runs side by side.

    Attributes:
        path: The directory of the runs.
    """

    path: Path

    @cached_property
    def comparison(self) -> Comparison:
        """The runs and their figures."""
        from sepal.study.comparison import read_comparison

        return read_comparison([str(self.path)])

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row of figures for each setting and variant: the columns of ``comparison.csv``."""
        import pandas as pd

        from sepal.cli.files import by_variant

        return pd.DataFrame(by_variant(self.comparison))

    def frontier(self) -> pd.DataFrame:
        """Return deployed accuracy against MB: ``setting, name, megabytes, accuracy, frontier``, by megabytes.

        A variant is on the frontier if no other of its setting is at least as accurate with fewer bytes.
        """
        import pandas as pd

        from sepal.study.frontier import frontier

        rows = [
            (cell, place.variant.label, place.megabytes, place.accuracy.mean, place.frontier)
            for cell in self.comparison.cells
            for place in frontier(self.comparison.variants(cell))
        ]
        return pd.DataFrame(rows, columns=["setting", "name", "megabytes", "accuracy", "frontier"])

    def plot(self) -> Report:
        """Return the comparison's report, which a notebook shows."""
        return Report((str(self.path),))


@dataclass(frozen=True)
class Report:
    """A report: shown by a notebook, or written with :meth:`save`."""

    places: tuple[str, ...]

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        from sepal.cli.report import write_html

        return write_html(self.places, Path(path))

    def _repr_html_(self) -> str:
        from sepal.cli.report import render
        from sepal.study.comparison import read_comparison

        page = html.escape(render(read_comparison(self.places)))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'


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
    return {key.replace("_", "-"): value for key, value in flatten_mapping(keys).items()}


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
