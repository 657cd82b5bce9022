"""A run for TensorBoard: a directory of its own with its figures by round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sepal.cli.trackers import check_stays
from sepal.errors import ConfigError, StateError, one_line
from sepal.report.files import write_tensorboard
from sepal.runs.stored_run import StoredRun
from sepal.storage.files import write_atomically
from sepal.storage.regular import is_regular, read_bytes

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
            check_stays(events, self.directory, self.option)
            try:
                if is_regular(mark, self.directory) and read_bytes(mark) == identity.encode():
                    continue
                for file in events.glob("events.out.tfevents.*"):  # of a run that was cut off, or had this name before
                    file.unlink()
                write_tensorboard(run, events)
                write_atomically(mark, identity.encode())
            except (OSError, StateError) as reason:
                got = f"{self.directory}: {one_line(str(reason), 200)}"
                raise ConfigError(self.option, "a directory that takes event files", got) from None
            count += 1
        return count


def make(place: str, option: str) -> TensorboardTracker:
    """Return the tracker."""
    return TensorboardTracker(Path(place), option)
