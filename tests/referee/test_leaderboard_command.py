"""The command runs what a block lacks, stores it at once, and goes on where it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from referee.leaderboard import __main__ as command
from referee.leaderboard import runs
from sepal.study import runner
from tests.referee.test_leaderboard_design import BLOCK, quality, row


def test_the_command_goes_on_where_it_was(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "read_block", lambda name: BLOCK)
    monkeypatch.setattr(runs, "FOLDER", tmp_path)
    monkeypatch.setattr(runner, "processes", ThreadPoolExecutor)
    monkeypatch.setattr(command, "execute", lambda run, commit: row(run, quality(run.config), cpu_seconds=1.0))
    command.work("x", 2, 1.0, 7)
    assert len(runs.read("x")) == 7
    command.work("x", 1, 0.0)
    assert len(runs.read("x")) == 7  # no time
    command.work("x", 2, 1.0)
    configs = [str(record.config) for record in runs.read("x")]
    assert len(configs) == len(set(configs)) == 3 * 15 + 2 * 4 + 2 * (3 + 3)
    assert capsys.readouterr().out.count("\n") == len(configs)
