"""The command runs what a block lacks, stores it at once, goes on where it was, and is not stopped by one bad run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from referee.leaderboard import __main__ as command
from referee.leaderboard import rows
from referee.leaderboard.blocks import TUNING
from tests.referee.test_leaderboard_design import BLOCK, quality, row


@pytest.fixture
def stored(monkeypatch):
    """Run in threads, on rows in memory."""
    found = []
    monkeypatch.setattr(command, "read_block", lambda name: BLOCK)
    monkeypatch.setattr(command, "_pool", ThreadPoolExecutor)
    monkeypatch.setattr(rows, "read", lambda name: list(found))
    monkeypatch.setattr(rows, "add", lambda name, new: found.append(new))
    return found


def ended(run, commit):
    if run.config["seed"] == TUNING[0] and run.config["lr"] == 0.05:
        raise MemoryError
    return {**row(run, quality(run.config)), "cpu_seconds": 1.0}


def test_the_command_goes_on_where_it_was(stored, monkeypatch, capsys):
    monkeypatch.setattr(command, "run", lambda run, commit: {**row(run, quality(run.config)), "cpu_seconds": 1.0})
    command.work("x", 2, 1.0, 7)
    assert len(stored) == 7
    command.work("x", 1, 0.0)
    assert len(stored) == 7  # no time
    command.work("x", 2, 1.0)
    configs = [str(each["config"]) for each in stored]
    assert len(configs) == len(set(configs)) == 3 * 15 + 2 * 4 + 2 * (3 + 3)
    assert capsys.readouterr().out.count("\n") == len(stored)


def test_a_run_that_fails_for_another_reason_has_no_row_and_stops_nothing(stored, monkeypatch):
    monkeypatch.setattr(command, "run", ended)
    command.work("x", 2, 1.0)
    tried = [each["config"] for each in stored]
    assert {config["method"] for config in tried} == {"fedavg", "ditto", "local"}
    assert 0.05 not in {config["lr"] for config in tried}


def test_a_killed_worker_costs_the_run_and_not_the_block(stored, monkeypatch, capsys):
    pools = []

    class Pool(ThreadPoolExecutor):
        """After a kill, it takes nothing more, as a pool of processes does."""

        broken = False

        def submit(self, function, planned, commit):
            if self.broken:
                raise BrokenProcessPool
            return super().submit(self.run, function, planned, commit)

        def run(self, function, planned, commit):
            if planned.config["seed"] == TUNING[0] and planned.config["lr"] == 0.05:
                self.broken = True
                raise BrokenProcessPool
            return function(planned, commit)

    monkeypatch.setattr(command, "run", lambda run, commit: {**row(run, 0.5), "cpu_seconds": 1.0})
    monkeypatch.setattr(command, "_pool", lambda jobs: pools.append(Pool(jobs)) or pools[-1])
    command.work("x", 1, 1.0)
    assert len(stored) == 3 * 4  # of three contenders, the other four rates
    assert len(pools) == 4
    said = [line for line in capsys.readouterr().out.splitlines() if "set aside" in line]
    assert said == [
        f"a worker was killed, for memory perhaps; set aside: x {name} trial seed 101 lr 0.05, 40 rounds"
        for name in ("fedavg", "ditto", "local")
    ]
