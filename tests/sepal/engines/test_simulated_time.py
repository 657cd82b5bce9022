"""Simulated time in a run directory: the seconds are those that its files give, and no kill changes who counts."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.report.simulated import speed_table
from sepal.runs.backup import back_up
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.simulated_time import read_profile
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison
from sepal.study.results import read_result
from sepal.study.simulated_time import RunTimes

FLAT = {
    "dataset": "digits",
    "method": "fedpse",
    "clients": 5,
    "clients-per-round": 3,
    "oversample": 1.3,
    "rounds": 3,
    "evaluate-every": 2,
    "partition.subsample": 200,
    "seed": 3,
    "checkpoint-every": 1,
    "devices": "phones-classes",
}


class StoppedError(Exception):
    """Stands for the end of the process."""


class StoppedAfter:
    def __init__(self, last):
        self.last = last

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if record.round == self.last:
            raise StoppedError

    def closed(self, progress, report):
        pass


def run(path, stop=0, workers=1, **keys):
    assembly = assemble({**FLAT, **keys})
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        observers = [directory, StoppedAfter(stop)]
        states = path / "clients"
        return run_in_process(assembly, store=directory.store(), observers=observers, workers=workers, state_dir=states)


def outcome(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((path / "summary.json").read_text())
    return [line.get("simulated") for line in lines], summary["weights_sha256"], summary["clients_sha256"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    run(path)
    return path


def test_the_stored_seconds_are_those_that_the_runs_files_give(whole):
    result = read_result(whole)
    own = read_profile("phones-classes")
    assert (result.devices, result.times.acted) == (own, True)
    stored = [line["simulated"]["seconds"] for line in result.stored.lines[:-1]]
    clock = result.times.clock(own)
    assert clock.ends == pytest.approx({0: 0, 1: stored[0], 2: sum(stored[:2]), 3: sum(stored)})
    names = [line["simulated"]["late"] for line in result.stored.lines[:-1]]
    assert [len(late) for late in names] == [1, 1, 1]
    counted_only = [
        {**line, "clients": [c for c in line["clients"] if c["name"] not in line.get("simulated", {}).get("late", ())]}
        for line in result.stored.lines
    ]
    for line in counted_only:
        line.pop("simulated", None)
    again = RunTimes(counted_only, result._ledger, result.seed).clock(own)
    assert again.ends == clock.ends, "by the formulas, from metrics.jsonl and ledger.jsonl"


def test_the_runs_profile_is_the_only_one_that_says_something_of_it(whole):
    (variant,) = read_comparison([str(whole)]).all_variants()
    assert variant.hours.spread is None, "one draw: that by which it ran"
    assert speed_table([variant]).rows[0][2] != "33", "clients left out are seen"
    (other,) = read_comparison([str(whole)], devices="phones").all_variants()
    assert other.why_no_hours == "its own profile, phones-classes, decided which uploads count"
    late = [
        (row["status"], row["dense"] > 0, row["payload"] > 0) for row in read_result(whole)._ledger if row["reason"]
    ]
    assert late == [("late", True, True)] * 3


@pytest.mark.parametrize(("stop", "workers"), [(1, 1), (2, 2)])
def test_a_run_that_is_interrupted_goes_on_to_the_same_bits(stop, workers, whole, tmp_path):
    with pytest.raises(StoppedError):
        run(tmp_path / "run", stop)
    run(tmp_path / "run", workers=workers)
    assert outcome(tmp_path / "run") == outcome(whole)


def test_a_run_goes_on_with_its_own_profile_alone_which_a_backup_has(tmp_path):
    path, profile = tmp_path / "run", tmp_path / "mine.toml"
    profile.write_text(read_profile("phones-classes").text())
    with pytest.raises(StoppedError):
        run(path, 1, devices=str(profile))
    back_up(path, tmp_path / "copy")
    assert (next((tmp_path / "copy").rglob("devices.toml"))).read_text() == profile.read_text()
    profile.write_text(read_profile("phones").text())
    with pytest.raises(
        ConfigError, match=r"devices: expected the profile with which the run run was started, .* another"
    ):
        run(path, devices=str(profile))
    with pytest.raises(ConfigError, match="devices: expected"):
        run(path, devices="")
    profile.unlink()
    with pytest.raises(ConfigError, match="devices: expected a file, or hospitals"):
        run(path, devices=str(profile))


def test_a_profile_that_cannot_be_read_leaves_no_directory(tmp_path):
    with pytest.raises(ConfigError, match="devices: expected a file, or hospitals"):
        run(tmp_path / "run", devices="nowhere.toml")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["serve", "submit"])
def test_a_deployment_refuses_a_deadline_of_simulated_time(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [command, "--set", "devices=phones", "--set", "deadline=60"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "devices: expected nothing in a deployment with oversample or deadline" in " ".join(result.output.split())
