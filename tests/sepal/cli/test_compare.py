"""Comparisons: what a plan file means, what runs, what is refused, and that a kill changes nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import ConfigError, StateError
from sepal.report.progress import LINES, PlanDisplay
from sepal.study.comparison import read_comparison
from sepal.study.plans.execute import execute
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.plan import check_keys, read_plan
from sepal.study.statistics import over_seeds
from tests.sepal.cli.runs_for_tests import write_run

ROOT = Path(__file__).parents[3]
PLAN = """
methods = ["fedpse", "fedavg", "thin"]
seeds = [0, 1]
[settings]
dataset = "digits"
rounds = 2
clients = 3
[settings.partition]
subsample = 300
alpha = [0.1, 1.0]
[settings.fedpse]
keep = [0.1, 0.2]
lr = 0.02
[settings.thin]
method = "fedavg"
width = 0.5
"""


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def plan_file(path, text):
    file = path / "three.toml"
    file.write_text(text)
    return file


# what a plan means


def test_methods_settings_and_seeds_make_the_runs(tmp_path):
    """2 cells × 2 seeds × (2 values of fedpse.keep + fedavg + a variant of it) = 16 runs, each with its own keys."""
    plan = read_plan(plan_file(tmp_path, PLAN))
    runs = list(plan.runs())
    check_keys("three.toml", runs)
    assert plan.title == "three"
    assert len(runs) == len({run.name for run in runs}) == 16
    assert [run.variant for run in runs[:4]] == ["fedpse,keep=0.1", "fedpse,keep=0.2", "fedavg", "thin"]
    assert [run.cell for run in runs[3:5]] == ["alpha=0.1", "alpha=1.0"]
    keys = [dict(run.keys) for run in runs]
    assert [keys[1][key] for key in ("method", "fedpse.keep", "lr", "seed")] == ["fedpse", 0.2, 0.02, 0]
    assert [keys[3].get(key) for key in ("method", "width", "lr", "partition.alpha")] == ["fedavg", 0.5, None, 0.1]
    assert runs[1].name == "alpha_0.1-fedpse_keep_0.2-seed0"


def test_tuned_settings_stand_below_the_plans_own(tmp_path):
    """The file of `sepal tune` gives what the plan does not say for that method; also to a paper's plan."""
    (tmp_path / "chosen.toml").write_text(
        '[settings.fedpse]\nlr = 0.5\n"fedpse.keep" = 0.3\n[settings.fedavg]\nlr = 0.7\n[settings.thin]\nlr = 0.9\n'
    )
    runs = list(read_plan(plan_file(tmp_path, 'tuned = "chosen.toml"\n' + PLAN)).runs())
    assert [run.keys["lr"] for run in runs[:4]] == [0.02, 0.02, 0.7, 0.9]
    assert [run.keys.get("fedpse.keep") for run in runs[:3]] == [0.1, 0.2, None]
    text = 'tuned = "chosen.toml"\n[variants]\nhigh = { method = "fedpse", "fedpse.keep" = 0.9 }\n[[block]]\n'
    runs = list(read_plan(plan_file(tmp_path, text + 'name = "a"\nvariants = ["fedpse", "high"]\n')).runs())
    assert [(run.keys["lr"], run.keys["fedpse.keep"]) for run in runs] == [(0.5, 0.3), (0.5, 0.9)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rounds = 2", "roundz = 2", "roundz: expected a known key, got an unknown one; did you mean rounds?"),
        (
            "seeds = [0, 1]",
            "sedes = [0]",
            "three.toml: sedes: expected a known key, got an unknown one; did you mean see",
        ),
        ("keep = [0.1, 0.2]", "kep = 0.1", "fedpse,alpha=0.1: kep: expected a known key".replace(",", ", ", 1)),
        ("keep = [0.1, 0.2]", "keep = 2.0", "fedpse.keep: expected less than or equal to 1, got 2.0"),
        ("keep = [0.1, 0.2]", "keep = []", "settings.fedpse.keep: expected a number, a text, true or false, or a list"),
        ('"fedavg", "thin"', '"fedavgg", "thin"', "methods: expected a method, or a name with settings"),
        ('"fedavg", "thin"', '"fedpse", "thin"', "methods: expected each name once, got fedpse"),
        ("[settings.thin]", "[settings.thick]", "settings.thick: expected one of the methods fedpse, fedavg, thin"),
        ("methods = [", "methods = 3 #", "methods: expected a list of methods, got 3"),
        ("seeds = [0, 1]", 'seeds = ["a"]', "three.toml: seeds.0: expected a valid integer"),
        ("seeds = [0, 1]", "seeds = [0]\n[[block]]", "block: expected either methods and [settings], or [[block]]"),
        ("seeds = [0, 1]", "seeds = [0", "plan: expected a TOML file"),
        ("seeds = [0, 1]", 'tuned = "none.toml"', "plan: expected a TOML file, got "),
    ],
)
def test_a_bad_plan_is_one_line_before_anything_runs(tmp_path, old, new, words):
    file = plan_file(tmp_path, PLAN.replace(old, new))
    result = sepal("compare", file, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# what is refused of runs


def test_a_missing_directory_of_data_is_one_line_before_anything_runs(tmp_path):
    text = (ROOT / "examples" / "folder.toml").read_text().replace("PHOTOS", f"{tmp_path}/fotos")
    result = sepal("compare", plan_file(tmp_path, text), "--out", tmp_path / "out")
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("sepal: data-dir: expected a directory with one .npz")
    assert line.endswith(f"{tmp_path}/fotos")
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_not_there_is_one_line(tmp_path):
    result = sepal("report", tmp_path / "none")
    assert result.exit_code == 2
    assert result.stderr.startswith("sepal: run: expected a directory of a run or a comparison, got ")


def test_two_runs_with_other_data_cannot_be_compared(tmp_path):
    write_run(tmp_path / "a", method="fedavg")
    write_run(tmp_path / "b", method="local", **{"partition.alpha": 5.0})
    words = r"partition.alpha: expected 0.3, as in .*a, got 5.0 in .*b"
    with pytest.raises(ConfigError, match=words):
        read_comparison([str(tmp_path / "a"), str(tmp_path / "b")])
    write_run(tmp_path / "c", method="local", seed=1)
    assert read_comparison([str(tmp_path / "a"), str(tmp_path / "c")]).labels == ["fedavg", "local"]


def test_a_half_written_metrics_file_is_one_line(tmp_path):
    """A torn last line of a run that goes on is left out; one before it is refused, as is a missing end."""
    run = write_run(tmp_path / "a")
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole[:-40])
    with pytest.raises(StateError, match=r"metrics.jsonl: expected the lines of a complete run, .* ends at round 2"):
        read_comparison([str(run)])
    (run / "metrics.jsonl").write_text(whole.replace("{", "", 1))
    with pytest.raises(StateError, match=r"metrics.jsonl, line 1: expected a JSON object"):
        read_comparison([str(run)])
    (run / "metrics.jsonl").write_text(whole[:-40])
    (run / "summary.json").unlink()
    assert len(read_comparison([str(run)]).results[0].stored.lines) == 2


