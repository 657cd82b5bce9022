"""A run that another job has taken over: the process that is still alive writes nothing more of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from filelock import FileLock

from sepal.errors import ConfigError, StateError, SupersededError
from sepal.runs.claims import CLAIMS, newest_number, read_claims, take_claim
from sepal.runs.run_directory import RunDirectory
from sepal.runs.stored_run import read_run, stored_summary
from sepal.study.run import execute, prepare

KEYS = {"dataset": "digits", "clients": 2, "rounds": 4, "partition.subsample": 60, "method": "local", "name": "r"}


class TakeOver:
    """An observer that lets another job take the run over after a round, and notes all of the run's files then."""

    def __init__(self, run: Path, after: int) -> None:
        self.run, self.after, self.files = run, after, dict[str, str]()

    def opened(self, progress, total):
        if self.after == 0:
            self._take()

    def round(self, progress, record, line):
        if record.round == self.after:
            self._take()

    def closed(self, progress, report):
        pass

    def _take(self):
        take_claim(self.run, "slurm 2, start 1")
        self.files = files_of(self.run)


def files_of(run: Path) -> dict[str, str]:
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


def prepared(out, **keys):
    return prepare({**KEYS, "out": str(out), **keys}, out)


@pytest.mark.parametrize("after", [0, 2, 4])
@pytest.mark.parametrize("job", ["slurm 1, start 1", ""])
def test_nothing_is_written_after_the_newer_claim(tmp_path, after, job):
    """Neither by a job nor by a process without one, which began when there were no claims."""
    taking = TakeOver(tmp_path / "r", after)
    with pytest.raises(SupersededError, match="another job continues this run"):
        execute(prepared(tmp_path), 1, observers=[taking], job=job)
    assert taking.files
    assert files_of(tmp_path / "r") == taking.files


def test_the_next_job_continues_to_the_same_lines(tmp_path):
    (tmp_path / "whole").mkdir()
    execute(prepared(tmp_path / "whole"), 1)
    with pytest.raises(SupersededError):
        execute(prepared(tmp_path), 1, observers=[TakeOver(tmp_path / "r", 2)], job="slurm 1, start 1")
    assert execute(prepared(tmp_path), 1, job="slurm 1, start 2")
    assert [claim.job for claim in read_claims(tmp_path / "r")][::2] == ["slurm 1, start 1", "slurm 1, start 2"]
    whole, continued = tmp_path / "whole" / "r", tmp_path / "r"
    assert (whole / "ledger.jsonl").read_bytes() == (continued / "ledger.jsonl").read_bytes()
    assert stored_summary(whole)["accuracy"] == stored_summary(continued)["accuracy"]


def test_a_job_is_not_refused_because_a_dead_one_had_claimed(tmp_path):
    execute(prepared(tmp_path, rounds=2), 1, job="slurm 1, start 1")
    assert not execute(prepared(tmp_path, rounds=2), 1, job="slurm 1, start 2")


def test_a_process_without_a_job_takes_a_claim_where_there_are_some(tmp_path):
    run = prepared(tmp_path)
    with pytest.raises(SupersededError):
        execute(run, 1, observers=[TakeOver(run.path, 2)], job="slurm 1, start 1")
    before = newest_number(run.path)
    assert execute(run, 1)
    assert newest_number(run.path) == before + 1
    assert read_claims(run.path)[-1].job == "none"


def test_a_run_without_a_job_has_no_claims(tmp_path):
    execute(prepared(tmp_path), 1)
    assert not (tmp_path / "r" / CLAIMS).exists()


def test_a_process_without_a_job_does_not_take_a_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("sepal.runs.run_directory.LOCK_PATIENCE", 0.01)
    take_claim(tmp_path / "r", "slurm 1, start 1")
    run = prepared(tmp_path)
    with FileLock(tmp_path / "r" / ".lock"), pytest.raises(StateError, match="one that has it open"):
        execute(run, 1)
    assert newest_number(run.path) == 1


@pytest.mark.parametrize("taken", [False, True])
def test_a_refused_start_leaves_no_directory_unless_another_job_has_it(tmp_path, taken):
    run = prepared(tmp_path)
    directory = RunDirectory(run.path, run.assembly, "in-process", job="slurm 1")
    if taken:
        take_claim(run.path, "slurm 2")
    directory.__exit__(ConfigError, ConfigError("key", "a value", "none"), None)
    assert run.path.exists() == taken


def test_a_line_that_an_older_process_has_added_all_the_same_is_refused_by_name(tmp_path):
    """No check closes the gap before the system call that appends; a round that is there twice is not counted twice."""
    execute(prepared(tmp_path), 1)
    file = tmp_path / "r" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:2], lines[1], *lines[2:]]))
    with pytest.raises(StateError, match=r"metrics.jsonl, line 3: expected a round after 2, got 2"):
        read_run(tmp_path / "r")


def test_a_run_that_is_continued_by_hand_waits_for_a_commit_of_its_job(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("sepal.runs.run_directory.settle", waited.append)
    assert execute(prepared(tmp_path), 1)
    assert not waited, "there is no claim"
    take_claim(tmp_path / "r", "slurm 1, start 1")
    execute(prepared(tmp_path), 1)
    assert [claim.number for claim in waited] == [2]
