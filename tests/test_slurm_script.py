"""What ``deploy/slurm/clients.sh`` refuses; ``tests/e2e/test_slurm_clients.py`` runs it on a real Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "deploy" / "slurm" / "clients.sh"


def started(directory=None, **change):
    """The script's end in an environment that has all that it needs but for a change, and no `sepal`."""
    names = ("SEPAL_SERVER", "SEPAL_CERTS", "SEPAL_STATES")
    array = {"ID": "0", "MIN": "0", "MAX": "1", "COUNT": "2"}
    environment = {**dict.fromkeys(names, "x"), **{f"SLURM_ARRAY_TASK_{key}": value for key, value in array.items()}}
    environment |= {"PATH": "/usr/bin:/bin", **change}
    script = ["bash", SCRIPT]
    return subprocess.run(script, env=environment, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SEPAL_SERVER": ""}, "SEPAL_SERVER: expected HOST:PORT of the server"),
        ({"SEPAL_STATES": ""}, "SEPAL_STATES: expected a directory that all nodes see"),
        ({"SLURM_ARRAY_TASK_ID": ""}, "SLURM_ARRAY_TASK_ID: expected sbatch --array=0-N"),
        ({"SLURM_ARRAY_TASK_MIN": "1"}, "expected sbatch --array=0-N, got 1 to 1"),
    ],
)
def test_the_script_names_what_is_missing(change, words):
    done = started(**change)
    assert done.returncode
    assert words in done.stderr


@pytest.mark.parametrize("name", ["SEPAL_SERVER", "SEPAL_CERTS", "SEPAL_STATES"])
def test_no_value_of_the_environment_becomes_an_option(name):
    done = started(**{name: "--insecure"})
    assert (done.returncode, done.stderr) == (2, f"{name}: expected no leading -, got '--insecure'\n")


@pytest.mark.parametrize("name", ["ID", "MIN", "MAX", "COUNT"])
def test_no_value_of_the_environment_becomes_a_command(name, tmp_path):
    """Arithmetic of bash evaluates the subscript of an array in a variable's value."""
    done = started(tmp_path, **{f"SLURM_ARRAY_TASK_{name}": "PATH[$(touch ran)0]"})
    assert done.returncode == 2
    assert f"SLURM_ARRAY_TASK_{name}: expected a number, got " in done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_log_of_a_client_is_no_link_to_a_file_elsewhere(tmp_path):
    """Slurm, which opens the log before the script runs, follows it; here what would go there comes through a pipe."""
    victim, home = tmp_path / "victim", tmp_path / "home"
    home.mkdir()
    victim.write_text("precious")
    (home / "sepal-client-0.log").symlink_to(victim)
    done = started(home, SLURM_JOB_NAME="sepal-client")
    assert (done.stdout, done.stderr, victim.read_text()) == ("", "", "precious")
    (log,) = home.glob("sepal-client-0.??????.log")
    assert log.read_text().startswith("sepal-client-0.log is a link: this file takes its place\n")
    (home / "sepal-client-0.log").unlink()
    assert "sepal: command not found" in started(home, SLURM_JOB_NAME="sepal-client").stderr
