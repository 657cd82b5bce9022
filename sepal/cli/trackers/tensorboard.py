"""A run for TensorBoard: a directory of its own with its figures by round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sepal.errors import ConfigError, one_line
from sepal.report.files import write_tensorboard
from sepal.runs.stored_run import StoredRun

LOGGED = ".logged-by-sepal"  # in the directory of a run, once all its figures are there


@dataclass(frozen=True)
class TensorboardTracker:
    """Event files below a directory: ``PLACE/EXPERIMENT/RUN``."""

    directory: Path
    option: str

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.directory)

    def log(self, experiment: str, runs: Iterable[StoredRun]) -> int:
        """Log runs; see :class:`sepal.cli.trackers.Tracker`."""
        count = 0
        for run in runs:
            events = self.directory / experiment / run.path.name
            identity, mark = str(run.path.absolute()), events / LOGGED
            try:
                if mark.is_file() and mark.read_text(encoding="utf-8") == identity:
                    continue
                for file in events.glob("events.out.tfevents.*"):  # of a run that was cut off, or had this name before
                    file.unlink()
                write_tensorboard(run, events)
                mark.write_text(identity, encoding="utf-8")
            except OSError as reason:
                got = f"{self.directory}: {one_line(str(reason), 200)}"
                raise ConfigError(self.option, "a directory that takes event files", got) from None
            count += 1
        return count


def make(place: str, option: str) -> TensorboardTracker:
    """Return the tracker."""
    return TensorboardTracker(Path(place), option)
