"""A run in MLflow: its keys as parameters, its figures by round as metrics, its report and model as artifacts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sepal.errors import ConfigError, one_line
from sepal.report.files import by_round
from sepal.report.page import write_html
from sepal.runs.stored_run import StoredRun, read_run, stored_summary
from sepal.storage.regular import is_regular

FILES = ("config.toml", "summary.json", "metrics.jsonl")
OWN = "sepal.directory"  # tag by which a run is found again
TOGETHER = 100  # parameters in one request: MLflow's limit


def check_mlflow(uri: str) -> None:
    """Raise unless MLflow is there for ``uri``; empty: nothing is needed.

    Raises:
        ConfigError: It is not installed.
    """
    if uri and find_spec("mlflow") is None:
        raise ConfigError("--mlflow", "MLflow: pip install 'mlflow-skinny>=3'", "no such package")


def log_runs(uri: str, experiment: str, places: Iterable[Path]) -> str:
    """Log the runs that are complete to MLflow and return a line about it; one that is there already is left alone.

    Args:
        uri: Tracking URI: a server's address or a directory.
        experiment: Name of MLflow's experiment.
        places: Run directories.

    Raises:
        ConfigError: MLflow does not accept them.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a directory was asked for
    try:
        client = MlflowClient(uri)
        existing = client.get_experiment_by_name(experiment)
        experiment_id = existing.experiment_id if existing else client.create_experiment(experiment)
        logged_directories = {run.data.tags.get(OWN) for run in client.search_runs([experiment_id], max_results=50_000)}
        ended = [path for path in places if stored_summary(path) and str(path.absolute()) not in logged_directories]
        fresh = list(map(read_run, ended))
        for run in fresh:
            _log(client, experiment_id, run)
    except (MlflowException, OSError, ValueError) as reason:
        raise ConfigError(
            "--mlflow", "a tracking URI that takes runs", f"{uri}: {one_line(str(reason), 200)}"
        ) from None
    return f"{len(fresh)} runs logged to {uri}, experiment {experiment}"


def _log(client: Any, experiment_id: str, run: StoredRun) -> None:
    from mlflow.entities import Metric, Param

    run_id = client.create_run(experiment_id, run_name=run.path.name).info.run_id
    now = int(1000 * time.time())
    keys = [Param(key, str(value)) for key, value in sorted(run.config.items())]
    for first in range(0, len(keys), TOGETHER):
        client.log_batch(run_id, params=keys[first : first + TOGETHER])
    for row in by_round(run):
        figures = [Metric(name, value, now, int(row["round"])) for name, value in row.items() if name != "round"]
        client.log_batch(run_id, metrics=figures)
    model = sorted((run.path / "checkpoints").glob("round-*.safetensors"))[-1:]
    for file, folder in chain(((run.path / name, None) for name in FILES), ((path, "model") for path in model)):
        if is_regular(file, run.path):  # a run from elsewhere may have links to private files
            client.log_artifact(run_id, str(file), folder)
    if find_spec("altair"):  # the extra report
        with TemporaryDirectory() as scratch:
            client.log_artifact(run_id, str(write_html([str(run.path)], Path(scratch) / "report.html")))
    client.set_tag(run_id, OWN, str(run.path.absolute()))  # last: one that was cut off is logged again
    client.set_terminated(run_id)
