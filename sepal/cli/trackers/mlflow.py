"""A run in MLflow: its keys as parameters, its figures by round as metrics, its report and model as artifacts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from sepal.errors import ConfigError, StateError, one_line
from sepal.report.files import by_round
from sepal.report.page import write_html
from sepal.runs.stored_run import StoredRun
from sepal.storage.files import read_tensors
from sepal.storage.regular import is_regular

FILES = ("config.toml", "summary.json", "metrics.jsonl")
OWN = "sepal.directory"  # tag by which a run is found again
TOGETHER = 100  # parameters in one request: MLflow's limit


@dataclass(frozen=True)
class MlflowTracker:
    """MLflow at a tracking URI: a server's address, or a directory."""

    place: str
    option: str

    def log(self, experiment: str, runs: Iterable[StoredRun]) -> int:
        """Log runs; see :class:`sepal.cli.trackers.Tracker`."""
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a directory was asked for
        try:
            client = MlflowClient(self.place)
            existing = client.get_experiment_by_name(experiment)
            if existing:
                check_artifacts(self.place, existing.artifact_location, self.option)
            experiment_id = existing.experiment_id if existing else client.create_experiment(experiment)
            logged = {run.data.tags.get(OWN) for run in client.search_runs([experiment_id], max_results=50_000)}
            fresh = [run for run in runs if str(run.path.absolute()) not in logged]
            for run in fresh:
                _log(client, experiment_id, run, self.place, self.option)
        except (MlflowException, OSError, ValueError) as reason:
            got = f"{self.place}: {one_line(str(reason), 200)}"
            raise ConfigError(self.option, "a tracking URI that takes runs", got) from None
        return len(fresh)


def make(place: str, option: str) -> MlflowTracker:
    """Return the tracker."""
    return MlflowTracker(place, option)


def check_artifacts(place: str, location: str, option: str) -> Path | None:
    """Refuse a place of files that is not that of a directory or an SQLite file: models and reports would go elsewhere.

    Such a store may be from elsewhere, and each of its experiments, and with SQLite a trigger or a view, names where
    files go. A server decides by itself.

    Args:
        place: The tracking URI.
        location: Where the store says that files go.
        option: The option, for the error.

    Returns:
        The directory into which files go; None for a server, to which they are sent.

    Raises:
        ConfigError: Files would leave this machine, or a directory that is the store; of an SQLite file, its directory
            and the current one.
    """
    store, goes_to = urlsplit(place), urlsplit(location)
    scheme = store.scheme.partition("+")[0]  # sqlite+pysqlite is SQLite, too
    if scheme not in ("", "file", "sqlite"):
        return None
    is_file = scheme == "sqlite"
    path = Path(unquote(store.path[1:] if is_file else store.path))
    homes = [path.parent, Path.cwd()] if is_file else [path]
    target = Path(unquote(goes_to.path)).resolve()
    inside = any(target.is_relative_to(home.resolve()) for home in homes)
    if not inside or goes_to.scheme not in ("", "file") or goes_to.netloc not in ("", "localhost"):
        expected = "an experiment whose files stay in it; give another URI"
        raise ConfigError(option, expected, f"{place}, whose files go to {one_line(location, 200)}")
    return target


def _sender(client: Any, run_id: str, place: str, option: str) -> Callable[[Path, str], object]:
    """Return what takes a file of a run, and the folder that it goes to.

    Into a store on this machine files are copied here: the store is asked once where they go, and it is checked.

    Raises:
        ConfigError: They would go elsewhere, or to a directory in which there is something, such as a link.
    """
    location = str(client.get_run(run_id).info.artifact_uri)
    if (directory := check_artifacts(place, location, option)) is None:
        return lambda file, folder: client.log_artifact(run_id, str(file), folder or None)
    if os.path.lexists(directory) and not (directory.is_dir() and not any(directory.iterdir())):
        raise ConfigError(option, "a directory for a run's files in which there is nothing", one_line(location, 200))

    def copy(file: Path, folder: str) -> None:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, directory / folder / file.name)

    return copy


def _is_checkpoint(file: Path) -> bool:
    """Return whether a file is one that Sepal wrote, and no further name of a private one: the others were read."""
    try:
        read_tensors(file)
    except StateError:
        return False
    return True


def _log(client: Any, experiment_id: str, run: StoredRun, place: str, option: str) -> None:
    from mlflow.entities import Metric, Param

    run_id = client.create_run(experiment_id, run_name=run.path.name).info.run_id
    now = int(1000 * time.time())
    keys = [Param(key, str(value)) for key, value in sorted(run.config.items())]
    for first in range(0, len(keys), TOGETHER):
        client.log_batch(run_id, params=keys[first : first + TOGETHER])
    for row in by_round(run):
        figures = [Metric(name, value, now, int(row["round"])) for name, value in row.items() if name != "round"]
        client.log_batch(run_id, metrics=figures)
    send = _sender(client, run_id, place, option)
    model = sorted((run.path / "checkpoints").glob("round-*.safetensors"))[-1:]
    for file, folder in chain(((run.path / name, "") for name in FILES), ((path, "model") for path in model)):
        if is_regular(file, run.path) and (not folder or _is_checkpoint(file)):
            # A run from elsewhere may have links to private files.
            send(file, folder)
    if find_spec("altair"):  # the extra report
        with TemporaryDirectory() as scratch:
            send(write_html([str(run.path)], Path(scratch) / "report.html"), "")
    client.set_tag(run_id, OWN, str(run.path.absolute()))  # last: one that was cut off is logged again
    client.set_terminated(run_id)
