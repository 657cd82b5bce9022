"""The Python blocks of README and what its pages have in common; tests/e2e/test_readme.py runs the commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.strategies.assembly import assemble
from tests.contract.plain_flower import ContextGrid, Net, arrays, contexts, load

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def blocks(text):
    """The language and the lines of each block of a page."""
    return re.findall(r"^```([a-z]*)\n(.*?)^```", text, re.M | re.S)


def page(name):
    return blocks((ROOT / "docs" / name).read_text())


BLOCKS, TUTORIAL = blocks(TEXT), page("tutorial.md")
ALONE = re.compile(r"sepal (run|show|methods|keys|compare)\b")  # needs no other terminal


def commands(code_blocks):
    lines = [line for _, block in code_blocks for line in block.splitlines()]
    return [line.removeprefix("sepal ") for line in lines if ALONE.match(line)]


def photographs(directory):
    """Write images of mixed size, grey and in colour, of two classes."""
    for name in ("cat", "dog"):
        (directory / name).mkdir(parents=True)
        for number in range(60):
            size = (30 + number, 40) if number % 2 else (40, 30 + number)
            Image.new("L" if number % 3 else "RGB", size).save(directory / name / f"{number}.png")


@pytest.fixture
def examples_directory(tmp_path, monkeypatch):
    """A directory with README's examples, in which commands run."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def sepal(arguments):
    return CliRunner().invoke(app, shlex.split(arguments))


def test_readmes_two_lines_run():
    (code,) = (block for language, block in BLOCKS if language == "python")
    names = {"Net": Net, "load": load}
    exec(code, names)
    result = names["strategy"].start(ContextGrid(names["app"], contexts()), arrays(), num_rounds=1)
    assert 0 <= result.evaluate_metrics_clientapp[1]["accuracy"] <= 1


def test_the_blocks_of_the_page_on_flower_run(tmp_path):
    """The last one with a real grid of three clients; the client's run config has the block's ``keep``."""
    server, client, durable = (block for language, block in page("flower-app.md") if language == "python")
    names = {"Net": Net, "load": load, "fraction_evaluate": 0.5}
    exec(server + client, names)
    result = names["strategy"].start(ContextGrid(names["app"], contexts()), arrays(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["clients"] == 2
    assert durable.count("num_rounds=20") == 1
    names["app"] = SimpleNamespace(main=lambda: lambda function: function)
    exec(durable.replace("num_rounds=20", "num_rounds=1") + "    return result\n", names)
    flat = {"dataset": "digits", "clients": 3, "rounds": 1, "partition.subsample": 150}
    clients = Clients(assemble({**flat, "method": "fedpse", "fedpse.keep": 0.1}), tmp_path)
    grid = InProcessGrid({number + 1: partial(clients.answer, number) for number in range(3)})
    result = names["main"](grid, SimpleNamespace(run_config=flat))
    assert 0 <= result.evaluate_metrics_clientapp[2]["trained.mean"] <= 1


def test_files_that_readme_names_are_there():
    names = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_other_pages_blocks_are_readmes():
    """What a test runs as README's stands in these pages, too."""
    (server,) = (block for _, block in BLOCKS if "sepal serve" in block)
    assert server in [block for _, block in page("tutorial-deployment.md")]


def test_the_page_on_own_models_has_a_model():
    code, _ = (block for language, block in page("own-model.md") if language == "python")
    names = {}
    exec(code, names)
    assert names["build"]((30,), 2)(torch.zeros(4, 30)).shape == (4, 2)


def test_the_own_data_example_says_what_is_missing(examples_directory):
    """Without own.data, and with no node that names a function, one line says where to put it."""
    result = sepal("run --config examples/own_data/run.toml --set own.data= --workers 1")
    assert result.exit_code == 2
    line = result.stderr.strip().splitlines()[-1]
    assert "data: expected package.module:function in the node config, or own.data" in line


@pytest.mark.parametrize("name", ["", "flower-app.md"])
def test_the_commands_of_flower_are_ones_that_it_reads(name):
    """Their run config is quoted as a shell reads it, and its keys are Sepal's and declared in the app."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    blocks = [block for _, block in (page(name) if name else BLOCKS) if re.search(r"flwr run (?!examples/)", block)]
    assert len(blocks) == (2 if name else 1)
    for block in blocks:
        words = shlex.split(block.replace("\\\n", " ").splitlines()[-1].replace("$PWD", os.getcwd()))
        assert words[0] == "flwr"
        assert words[1:3] == ["run", "."]
        settings = dict(pair.split("=", 1) for pair in words[words.index("--run-config") + 1].split())
        assert settings.keys() <= declared.keys()
        assemble({key: int(value) if value.isdigit() else value.strip("'") for key, value in settings.items()})