# figures


def test_figures_over_seeds_and_pairs(tmp_path):
    """Means .6 and .7 give .65 ± .0707 (ddof 1). Differences .1, .2, .3 over clients: .2 ± 4.303·.1/√3 = .248."""
    figure = over_seeds([0.6, 0.7])
    assert (figure.text(), figure.count) == ("65.0 ± 7.1", 2)
    assert over_seeds([0.6]).text() == "60.0"
    assert over_seeds([]) is None
    a = write_run(tmp_path / "a", closing=[0.5, 0.6, 0.7])
    b = write_run(tmp_path / "b", closing=[0.4, 0.4, 0.4])
    (first,), (second,) = (read_comparison([str(path)]).variants("") for path in (a, b))
    assert first.difference(second, "trained").text(sign="+") == "+20.0 [-4.8, +44.8]"
    assert first.difference(second, "kept") is None
    two = write_run(tmp_path / "c", closing=[0.5, 0.6])
    (few,) = read_comparison([str(two)]).variants("")
    assert few.difference(few, "trained").spread is None  # two clients have no interval


def test_curves_begin_where_the_model_does_and_reach_their_target(tmp_path):
    """A point's MB are those of the rounds that its model has seen: 3 clients × (100 + 50) bytes a round."""
    (result,) = read_comparison([str(write_run(tmp_path / "a", full=[0.2, 0.5], closing=[0.9, 0.9, 0.9]))]).results
    points = result.points("trained")
    assert [(p.round, p.completed, round(p.megabytes * 1e6), round(p.mean, 6)) for p in points] == [
        (1, 0, 0, 0.2),
        (2, 1, 450, 0.5),
        (2, 2, 900, 0.9),  # the closing evaluation
    ]
    assert result.reached("trained", 0.5).round == 2
    assert result.reached("trained", 0.95) is None
    assert result.sent["up"]["client-00000"] == pytest.approx(200e-6)
    assert result.multiply_adds == 2 * 3 * 1000  # of the two rounds; the closing round asks for no training


def test_runs_of_one_method_are_told_apart_by_their_keys(tmp_path):
    for name, keep in (("a", 0.1), ("b", 0.2)):
        write_run(tmp_path / name, method="fedpse", **{"fedpse.keep": keep})
    assert read_comparison([str(tmp_path)]).labels == ["fedpse keep=0.1", "fedpse keep=0.2"]


