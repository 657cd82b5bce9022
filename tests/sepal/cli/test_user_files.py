"""Files in the working directory that have our packages' names neither break a command nor are mistaken for ours."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.e2e  # each command is a process
OWN = [
    part
    for key in ("dataset=own", 'own.shape="5"', "own.classes=2", "own.data=clinic:load", "clients=2", "rounds=1")
    for part in ("--set", key)
]
OWN += ["--set", "method=fedavg"]
CLINIC = """
import numpy as np

def load(client):
    rng = np.random.default_rng(client)
    x = rng.normal(size=(40, 5)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return x[:30], y[:30], x[30:], y[30:]

def build(shape, classes):
    from torch import nn
    return nn.Linear(shape[0], classes)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A place with Sepal alone: the checkout's own folders are not importable by their bare names."""
    directory = tmp_path_factory.mktemp("site")
    (directory / "sepal").symlink_to(ROOT / "sepal")
    return directory


@pytest.fixture
def sepal(site, crowded):
    """The ``sepal`` command in the crowded directory, which it does not put on its path, as an installed script."""
    return partial(start, crowded, site)


def start(directory: Path, site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "sepal.cli", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def crowded(tmp_path):
    """A working directory with a user's files under the names of all our folders."""
    work = tmp_path / "work"
    work.mkdir()
    broken = "raise SystemExit('a file of the user was imported')\n"
    for name in ("models", "client_app", "server_app", "cli"):
        (work / f"{name}.py").write_text(broken)
    for name in ("strategies", "tools"):
        (work / name).mkdir()
        (work / name / "__init__.py").write_text(broken)
    (work / "clinic.py").write_text(CLINIC)
    return work


def test_a_command_works_beside_files_of_our_names(sepal):
    result = sepal("methods")
    assert result.returncode == 0, result.stderr


def test_data_and_model_of_the_users_own_are_found_there_in_workers_too(sepal):
    result = sepal("run", *OWN, "--set", "model=clinic:build", "--workers", "2", "--name", "own")
    assert result.returncode == 0, result.stderr


def test_a_users_module_may_have_the_name_of_one_of_our_folders(sepal, site, crowded):
    """Also where the working directory is on the path before Sepal, as with ``python -m`` or PYTHONPATH=. it is."""
    (crowded / "models.py").write_text(CLINIC)
    path = os.pathsep.join(["", str(site)])
    result = sepal("run", *OWN, "--set", "model=models:build", "--workers", "2", "--name", "own", PYTHONPATH=path)
    assert result.returncode == 0, result.stderr


def test_from_python_a_users_files_are_not_taken_for_ours(crowded, site):
    """Before, ``models.py`` took the place of our models, and loading an exported model ran the user's ``build``."""
    (crowded / "use.py").write_text("from sepal.export import portable\nprint(portable.models.names())\n")
    completed = subprocess.run(
        [sys.executable, "use.py"],
        cwd=crowded,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "digits-cnn" in completed.stdout, completed.stderr


def test_a_users_module_that_an_installed_one_hides_is_one_line(crowded, sepal):
    (crowded / "rich.py").write_text(CLINIC)
    result = sepal("run", *OWN, "--set", "model=clinic:build", "--set", "own.data=rich:load", "--workers", "1")
    expected = "expected package.module:function that can be imported, got rich:load (module 'rich' has no attribute"
    assert expected in result.stderr.splitlines()[-1]
