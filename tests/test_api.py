"""Sepal from Python: the same runs as the command's, functions of a notebook, frames, models, comparisons."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import sepal
from sepal import user_modules
from sepal.api.keys import name_of
from sepal.cli.main import app
from sepal.errors import ConfigError, ModelError, SepalError
from sepal.tasks import Metric, Scoring, Targets, Task

SMALL = {"clients": 2, "rounds": 1, "partition": {"subsample": 200}, "progress": False}


@pytest.fixture(autouse=True)
def _in_own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def wine(client):
    """A client's share of a small public data set."""
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)[client::3]
    y = y[client::3]
    return x[::2], y[::2], x[1::2], y[1::2]


def linear(shape, classes):
    return nn.Linear(shape[0], classes)


def test_a_run_is_the_commands():
    """Same keys, same figures and weights: both prepare and execute it with sepal.study.run."""
    run = sepal.run("fedavg", name="ours", workers=1, **SMALL)
    keys = ("clients=2", "rounds=1", "partition.subsample=200", "method=fedavg", "name=theirs")
    assert (
        CliRunner().invoke(app, ["run", "--workers", "1", *(part for key in keys for part in ("--set", key))]).exit_code
        == 0
    )
    command_run = sepal.load("theirs")
    assert run.frame.equals(command_run.frame)
    for parameter, command_parameter in zip(
        run.model("client-00001").parameters(), command_run.model("client-00001").parameters(), strict=True
    ):
        assert parameter.equal(command_parameter)
    assert list(run.frame.columns) == ["round", "client", "view", "accuracy"]
    assert run.deployed == "received"  # of FedAvg
    assert set(run.frame.client) == {"client-00000", "client-00001"}
    closing = run.frame[(run.frame["round"] == 2) & (run.frame.view == "received")]
    assert closing.accuracy.mean() == pytest.approx(run.summary["accuracy"]["received"]["mean"])
    assert list(run.rounds["round"]) == [1, 2]


@pytest.mark.e2e  # a run in processes of its own
def test_functions_of_a_notebook_run_in_workers_and_come_back_as_a_model():
    """Neither can be imported: they are closures. Two worker processes get them by value."""
    hidden = 3

    def load(client):
        return wine(client)

    def build(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))

    data = sepal.own(load, shape=(13,), classes=3)
    run = sepal.run("fedpse", data, build, clients=2, rounds=2, workers=2, lr=0.5, progress=False, fedpse={"keep": 0.5})
    model = run.model("client-00001")
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 13), (3,), (3, 3), (3,)]
    assert not model.training
    assert run.stored.config["fedpse.keep"] == 0.5


@pytest.mark.e2e  # workers, and a process that has workers
@pytest.mark.parametrize("compared", [False, True])
def test_all_code_of_a_notebook_reaches_workers(tmp_path, compared):
    """A task is made again as soon as a worker gets its arguments: before it does anything."""

    shares = [[part.astype(np.float32) for part in wine(client)] for client in range(2)]

    def load(client):
        return tuple(shares[client])

    class NearTask:
        def __new__(cls, shape, numbers):
            def close(outputs, targets):
                return [float(((outputs - targets).abs() < 0.5).sum()), targets.numel()]

            metric = Metric("within-half", 2, close, value=lambda sums: sums[0] / sums[1])
            targets, scoring = Targets((numbers,), floating=True), Scoring((metric,), "within-half")
            return Task("near", targets, (numbers,), functional.l1_loss, scoring, lambda outputs: outputs)

    data = sepal.own(load, shape=(13,), classes=1, task=NearTask)
    keys = {"clients": 2, "rounds": 1, "augment": lambda x, rng: x * 2, "progress": False}
    model = partial(lambda hidden, shape, classes: nn.Linear(shape[0], classes), 3)
    if compared:
        comparison = sepal.compare(["fedavg"], dataset=data, model=model, out=tmp_path / "all", **keys)
        assert list(comparison.frame.metric) == ["within-half, %"]
    else:
        assert "within-half" in sepal.run("fedavg", data, model, workers=2, **keys).frame


