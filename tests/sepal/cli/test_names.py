"""Names of runs: `sepal ls` shows a comparison as one line, and every name that it prints is taken by every command."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import ConfigError
from sepal.study.comparison import read_comparison
from sepal.study.runs import find_place, find_run
from tests.sepal.cli.runs_for_tests import write_run


def sepal(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def rows(*words):
    """The rows of `sepal ls`, without the time: name → the rest."""
    result = sepal("ls", *words)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    return {line[0]: " ".join(line[1:-2]) for line in lines if line[-1:] and ":" in line[-1]}


@pytest.fixture
def stored(here, monkeypatch):
    """A run here and one of its name at home, a comparison with trials, a tuning, and a folder of runs."""
    monkeypatch.setenv("COLUMNS", "200")
    places = [
        "runs/one",
        "home/runs/one",
        "runs/pets/tune-a",
        "runs/pets/fedavg-seed0",
        "runs/rates/a",
        "elsewhere/b/c",
    ]
    for age, name in enumerate(places):
        path = write_run(here / name)
        os.utime(path / "config.toml", (age, age))
    row = {"name": "fedavg-seed0", "label": "fedavg", "cell": ""}
    index = {"title": "pets", "view": "trained", "target": None, "runs": [row]}
    (here / "runs" / "pets" / "comparison.json").write_text(json.dumps(index))
    (here / "runs" / "rates" / "chosen.toml").write_text("")
    (here / "runs" / "rates" / "a" / "summary.json").unlink()
    return here


def test_a_comparison_and_a_tuning_are_one_line(stored):
    hidden = "home/runs/one"
    assert rows() == {
        "rates": "tuning, 1 run digits 1 unfinished",
        "pets": "comparison, 1 run and 1 trial digits complete",
        "one": "fedavg digits 2/2 complete",
        hidden: "fedavg digits 2/2 complete",  # "one" names the one here
    }
    assert list(rows()) == ["rates", "pets", hidden, "one"], "the newest first"
    assert list(rows("pets")) == ["pets/fedavg-seed0", "pets/tune-a"] == list(rows("runs/pets"))
    assert list(rows("one")) == ["one"]
    assert rows("elsewhere") == {"elsewhere/b": "1 run digits complete"}
    assert list(rows("elsewhere/b")) == ["elsewhere/b/c"]
    (stored / "empty").mkdir()
    assert sepal("ls", "empty").stdout == "no runs in empty\n"
    assert "run: expected a directory of a run or a comparison" in sepal("ls", "nothing").output


def test_every_name_that_ls_prints_is_taken(stored):
    names = [name for folder in ((), ("pets",), ("rates",), ("elsewhere",), ("elsewhere/b",)) for name in rows(*folder)]
    assert len(names) == 9
    for name in names:
        assert sepal("show", name).exit_code == 0, name
        assert read_comparison([name]).results, name
        assert rows(name), name
        if name not in ("pets", "rates", "elsewhere/b"):
            assert find_run(name).is_dir(), "what export, watch, evict and sepal.load take"
            continue
        with pytest.raises(ConfigError, match=f"one run, such as `sepal ls {name}` lists, got {name}, a folder"):
            find_run(name)


def test_a_run_that_is_not_there_says_where_runs_are(stored):
    for find, expected in ((find_run, "a run directory"), (find_place, "a directory of a run or a comparison")):
        bases = f"{stored / 'runs'} or {stored / 'home' / 'runs'}"
        for name, words in (
            ("pets/none", ", such as `sepal ls pets` lists"),
            ("no/pets", f", or a name under {bases}"),
        ):
            with pytest.raises(ConfigError) as refused:
                find(name)
            assert str(refused.value) == f"run: expected {expected}{words}, got {name}"


def test_a_folder_that_is_no_run_does_not_hide_a_name(stored):
    (stored / "pets").mkdir()  # for example its data
    assert list(rows("pets")) == ["pets/fedavg-seed0", "pets/tune-a"]
    assert find_place("pets") == stored / "runs" / "pets"


def test_an_interrupted_comparison_says_how_it_goes_on(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sepal.study.plans.trials.run_plan", interrupted)
    (tmp_path / "plan.toml").write_text('methods = ["fedavg"]\nseeds = [0]\n[settings]\ndataset = "digits"\n')
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.stderr) == (130, "sepal: interrupted; the same command runs what is missing\n")


@pytest.mark.parametrize("words", [["--name"], ["--dataset", "digits", "--name"], ["--dataset", "digits", "--out"]])
def test_a_name_that_no_directory_can_have_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sepal("run", *words, "n" * 300)
    assert result.exit_code == 2
    assert "expected" in result.stderr.splitlines()[-1]
