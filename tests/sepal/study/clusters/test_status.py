"""`sepal compare --status`: how far a plan's runs are, from Sepal's own records, wherever they are looked at."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import StateError
from sepal.runs.claims import take_claim
from sepal.study.clusters.records import JobEnd, Submission, note_look, write_end, write_submission
from sepal.study.clusters.slurm import cancelling
from sepal.study.clusters.status import counts, statuses
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.trials import FAILED, failures

AT = Submission("", {}, "/", name="x", job="7", seen=1.0)


@pytest.fixture
def study(tmp_path):
    """One run for each state; each name says which."""
    submissions = {
        "waits": {"state": "PENDING", "reason": "Priority"},
        "runs": {"state": "RUNNING", "node": "n2"},
        "failed": {"state": "TIMEOUT", "reason": "its time limit was reached"},
        "unwatched": {"state": "RUNNING", "node": "n2"},
        "refused": {"job": "", "reason": "invalid partition"},
        "done": {"state": "RUNNING"},
    }
    for name, fields in submissions.items():
        write_submission(tmp_path, replace(AT, run=name, **fields))
    write_end(tmp_path, "unwatched", JobEnd("7", 2, "sepal: lr: expected more"))
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "summary.json").write_text(json.dumps({"complete": True}))
    take_claim(tmp_path / "runs", "slurm 7, start 1")
    records = tmp_path / "runs" / "checkpoints" / "records"
    records.mkdir(parents=True)
    for number in (1, 2, 3):
        (records / f"{number:06d}").touch()
    (tmp_path / "runs" / "config.toml").write_text("rounds = 20\n")
    note_look(tmp_path / "jobs")
    return tmp_path


def of(out, *names, failed=(), ready=True):
    runs = [PlannedRun("", "", "x", 0, {"name": name}, ready=ready) for name in names]
    return {status.name: status for status in statuses(out, runs, dict(failed))}


def test_every_state_is_told_with_its_reason(study):
    found = of(
        study, "done", "runs", "waits", "failed", "unwatched", "refused", "never", "here", failed={"here": "why"}
    )
    assert {name: status.state for name, status in found.items()} == {
        "done": "done",
        "runs": "running",
        "waits": "waiting",
        "failed": "failed",
        "unwatched": "failed",
        "refused": "waiting",
        "never": "not started",
        "here": "failed",
    }
    assert (found["runs"].where, found["runs"].rounds, found["runs"].starts) == ("job 7 on n2", "3 of 20", 1)
    assert found["waits"].words == "Priority"
    assert found["failed"].words == f"its time limit was reached ({study / 'jobs' / 'failed' / 'log.txt'})"
    assert found["unwatched"].words.startswith("sepal: lr: expected more (")
    assert found["refused"].words == "invalid partition"
    assert found["here"].words == "why"
    assert counts(list(found.values())) == "1 done, 1 running, 2 waiting, 3 failed, 1 not started"


def test_a_run_that_waits_for_its_trials_says_so(study):
    assert of(study, "never", ready=False)["never"].words == "waits for its trials"


def test_a_damaged_record_is_one_line_and_the_others_are_told(study):
    (study / "jobs" / "waits" / "submission.json").write_text("{")
    found = of(study, "waits", "runs")
    assert found["waits"].state == "failed"
    assert "damaged" in found["waits"].words
    assert found["runs"].state == "running"


def test_states_that_nobody_has_looked_at_since_are_old_ones(study):
    os.utime(study / "jobs" / "looked", (1000.0, 1000.0))
    old = of(study, "runs", "waits", "done", "failed")
    states = {name: status.state for name, status in old.items()}
    assert states == {
        "runs": "running when last seen",
        "waits": "waiting when last seen",
        "done": "done",
        "failed": "failed",
    }
    assert old["runs"].since == 1000.0
    assert counts(list(old.values())) == "1 done, 1 running when last seen, 1 waiting when last seen, 1 failed"
    (study / "jobs" / "looked").unlink()
    assert (of(study, "runs")["runs"].state, of(study, "runs")["runs"].since) == ("running when last seen", AT.seen)


@pytest.mark.parametrize(
    ("file", "key", "text"),
    [
        ("jobs/runs/end.json", "code", "Infinity"),
        ("jobs/runs/end.json", "cores", "Infinity"),
        ("jobs/runs/end.json", "seconds", "NaN"),
        ("jobs/runs/end.json", "job", "null"),
        ("jobs/runs/submission.json", "seen", "1e300"),
        ("jobs/runs/submission.json", "seen", "true"),
        ("jobs/runs/submission.json", "checkpoint", "-1"),
        ("runs/config.toml", "rounds", ""),
        ("runs/config.toml", "rounds", "rounds = 'x'"),
        ("runs/config.toml", "rounds", "rounds = -5"),
    ],
)
def test_a_value_that_no_run_writes_is_named_in_a_line(study, file, key, text):
    write_end(study, "runs", JobEnd("7", 2, "x"))
    path = study / file
    path.write_text(
        json.dumps({**json.loads(path.read_text()), key: "@"}).replace('"@"', text) if "json" in file else text
    )
    status = of(study, "runs")["runs"]
    assert status.state == "failed"
    assert status.words.startswith(f"{path}: {key}: expected ")


def test_records_of_jobs_cannot_lead_out_of_the_study(study, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.json"
    secret.write_text((study / "jobs" / "runs" / "submission.json").read_text())
    (study / "jobs" / "runs" / "submission.json").unlink()
    (study / "jobs" / "runs" / "submission.json").symlink_to(secret)
    found = of(study, "runs")["runs"]
    assert (found.state, found.where) == ("failed", "")
    assert "leads out of it" in found.words
    os.mkfifo(study / "jobs" / "failed" / "end.json")
    assert of(study, "failed")["failed"].state == "failed", "a pipe is not waited for"


def test_no_record_of_a_job_becomes_another_word_of_a_command(study):
    """`scancel --me` would end all jobs of its user."""
    write_submission(study, replace(AT, run="runs", job="--me"))
    assert of(study, "runs")["runs"].words.endswith("job: expected the number of a job, got --me")
    with pytest.raises(StateError, match="the number of a job"):
        cancelling(study, ["runs"])


@pytest.mark.parametrize("kind", ["link", "pipe", "no text", "directory"])
def test_the_list_of_failures_is_a_text_of_the_study_itself(study, tmp_path_factory, kind):
    file, elsewhere = study / FAILED, tmp_path_factory.mktemp("elsewhere") / "private"
    elsewhere.write_text("runs: a private line\n")
    make = {"link": lambda: file.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(file), "directory": file.mkdir}
    make.get(kind, lambda: file.write_bytes(b"\xff"))()
    with pytest.raises(StateError, match=FAILED):
        failures(study)


def test_the_command_starts_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no Slurm here
    plan = tmp_path / "p.toml"
    plan.write_text('methods = ["local"]\nseeds = [0]\n[settings]\ndataset = "digits"\nrounds = 1\n')
    out = tmp_path / "out"
    write_submission(out, replace(AT, run="local-seed0", state="PENDING", reason="Resources \x1b[31m"))
    before = sorted(os.walk(out))
    result = CliRunner().invoke(app, ["compare", str(plan), "--out", str(out), "--status"])
    assert result.exit_code == 0, result.output
    assert "1 waiting" in result.output
    assert "\x1b[31m" not in result.output
    assert sorted(os.walk(out)) == before


def test_another_place_is_refused(tmp_path):
    plan = tmp_path / "p.toml"
    plan.write_text('methods = ["local"]\n[settings]\ndataset = "digits"\nrounds = 1\n')
    result = CliRunner().invoke(app, ["compare", str(plan), "--out", str(tmp_path / "out"), "--on", "mars"])
    assert (result.exit_code, result.stderr) == (2, "sepal: --on: expected local, slurm, ray or ssh, got mars\n")
    assert not (tmp_path / "out").exists()
