"""The runs of the leaderboard: how one is made, and ``referee/results/leaderboard/BLOCK.ndjson``."""

from __future__ import annotations

from pathlib import Path

from referee.checkout import RESULTS
from referee.leaderboard.design import BlockRun
from sepal.strategies.registry import as_begun
from sepal.study.record import TEST, RunRecord, recorded
from sepal.study.record import read as read_records

FOLDER = RESULTS / "leaderboard"
RERUNS = "reruns"  # the name of the file with what second runs found
MODELS = ("received", "trained", "kept")
VIEWS = (*MODELS, *(f"{view}-shift-100" for view in MODELS))


def path_of(name: str) -> Path:
    """Return a block's file."""
    return FOLDER / f"{name}.ndjson"


def read(name: str) -> list[RunRecord]:
    """Return the records of a block.

    A new record names every key whose default has ever changed. An older one lacks some of them: it gets them with
    their former values, so that it still belongs to a run of the block and can be repeated.
    """
    return [record.model_copy(update={"config": as_begun(record.config)}) for record in read_records(path_of(name))]


def execute(planned: BlockRun, commit: str) -> RunRecord:
    """Execute a run; of a trial there is nothing of the test data."""
    labels = {"block": planned.block, "contender": planned.contender, "kind": planned.kind}
    return recorded(planned.config, labels, commit, () if planned.kind == "trial" else TEST, VIEWS)


def again(row: RunRecord, commit: str) -> RunRecord:
    """Run a stored row again; return a record that says whether the digests are the same, without other figures."""
    new = execute(BlockRun(**row.labels, config=dict(row.config)), commit)
    first = {key: getattr(row, key) for key in ("commit", "machine", "written")}
    about = {key: getattr(new, key) for key in ("rounds", "commit", "machine", "written", "seconds")}
    figures = {"first": first, "same": new.digests() == row.digests()}
    return RunRecord(labels=row.labels, config=row.config, figures=figures, **about)
