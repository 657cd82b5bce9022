"""``sepal clean`` lists what past runs have left, and removes nothing that a run, a count or a noise may still need."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
from filelock import FileLock
from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.app import handle
from sepal.client_app.frozen_data import FILE as FROZEN
from sepal.client_app.secure_sums import FileVault
from sepal.data import cache
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, write_order
from sepal.protocol.types import Kind, Plan
from sepal.secure.client import SecureClient
from sepal.study import cleaning
from tests.sepal.secure.rounds import Memory, Round

KEYS = {"dataset": "digits", "clients": 3, "partition.subsample": 160, "method": "fedavg-ft"}
ENDED, UNFINISHED = "a" * 32, "b" * 32
DAY = 24 * 3600


def clean(*arguments):
    return CliRunner().invoke(app, ["clean", *map(str, arguments)])


def age(directory, days=40):
    for path in directory.rglob("*"):
        os.utime(path, (time.time() - days * DAY,) * 2, follow_symlinks=False)


def files(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with the states of a client in a run that has ended and in one that has not, all of 40 days ago."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    enter_run()
    for run, kind in ((ENDED, Kind.ADAPT), (UNFINISHED, Kind.TRAIN)):
        order = Order(run, kind, Plan(1, scalars={"finetune": False}), keep=kind is Kind.ADAPT)
        message = Message(write_order(order, Content()), dst_node_id=1, message_type=f"train.{kind}")
        handle(message, Context(1, 1, {"partition-id": 1, "num-partitions": 3}, RecordDict(), KEYS))
    home = tmp_path / "home"
    for name in (
        f"state/{ENDED}/client-00001/notes.txt",
        "state/.uploads/client-00001/sent",
        "audit/client-00001.jsonl",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / name).write_text("x\n")
    age(home)
    return home


def states(home, run):
    return sorted(path.name for path in (home / "state" / run / "client-00001").glob("*.safetensors"))


def test_it_lists_and_removes_nothing_unless_it_is_told_to(home):
    before = files(home)
    result = clean()
    assert result.exit_code == 0, result.output
    assert f"states of client-00001 in run {ENDED}" in result.stdout
    assert "may go: --yes removes them" in result.stdout
    assert files(home) == before


def test_it_removes_states_of_runs_that_have_ended_and_what_must_outlive_them_stays(home):
    before, gone = files(home), {f"state/{ENDED}/client-00001/{name}" for name in states(home, ENDED)}
    assert gone
    result = clean("--yes")
    assert result.exit_code == 0, result.output
    removed = before - files(home)
    assert gone <= removed
    assert {os.path.dirname(name) for name in removed} == {f"state/{ENDED}/client-00001"}
    left = {os.path.basename(name) for name in files(home) if ENDED in name}
    assert {"identity", "notes.txt"} <= left, "what noise is drawn from, and what is not ours"
    assert f"--run {UNFINISHED} gives it up" in result.stdout


def test_no_update_that_waits_for_a_secure_sum_is_left(home):
    """What stays says for which rounds a masked input has left, so that none leaves again."""
    secrets = Memory()
    client = SecureClient(UNFINISHED, secrets)
    opening = Round({"a": np.full(3, 0.5, np.float32)}).opening("a", round=4)
    client.begin(opening)
    path = home / "state" / UNFINISHED / "client-00001" / "secure"
    path.write_bytes(secrets.data)
    age(home)
    assert opening.update.tobytes() in path.read_bytes()
    assert clean("--yes", "--run", UNFINISHED).exit_code == 0
    assert opening.update.tobytes() not in path.read_bytes()
    assert len(path.read_bytes()) < 1000
    SecureClient(UNFINISHED, FileVault(path)).check(4)


def test_a_run_that_was_given_up_loses_its_states_alone_once_they_are_old(home):
    assert clean("--yes", "--run", UNFINISHED, "--days", 50).exit_code == 0
    assert states(home, UNFINISHED), "used in the last 50 days"
    assert clean("--yes", "--run", UNFINISHED).exit_code == 0
    assert not states(home, UNFINISHED)
    assert states(home, ENDED)


@pytest.mark.parametrize("run", ["client-00001", "state", "server", "c" * 32])
def test_only_a_runs_own_name_gives_it_up(home, run):
    before = files(home)
    result = clean("--yes", "--run", run)
    assert result.exit_code == 2
    assert f"--run: expected the name or UUID of a run that has left something here, got {run}" in result.stderr
    assert files(home) == before


def test_what_was_used_lately_or_is_in_use_stays(home):
    store = home / "state" / ENDED / "client-00001"
    with FileLock(store / "lock"):
        age(home)
        result = clean("--yes")
    assert result.exit_code == 2
    assert "1 in use; run it again later" in result.stderr
    assert states(home, ENDED)
    os.utime(store / states(home, ENDED)[0])
    assert "stays: used in the last 30 days" in clean("--yes").stdout
    assert states(home, ENDED)


def test_a_state_that_cannot_be_read_is_of_no_run_that_has_ended(home):
    (home / "state" / ENDED / "client-00001" / states(home, ENDED)[-1]).write_bytes(b"torn")
    age(home)
    clean("--yes")
    assert states(home, ENDED)


def test_no_link_leads_it_elsewhere(home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "client-00001").mkdir(parents=True)
    for name in (*states(home, ENDED), "state.db"):
        (elsewhere / name).write_text("mine")
        (elsewhere / "client-00001" / name).write_text("mine")
    before = files(elsewhere)
    (home / "state" / ("d" * 32)).symlink_to(elsewhere)
    (home / "state" / ENDED / "linked").symlink_to(elsewhere)
    name = states(home, ENDED)[0]
    (home / "state" / ENDED / "client-00001" / name.replace("-", "-0", 1)).symlink_to(elsewhere / name)
    (home / "server").mkdir(mode=0o700)
    (home / "server" / "run").symlink_to(elsewhere)
    age(home)
    age(elsewhere)
    for more in ((), ("--run", "d" * 32), ("--run", "run")):
        clean("--yes", *more)
    assert files(elsewhere) == before


def test_a_lock_that_is_a_link_keeps_what_it_guards(home, tmp_path):
    lock = home / "state" / ENDED / "client-00001" / "lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "made")
    age(home)
    clean("--yes")
    assert states(home, ENDED)
    assert not (tmp_path / "made").exists()


@pytest.fixture
def server(home, tmp_path):
    """Homes of a server: of a run that is complete, and of one that is not."""
    for name, complete in (("over", True), ("on", False)):
        place, run = home / "server" / name, tmp_path / "runs" / name
        (place / "apps" / "sepal").mkdir(parents=True)
        run.mkdir(parents=True)
        for file in (
            "state.db",
            "nodes.json",
            "run.log",
            "superlink.log",
            "superlink.log.1",
            "apps/sepal/a",
            "mine.txt",
        ):
            (place / file).write_text("x")
        (place / "run-config.toml").write_text(f"name = '{name}'\nout = '{run.parent}'\n")
        (run / "summary.json").write_text(json.dumps({"complete": complete}))
    for directory in (home / "server", home / "server" / "over", home / "server" / "on"):
        directory.chmod(0o700)
    age(home)
    return home / "server"


def test_a_servers_own_files_go_once_its_run_is_complete(server, tmp_path):
    before = files(tmp_path / "runs")
    assert clean("--yes").exit_code == 0
    assert files(server / "over") == {"mine.txt"}
    assert "state.db" in files(server / "on")
    assert clean("--yes", "--run", "on").exit_code == 0
    assert files(server / "on") == {"mine.txt"}
    assert files(tmp_path / "runs") == before, "the runs themselves stay"


def test_no_file_of_a_server_that_runs_is_removed(server):
    with FileLock(server / ".lock"):
        age(server)
        result = clean("--yes", "--run", "over")
    assert result.exit_code == 2
    assert "state.db" in files(server / "over")


def test_prepared_data_that_was_not_used_for_long_goes(home, tmp_path):
    keys = [cache.key_of("test", number) for number in range(2)]
    for key in keys:
        assert cache.write(cache.Entry(tmp_path / "cache" / key), {"x": np.zeros(9)}, {})
    (tmp_path / "cache" / "other").mkdir()
    age(tmp_path / "cache" / keys[0])
    os.utime(tmp_path / "cache" / keys[0], (time.time() - 40 * DAY,) * 2)
    assert clean("--yes").exit_code == 0
    assert {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()} == {keys[1], "other"}


def test_a_copy_of_a_clients_data_goes_with_its_states(home):
    """``data-changes = "freeze"``: of a run that was given up, the copy would stay for ever."""
    copies = [home / "state" / run / "client-00001" / FROZEN for run in (ENDED, UNFINISHED)]
    for copy in copies:
        copy.write_bytes(b"data")
    age(home)
    assert clean("--yes").exit_code == 0
    assert [copy.exists() for copy in copies] == [False, True]
    assert clean("--run", UNFINISHED, "--yes").exit_code == 0
    assert not copies[1].exists()


@pytest.mark.parametrize("when", [2**38, 2**60])
def test_a_file_of_a_time_that_no_calendar_has_is_listed(when, home, monkeypatch):
    """Some file systems hold such times; this one may not."""
    measured = cleaning._measured
    monkeypatch.setattr(cleaning, "_measured", lambda paths: (measured(paths)[0], float(when)))
    result = clean()
    assert result.exit_code == 0, result.output
    assert "used in the last" in " ".join(result.output.split())


def test_states_in_a_directory_that_cannot_be_are_none(home):
    result = clean("--state-dir", "a" * 5000)
    assert result.exit_code == 0
    assert "states of" not in result.output, "at most the data that the fixture's run prepared"
