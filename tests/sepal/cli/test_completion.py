"""Completion in a real shell: bash takes the script that ``sepal --show-completion`` prints, and asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.cli.completing import runs
from tests.sepal.cli.runs_for_tests import write_run

ROOT = Path(__file__).resolve().parents[3]
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")
ASKS = """
eval "$(sepal --show-completion bash)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_sepal_completion sepal
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with runs, and the command on its path."""
    home = tmp_path_factory.mktemp("completion")
    write_run(home / "runs" / "first")
    write_run(home / "runs" / "folder" / "second")
    (home / "bin").mkdir()
    script = home / "bin" / "sepal"
    script.write_text(f"#!{sys.executable}\nfrom sepal.cli.main import main\n\nmain()\n")
    script.chmod(0o755)
    return home


def completed(home, *words):
    """What bash offers after ``words``, of which the last is not complete."""
    environment = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(home)}
    script = [BASH, "--noprofile", "--norc", "-c", ASKS, "bash", *words]
    completed = subprocess.run(script, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sepal", "ex"], ["export"]),
        (["sepal", "run", "--meth"], ["--method"]),
        (["sepal", "run", "--method", "fedp"], ["fedprox", "fedper", "fedproto", "fedpse", "fedpm"]),
        (["sepal", "run", "--dataset", "fa"], ["fashion-mnist"]),
        (["sepal", "run", "--set", "partition.a"], ["partition.alpha="]),
        (["sepal", "serve", "--set", "fedpse.e"], ["fedpse.ewa="]),
        (["sepal", "keys", "pfedg"], ["pfedgate"]),
        (["sepal", "check-method", "dmp"], ["dmpfl"]),
        (["sepal", "show", "fi"], ["first"]),
        (["sepal", "watch", "fo"], ["folder"]),
        (["sepal", "export", "folder/"], ["folder/second"]),
        (["sepal", "report", "first", "fi"], ["first"]),
        (["sepal", "run", "--config", "ru"], []),  # bash then completes files
        (["sepal", "compare", "ru"], []),
    ],
)
def test_bash_completes(home, words, offered):
    assert completed(home, *words) == offered


@pytest.mark.parametrize(
    "name", ["$(touch ran)", "\\$(touch ran)", "`touch ran`", "a b", "a;b", "a\x1bb", "-rf", "a'b", "a\nb"]
)
def test_a_name_that_a_shell_reads_otherwise_is_not_offered(name, tmp_path, monkeypatch):
    """zsh evaluates what it is offered: a directory of that name ran its command at a press of the tab key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEPAL_HOME", raising=False)
    for run in ("plain-1.0", name):
        write_run(tmp_path / "runs" / run)
        write_run(tmp_path / "runs" / "folder" / run)
    assert sorted(runs("")) == ["folder", "plain-1.0"]
    inside = ["folder/-rf"] if name == "-rf" else []
    assert sorted(runs("folder/")) == [*inside, "folder/plain-1.0"]


@pytest.mark.parametrize("words", [["--method", "f"], ["--set", "p"], ["--name", "f"]])
def test_nothing_that_takes_seconds_is_imported_to_complete(home, words):
    line = ["sepal", "run", *words]
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(home), "_SEPAL_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1), "PYTHONPROFILEIMPORTTIME": "1"}
    command = [home / "bin" / "sepal"]
    completed = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert completed.stdout
    imported = {line.rpartition("|")[2].strip() for line in completed.stderr.splitlines()}
    assert "sepal.cli.app" in imported
    assert not {"torch", "flwr"} & imported
