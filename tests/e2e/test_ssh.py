"""Twelve runs on two hosts over SSH: when one dies and comes back, the table is the local one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from sepal.runs.claims import read_claims
from tests.e2e.test_ray_cluster import NAMES, PLAN, is_going_on, sepal
from tests.e2e.test_slurm import _figures, _table
from tests.e2e.two_hosts import TwoHosts, missing

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def hosts(tmp_path):
    if reason := missing():
        pytest.skip(f"hosts for SSH: {reason}")
    (tmp_path / "hosts").mkdir()
    two = TwoHosts(tmp_path / "hosts")
    try:
        two.start("n1")
        two.start("n2")
        yield two
    finally:
        two.stop()


def test_the_table_is_the_local_one_though_a_host_dies(hosts, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    out, local, printed = tmp_path / "out", tmp_path / "local", tmp_path / "compare.txt"
    with printed.open("wb") as file:
        command = subprocess.Popen(
            sepal(tmp_path, "--on", "ssh", "--out", str(out)),
            cwd=tmp_path,
            env=hosts.environment,
            stdout=file,
            stderr=file,
        )
    try:
        killed = _kill_a_host_with_a_run(hosts, out, command)
        hosts.start("n2")
        assert command.wait(600) == 0, printed.read_text()
    finally:
        command.kill()
        command.wait()
        print(printed.read_text())
    text = printed.read_text()
    assert f"{killed}: its task has ended (no connection to n2: " in text
    assert len(read_claims(out / killed)) > 1, "it went on from its directory"
    assert all(claim.job.startswith("ssh ") for name in NAMES for claim in read_claims(out / name))
    done = subprocess.run(
        sepal(tmp_path, "--status", "--out", str(out)), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "12 done" in done.stdout
    subprocess.run(sepal(tmp_path, "--out", str(local)), cwd=tmp_path, capture_output=True, check=True)
    assert _table(out) == _table(local)
    for name in NAMES:
        assert _figures(out / name) == _figures(local / name), name


def _kill_a_host_with_a_run(hosts: TwoHosts, out: Path, command: subprocess.Popen[bytes]) -> str:
    """Kill the second host once a run on it has a checkpoint, and return that run's name."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert command.poll() is None, "the command has ended before a host was killed"
        of_host = {process.pid for process in hosts.processes("n2")}
        for name in NAMES:
            claims = read_claims(out / name)
            if claims and claims[-1].pid in of_host and is_going_on(out / name):
                hosts.kill("n2")
                return name
        time.sleep(0.1)
    raise AssertionError("no run on the second host")


def test_the_runs_of_a_command_that_is_killed_end_and_the_next_command_goes_on(hosts, tmp_path):
    (tmp_path / "plan.toml").write_text(
        PLAN.replace("rounds = 20", "rounds = 40").replace("seeds = [0, 1, 2, 3]", "seeds = [0]")
    )
    out = tmp_path / "out"
    command = subprocess.Popen(
        sepal(tmp_path, "--on", "ssh", "--out", str(out)),
        cwd=tmp_path,
        env=hosts.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 300
    while not any(is_going_on(out / name) for name in NAMES):
        assert command.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    command.kill()
    command.wait()
    while any(len(hosts.processes(node)) > 1 for node in ("n1", "n2")):
        assert time.monotonic() < until, "a run lives on without its command"
        time.sleep(0.1)
    done = subprocess.run(
        sepal(tmp_path, "--on", "ssh", "--out", str(out)),
        cwd=tmp_path,
        env=hosts.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert any(len(read_claims(out / name)) == 2 for name in NAMES)