@pytest.mark.e2e  # three processes
def test_a_script_needs_no_guard(tmp_path):
    """Its workers do not run it again; functions in it reach them."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sepal\n"
        "from torch import nn\n"
        "print('begun')\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "run = sepal.run('fedavg', 'digits', build, clients=2, rounds=1, workers=2, progress=False)\n"
        "print(len(run.frame))\n"
    )
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.split()[0] == "begun"
    assert completed.stdout.count("begun") == 1


def test_a_function_that_can_be_imported_keeps_its_name():
    assert name_of(linear) == "tests.test_api:linear"
    assert name_of(lambda: 1).startswith(f"{user_modules.DEFINED}:lambda_")


def test_a_function_of_another_session_is_refused_with_what_to_do():
    with pytest.raises(ModelError) as refused:
        user_modules.load("model", f"{user_modules.DEFINED}:make_0", ModelError)
    words = "make of a notebook or script, given to Sepal in this session as it was in the run"
    assert (
        str(refused.value)
        == f"model: expected {words}: sepal.load(RUN, code=[make]), or sepal.run as before, got make_0"
    )

    def make():
        return None

    label = name_of(make).partition(":")[2]
    with pytest.raises(ModelError, match=f"got {label}, with other code than make_0"):
        user_modules.load("model", f"{user_modules.DEFINED}:make_0", ModelError)


SESSION = """
import sys
import sepal
{}
def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
def turned(x, rng):
    return x.flip(-1)
import torch
from torch import nn
if sys.argv[1] == "run":
    sepal.run("fedavg", "digits", build, augment=turned, clients=2, rounds=2, workers=1, progress=False, name="again")
else:
    try:
        sepal.load("again").model(1)
    except sepal.errors.SepalError as error:
        print(error)
    print(sepal.load("again", code=[build, turned]).model(1)(torch.zeros(1, 1, 8, 8)).shape)
