"""Where complete runs are logged, besides their directories: TensorBoard, MLflow, Weights & Biases.

Nothing is logged unless ``--tracker`` says so, and then to a directory of this machine, unless it names a server.
A run is logged once, when it is complete: one that was killed and continued has all its rounds. One whose logging was
cut off is logged again from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from sepal.errors import ConfigError
from sepal.runs.stored_run import StoredRun, read_run, stored_summary

# Kind to the package that it needs, what installs that, and where it logs to without a place.
KINDS = {
    "mlflow": ("mlflow", "'mlflow-skinny>=3'", "mlflow"),
    "tensorboard": ("tensorboard", "tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb", "."),
}


class Tracker(Protocol):
    """What a kind of tracker does with runs."""

    def log(self, experiment: str, runs: Iterable[StoredRun]) -> int:
        """Log those of the complete runs that are not there yet, and return their number.

        Args:
            experiment: Name of the group of runs.
            runs: The runs.

        Raises:
            ConfigError: The place does not take them.
        """

    @property
    def place(self) -> str:
        """Where it logs to, and what else there is to say about it."""


def tracker_of(text: str, option: str = "--tracker") -> Tracker:
    """Return the tracker of ``wandb``, or ``KIND=PLACE``: a directory, or of MLflow a server's address.

    Args:
        text: What the user has given.
        option: The option, for the error.

    Raises:
        ConfigError: There is no such kind, or it is not installed.
    """
    kind, _, place = text.partition("=")
    if kind not in KINDS:
        raise ConfigError(option, f"{', '.join(KINDS)}, or one of them with =PLACE", text)
    package, installs, default = KINDS[kind]
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # without one, it is a directory of that name, such as a tracker writes
        names = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "Weights & Biases"}
        raise ConfigError(option, f"{names[kind]}: pip install {installs}", "no such package")
    tracker: Tracker = import_module(f"sepal.cli.trackers.{kind}").make(place or default, option)
    return tracker


def trackers_of(texts: Iterable[str], mlflow: str = "") -> list[Tracker]:
    """Return the trackers of a command's options ``--tracker`` and ``--mlflow``, to be called before anything runs."""
    trackers = [tracker_of(text) for text in texts]
    return [*trackers, tracker_of(f"mlflow={mlflow}", "--mlflow")] if mlflow else trackers


def check_stays(path: Path, directory: Path, option: str) -> None:
    """Refuse to write through a link out of a tracker's directory, which may be from elsewhere.

    Raises:
        ConfigError: There is one.
    """
    try:
        inside = path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError):  # a link that leads to itself
        inside = False
    if not inside:
        raise ConfigError(option, f"a directory of {directory}", f"{path}, a link that leads out of it")


def log_runs(trackers: Iterable[Tracker], experiment: str, places: Iterable[Path]) -> Iterator[str]:
    """Log the runs that are complete, and yield a line for each tracker.

    Args:
        trackers: Where to.
        experiment: Name of the group of runs.
        places: Run directories.

    Raises:
        ConfigError: A tracker does not take them.
    """
    ended = [path for path in places if stored_summary(path)]
    for tracker in trackers:
        yield f"{tracker.log(experiment, map(read_run, ended))} runs logged to {tracker.place}, experiment {experiment}"
