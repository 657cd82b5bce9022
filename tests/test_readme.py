"""README's commands and its Python block, with fewer rounds; tests/e2e/test_readme.py runs them as they stand."""

from __future__ import annotations

import os
import re
import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.strategies.assembly import assemble

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```([a-z]*)\n(.*?)^```", TEXT, re.M | re.S)
COMMANDS = [
    line.removeprefix(".venv/bin/sepal ")
    for _, block in BLOCKS
    for line in block.splitlines()
    if re.match(r"\.venv/bin/sepal (run|show|methods|keys)\b", line)
]
SHORT = "--workers 1 --set rounds=1 --set evaluate-every=0"  # in this process, a round


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A directory with README's examples, in which commands run."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def sepal(arguments):
    return CliRunner().invoke(app, shlex.split(arguments))


def test_readme_has_commands():
    assert len(COMMANDS) >= 3


def test_readmes_commands_work_but_for_the_number_of_rounds(there):
    for command in COMMANDS:
        done = sepal(f"{command} {SHORT}" if command.startswith("run ") else command)
        assert done.exit_code == 0, f"{command}: {done.output}"
        assert done.stdout
    assert (there / "runs" / "first" / "summary.json").exists()


def test_readmes_server_app_runs(tmp_path):
    """The Python block with a real grid of three clients; the client's run config has the block's ``keep``."""
    (code,) = (block for language, block in BLOCKS if language == "python")
    assert code.count("num_rounds=20") == 1
    names = {"app": SimpleNamespace(main=lambda: lambda function: function)}
    exec(code.replace("num_rounds=20", "num_rounds=1") + "    return result\n", names)
    flat = {"dataset": "digits", "clients": 3, "rounds": 1, "partition.subsample": 150}
    clients = Clients(assemble({**flat, "method": "fedpse", "fedpse.keep": 0.1}), tmp_path)
    grid = InProcessGrid({number + 1: partial(clients.answer, number) for number in range(3)})
    result = names["main"](grid, SimpleNamespace(run_config=flat))
    assert 0 <= result.evaluate_metrics_clientapp[2]["trained.mean"] <= 1


def test_files_that_readme_names_are_there():
    for name in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / name).exists(), name


def test_the_own_data_example_says_what_is_missing(there):
    """Without own.data, and with no node that names a function, one line says where to put it."""
    done = sepal("run --config examples/own_data/run.toml --set own.data= --workers 1")
    assert done.exit_code == 2
    line = done.stderr.strip().splitlines()[-1]
    assert "data: expected package.module:function in the node config, or own.data" in line


def test_the_simulation_s_command_is_one_that_flower_reads():
    """Its federation config and run config are quoted as a shell reads them, and its keys are Sepal's."""
    (block,) = (block for _, block in BLOCKS if "flwr run" in block)
    words = shlex.split(block.replace("\\\n", " ").splitlines()[-1].replace("$PWD", os.getcwd()))
    assert words[:4] == [".venv/bin/flwr", "run", ".", "--stream"]
    given = dict(pair.split("=", 1) for pair in words[words.index("--run-config") + 1].split())
    assemble({key: int(value) if value.isdigit() else value.strip("'") for key, value in given.items()})
