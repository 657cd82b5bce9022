"""What a user installs: the wheel, in an empty environment and an empty folder, without the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest

from sepal import __version__
from sepal.engines.flower.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("client_app", "models", "server_app", "strategies")  # of the checkout; in the wheel: below sepal/
pytestmark = pytest.mark.e2e  # a dozen processes, half a minute
SCRIPT = "#!{python}\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n"
PLAN = """
title = "Small"
hours = 1
keys = { method = "fedavg", dataset = "digits", rounds = 1, clients = 2, "partition.subsample" = 200 }
[variants]
[[block]]
name = "first"
variants = ["fedavg"]
seeds = [0]
"""


def copy_checkout(clone: Path) -> None:
    """Copy what a wheel is built from."""
    for name in ("sepal", *FOLDERS, "referee", "tools"):
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, clone)


def empty_environment(directory: Path) -> tuple[Path, Path]:
    """Make an environment that sees this one's packages; return its Python and its ``site-packages``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    # A path in a .pth file does not run that directory's own .pth files: an editable install there is not seen.
    places = [entry for entry in sys.path if entry.endswith("site-packages")]  # two with `make -C tools flower`
    (packages / "dependencies.pth").write_text("\n".join(places) + "\n")
    return directory / "bin" / "python", packages


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build leaves files in its source directory."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    copy_checkout(source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", out, source], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel in it; what it depends on lies where this test's environment has it."""
    directory = tmp_path_factory.mktemp("environment")
    python, _ = empty_environment(directory)
    for script in distribution("flwr").entry_points.select(group="console_scripts"):
        file = directory / "bin" / script.name
        file.write_text(SCRIPT.format(python=python, module=script.module, name=script.attr))
        file.chmod(0o755)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, capture_output=True)
    return directory


def variables(environment: Path, folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "SEPAL_DATA", "OMP_NUM_THREADS") if name in os.environ}
    return {**kept, "PATH": f"{environment}/bin:/usr/bin:/bin", "SEPAL_HOME": str(folder / "home"), "COLUMNS": "120"}


def sepal(environment: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [environment / "bin" / "sepal", *arguments],
        cwd=folder,
        env=variables(environment, folder),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_wheel_holds_our_packages_and_nothing_of_the_referee_and_the_tools(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"sepal"}
    assert "sepal/py.typed" in names, "pyproject.toml packages it, and checkers of types believe it"
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sepal/report/templates").iterdir()}
    assert len(templates) > 3
    assert templates <= set(names)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sepal").rglob("*.py")}
    for folder in FOLDERS:
        modules |= {f"sepal/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / folder).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert wheel.name == f"sepal_fl-{__version__}-py3-none-any.whl", "pyproject.toml and sepal.__version__ agree"


def test_two_builds_give_the_same_bytes_and_the_sdist_gives_the_same_wheel(wheel, tmp_path):
    """The second build has files of other times, in an order and with rights of another checkout."""
    copy_checkout(tmp_path / "copy")
    shutil.copy(ROOT / ".gitignore", tmp_path / "copy")  # an sdist has it
    for path in (tmp_path / "copy").rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    for source, place in ((ROOT, "first"), (tmp_path / "copy", "second")):  # of each: an sdist, and a wheel from it
        subprocess.run([*build, tmp_path / place, source], check=True, capture_output=True)
    first, second = (
        {file.name: file.read_bytes() for file in (tmp_path / place).iterdir()} for place in ("first", "second")
    )
    assert first.keys() == {wheel.name, f"sepal_fl-{__version__}.tar.gz"}
    assert first == second
    assert first[wheel.name] == wheel.read_bytes(), "built from the checkout and not from an sdist"


def test_a_package_index_has_no_link_to_a_file_beside_the_readme(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    address = re.search(r'^address = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    targets = set(re.findall(r"\]\(([^)]*)\)", metadata.get_payload(decode=True).decode()))
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    own = {target.removeprefix(address) for target in targets if target.startswith(address)}
    for place in own:  # a picture from raw/, all else from blob/, of the tag
        kind, tag, file = place.lstrip("/").split("/", 2)
        assert (kind, tag) == ("raw" if file.endswith((".svg", ".png")) else "blob", f"v{__version__}"), place
        assert (ROOT / file.partition("#")[0]).exists(), place
    assert len(own) > 20
    assert all(address in url for url in metadata.get_all("Project-URL")), "from one line of pyproject.toml"


@pytest.mark.timeout(1200)
def test_commands_work_in_an_empty_folder(environment, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    folder = tmp_path / "folder"
    folder.mkdir()
    keys = ["--set", "partition.subsample=200", "--set", "clients=2", "--set", "rounds=1"]
    for arguments in (
        ["methods"],
        ["run", *keys, "--workers", "2", "--name", "first"],
        ["compare", str(plan), "--workers", "1", "--no-report"],
    ):
        result = sepal(environment, folder, *arguments)
        assert result.returncode == 0, f"{arguments}: {result.stderr}"
        assert result.stdout
    assert (folder / "runs" / "first" / "summary.json").exists()
    assert list((folder / "runs" / "plan").glob("*/summary.json"))


@pytest.mark.timeout(1200)
def test_a_new_project_runs_its_method_is_checked_and_its_test_passes(environment, tmp_path):
    for folder, arguments in (
        (tmp_path, ["doctor"]),
        (tmp_path, ["init", "mine"]),
        (tmp_path / "mine", ["run", "--config", "run.toml", "--rounds", "2", "--name", "first"]),
        (tmp_path / "mine", ["check-method", "my_method:Mine"]),
    ):
        result = sepal(environment, folder, *arguments)
        assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
    assert (tmp_path / "mine" / "runs" / "first" / "summary.json").exists()
    command = [environment / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = variables(environment, tmp_path)
    tested = subprocess.run(command, cwd=tmp_path / "mine", env=env, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout[-2000:]


@pytest.mark.timeout(1200)
def test_serve_join_and_watch_work_in_an_empty_folder(environment, tmp_path):
    fleet, control = str(free_port()), str(free_port())
    served = ["serve", "--set", "rounds=1", "--name", "served", "--port", fleet, "--control", control]
    joined = [["join", f"127.0.0.1:{fleet}", "--partition", str(number), "--of", "2"] for number in range(2)]
    processes = []
    for index, arguments in enumerate((served, *joined)):
        with open(tmp_path / f"{index}.log", "wb") as log:
            command = [environment / "bin" / "sepal", *arguments]
            env = variables(environment, tmp_path)
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log))
    try:
        end = time.monotonic() + 300
        while processes[0].poll() is None and time.monotonic() < end:
            time.sleep(0.5)
        log_text = (tmp_path / "0.log").read_text()
        assert processes[0].poll() == 0, log_text[-2000:]
        site = next(environment.glob("lib/python*/site-packages"))
        assert "app bundle: pyproject.toml (" in log_text
        assert f"no code; server and clients run their installed Sepal {__version__}, here from {site}" in log_text
        assert json.loads((tmp_path / "runs" / "served" / "summary.json").read_text())["complete"]
        assert sepal(environment, tmp_path, "watch", "served").returncode == 0
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_a_clone_that_is_named_sepal_is_not_taken_for_the_package_from_beside_it(tmp_path):
    """Python's first place is the working directory, where the clone is a directory of the package's name."""
    clone = tmp_path / "sepal"
    clone.mkdir()
    copy_checkout(clone)
    python, _ = empty_environment(tmp_path / "environment")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", clone]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", "import sepal; print(sepal.__file__)"]
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(clone / "sepal" / "__init__.py")
