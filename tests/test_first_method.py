"""The files and commands of docs/first-method.md and second-method.md as they stand: who follows them ends there."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sepal
from sepal import user_modules
from sepal.engines.flower.processes import free_port
from sepal.strategies import registry
from sepal.study.plans.plan import check_keys, read_plan
from tests.test_readme import page

ROOT = Path(__file__).resolve().parents[1]
FIRST, SECOND = page("first-method.md"), page("second-method.md")


def python_blocks(blocks):
    return [block for language, block in blocks if language == "python"]


def commands(blocks):
    return [line for language, block in blocks if not language for line in block.splitlines()]


def alone(blocks):
    """The commands that need no other terminal."""
    return [line for line in commands(blocks) if line.split()[1] not in ("serve", "join")]


METHOD = python_blocks(FIRST)[0]


@pytest.fixture
def directory(tmp_path):
    for name, blocks in (("smooth", FIRST), ("ownbias", SECOND)):
        for file, block in zip((f"{name}.py", f"{name}_checks.py"), python_blocks(blocks), strict=True):
            (tmp_path / file).write_text(block, encoding="utf-8")
    ((_, plan),) = (entry for entry in FIRST if entry[0] == "toml")
    (tmp_path / "plan.toml").write_text(plan, encoding="utf-8")
    return tmp_path


@pytest.fixture
def importable(directory, monkeypatch):
    """The directory, whose modules this process can import as a command does that is run there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_loaded", {})
    user_modules.enable(directory)
    yield directory
    for name in ("smooth", "ownbias"):
        sys.modules.pop(name, None)


def start(line, directory, log, *more):
    """Start a command of the page: ``sepal`` or ``python`` with its arguments."""
    program, *arguments = shlex.split(line)
    module = {"sepal": ["-P", "-m", "sepal.cli"], "python": []}[program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(directory / "home")}
    with open(directory / log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, *module, *arguments, *more],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def finish(line, directory):
    """Run a command to its end, and return what it printed."""
    process = start(line, directory, "log")
    code = process.wait(280)
    printed = (directory / "log").read_text(encoding="utf-8")
    assert code == 0, printed[-2000:]
    return printed


@pytest.mark.parametrize(("blocks", "passed"), [(FIRST, "2 passed"), (SECOND, "2 passed")], ids=["first", "second"])
def test_the_method_passes_the_checks_and_its_own_tests(directory, blocks, passed):
    (check,) = (line for line in alone(blocks) if "check-method" in line)
    assert "BAD" not in finish(check, directory)
    (command,) = (line for line in alone(blocks) if "pytest" in line)
    assert passed in finish(f"{command} -p no:cacheprovider", directory)


def test_the_plan_searches_a_rate_for_the_method_and_runs_it_under_its_name(importable):
    plan = read_plan(importable / "plan.toml")
    runs = [run for run in plan.runs() if run.variant == "smooth"]
    check_keys("plan.toml", runs)
    assert {run.keys["method"] for run in runs} == {"smooth:Smooth"}
    assert {run.keys["smooth.beta"] for run in runs} == {0.3}
    assert len({run.keys["lr"] for run in runs if run.block in plan.trial_blocks}) == 5


def test_the_second_method_keeps_a_bias_and_sends_a_tenth(importable):
    keys = {"clients": 3, "rounds": 2, "lr": 0.05, "out": str(importable), "progress": False}
    run = sepal.run("ownbias:OwnBias", "digits", name="ownbias", **keys)
    first, second = (run.model(client, "received").state_dict() for client in (0, 1))
    differing = [name for name, array in first.items() if not np.array_equal(array, second[name])]
    assert differing == [[name for name in first if name.endswith("bias")][-1]]
    sizes = run.summary["bytes"]
    assert 0.1 < sizes["up"] / sizes["up_dense"] < 0.15


def test_a_method_that_counts_rounds_in_itself_fails_a_check(directory):
    """The page says so, for whoever wants to see a check fail."""
    line = "return ServerState(moving_average(state.weights, mean, self.hyper.beta))"
    assert METHOD.count(line) == 1
    count = 'self.calls = getattr(self, "calls", 0) + 1'
    broken = METHOD.replace(line, f"{count}\n        {line.replace('self.hyper.beta', 'self.hyper.beta / self.calls')}")
    (directory / "smooth.py").write_text(broken, encoding="utf-8")
    (check,) = (line for line in alone(FIRST) if "check-method" in line)
    process = start(check, directory, "log")
    assert process.wait(280) == 1
    printed = (directory / "log").read_text(encoding="utf-8").splitlines()
    (bad,) = (number for number, line in enumerate(printed) if line.startswith("BAD"))
    assert printed[bad] == "BAD  a killed server resumes to the same bits"


@pytest.mark.e2e
def test_the_runs_and_the_report(directory):
    for line in (*alone(FIRST), *alone(SECOND)):
        if line.split()[1] in ("run", "report"):
            finish(line, directory)
    for name in ("smooth", "fedavg", "ownbias"):
        assert json.loads((directory / "runs" / name / "summary.json").read_text())["complete"]
    assert list((directory / "runs").glob("*.html"))


@pytest.mark.e2e
def test_the_deployment(directory):
    """At other ports."""
    port, control = str(free_port()), str(free_port())
    first, *others = (line for line in commands(FIRST) if line not in alone(FIRST))
    server = start(first, directory, "serve.log", "--port", port, "--control", control)
    clients = [
        start(line.replace("127.0.0.1:9092", f"127.0.0.1:{port}"), directory, f"join{number}.log")
        for number, line in enumerate(others)
    ]
    try:
        assert server.wait(250) == 0, (directory / "serve.log").read_text()[-2000:]
        assert (
            json.loads((directory / "runs" / "deployed" / "summary.json").read_text())["clients"] == len(clients) == 2
        )
    finally:
        for process in (*clients, server):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(60)
