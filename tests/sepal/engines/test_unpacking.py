"""An app bundle that Flower has unpacked in part, because it was killed, is unpacked again."""

from __future__ import annotations

import hashlib
import shutil

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.unpacking import bundles, unpack


@pytest.fixture(scope="module")
def fab(tmp_path_factory):
    return build_fab_from_disk(write_app(tmp_path_factory.mktemp("app"))[0].parent)


def test_a_bundle_is_where_flower_looks_for_it(fab, tmp_path):
    home = tmp_path / "new"
    bundle = unpack(install_from_fab, fab, home)
    assert bundle == install_from_fab(fab, home, skip_prompt=True)
    assert (bundle / "pyproject.toml").stat().st_size > 0
    assert sorted(path.name for path in home.iterdir()) == [".unpacking.lock", "apps"], "nothing else is left"


def test_what_a_kill_left_unfinished_is_removed(fab, tmp_path):
    (tmp_path / ".unpacking-abc" / "apps").mkdir(parents=True)
    unpack(install_from_fab, fab, tmp_path)
    assert not (tmp_path / ".unpacking-abc").exists()


@pytest.mark.parametrize("damage", ["empty directory", "empty file", "no directory"])
def test_a_bundle_that_is_there_in_part_is_unpacked_again(fab, tmp_path, damage):
    whole = (unpack(install_from_fab, fab, tmp_path) / "pyproject.toml").read_bytes()
    (bundle,) = (tmp_path / "apps").iterdir()
    if damage == "empty file":
        (bundle / "pyproject.toml").write_bytes(b"")
    else:
        shutil.rmtree(bundle)
    if damage == "empty directory":
        bundle.mkdir()
    assert (unpack(install_from_fab, fab, tmp_path) / "pyproject.toml").read_bytes() == whole


def test_a_whole_bundle_is_left_as_it_is(fab, tmp_path):
    bundle = unpack(install_from_fab, fab, tmp_path)
    before = (bundle / "pyproject.toml").stat().st_ino
    assert unpack(install_from_fab, fab, tmp_path) == bundle
    assert (bundle / "pyproject.toml").stat().st_ino == before


def test_what_is_unpacked_half_is_never_where_flower_looks(fab, tmp_path):
    def killed(content, home, skip_prompt):
        bundle = install_from_fab(content, home, skip_prompt=skip_prompt)
        (bundle / "pyproject.toml").unlink()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(killed, fab, tmp_path)
    assert bundles(tmp_path, hashlib.sha256(fab).hexdigest()) == []
