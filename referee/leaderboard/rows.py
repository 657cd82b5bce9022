"""The stored rows: ``referee/results/leaderboard/BLOCK.ndjson``, a line a run, appended when the run has ended."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from referee.calibrate.rows import ROOT
from referee.calibrate.rows import commit_now as commit_of_checkout
from sepal.errors import ConfigError
from sepal.strategies.registry import as_begun

PLACE = ROOT / "referee" / "results" / "leaderboard"
RERUNS = "reruns"  # the name of the file with what second runs found


def path_of(name: str, place: Path = PLACE) -> Path:
    """Return a block's file."""
    return place / f"{name}.ndjson"


def read(name: str, place: Path = PLACE) -> list[dict[str, Any]]:
    """Return the rows of a block; a last line that a kill cut off is left out, and its run is made again.

    A new row names every key whose default has ever changed. One that lacks such a key is from before, and is given the
    key with its former value, so that it is found in the plan and can be made again.
    """
    path = path_of(name, place)
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    found = map(json.loads, whole.splitlines())
    return [{**row, "config": as_begun(row["config"])} if "config" in row else row for row in found]


def add(name: str, row: Mapping[str, Any], place: Path = PLACE) -> None:
    """Append a row, on disk when this returns; what a kill left of a line goes."""
    path = path_of(name, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(f"{json.dumps(row)}\n".encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def alone(name: str, place: Path = PLACE) -> Iterator[None]:
    """Hold a block, so that two commands do not run the same runs.

    Raises:
        ConfigError: Another process holds it.
    """
    path_of(name, place).parent.mkdir(parents=True, exist_ok=True)
    with path_of(name, place).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("block", "one that no other process runs", name) from None
        yield


def commit_now() -> str:
    """Return the short commit of this checkout, with ``-dirty`` if a file outside docs differs: rows are in docs."""
    command = ["git", "diff", "--quiet", "HEAD", "--", ".", ":!docs"]
    dirty = subprocess.run(command, cwd=ROOT, check=False).returncode == 1
    return commit_of_checkout() + "-dirty" * dirty