"""


@pytest.mark.e2e  # three processes
def test_another_session_goes_on_with_the_same_code(tmp_path):
    """Its lines stand elsewhere, as those of a notebook's cell in another kernel. The run's directory has no code."""
    script = tmp_path / "session.py"

    def session(blank, *arguments):
        script.write_text(SESSION.format(blank))
        command = [sys.executable, script, *arguments]
        completed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    session("", "run")
    written = (tmp_path / "runs" / "again" / "metrics.jsonl").read_bytes()
    session("\n\n# another line", "run")
    assert (tmp_path / "runs" / "again" / "metrics.jsonl").read_bytes() == written
    refused, shape = session("\n", "load").splitlines()
    assert "sepal.load(RUN, code=[build])" in refused
    assert shape == "torch.Size([1, 10])"


def test_a_comparison_has_frames_a_frontier_and_a_report(runs_in_this_process):
    def build(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    comparison = sepal.compare(["fedavg", "local", "fedpse"], seeds=range(2), model=build, out="all", **SMALL)
    assert sorted(comparison.frame.name) == ["fedavg", "fedpse", "local"]
    assert set(comparison.frame.seeds) == {2}
    assert "data:image/svg+xml;base64," in comparison.frontier()._repr_html_()
    assert re.match(r"Best for (its|their) bytes: local \(0 MB\)", comparison.frontier().words)
    frontier = comparison.frontier().frame
    assert frontier.name.iloc[0] == "local"
    assert frontier.megabytes.is_monotonic_increasing
    assert bool(frontier.frontier.iloc[0])
    on = frontier[frontier.frontier]
    assert on.accuracy.is_monotonic_increasing
    assert "<iframe srcdoc=" in comparison.plot()._repr_html_()
    assert comparison.plot().save("page.html").stat().st_size > 10_000


def test_a_wrong_key_is_one_line():
    with pytest.raises(ConfigError, match="roundz"):
        sepal.run("fedavg", roundz=3, progress=False)


@pytest.mark.parametrize("shape", [13, (13,), [13], "13", np.int64(13), np.array([13])])
def test_the_shape_of_one_example_may_be_a_number_or_several(shape):
    assert sepal.own(wine, shape=shape, classes=3).keys["own.shape"] == "13"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sepal.own(wine, shape=6.0), "shape: expected a whole number or a tuple of them, such as (30,)"),
        (lambda: sepal.own(wine, shape=True), "shape: expected a whole number or a tuple of them, such as (30,)"),
        (lambda: sepal.own(wine, shape=0), "shape: expected a whole number or a tuple of them, such as (30,)"),
        (lambda: sepal.own(wine, shape=(1, 28.5)), "shape: expected a whole number or a tuple of them, such as (30,)"),
        (lambda: sepal.own(3, shape=(6,)), "data: expected a function, or package.module:function, got int"),
        (lambda: sepal.compare(["local"], seeds=2), "seeds: expected a list, such as range(2) or [2], got 2"),
        (lambda: sepal.compare("local"), "methods: expected a list, such as"),
        (lambda: sepal.run("fedavg", "digits", nn.Linear(3, 3)), "builds a module, so that each client has its own"),
        (lambda: sepal.run(sepal.own(wine, shape=(13,)), linear), "method: expected a method's name, then data and"),
        (lambda: sepal.run("fedavg", wine), "clients' own data are sepal.own(load, shape=…, classes=…), got wine"),
        (lambda: sepal.run("FedPSE"), "method: expected fedpse, or another one of"),
        (lambda: sepal.run(task="regresion"), "did you mean regression?"),
        (
            lambda: sepal.run(learning_rate=0.1),
            "got an unknown one; did you mean lr?",
        ),
    ],
)
def test_a_wrong_argument_is_one_line_that_says_what_is_meant(call, words):
    with pytest.raises(ConfigError) as refused:
        call()
    assert words in str(refused.value)


def test_a_name_that_is_taken_is_refused_with_what_to_do():
    run = sepal.run("local", name="taken", workers=1, **SMALL)
    with pytest.raises(ConfigError, match=r"got 1; give another --name \(in Python name=\), or delete .*runs/taken"):
        sepal.run("local", name="taken", seed=1, workers=1, **SMALL)
    with pytest.raises(ConfigError, match="client: expected a client of taken: client-00000 … client-00001, got 7"):
        run.model(7)
    for first, second in zip(run.model(1).parameters(), run.model("client-00001").parameters(), strict=True):
        assert first.equal(second)


def test_a_comparison_that_fails_says_why(runs_in_this_process):
    def fails(client):
        raise RuntimeError("no such table")

    with pytest.raises(SepalError) as failed:
        sepal.compare(["local"], dataset=sepal.own(fails, shape=(13,), classes=3), model=linear, out="all", **SMALL)
    assert "1 that failed, the first: local-seed0: " in str(failed.value)
    assert "RuntimeError: no such table" in str(failed.value)
    assert Path("all/failed.txt").read_text().startswith("local-seed0: ")


def test_a_comparison_shows_the_rate_that_a_search_chose(runs_in_this_process, capsys):
    keys = {**SMALL, "progress": True}
    comparison = sepal.compare(["local"], tune=True, out="tuned", **keys)
    (row,) = comparison.frame.to_dict("records")
    tried = [float(values.partition("=")[2]) for values, _ in comparison.comparison.tuning[0].values]
    assert row["lr"] in tried
    assert f"tuned: local: lr={row['lr']}\n" in capsys.readouterr().err


def test_help_lists_the_functions():
    code = "import pydoc, sys, sepal; print('torch' in sys.modules, dir(sepal)); print(pydoc.render_doc(sepal))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.startswith("False [")
    for name in ("run", "own", "compare", "load"):
        assert f"'{name}'" in completed.stdout.splitlines()[0]
        assert f"sepal.{name}(" in completed.stdout


def test_importing_sepal_imports_nothing_heavy():
    code = "import sepal, sys; print([m for m in ('torch', 'flwr', 'pandas', 'numpy', 'pydantic') if m in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"
