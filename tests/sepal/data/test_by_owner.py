"""Photographs by owner: CLIENT/CLASS/*.jpg."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sepal.config import FolderSettings
from sepal.data import load
from sepal.errors import DataError
from sepal.strategies.assembly import assemble

SITES = ("berlin", "paris", "rome")


def photographs(directory, sites=SITES, classes=("cat", "dog"), count=8, swapped=False):
    """Write pictures whose grey tells class and owner."""
    for site_number, site in enumerate(sites):
        for label, name in enumerate(classes):
            home = directory / name / site if swapped else directory / site / name
            home.mkdir(parents=True)
            for n in range(count):
                Image.new("L", (16, 16), 40 * label + 10 * site_number + n).save(home / f"{n}.png")
    return directory


def test_what_is_found_is_read_by_owner_and_it_is_said(tmp_path):
    source = load("folder", photographs(tmp_path))
    assert source.info.class_names == ("cat", "dog")
    assert source.info.natural
    (note,) = source.info.notes
    assert note.startswith(f"{tmp_path}: images are read as client/class: 3 owners, 2 classes; ")
    assert note.endswith("folder.layout = class/client reads them the other way round")
    for site_number, site in enumerate(SITES):
        for label in range(2):
            rows = (source.natural == site) & (source.y == label)
            assert sorted(source.x[rows][:, 0, 0].tolist()) == [40 * label + 10 * site_number + n for n in range(8)]


@pytest.mark.parametrize(("layout", "swapped"), [("client/class", False), ("class/client", True)])
def test_the_key_says_it(tmp_path, layout, swapped):
    directory = photographs(tmp_path, swapped=swapped)
    source = load("folder", directory, FolderSettings(layout=layout))
    assert source.info.class_names == ("cat", "dog")
    assert set(source.natural) == set(SITES)
    flat = {"dataset": "folder", "data-dir": str(directory), "folder.layout": layout, "method": "fedavg"}
    assembly = assemble(flat)
    assert assembly.names == SITES
    part = assembly.data.client(1, 3, "paris")
    grey = np.concatenate([part.train.x, part.validation.x, part.test.x])[:, 0, 0, 0]
    assert sorted(np.rint((grey + 1) * 127.5).tolist()) == [*range(10, 18), *range(50, 58)]
    assert (assembly.info.mean, assembly.info.std) == ((0.5,), (0.5,)), "scaled as other images"


def test_what_may_be_either_is_refused_with_the_key(tmp_path):
    """Names that no two directories share may be clients of classes, or one class of each client."""
    for folder in ("cat/berlin", "cat/paris", "dog/rome", "dog/oslo"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("L", (16, 16)).save(tmp_path / folder / "0.png")
    with pytest.raises(DataError, match=r"folder.layout: expected client/class or class/client, .* got 2 directories"):
        load("folder", tmp_path)
    assert load("folder", tmp_path, FolderSettings(layout="class/client")).info.class_names == ("cat", "dog")


def test_images_below_those_of_a_class_are_counted(tmp_path):
    photographs(tmp_path)
    for site in SITES:
        Image.new("L", (16, 16)).save(tmp_path / site / "0.png")
    source = load("folder", tmp_path)
    assert source.info.class_names == SITES
    assert source.info.notes == ("data-dir: 48 files in sub-directories of classes are not read",)


def test_a_class_that_a_client_lacks_and_a_broken_file_change_no_label(tmp_path):
    photographs(tmp_path)
    for file in (tmp_path / "berlin" / "cat").iterdir():
        file.unlink()
    (tmp_path / "paris" / "cat" / "3.png").write_bytes(b"")
    source = load("folder", tmp_path, FolderSettings(on_bad_file="skip"))
    assert len(source.y) == len(source.natural) == 39
    assert ((source.natural == "berlin") & (source.y == 0)).sum() == 0
    assert ((source.natural == "paris") & (source.y == 0)).sum() == 7
    assert (source.x[(source.natural == "rome") & (source.y == 1)][:, 0, 0] >= 60).all()
