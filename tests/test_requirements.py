"""What goes into the image: the versions of constraints.txt, each with the digests of its files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from experiments.requirements import split

ROOT = Path(__file__).resolve().parents[1]
FILES = ("requirements.txt", "requirements-cuda.txt", "requirements-cpu.txt")


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(name):
    """Package to version and digests."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            package, _, version = line.split()[0].partition("==")
            found[plain(package)] = version, re.findall(r"--hash=sha256:([0-9a-f]{64})(?:\s|$)", line)
    return found


@pytest.mark.parametrize("name", FILES)
def test_each_package_has_digests_and_the_version_of_the_constraints(name):
    pinned = dict(
        line.partition(";")[0].strip().split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    pinned = {plain(package): version for package, version in pinned.items()}
    found = entries(name)
    assert found
    for package, (version, digests) in found.items():
        assert digests, package
        # what constraints.txt lacks is what only torch with CUDA, or another system, needs
        if package in pinned:
            assert version.partition("+")[0] == pinned[package], package


def test_all_that_sepal_needs_is_there_with_either_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {plain(re.match(r"[\w.-]+", text).group()) for text in project["dependencies"]} | {"setuptools"}
    both = entries(FILES[0]).keys()
    assert needed - both == {"torch"}
    assert "torch" in entries(FILES[1])
    assert entries(FILES[2]).keys() == {"torch"}
    assert entries(FILES[2])["torch"][0] == f"{entries(FILES[1])['torch'][0]}+cpu"


def test_an_entry_is_kept_whole():
    text = (
        "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\ntorch==2 \\\n    --hash=sha256:3\nz==1 --hash=sha256:4\n"
    )
    made = split(text)
    assert made[FILES[0]].partition("\n")[2] == text.replace("torch==2 \\\n    --hash=sha256:3\n", "")
    assert made[FILES[1]].partition("\n")[2] == "torch==2 \\\n    --hash=sha256:3\n"


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
        assert [place.partition(":")[0] for place in service["tmpfs"]] == ["/tmp", "/home/sepal"], name
