"""A run in Weights & Biases' offline form, which ``wandb sync`` sends, and nothing else does.

It has the run's keys but those that name places, and its figures by round. No file of the run, no client's name, no
host's name, code or list of packages is in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sepal.cli.trackers import check_stays
from sepal.config.elsewhere import PLACES
from sepal.errors import ConfigError, one_line
from sepal.report.files import by_round
from sepal.runs.stored_run import StoredRun

UUID = re.compile(r"[0-9a-f]{32}\Z")
LOGGED = "logged-by-sepal"  # file in the directory of a run, once all its figures are there
# What the client would collect of this machine and its user.
NOT_COLLECTED = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "",
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


@dataclass(frozen=True)
class WandbTracker:
    """Offline runs in ``PLACE/wandb``."""

    directory: Path
    option: str

    @property
    def place(self) -> str:
        """The directory, and what sends it."""
        return f"{self.directory / 'wandb'} (offline; `wandb sync` sends it)"

    def log(self, experiment: str, runs: Iterable[StoredRun]) -> int:
        """Log runs; see :class:`sepal.cli.trackers.Tracker`."""
        count = 0
        check_stays(self.directory / "wandb", self.directory, self.option)
        for run in runs:
            identity = _identity(run)
            before = sorted((self.directory / "wandb").glob(f"offline-run-*-{identity}"))
            if any((directory / LOGGED).is_file() for directory in before):
                continue
            try:
                for directory in before:  # it was cut off
                    shutil.rmtree(directory)
                (self._write(experiment, identity, run) / LOGGED).touch()
            except (OSError, ValueError, RuntimeError) as reason:  # wandb's own errors are RuntimeErrors, too
                got = f"{self.directory}: {one_line(str(reason), 200)}"
                raise ConfigError(self.option, "a directory that takes offline runs", got) from None
            count += 1
        return count

    def _write(self, experiment: str, identity: str, run: StoredRun) -> Path:
        """Write an offline run, and return its directory."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import: it would send its own errors
        import wandb

        self.directory.mkdir(parents=True, exist_ok=True)
        offline = wandb.init(
            mode="offline",
            dir=str(self.directory),
            project=experiment,
            id=identity,
            name=run.path.name,
            config={key: value for key, value in run.config.items() if key not in PLACES},
            settings=wandb.Settings(**NOT_COLLECTED),
            reinit="create_new",
        )
        for row in nameless(run):
            offline.log({name: value for name, value in row.items() if name != "round"}, step=int(row["round"]))
        written = Path(offline.dir).parent
        offline.finish()
        return written


def nameless(run: StoredRun) -> Iterator[dict[str, float]]:
    """Yield a run's figures by round without those of single clients, such as FedPSE's ``method/distance.NAME``."""
    names = {str(client.get("name")) for line in run.lines for client in line["clients"]}
    for row in by_round(run):
        yield {key: value for key, value in row.items() if not any(part in names for part in _ends(key))}


def _ends(key: str) -> Iterator[str]:
    """Yield what stands behind each separator of a figure's name: a client's name may have separators itself."""
    return (key[match.end() :] for match in re.finditer(r"[^A-Za-z0-9]", key))


def _identity(run: StoredRun) -> str:
    """Return the run's UUID; of a run of an earlier version, a digest of its path."""
    uuid = str((run.summary or {}).get("run", ""))
    return uuid if UUID.match(uuid) else hashlib.sha256(str(run.path.absolute()).encode()).hexdigest()[:32]


def make(place: str, option: str) -> WandbTracker:
    """Return the tracker."""
    return WandbTracker(Path(place), option)
