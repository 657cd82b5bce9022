"""What a job does and leaves: its run, how it ended, and nothing where another job goes on with it."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress

import pytest

from sepal.errors import StateError, SupersededError
from sepal.runs.claims import read_claims, take_claim
from sepal.runs.processors import processor
from sepal.runs.stored_run import stored_summary
from sepal.storage.files import write_once
from sepal.study.clusters import job
from sepal.study.clusters.ray_task import execute
from sepal.study.clusters.records import (
    JobEnd,
    Submission,
    drop_end,
    job_directory,
    log_file,
    read_end,
    submission_file,
    watched_jobs,
    write_end,
    write_submission,
)

KEYS = {"method": "local", "dataset": "digits", "clients": 2, "rounds": 1, "partition.subsample": 60, "seed": 0}


@pytest.fixture
def run_job(tmp_path, monkeypatch):
    """Executes a job for a run's keys; returns its exit code."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.setenv("SEPAL_USER_PATH", "")
    before = os.getcwd()

    def run(**fields):
        job_directory(tmp_path)
        keys = {**KEYS, "name": "r", "out": str(tmp_path), **fields.pop("keys", {})}
        write_submission(tmp_path, Submission("r", keys, str(tmp_path), **fields))
        monkeypatch.setattr("sys.argv", ["job", str(submission_file(tmp_path, "r"))])
        with pytest.raises(SystemExit) as stop:
            job.main()
        return stop.value.code

    yield run
    os.chdir(before)


def test_a_job_makes_its_run_and_says_what_it_took(run_job, tmp_path):
    assert run_job() == 0
    assert stored_summary(tmp_path / "r")
    (claim,) = read_claims(tmp_path / "r")
    assert (claim.job, claim.processor) == ("slurm 12, start 2", processor())
    end = read_end(tmp_path, "r")
    assert (end.job, end.code, end.line, end.cores) == ("12", 0, "", 1)
    assert end.seconds > 0
    assert end.megabytes > 100, "torch alone takes more"


def test_a_run_that_has_ended_is_left_alone(run_job, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "summary.json").write_text('{"complete": true}')
    assert run_job(keys={"lr": -1.0}) == 0
    assert os.listdir(tmp_path / "r") == ["summary.json"]


def test_an_error_is_one_line_in_the_record(run_job, tmp_path):
    assert run_job(keys={"lr": -1.0}) == 2
    assert read_end(tmp_path, "r").line.startswith("sepal: lr: expected ")
    assert not (tmp_path / "r").exists()


def test_what_is_no_error_of_ours_is_recorded_too(run_job, tmp_path, monkeypatch, capsys):
    def broken(*arguments, **options):
        raise ZeroDivisionError("x")

    monkeypatch.setattr("sepal.study.run.execute", broken)
    assert run_job() == 1
    assert read_end(tmp_path, "r").line == "ZeroDivisionError: x"
    assert "in broken" in capsys.readouterr().err, "the log has the trace"


def test_another_kind_of_processor_is_refused_if_one_is_demanded(run_job, tmp_path):
    job_directory(tmp_path)
    (tmp_path / "jobs" / "processor").write_text("Another CPU")
    assert run_job(one_processor=True) == 2
    assert read_end(tmp_path, "r").line.startswith("sepal: one-processor: expected Another CPU, that of the first run")
    assert run_job() == 0


@pytest.mark.parametrize("by_a_later_start", [True, False])
def test_a_job_that_was_superseded_leaves_the_last_word_to_the_later_start_of_the_same_job(
    run_job, tmp_path, monkeypatch, by_a_later_start
):
    def superseded(*arguments, **options):
        take_claim(tmp_path / "r", "slurm 12, start 3" if by_a_later_start else "none")
        write_end(tmp_path, "r", JobEnd("12", 0, "of the other"))
        raise SupersededError("r", "a", "b")

    monkeypatch.setattr("sepal.study.run.execute", superseded)
    assert run_job() == 75
    assert read_end(tmp_path, "r").code == (0 if by_a_later_start else 75)


@pytest.mark.parametrize("noted", ["", "12", "13"])
def test_the_end_of_a_run_is_told_by_its_own_job_alone(run_job, tmp_path, noted):
    """Another job of the run, which Slurm had given up, is still alive."""
    job_directory(tmp_path)
    (tmp_path / "jobs" / "r").mkdir()
    write_end(tmp_path, "r", JobEnd("13", 0, "of the newer job"))
    assert run_job(keys={"lr": -1.0}, job=noted) == 2
    assert read_end(tmp_path, "r").job == (noted or "12")


def test_a_directory_that_others_may_write_to_is_not_trusted(run_job, tmp_path, capsys):
    run_job(keys={"lr": -1.0})
    (tmp_path / "jobs").chmod(0o777)
    with pytest.raises(SystemExit):
        job.main()
    assert "a directory that only its owner may write to" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', json.dumps({"format": 1, "workers": "many"})])
def test_a_damaged_record_is_one_line(run_job, tmp_path, monkeypatch, capsys, content):
    run_job(keys={"lr": -1.0})
    submission_file(tmp_path, "r").write_text(content)
    with pytest.raises(SystemExit):
        job.main()
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"sepal: {submission_file(tmp_path, 'r')}")


def as_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # of an absolute one, the system takes 107 bytes


PLANTED = ("r/log.txt", "r/end.json", "r", ".lock", "processor")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, as_socket, lambda path: path.write_bytes(b"\xff\n" * 5000)])
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_among_the_records_of_jobs_is_used_or_refused_in_one_line(name, plant, tmp_path, monkeypatch):
    """A pipe in the place of the log kept each of a cluster's jobs waiting."""
    monkeypatch.chdir(tmp_path)
    path = job_directory(tmp_path) / name
    path.parent.mkdir(exist_ok=True)
    plant(path)
    with suppress(StateError):
        watched_jobs(tmp_path)[1].release()
        drop_end(tmp_path, "r")
        write_submission(tmp_path, Submission("r"))
        write_once(tmp_path / "jobs" / job.PROCESSOR, b"x")
        execute("/bin/true", str(submission_file(tmp_path, "r")), str(log_file(tmp_path, "r")), {})
    with suppress(StateError):
        write_end(tmp_path, "r", JobEnd("12"))


def test_a_kind_of_processor_that_no_job_has_written_is_one_line(run_job, tmp_path):
    (job_directory(tmp_path) / job.PROCESSOR).write_bytes(b"\xff\x1b[31m\n" * 9)
    assert run_job(one_processor=True) == job.BAD_INPUT
    assert read_end(tmp_path, "r").line.isprintable()
