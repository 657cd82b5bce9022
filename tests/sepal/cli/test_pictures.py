"""Pictures from memory are prepared as the folder reader prepares their files: `run.predict` and `run.prepare`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import sepal
from sepal.api.results import Run
from sepal.config import FolderSettings
from sepal.data import load
from sepal.errors import DataError, ModelError
from sepal.export.portable import Loaded, Origin

SHAPES = {"grey": (40, 33), "colour": (88, 89, 3), "light": (30, 50, 3)}  # of the sizes that cameras made


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Photographs of mixed size, grey and colour, and a run on them at 16 x 16 in colour."""
    directory, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for label in ("a", "b"):
        (directory / label).mkdir()
        for number in range(4):
            for kind, shape in SHAPES.items():
                pixels = random.integers(0, 256, shape).astype(np.uint8)
                Image.fromarray(pixels).save(directory / label / f"{kind}{number}.png")
    folder = {"resize": 16, "channels": 3}
    keys = {"partition": {"name": "iid"}, "workers": 1, "progress": False, "out": str(directory / "runs"), "name": "p"}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("here"))
        return directory, sepal.run(
            "fedavg", "folder", data_dir=str(directory), folder=folder, clients=2, rounds=1, **keys
        )


def files(directory):
    return [directory / "a" / f"{kind}0.png" for kind in SHAPES]


def test_pictures_of_any_form_and_size_are_prepared_as_in_training(photographs):
    directory, run = photographs
    paths = files(directory)
    arrays = [np.array(Image.open(path)) for path in paths]
    stored = load("folder", directory, FolderSettings(resize="16", channels=3)).train.x
    trained = [stored[sorted((directory / "a").iterdir()).index(path)] for path in paths]
    forms = [paths, [str(path) for path in paths], arrays, [Image.open(path) for path in paths]]
    forms += [[paths[0], arrays[1], Image.open(paths[2])], [arrays[0][..., None], *map(torch.tensor, arrays[1:])]]
    for form in forms:
        prepared = run.prepare(form)
        assert (prepared.dtype, prepared.shape) == (np.float32, (3, 3, 16, 16))
        np.testing.assert_array_equal(prepared, trained)
    for path, array in zip(paths, arrays, strict=True):  # one picture, and a batch of one
        expected = run.predict(0, path).drop(columns="example")
        for variant in (array, array[None], Image.open(path)):
            assert run.predict(0, variant).drop(columns="example").equals(expected)
    assert run.predict(1, paths)["example"].tolist() == [path.name for path in paths]
    assert run.predict(1, arrays)["example"].tolist() == ["0", "1", "2"]
    logits = run.model(0)(torch.from_numpy(run.prepare(arrays)))
    assert logits.argmax(1).tolist() == run.predict(0, arrays)["label"].tolist()


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ([np.zeros((4, 4, 3), np.uint8), 1.5], r"data, picture 1: expected a PIL image, a path, or an array"),
        ([np.zeros((4, 4, 7), np.uint8)], r"data, picture 0: .*, got uint8 \(4, 4, 7\)"),
        ([np.zeros((0, 4, 3), np.uint8)], r"data, picture 0: .*, got uint8 \(0, 4, 3\)"),
        (["table.csv"], r"data, picture 0: expected \.png.*, got table.csv"),
        (["none.png"], r"none.png: expected a PNG or JPEG image"),
        (np.zeros((3, 88, 89), np.uint8), r"data: expected a colour image as \(H, W, 3\)"),
        (np.zeros(9, np.uint8), r"data: expected pixels of images"),
        ([np.zeros((4, 4, 3)), np.zeros((5, 5, 3))], r"data: expected examples of one shape"),
        (1.5, r"data: expected an array of numbers, got float"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_line(photographs, picture, message):
    with pytest.raises(DataError, match=message) as error:
        photographs[1].prepare(picture)
    assert "\n" not in str(error.value)


def test_without_folder_keys_arrays_keep_their_size_and_channels():
    """Also four channels, which a PIL image would lose; a grey model's batch is no colour picture."""
    facts = {"model": "m", "classes": 2, "vocabulary": 0, "width": 1.0, "mean": (0.5,), "std": (0.5,)}
    facts |= {"method": "fedavg", "dataset": "folder", "run": "r", "client": "c"}
    many = Loaded(Origin(shape=(4, 5, 3), **facts), torch.nn.Identity())
    x = np.arange(2 * 5 * 3 * 4, dtype=np.uint8).reshape(2, 5, 3, 4)
    expected = (np.moveaxis(x, 3, 1) / np.float32(255) - 0.5) / 0.5
    np.testing.assert_allclose(many.prepare(x), expected, atol=1e-6)
    np.testing.assert_allclose(many.prepare(x[0]), expected[:1], atol=1e-6)
    grey = Loaded(Origin(shape=(1, 5, 3), **facts), torch.nn.Identity())
    assert grey.prepare(x[..., 0]).shape == (2, 1, 5, 3)
    assert grey.prepare(x[0, ..., 0]).shape == (1, 1, 5, 3)
    with pytest.raises(ModelError, match=r"examples of shape \(1, 5, 3\), got \(1, 6, 4\)"):
        grey.prepare(np.zeros((6, 4), np.uint8))
    with pytest.raises(DataError, match="one size"):
        grey.prepare([np.zeros((6, 4), np.uint8), np.zeros((7, 4), np.uint8)])


def test_the_frame_of_masks_has_a_mask_in_each_row(tmp_path, monkeypatch):
    facts = {"model": "m", "classes": 3, "vocabulary": 0, "width": 1.0, "mean": (0.0,), "std": (1.0,)}
    facts |= {"method": "fedavg", "dataset": "own", "run": "r", "client": "c", "task": "segmentation"}
    loaded = Loaded(Origin(shape=(3, 4, 5), **facts), torch.nn.Identity())
    monkeypatch.setattr(Run, "_loaded", lambda *_: loaded)
    x = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    frame = Run(tmp_path).predict(0, x)
    assert frame["example"].tolist() == ["0", "1"]
    np.testing.assert_array_equal(np.stack(frame["mask"]), x.argmax(1))
