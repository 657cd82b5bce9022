"""The Flower app bundle (FAB) holds every module of the five packages, and no data."""

import importlib
import io
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli import build
from flwr.cli.build import build_fab_from_files
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sepal", "models", "strategies", "client_app", "server_app")


def bundle_of(files):
    content, _ = build_fab_from_files(files)
    return zipfile.ZipFile(io.BytesIO(content))


def app_files():
    """What ``flwr run`` would collect, less the environment and caches that .gitignore drops anyway."""
    skipped = re.compile(r"(^|/)(\.(?!gitignore$)[^/]*|__pycache__|[^/]*\.egg-info)(/|$)|^(runs|build|dist)(/|$)")
    paths = {
        path.relative_to(ROOT).as_posix(): path
        for top in ROOT.iterdir()
        if not skipped.search(top.name)
        for path in walk(top)
    }
    return {name: path for name, path in paths.items() if not skipped.search(name)}


def walk(top):
    return [path for path in top.rglob("*") if path.is_file()] if top.is_dir() else [top]


@pytest.fixture(scope="module")
def bundle():
    return bundle_of(app_files())


def test_every_module_is_in_the_bundle(bundle):
    inside = {name for name in bundle.namelist() if name.partition("/")[0] in PACKAGES and name.endswith(".py")}
    on_disk = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name.partition("/")[0] for name in on_disk} == set(PACKAGES)
    assert "sepal/masks/selection.py" in inside
    assert inside == on_disk


def test_no_data_is_in_the_bundle(bundle):
    allowed = re.compile(
        r"(.*\.(py|toml|md|yml|yaml)|LICENSE|\.info/CONTENT|tests/.*\.jsonl?|tools/results/(bench|growth|soak|superlink)[^/]*\.json|monitoring/[^/]*\.json)"
    )
    assert [name for name in bundle.namelist() if not allowed.fullmatch(name)] == []
    assert sum(entry.file_size for entry in bundle.infolist()) < 6_000_000  # Flower refuses 10 MB, compressed


def test_flower_would_publish_it():
    publish = importlib.import_module("flwr.cli.app_cmd.publish")
    published = {name: path for name, path in app_files().items() if not name.startswith("tests/")}  # 1,000 at most
    publish._validate_files(list(publish.filter_paths_for_publish(published).values()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    publish._validate_description(project["project"]["description"])
    assert project["project"]["license"]
    app = project["tool"]["flwr"]["app"]
    assert app["publisher"]
    (flower,) = (Requirement(text) for text in project["project"]["dependencies"] if Requirement(text).name == "flwr")
    assert app["flwr-version-target"] in flower.specifier, "what the Hub shows is what the package runs with"
    pinned = (ROOT / "constraints.txt").read_text().partition("flwr==")[2].splitlines()[0]
    assert Version(app["flwr-version-target"]) == Version(pinned), "and what the tests run with"
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"num-supernodes=\d+ client-resources-num-cpus=\d", readme), "the Hub asks for both in a command"


def test_flower_builds_the_bundle_without_a_warning(tmp_path, monkeypatch, capfd):
    for name, path in app_files().items():
        if name.startswith((*PACKAGES, "pyproject.toml", "README.md", "LICENSE", ".gitignore")):
            (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "app" / name)
    monkeypatch.chdir(tmp_path / "app")
    build.build(tmp_path / "app")
    assert "arning" not in "".join(capfd.readouterr())
    (file,) = (tmp_path / "app").glob("sepal.sepal-fl.*.fab")
    assert zipfile.is_zipfile(file)


def test_package_names_are_not_what_the_bundle_drops():
    # Flower drops test_*.py, *_test.py and the directories lib/ and build/ at the root, without a word.
    dropped = [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"(^test_|_test\.py$)", path.name)
    ]
    assert dropped == []


def test_ignored_paths_are_anchored_at_the_root():
    # A bare "data/" or "models/" would drop a package from the bundle. What is not anchored can only be a cache or a
    # file name's end that is not Python's.
    lines = [line.strip() for line in (ROOT / ".gitignore").read_text().splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert [
        line for line in patterns if not line.startswith("/") and not re.fullmatch(r"__pycache__/|\*\.(?!py$)\w+", line)
    ] == []


def test_an_unanchored_line_would_be_noticed():
    files = dict(app_files())
    files[".gitignore"] = b"models/\n"
    assert not [name for name in bundle_of(files).namelist() if name.startswith("models/")]


# In a bundle without links, `sepal/__init__.py` adds the directory above to the package's path. Flower's simulation
# looks for the ClientApp in the main thread while a second thread imports the ServerApp. The import takes long here.
RACE = """
import sys, threading, time, tomllib
from flwr.supercore.object_ref import load_app, validate

directory = sys.argv[1]
components = tomllib.load(open(directory + "/pyproject.toml", "rb"))["tool"]["flwr"]["app"]["components"]
threading.Thread(target=load_app, args=(components["serverapp"], RuntimeError, directory)).start()
while "sepal" not in sys.modules:
    time.sleep(0.001)
print(validate(components["clientapp"], project_dir=directory))
print(type(load_app(components["clientapp"], RuntimeError, directory)).__name__)
"""


def test_the_client_app_is_found_while_the_server_app_is_imported(bundle, tmp_path):
    """CI met it once in some runs of the simulation: ``No module named 'sepal.client_app'``."""
    bundle.extractall(tmp_path)
    first = tmp_path / "sepal" / "__init__.py"
    first.write_text("import time\n\ntime.sleep(1)\n" + first.read_text())
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert completed.stdout == "(True, None)\nSepalClientApp\n", completed.stdout + completed.stderr
