"""Your own data in a directory: every form, and one test per error."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sepal.config import PartitionSettings
from sepal.data import DataSpec, client_data, info, load
from sepal.errors import DataError
from sepal.models import build


def png(path, value=0, size=(12, 12), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def npy(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def test_png_per_class(tmp_path):
    for i in range(10):
        png(tmp_path / "cat" / f"{i}.png", 255)
        png(tmp_path / "dog" / f"{i}.png", 0)
    source = load("folder", tmp_path)
    assert (source.info.classes, source.info.input_shape, source.info.kind) == (2, (1, 12, 12), "image")
    assert source.info.class_names == ("cat", "dog")
    assert source.test is None
    assert source.train.y.tolist() == [0] * 10 + [1] * 10
    assert source.train.x[:, 0, 0, 0].tolist() == [1.0] * 10 + [-1.0] * 10
    data = client_data(DataSpec("folder", tmp_path, PartitionSettings(name="iid"), clients=2), 0)
    assert len(data.test) == 2  # a quarter of ten, rounded


def test_train_and_test_of_colour_images(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for name in ("a", "b"):
            for i in range(count):
                png(tmp_path / part / name / f"{i}.png", (255, 0, 0), mode="RGB")
    source = load("folder", tmp_path)
    assert (len(source.train), len(source.test)) == (8, 4)
    assert source.train.x[0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]


def test_jpeg_images_are_read_and_turned_as_their_camera_says(tmp_path):
    picture = np.zeros((12, 12, 3), np.uint8)
    picture[:6] = 255  # the upper half is white
    turn = Image.Exif()
    turn[0x0112] = 6  # to be shown turned by 90 degrees clockwise: the right half is white
    for folder, suffix in (("a", "jpg"), ("b", "JPEG")):
        png(tmp_path / folder / "0.png", (0, 0, 0), mode="RGB")
        Image.fromarray(picture).save(tmp_path / folder / f"1.{suffix}", "JPEG", exif=turn)
    source = load("folder", tmp_path)
    assert source.train.y.tolist() == [0, 0, 1, 1]
    for image in (source.train.x[1], source.train.x[3]):
        assert (image[:, :, :4] < -0.9).all()
        assert (image[:, :, 8:] > 0.9).all()


def test_an_image_of_another_kind_under_that_name_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("L", (12, 12)).save(tmp_path / "a" / "0.png", "GIF")
    with pytest.raises(DataError, match="expected a PNG or JPEG image"):
        load("folder", tmp_path)


def test_a_class_whose_name_cannot_be_printed_is_known_by_its_number(tmp_path):
    for name in ("a", "b\x1b[31m"):
        npy(tmp_path / name / "0.npy", np.full((3, 50), 2.5))
    assert load("folder", tmp_path).info.class_names == ("a", "1")


def test_npy_signals(tmp_path):
    for name in ("x", "y"):
        npy(tmp_path / name / "0.npy", np.full((3, 50), 2.5))
    source = load("folder", tmp_path)
    assert (source.info.input_shape, source.info.kind, source.info.defaults["model"]) == ((3, 50), "signal", "har-cnn")
    assert (source.train.x == 2.5).all()


def test_csv_with_people(tmp_path):
    rows = ["height,label,person,width", *(f"{i}.5,{i % 2},p{i % 3},1" for i in range(36))]
    (tmp_path / "all.csv").write_text("\n".join(rows))
    source = load("folder", tmp_path)
    assert source.train.x[:2].tolist() == [[0.5, 1.0], [1.5, 1.0]]
    assert source.info.natural
    data = client_data(DataSpec("folder", tmp_path, PartitionSettings(name="natural"), clients=3), 1)
    assert len(data.train) + len(data.validation) + len(data.test) == 12


def test_csv_with_labels_of_text(tmp_path):
    rows = ["a,label", *(f"{i},{('wine', ' beer', '-1')[i % 3]}" for i in range(6))]
    (tmp_path / "all.csv").write_text("\n".join(rows))
    source = load("folder", tmp_path)
    assert source.info.class_names == ("-1", "beer", "wine")
    assert source.train.y.tolist() == [2, 1, 0, 2, 1, 0]


def test_csv_with_whole_numbers_written_as_floats(tmp_path):
    (tmp_path / "all.csv").write_text("a,label\n1,1.0\n2,0\n")
    source = load("folder", tmp_path)
    assert (source.train.y.tolist(), source.info.class_names) == ([1, 0], ())


def test_npz_tokens_and_test_part(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(12).reshape(4, 3), y=[0, 1, 2, 0], x_test=np.ones((1, 3), int), y_test=[1])
    source = load("folder", tmp_path)
    assert (source.info.kind, source.info.vocabulary, source.info.input_shape) == ("text", 12, (3,))
    assert source.train.x.dtype == np.int32
    assert len(source.test) == 1


def test_from_the_cache_the_facts_are_the_same(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3)), y=[0, 1, 2, 0], person=["a", "a", "b", "b"])
    for name in ("cat", "dog"):
        png(tmp_path / "images" / name / "0.png", 255)
    first, images = info("folder", tmp_path), info("folder", tmp_path / "images")
    from sepal.data import sources

    sources._remembered.cache_clear()
    assert info("folder", tmp_path) == first
    assert load("folder", tmp_path).natural.tolist() == ["a", "a", "b", "b"]
    assert info("folder", tmp_path / "images") == images
    assert images.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((4, 28, 28), np.uint8),
        np.zeros((4, 8, 8, 3), np.uint8),
        np.zeros((4, 1, 9, 9)),
        np.zeros((4, 7)),
        np.zeros((4, 2, 10)),
        np.zeros((4, 5), int),
    ],
)
def test_the_default_model_takes_the_data(tmp_path, x):
    import torch

    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 1, 0])
    facts, batch = info("folder", tmp_path), load("folder", tmp_path).train.x
    model = build(facts.defaults["model"], facts.input_shape, facts.classes, facts.vocabulary)
    assert model(torch.from_numpy(batch)).shape == (4, 2)


def test_no_directory_given():
    with pytest.raises(DataError, match="data-dir: expected the directory of your own data"):
        load("folder")


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_nothing_there(tmp_path, name):
    with pytest.raises(DataError, match=r"data-dir: expected a directory with one .npz"):
        load("folder", tmp_path / name)


def test_two_tables(tmp_path):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=np.ones((2, 2)), y=[0, 1])
    with pytest.raises(DataError, match=r"expected one .npz file, got 2 of them"):
        load("folder", tmp_path)


def four(**changes):
    return {"x": np.ones((4, 3)), "y": np.array([0, 1, 1, 0]), **changes}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((4, 3))}, "x and y, and x_test with y_test or neither, got x"),
        (four(x_test=np.ones((1, 3))), "x_test with y_test"),
        (four(x_test=np.ones((1, 3)), y_test=[0], person=[1, 1, 2, 2]), "person without x_test"),
        (four(x_test=np.ones((1, 2)), y_test=[0]), "test inputs of the shape"),
        (four(y=[0, 0, 0, 0]), "at least two classes, got 1"),
        (four(y=[0, 1, -1, 0]), "labels from 0"),
        (four(y=[0.5, 1, 1, 0]), "whole numbers"),
        (four(x=np.full((4, 3), np.inf)), "finite numbers"),
        (four(x=np.ones((0, 3)), y=[]), "at least one example"),
        (four(x=np.zeros((4, 9), np.uint8)), r"pixels as images"),
        (four(person=[1, 2]), "person: a number or text for each example"),
    ],
)
def test_npz_errors(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load("folder", tmp_path)


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_npz_that_is_not(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match="an npz file without pickled objects"):
        load("folder", tmp_path)


def test_npz_with_pickled_objects(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([None, 1], dtype=object), y=[0, 1])
    with pytest.raises(DataError, match="an npz file without pickled objects"):
        load("folder", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", r"called `label`; folder.label \(inspect: --label\) names another, got a, b"),
        ("", "got no row"),
        ("a,label\n1,0\nx,0\n", "a.csv, row 3, column a: expected a finite number, got 'x'"),
        ("a,label\ninf,0\n", "a.csv, row 2, column a: expected a finite number, got 'inf'"),
        (
            "a,b,label\n1,1,0\nNA,,1\n1,nan,1\n",
            r"a.csv, row 3, column a: expected .*folder.missing = .*, got 3 without one: 2 in b, 1 in a$",
        ),
        ("a,label\n1,0,7\n", "a.csv, row 2: expected 2 cells, as the header has, got 3"),
        ("a,label\n1,0.5\n", r"column label: expected a whole number or a text \(task = regression .*\), got '0.5'"),
        ("a,b,label\n1,0\n", "a.csv, row 2: expected 3 cells, as the header has, got 2"),
        ("a,b,label\n1,0,\n", "row 2, column label: expected a label .delete the rows without one., got an empty cell"),
        ("a,b,label\n1,0,1\n1,0,NaN\n", "row 3, column label: expected a label .delete .*folder.classes., got 'NaN'"),
        ("a,person,label\n1,p,1\n1,,0\n", "row 3, column person: expected an owner .*, got an empty cell"),
        ('a,label\n"1" 2,0\n', "row 2, column a: expected a finite number .*, got '1 2'"),
        ('a,label\n1,"x\n2,y\n', "a CSV file with a header, got unexpected end of data"),
        ("a,label\n1_000,0\n", "row 2, column a: expected a finite number, got '1_000'"),
        ("a,b,b,label\n1,2,3,0\n", "header: expected a different name for every column, got 'b' for the columns 2, 3"),
        ("a,,label\n1,2,0\n", "header: expected a name for every column, got none for column 2"),
        (",a,label\n0.5,2,0\n1.5,1,1\n", "header: expected a name for every column, got none for the first one"),
        (
            "a,label\n1,0\n2,1000000\n",
            "row 3, column label: expected a class number below 1,000,000, or texts as labels",
        ),
        ("label\n0\n1\n", "at least one example"),
    ],
)
def test_csv_errors(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load("folder", tmp_path)


def test_images_of_two_sizes(tmp_path):
    png(tmp_path / "a" / "0.png")
    png(tmp_path / "b" / "0.png", size=(9, 9))
    png(tmp_path / "b" / "1.png")
    words = r"expected images of one size \(folder.resize = 64\), got 12x12 and 9x9 \(b/0.png\)"
    with pytest.raises(DataError, match=words):
        load("folder", tmp_path)


def test_an_unknown_test_class(tmp_path):
    for name in ("train/a", "train/b", "test/c"):
        png(tmp_path / name / "0.png")
    with pytest.raises(DataError, match="test: expected classes among"):
        load("folder", tmp_path)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
@pytest.mark.parametrize("test", [True, False])
def test_a_validation_part_is_dealt_to_the_clients(tmp_path, name, test):
    grey = {"train": 10, name: 20, **({"test": 30} if test else {})}
    for part, level in grey.items():
        for label in ("a", "b"):
            for number in range(8):
                png(tmp_path / part / label / f"{number}.png", level)
    source = load("folder", tmp_path)
    assert (source.train_count, source.validation_count, len(source.y)) == (16, 16, 48 if test else 32)
    assert (source.test is None) != test
    assert source.info.notes == (
        f"split.validation: {tmp_path / name} is the validation part; none of train is held out",
    )
    data = client_data(DataSpec("folder", tmp_path, PartitionSettings(name="iid"), clients=2), 1)
    levels = [np.unique(np.rint((part.x + 1) * 127.5)).tolist() for part in (data.train, data.validation, data.test)]
    assert levels == [[10], [20], [30 if test else 10]]
    assert sum(map(len, (data.train, data.validation, data.test))) == (24 if test else 16)


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test"), ("train", "val", "test")])
def test_images_straight_in_the_parts_are_no_classes(tmp_path, names):
    for name in names:
        png(tmp_path / name / "0.png")
    got = f"got {len(names)} files straight in {', '.join(sorted(names))}"
    with pytest.raises(DataError, match=f"in each of train/, val/ and test/, {got}"):
        load("folder", tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "bus"):
        png(tmp_path / name / "0.png")
    assert load("folder", tmp_path).info.class_names == ("bus", "train")


def test_an_empty_test_part(tmp_path):
    for name in ("train/a", "train/b"):
        png(tmp_path / name / "0.png")
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match=r".png, .jpg or .npy files in its sub-directories, got none"):
        load("folder", tmp_path)


def test_png_that_is_not(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(b"no png")
    with pytest.raises(DataError, match="expected a PNG or JPEG image"):
        load("folder", tmp_path)


def test_npy_that_is_not(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.npy").write_bytes(b"no npy")
    with pytest.raises(DataError, match=r"a .npy array without pickled objects"):
        load("folder", tmp_path)
