"""The stored trials: ``referee/results/calibration.ndjson``, a line for each method, data set and keys."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from referee.calibrate.search import CLIP, GROWTH, Keys, Result, Trial, Trials
from sepal.storage.files import write_atomically

ROOT = Path(__file__).parents[2]
FILE = ROOT / "referee" / "results" / "calibration.ndjson"


@dataclass(frozen=True)
class Row:
    """One trial: keys as in the run config, ``validation`` in [0, 1], ``seconds`` of wall time on one core.

    ``diverged`` counts the trainings of clients that diverged; a run that ended with an error has at least one.
    """

    trial: Trial
    validation: float
    rounds: int
    seconds: float
    commit: str
    diverged: int = 0

    @classmethod
    def of(cls, trial: Trial, result: Result, commit: str) -> Row:
        """Return the row of a trial that has ended."""
        return cls(trial, result.validation, result.rounds, round(result.seconds, 1), commit, result.diverged)


@dataclass
class Evidence:
    """All stored trials, by data set, method and keys.

    Attributes:
        lines: The file's lines as they are stored: ``validation``, ``seconds`` and ``commit`` are by seed.
    """

    path: Path = FILE
    lines: dict[tuple[str, str, Keys], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = FILE) -> Evidence:
        """Return the stored trials; none if there is no file."""
        found = cls(path)
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            line = json.loads(text)
            found.lines[line["dataset"], line["method"], tuple(sorted(line["keys"].items()))] = line
        return found

    def trials(
        self,
        dataset: str,
        method: str,
        grid: tuple[float, ...],
        own: Mapping[str, tuple[float, ...]],
        growth: int = GROWTH,
        clip: float = 0.0,
    ) -> Trials:
        """Return what is known of a method on a data set; see :class:`Trials`."""
        lines = {
            keys: line
            for (d, m, keys), line in self.lines.items()
            if (d, m, dict(keys).get(CLIP, 0.0)) == (dataset, method, clip)
        }
        found, diverged = (
            {keys: {int(seed): value for seed, value in line.get(part, {}).items()} for keys, line in lines.items()}
            for part in ("validation", "diverged")
        )
        return Trials(dataset, method, grid, found, own, growth, clip, diverged)

    def add(self, row: Row, searches: Sequence[Trials] = ()) -> None:
        """Add a trial to the searches and to the file."""
        trial, seed = row.trial, str(row.trial.seed)
        new = {"dataset": trial.dataset, "method": trial.method, "keys": dict(trial.keys), "rounds": row.rounds}
        line = self.lines.setdefault((trial.dataset, trial.method, trial.keys), {**new, "validation": {}})
        line["validation"][seed] = row.validation
        line.setdefault("seconds", {})[seed] = row.seconds
        line.setdefault("commit", {})[seed] = row.commit
        if CLIP in dict(trial.keys):
            line.setdefault("diverged", {})[seed] = row.diverged
        for search in searches:
            if (search.dataset, search.method) == (trial.dataset, trial.method):
                search.found.setdefault(trial.keys, {})[trial.seed] = row.validation
                search.diverged.setdefault(trial.keys, {})[trial.seed] = row.diverged
        ordered = [self.lines[key] for key in sorted(self.lines)]
        write_atomically(self.path, "".join(f"{json.dumps(line)}\n" for line in ordered).encode())


def commit_now() -> str:
    """Return the short commit of this checkout, or "unknown"."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    return done.stdout.strip() or "unknown"
