"""What goes into the image: the versions of constraints*.txt, each with the digests of its files."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

import pytest
import yaml

from tools.requirements import split

ROOT = Path(__file__).resolve().parents[1]
COMMON, CUDA, CPU = "requirements.txt", "requirements-cuda.txt", "requirements-cpu.txt"
FLOWERS = {"requirements-grpc.txt": "constraints.txt", "requirements-http.txt": "constraints-current.txt"}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(name):
    """Package to version and digests."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    hashes = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            package, _, version = line.split()[0].partition("==")
            hashes[plain(package)] = version, re.findall(r"--hash=sha256:([0-9a-f]{64})(?:\s|$)", line)
    return hashes


def pins(name):
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.partition(";")[0].strip().split("==") for line in lines]
    return {plain(package): version for package, version in pairs}


@pytest.mark.parametrize(("name", "constraints"), [*product([COMMON, CUDA, CPU], FLOWERS.values()), *FLOWERS.items()])
def test_each_package_has_digests_and_the_version_of_the_constraints(name, constraints):
    packages = entries(name)
    assert packages
    pinned = pins(constraints)
    for package, (version, digests) in packages.items():
        assert digests, package
        # what the constraints lack is what only torch with CUDA, or another system, needs
        if package in pinned:
            assert version.partition("+")[0] == pinned[package], package


@pytest.mark.parametrize("flower", FLOWERS)
def test_all_that_sepal_needs_is_there_with_either_flower_and_either_torch(flower):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed_and_building = project["project"]["dependencies"] + project["build-system"]["requires"]
    needed = {plain(re.match(r"[\w.-]+", text).group()) for text in installed_and_building}
    assert "flwr" in entries(flower)
    assert not entries(COMMON).keys() & entries(flower).keys(), "pip refuses a package with two versions"
    assert needed - entries(COMMON).keys() - entries(flower).keys() == {"torch"}
    assert "torch" in entries(CUDA)
    assert entries(CPU).keys() == {"torch"}
    assert entries(CPU)["torch"][0] == f"{entries(CUDA)['torch'][0]}+cpu"


A, Z = "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n", "z==1 --hash=sha256:4\n"


def test_an_entry_is_kept_whole():
    torch = "torch==2 \\\n    --hash=sha256:3\n"
    old, new = "flwr==1 \\\n    --hash=sha256:5\n", "flwr==2 \\\n    --hash=sha256:6\n"
    requirement_files = {
        name: text.partition("\n")[2] for name, text in split(A + old + torch + Z, A + new + torch + Z).items()
    }
    assert (requirement_files[COMMON], requirement_files[CUDA]) == (A + Z, torch)
    assert [requirement_files[name] for name in FLOWERS] == [old, new]


def test_torch_is_the_same_with_either_flower():
    with pytest.raises(ValueError, match=r"^constraints-current\.txt: expected torch as .*, got torch==1, torch==2$"):
        split(f"{A}torch==1 --hash=sha256:3\n", f"{A}torch==2 --hash=sha256:3\n")


def test_the_image_takes_nothing_without_a_digest():
    installs = re.findall(r"^RUN pip install (.*(?:\\\n.*)*)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in installs] == ["--require-hashes", "--no-deps"]
    assert "--no-index" in installs[1]
    assert "--no-build-isolation" in installs[1]


def test_each_container_is_confined():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert services
    for name, service in services.items():
        if "monitoring" in service.get("profiles", ()):  # images of others
            assert (service["cap_drop"], service["pids_limit"], service["mem_limit"]) == (["ALL"], 128, "1g"), name
            continue
        assert service["read_only"] is True, name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
        assert service["pids_limit"], name
        assert service["mem_limit"] == service["memswap_limit"] == "${MEMORY:-4g}", name
        assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp", "/home/sepal"], name
