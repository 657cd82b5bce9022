"""The files and commands of docs/first-method.md as they stand: somebody who follows the page ends where it says."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.engines.flower.processes import free_port
from tests.test_readme import page

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = page("first-method.md")
METHOD, TESTS = (block for language, block in BLOCKS if language == "python")
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
ALONE = [line for line in COMMANDS if line.split()[1] not in ("serve", "join")]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "smooth.py").write_text(METHOD, encoding="utf-8")
    (tmp_path / "smooth_checks.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


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


def test_the_method_passes_the_checks_and_its_own_tests(directory):
    (check,) = (line for line in ALONE if "check-method" in line)
    assert "BAD" not in finish(check, directory)
    (command,) = (line for line in ALONE if "pytest" in line)
    assert "2 passed" in finish(f"{command} -p no:cacheprovider", directory)


def test_a_method_that_counts_rounds_in_itself_fails_a_check(directory):
    """The page says so, for whoever wants to see a check fail."""
    line = "return ServerState(moving_average(state.weights, mean, self.hyper.beta))"
    assert METHOD.count(line) == 1
    count = 'self.calls = getattr(self, "calls", 0) + 1'
    broken = METHOD.replace(line, f"{count}\n        {line.replace('self.hyper.beta', 'self.hyper.beta / self.calls')}")
    (directory / "smooth.py").write_text(broken, encoding="utf-8")
    (check,) = (line for line in ALONE if "check-method" in line)
    process = start(check, directory, "log")
    assert process.wait(280) == 1
    printed = (directory / "log").read_text(encoding="utf-8").splitlines()
    (bad,) = (number for number, line in enumerate(printed) if line.startswith("BAD"))
    assert printed[bad] == "BAD  a killed server resumes to the same bits"


@pytest.mark.e2e
def test_the_runs_and_the_report(directory):
    for line in ALONE:
        if line.split()[1] in ("run", "report"):
            finish(line, directory)
    for name in ("smooth", "fedavg"):
        assert json.loads((directory / "runs" / name / "summary.json").read_text())["complete"]
    assert list((directory / "runs").glob("*.html"))


@pytest.mark.e2e
def test_the_deployment(directory):
    """At other ports."""
    port, control = str(free_port()), str(free_port())
    first, *others = (line for line in COMMANDS if line not in ALONE)
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
