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


def photographs(place, sites=SITES, classes=("cat", "dog"), each=8, swapped=False):
    """Write pictures whose grey tells class and owner."""
    for one, site in enumerate(sites):
        for two, name in enumerate(classes):
            home = place / name / site if swapped else place / site / name
            home.mkdir(parents=True)
            for n in range(each):
                Image.new("L", (16, 16), 40 * two + 10 * one + n).save(home / f"{n}.png")
    return place


def test_what_is_found_is_read_by_owner_and_it_is_said(tmp_path):
    found = load("folder", photographs(tmp_path))
    assert found.info.class_names == ("cat", "dog")
    assert found.info.natural
    (note,) = found.info.notes
    assert note.startswith(f"{tmp_path}: images are read as client/class: 3 owners, 2 classes; ")
    assert note.endswith("folder.layout = class/client reads them the other way round")
    for one, site in enumerate(SITES):
        for two in range(2):
            rows = (found.natural == site) & (found.y == two)
            assert sorted(found.x[rows][:, 0, 0].tolist()) == [40 * two + 10 * one + n for n in range(8)]


@pytest.mark.parametrize(("layout", "swapped"), [("client/class", False), ("class/client", True)])
def test_the_key_says_it(tmp_path, layout, swapped):
    place = photographs(tmp_path, swapped=swapped)
    found = load("folder", place, FolderSettings(layout=layout))
    assert found.info.class_names == ("cat", "dog")
    assert set(found.natural) == set(SITES)
    flat = {"dataset": "folder", "data-dir": str(place), "folder.layout": layout, "method": "fedavg"}
    made = assemble(flat)
    assert made.names == SITES
    part = made.data.client(1, 3, "paris")
    grey = np.concatenate([part.train.x, part.validation.x, part.test.x])[:, 0, 0, 0]
    assert sorted(np.rint((grey + 1) * 127.5).tolist()) == [*range(10, 18), *range(50, 58)]
    assert (made.info.mean, made.info.std) == ((0.5,), (0.5,)), "scaled as other images"


def test_what_may_be_either_is_refused_with_the_key(tmp_path):
    """Names that no two directories share may be clients of classes, or one class of each client."""
    for place in ("cat/berlin", "cat/paris", "dog/rome", "dog/oslo"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("L", (16, 16)).save(tmp_path / place / "0.png")
    with pytest.raises(DataError, match=r"folder.layout: expected client/class or class/client, .* got 2 directories"):
        load("folder", tmp_path)
    assert load("folder", tmp_path, FolderSettings(layout="class/client")).info.class_names == ("cat", "dog")


def test_images_below_those_of_a_class_are_counted(tmp_path):
    photographs(tmp_path)
    for site in SITES:
        Image.new("L", (16, 16)).save(tmp_path / site / "0.png")
    found = load("folder", tmp_path)
    assert found.info.class_names == SITES
    assert found.info.notes == ("data-dir: 48 files in sub-directories of classes are not read",)


def test_a_class_that_a_client_lacks_and_a_broken_file_change_no_label(tmp_path):
    photographs(tmp_path)
    for file in (tmp_path / "berlin" / "cat").iterdir():
        file.unlink()
    (tmp_path / "paris" / "cat" / "3.png").write_bytes(b"")
    found = load("folder", tmp_path, FolderSettings(on_bad_file="skip"))
    assert len(found.y) == len(found.natural) == 39
    assert ((found.natural == "berlin") & (found.y == 0)).sum() == 0
    assert ((found.natural == "paris") & (found.y == 0)).sum() == 7
    assert (found.x[(found.natural == "rome") & (found.y == 1)][:, 0, 0] >= 60).all()
