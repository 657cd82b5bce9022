"""The Flower app bundle (FAB) holds every module of the five packages, and no data."""

import importlib
import io
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files

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
        r"(.*\.(py|toml|md|yml|yaml)|LICENSE|\.info/CONTENT|tests/.*\.jsonl?|tools/results/bench[^/]*\.json|monitoring/[^/]*\.json)"
    )
    assert [name for name in bundle.namelist() if not allowed.fullmatch(name)] == []
    assert sum(entry.file_size for entry in bundle.infolist()) < 4_500_000  # Flower refuses 10 MB, compressed


def test_flower_would_publish_it():
    publish = importlib.import_module("flwr.cli.app_cmd.publish")
    published = {name: path for name, path in app_files().items() if not name.startswith("tests/")}  # 1,000 at most
    publish._validate_files(list(publish.filter_paths_for_publish(published).values()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    publish._validate_description(project["project"]["description"])
    assert project["project"]["license"]
    assert project["tool"]["flwr"]["app"]["publisher"]


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
