"""A client whose disk is full, and a server whose disk is lost: the run goes on, with the same bits."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.e2e.machines import RUN, Machines
from tools.chaos.federation import fill, small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

CLIENT = "client-00001"


@pytest.fixture
def machines(tmp_path):
    keys = {"dataset": "digits", "rounds": 12, "evaluate-every": 0, "method": "fedpse", "keep-versions": 10}
    machines = Machines(tmp_path, keys, patience=300.0)
    yield machines
    machines.stop_all()


def test_a_client_whose_disk_is_full_is_away_until_it_has_room(machines):
    with small_disk(32) as disk:
        if disk is None:
            pytest.skip("this user cannot mount a tmpfs")
        machines.start("serve")
        machines.start("join0")
        machines.start("join1", SEPAL_HOME=str(disk))
        machines.await_rounds(1)
        filler = fill(disk)
        machines.await_line("run", f"{CLIENT}: no-room: expected room on its disk")
        machines.await_line("join1", "No space left on device: 0 bytes free")
        filler.unlink()
        machines.await_line("run", f"{CLIENT} can write again")
        machines.await_line("join1", "sepal: its files can be written again")
        machines.check_finished()
        machines.stop("join1")


def test_a_server_that_has_lost_its_run_goes_on_from_a_copy(machines):
    for name in ("serve", "join0", "join1"):
        machines.start(name)
    machines.await_rounds(2)
    run, copies = machines.directory / "runs" / RUN, machines.directory / "copies"
    command = [sys.executable, "-m", "sepal.cli", "backup", str(run), str(copies)]
    completed = subprocess.run(
        command, cwd=machines.directory, capture_output=True, text=True, check=False, timeout=300
    )
    assert completed.returncode == 0, completed.stderr
    copied = (copies / RUN / "metrics.jsonl").read_text().count("\n")
    machines.await_rounds(copied + 3)
    machines.stop("serve")
    assert len(machines.rounds()) < machines.keys["rounds"], "there is something left to do"
    shutil.rmtree(run)
    shutil.copytree(copies / RUN, run)
    machines.start("serve")
    machines.check_finished()
