"""``sepal init``: a project whose run, method and test work. From the wheel: tests/test_wheel.py."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.study.project import FILES

ROOT = Path(__file__).resolve().parents[3]


def test_a_new_project_has_all_files_of_the_template_and_its_own_test_passes(here):
    result = CliRunner().invoke(app, ["init", "mine"])
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in Path("mine").iterdir()) == sorted(FILES)
    assert sorted(FILES.values()) == sorted(
        path.name for path in (ROOT / "sepal" / "study" / "template").iterdir() if path.is_file()
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(command, cwd="mine", capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout[-2000:]


def test_nothing_is_overwritten(here):
    Path("mine").mkdir()
    Path("mine", "my_data.py").write_text("mine")
    result = CliRunner().invoke(app, ["init", "mine"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("sepal: DIRECTORY: expected one that does not exist, or is empty, got mine")
    assert Path("mine", "my_data.py").read_text() == "mine"
    Path("file").write_text("")
    for target in ("file", "file/mine"):
        result = CliRunner().invoke(app, ["init", target])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
