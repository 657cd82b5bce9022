"""``sepal backup``: a copy that can be continued, of files of the run alone."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import StateError
from sepal.runs import backup
from sepal.runs.backup import back_up
from sepal.runs.stored_run import read_run
from sepal.study.run import execute, prepare

KEYS = {
    "dataset": "digits",
    "method": "fedavg",
    "partition.subsample": 300,
    "clients": 3,
    "lr": 0.1,
    "evaluate-every": 0,
    "checkpoint-every": 1,
}


def run(directory, name="run", rounds=4, **keys):
    prepared = prepare({**KEYS, "out": str(directory), "name": name, "rounds": rounds, **keys}, directory)
    execute(prepared, 1)
    return Path(directory) / name


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ended"))


@pytest.fixture
def ended(ended_run, tmp_path):
    """A run of four rounds that has ended, alone in its folder: a copy, which a test may change."""
    (tmp_path / "runs").mkdir(mode=0o700)
    return Path(shutil.copytree(ended_run, tmp_path / "runs" / "run"))


def files(path):
    return {
        file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name[0] != "."
    }


def test_a_copy_of_a_run_that_has_ended_is_the_run(ended, tmp_path):
    copy, round = back_up(ended, tmp_path / "disk")
    assert (copy, round) == (tmp_path / "disk" / "run", 5)
    assert files(copy) == files(ended)
    assert os.stat(copy).st_mode & 0o777 == 0o700
    assert run(tmp_path / "disk", rounds=6).name == "run"  # extended, from the copy
    assert files(tmp_path / "disk" / "run")[Path("summary.json")] != files(ended)[Path("summary.json")]


def test_a_copy_that_is_made_while_the_run_goes_on_ends_with_the_same_bits(tmp_path):
    copies = []

    class Copying:
        def opened(self, progress, total):
            pass

        def round(self, progress, record, line):
            if record.round == 4:
                copies.append(back_up(tmp_path / "runs" / "run", tmp_path / "disk"))

        def closed(self, progress, report):
            pass

    prepared = prepare({**KEYS, "out": str(tmp_path / "runs"), "name": "run", "rounds": 6}, tmp_path / "runs")
    execute(prepared, 1, None, [Copying()])
    assert copies == [(tmp_path / "disk" / "run", 3)], "round 4 has its lines, and its checkpoint comes after them"
    whole = tmp_path / "runs" / "run"
    again = run(tmp_path / "disk", rounds=6)
    for name in ("metrics.jsonl", "ledger.jsonl"):
        assert len((again / name).read_text().splitlines()) == len((whole / name).read_text().splitlines())
    assert read_run(again).summary["accuracy"] == read_run(whole).summary["accuracy"]


def test_a_copy_replaces_the_older_one_of_the_same_run_alone(tmp_path):
    path = run(tmp_path / "runs", rounds=2)
    back_up(path, tmp_path / "disk")
    run(tmp_path / "runs", rounds=4)
    assert back_up(path, tmp_path / "disk")[1] == 5
    assert [entry.name for entry in (tmp_path / "disk").iterdir()] == ["run"]
    other = run(tmp_path / "others", seed=1)
    with pytest.raises(StateError, match="expected nothing, or an earlier copy of the run run, got something else"):
        back_up(other, tmp_path / "disk")
    (tmp_path / "taken" / "run").mkdir(parents=True)
    (tmp_path / "taken" / "run" / "mine.txt").write_text("mine")
    with pytest.raises(StateError, match="something else"):
        back_up(path, tmp_path / "taken")
    assert (tmp_path / "taken" / "run" / "mine.txt").read_text() == "mine"
    with pytest.raises(StateError, match="another directory"):
        back_up(path, path.parent)


def test_the_directory_of_work_is_a_run_of_its_own_name(ended, tmp_path, monkeypatch):
    (ended / "clients" / "x").mkdir()
    for text in (".", "clients/.."):
        monkeypatch.chdir(ended)
        for _ in range(2):  # also where the directory of copies is called as the run
            assert back_up(Path(text), tmp_path / "run")[0] == tmp_path / "run" / "run"
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["run"]


def test_a_checkpoint_that_is_deleted_meanwhile_makes_the_copy_begin_again(ended, tmp_path, monkeypatch):
    copied = backup._copy
    deleted = []

    def copy(source, target, within, whole_lines=False):
        copied(source, target, within, whole_lines)
        if source.name == "round-000005.safetensors" and not deleted:
            deleted.append(source)
            source.unlink()

    monkeypatch.setattr(backup, "_copy", copy)
    assert back_up(ended, tmp_path / "disk")[1] == 4
    monkeypatch.setattr(backup, "_copied", lambda run, part: None)
    with pytest.raises(StateError, match="a larger checkpoint-every, got none in 20 attempts"):
        back_up(ended, tmp_path / "disk")
    assert (tmp_path / "disk" / "run" / "config.toml").exists(), "the older copy is there"


@pytest.mark.parametrize("step", ["part", "former"])
def test_a_backup_that_was_killed_leaves_the_older_copy_or_the_new_one(step, ended, tmp_path):
    copy, _ = back_up(ended, tmp_path / "disk")
    if step == "part":
        (tmp_path / "disk" / ".run.part" / "checkpoints").mkdir(parents=True)
    else:
        copy.rename(tmp_path / "disk" / ".run.former")
    back_up(ended, tmp_path / "disk")
    assert files(copy) == files(ended)
    assert [entry.name for entry in (tmp_path / "disk").iterdir()] == ["run"]


@pytest.mark.parametrize("where", ["config.toml", "checkpoints/records/000001", "checkpoints/uploads"])
def test_a_link_that_leads_out_of_the_run_is_not_followed(where, ended, tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    (private / "000001").mkdir()
    (private / "000001" / "secret.safetensors").write_text("secret")
    entry = ended / where
    if entry.is_dir():
        for file in entry.iterdir():
            file.rename(private / file.name)
        entry.rmdir()
    else:
        entry.unlink()
    entry.symlink_to(private if where.endswith("uploads") else private / "000001" / "secret.safetensors")
    with pytest.raises(StateError, match="a link that leads out of it"):
        back_up(ended, tmp_path / "disk")
    assert not (tmp_path / "disk" / "run").exists()


def test_a_link_in_place_of_the_copy_or_a_pipe_in_the_run_is_refused(ended, tmp_path):
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "disk" / "run").symlink_to(ended)
    with pytest.raises(StateError, match=r"something else|the same"):
        back_up(ended, tmp_path / "disk")
    (tmp_path / "disk" / "run").unlink()
    (ended / "ledger.jsonl").unlink()
    os.mkfifo(ended / "ledger.jsonl")
    with pytest.raises(StateError, match="a regular file"):
        back_up(ended, tmp_path / "disk")


def test_the_command_says_what_it_copied_and_ends_with_the_run(ended, tmp_path):
    done = []
    thread = threading.Thread(
        target=lambda: done.append(
            CliRunner().invoke(app, ["backup", str(ended), str(tmp_path / "disk"), "--every", "60"])
        )
    )
    thread.start()
    thread.join(60)
    assert done[0].exit_code == 0
    assert f"copied to {tmp_path / 'disk' / 'run'}, with its checkpoint of round 5" in done[0].output


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ sepal: copied to .*\n"),
        ("text", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ sepal: copied to .*\n"),
        ("json", r'\{"time": "[^"]*", "level": "INFO".*copied to .*\}\n'),
    ],
)
def test_each_copy_is_said_with_its_time(form, line, ended, tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_LOG", form)
    result = CliRunner().invoke(app, ["backup", str(ended), str(tmp_path / "disk")])
    assert re.fullmatch(line, result.stdout)


def test_a_schedule_goes_on_after_a_copy_that_failed(ended, tmp_path, monkeypatch):
    """A disk that is full for an hour must not end the backups of a year."""
    ends = iter([None, {"rounds": 4}])
    (tmp_path / "disk" / "run").mkdir(parents=True, mode=0o700)
    slept = []

    def pause(seconds):
        slept.append(seconds)
        (tmp_path / "disk" / "run").rmdir()

    monkeypatch.setattr("sepal.runs.stored_run.stored_summary", lambda path: next(ends))
    monkeypatch.setattr("sepal.cli.backup.time.sleep", pause)
    result = CliRunner().invoke(app, ["backup", str(ended), str(tmp_path / "disk"), "--every", "5"])
    assert (result.exit_code, slept) == (0, [300.0])
    assert "no copy, and tried again in 5 minutes" in result.stderr
    assert "with its checkpoint of round 5" in result.stdout


def test_a_copy_that_fails_leaves_nothing(ended, tmp_path):
    (ended / "ledger.jsonl").unlink()
    os.mkfifo(ended / "ledger.jsonl")
    with pytest.raises(StateError, match="a regular file"):
        back_up(ended, tmp_path / "disk")
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.timeout(60)
def test_a_hole_in_a_planted_file_takes_neither_room_nor_time(tmp_path):
    planted = tmp_path / "summary.json"
    planted.write_bytes(b"{}")
    os.truncate(planted, 1 << 40)
    with planted.open("ab") as file:
        file.write(b"end")
    backup._copy(planted, tmp_path / "copy", tmp_path)
    facts = (tmp_path / "copy").stat()
    assert facts.st_size == (1 << 40) + 3
    assert 512 * facts.st_blocks <= 1 << 22
    with (tmp_path / "copy").open("rb") as file:
        assert file.read(2) == b"{}"
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"
    backup._copy(planted, tmp_path / "lines", tmp_path, whole_lines=True)
    assert (tmp_path / "lines").stat().st_size == 0