# runs

TINY = """
methods = ["fedavg", "local"]
[settings]
dataset = "digits"
rounds = 40
clients = 2
checkpoint-every = 1
evaluate-every = 0
"partition.subsample" = 200
"""


@pytest.mark.e2e  # a process for each run, twice
def test_a_comparison_survives_a_kill_with_the_same_bits_and_runs_nothing_twice(tmp_path, request):
    plan, out = plan_file(tmp_path, TINY), tmp_path / "out"
    command = [sys.executable, "-m", "sepal.cli", "compare", str(plan), "--out", str(out), "--no-report"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = out / "fedavg-seed0" / "metrics.jsonl"
    while not (lines.exists() and lines.read_text().count("\n") >= 2):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "local-seed0" / "summary.json").exists() or not (out / "fedavg-seed0" / "summary.json").exists()

    request.getfixturevalue("runs_in_this_process")  # from here on
    result = sepal("compare", plan, "--out", out, "--no-report", "--all")
    assert result.exit_code == 0, result.output
    assert "0 of 2 runs are there already" in result.stderr or "1 of 2" in result.stderr
    assert "these runs have 1 (evaluate-every)" in " ".join(result.stdout.split())
    assert "fedavg − local" in result.stdout
    for method in ("fedavg", "local"):
        sets = [part for run in read_plan(plan).runs() if run.variant == method for part in run.keys.items()]
        options = [word for key, value in sets if key != "name" for word in ("--set", f"{key}={value}")]
        assert sepal("run", *options, "--name", method, "--out", tmp_path / "alone", "--workers", "1").exit_code == 0
        first, second = (
            json.loads((path / "summary.json").read_text())
            for path in (out / f"{method}-seed0", tmp_path / "alone" / method)
        )
        assert [first[key] for key in ("weights_sha256", "clients_sha256")] == [
            second[key] for key in ("weights_sha256", "clients_sha256")
        ]
    rows = list(csv.DictReader((out / "comparison.csv").open()))
    assert [row["name"] for row in rows] == ["fedavg", "local"]
    assert float(rows[0]["megabytes_up"]) > float(rows[1]["megabytes_up"]) == 0
    again = sepal("compare", plan, "--out", out, "--no-report")
    assert "2 of 2 runs are there already" in again.stderr


def test_a_run_that_fails_in_its_process_says_why_in_its_last_line(tmp_path):
    text = io.StringIO()
    run = PlannedRun("", "", "wrong", 0, {"name": "wrong", "method": "no-method"})
    display = PlanDisplay(Console(file=text, width=200))
    failed = execute([run], tmp_path / "out", display, jobs=1, workers=1, hours=1)
    assert list(failed) == ["wrong"]
    assert "method: expected one of" in failed["wrong"]
    assert "wrong failed: sepal: method: expected one of" in text.getvalue()


def test_one_display_shows_every_run_that_goes_on(tmp_path):
    """On a terminal a bar a run with its newest round; a line for each that has ended."""
    write_run(tmp_path / "a", closing=[0.5, 0.7])
    text = io.StringIO()
    display = PlanDisplay(Console(file=text, force_terminal=True, width=120))
    runs = [PlannedRun("", "", "fedavg", 0, {"name": name}) for name in ("a", "b")]
    with display:
        display.start(2, 2, tmp_path)
        for run in runs:
            display.begin(run)
        display.look()
        display.end("b", "no data")
    shown = text.getvalue()
    for words in (
        "0 of 2 runs are there already",
        "received 60.0 % trained 60.0 %",
        "2/2",
        "closing evaluation: received",
        "1/2 b failed: no data",
    ):
        assert words in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_without_a_terminal_lines_say_that_runs_begin_how_far_they_are_and_that_they_end(tmp_path, monkeypatch):
    write_run(tmp_path / "a", closing=[0.5, 0.7])
    text = io.StringIO()
    now = 0.0
    monkeypatch.setattr("sepal.report.progress.time.monotonic", lambda: now)
    display = PlanDisplay(Console(file=text, force_terminal=False, width=120))
    with display:
        display.start(1, 1, tmp_path)
        display.begin(PlannedRun("", "", "fedavg", 0, {"name": "a"}))
        now = LINES - 1
        display.look()
        assert text.getvalue().splitlines() == ["0 of 1 runs are there already", "a begins"]
        now = LINES + 1
        display.look()
        display.look()
        display.end("a", "")
    progress = ["a closing evaluation, received 60.0 % trained 60.0 %", f"1/1 a ended ({LINES + 1:.0f} s)"]
    assert text.getvalue().splitlines()[2:] == progress
