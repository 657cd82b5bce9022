"""The keys ``folder.*``: standardised tables, named classes, images of mixed size and colour, files that are broken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sepal.config import FolderReading, FolderSettings, PartitionSettings
from sepal.config.agreement import disagreement
from sepal.data import DataSpec, client_data, load, pooled_test, sources
from sepal.data.federation import _as_stored
from sepal.data.scaling import Scale
from sepal.errors import ConfigError, DataError
from sepal.strategies.assembly import assemble

IID = PartitionSettings(name="iid")


def picture(path, size=(20, 12), mode="L", value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def table(path, labels=("0", "1"), rows=60):
    """Columns: around 1,000; tiny; constant 0.1, whose mean in floating point is not exactly 0.1."""
    random = np.random.default_rng(0)
    lines = ["big,tiny,same,label"]
    lines += [
        f"{1000 + 50 * a},{1e-4 * b},0.1,{labels[i % len(labels)]}"
        for i, (a, b) in enumerate(random.normal(size=(rows, 2)))
    ]
    path.mkdir(exist_ok=True)
    (path / "all.csv").write_text("\n".join(lines))
    return path


def test_a_table_is_standardised_by_each_client_with_its_own_training_part(tmp_path):
    spec = DataSpec("folder", table(tmp_path), IID, clients=3)
    plain = DataSpec("folder", tmp_path, IID, clients=3, folder=FolderSettings(standardize=False))
    for client in range(3):
        data, raw = client_data(spec, client), client_data(plain, client)
        assert raw.scale is None
        assert (raw.train.x[:, 0] > 500).all()
        np.testing.assert_allclose(data.train.x[:, :2].mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(data.train.x[:, :2].std(axis=0), 1, atol=1e-4)
        for part in ("train", "validation", "test"):
            train, stored = (side.x[:, :2].astype(np.float64) for side in (raw.train, getattr(raw, part)))
            scaled = getattr(data, part).x
            np.testing.assert_allclose(scaled[:, :2], (stored - train.mean(0)) / train.std(0), atol=1e-3)
            assert (scaled[:, 2] == 0).all(), "a constant column stays 0"
    pooled = pooled_test(spec)
    assert (pooled.x[:, 0] > 500).all(), "each client standardises it as its own"


def test_a_column_that_is_constant_in_training_stays_0_elsewhere():
    scale = Scale.of(np.array([[0.1, 1e-42], [0.1, 0.0], [0.1, 0.0]], np.float32))
    assert scale(np.array([[5.0, 5.0]], np.float32)).tolist() == [[0.0, 0.0]]


GAPS = [f"{'' if i % 5 == 2 else i},{('NA', ' NaN ', '7', i)[i % 4]},{i % 2}" for i in range(60)]


def test_missing_cells_become_the_mean_of_the_clients_own_training_part(tmp_path):
    (tmp_path / "all.csv").write_text("\n".join(["a,b,label", *GAPS]))
    keys = FolderSettings(missing="mean")
    spec = DataSpec("folder", tmp_path, IID, clients=3, folder=keys)
    rows = load("folder", tmp_path, keys).x
    assert np.isnan(rows).sum(axis=0).tolist() == [12, 30]
    for client in range(3):
        data, raw = client_data(spec, client), _as_stored(spec, client)
        mean, std = np.nanmean(raw.train.x, axis=0), np.nanstd(raw.train.x, axis=0)
        assert np.isnan(raw.test.x).any()
        for part in ("train", "validation", "test"):
            stored, scaled = getattr(raw, part).x, getattr(data, part).x
            filled = np.where(np.isnan(stored), mean, stored)
            np.testing.assert_allclose(scaled, (filled - mean) / std, atol=1e-5)
    (note,) = load("folder", tmp_path, keys).info.notes
    assert note == "folder.missing: each client fills in its own mean: 30 in b, 12 in a"


def test_a_column_without_a_number_in_training_stays_0():
    scale = Scale.of(np.array([[np.nan, 1], [np.nan, 3]], np.float32))
    assert scale(np.array([[5, np.nan], [np.nan, 3]], np.float32)).tolist() == [[0, 0], [0, 1]]


def test_views_over_all_clients_data_lack_no_number(tmp_path):
    from sepal.client_app.views import scaled

    x = torch.tensor([[torch.nan, 3.0]])
    filled, _ = scaled((x, torch.zeros(1)), Scale(np.ones(2, np.float32), np.ones(2, np.float32)))
    assert filled.tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("a,label\n1,\n2,3.5\n", "row 2, column label: expected a finite number, got an empty cell"),
        ("a,label:p,label:q\n1,2,3\n2,NA,3\n", "row 3, column label:p: expected a finite number, got 'NA'"),
    ],
)
def test_missing_targets_are_never_filled(tmp_path, rows, words):
    (tmp_path / "all.csv").write_text(rows)
    keys = FolderReading(missing="mean", task="regression")
    with pytest.raises(DataError, match=words):
        load("folder", tmp_path, keys)


def test_numbers_that_are_not_standardised_have_no_mean(tmp_path):
    keys = {"dataset": "folder", "data-dir": str(tmp_path), "folder.standardize": False, "folder.missing": "mean"}
    with pytest.raises(ConfigError, match=r"folder.missing: expected refuse with folder.standardize = false"):
        assemble(keys)


def test_other_formats_are_never_standardised(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((40, 2), 7.0), y=[0, 1] * 20)
    assert (client_data(DataSpec("folder", tmp_path, IID, clients=2), 0).train.x == 7).all()


def test_the_pooled_and_shifted_views_are_standardised_by_the_client(tmp_path):
    from sepal.client_app.build import Node, Shared, data_of
    from sepal.client_app.views import pooled, scaled, shift

    flat = {
        "dataset": "folder",
        "data-dir": str(table(tmp_path)),
        "clients": 3,
        "partition.name": "iid",
        "method": "fedavg",
    }
    shared = Shared.of(flat, "cpu")
    source = data_of(shared.assembly, Node(1, 3))
    client_scale = source.client(1, 3, "client-00001").scale
    everyone = pooled_test(source.spec.__class__("folder", str(tmp_path), IID, clients=3)).x
    x, _ = scaled(pooled(shared, source, 3), client_scale)
    np.testing.assert_allclose(np.sort(x[:, 0].numpy()), np.sort(client_scale(everyone)[:, 0]), atol=1e-5)
    assert abs(shift(shared, source, 3, "client-00001", 5, client_scale).others[0]).max() < 10


def test_named_classes_are_the_same_in_every_file(tmp_path):
    settings = FolderSettings(classes="well, ill, unsure")
    source = load("folder", table(tmp_path / "a", labels=("ill", "well")), settings)
    assert (source.info.class_names, source.info.classes) == (("well", "ill", "unsure"), 3)
    assert source.train.y[:4].tolist() == [1, 0, 1, 0]
    assert load("folder", table(tmp_path / "b", labels=("2", "0")), settings).train.y[:2].tolist() == [2, 0]
    with pytest.raises(DataError, match="row 3, column label: expected one of well, ill, unsure, got 'dead'"):
        load("folder", table(tmp_path / "c", labels=("ill", "dead")), settings)
    picture(tmp_path / "d" / "ill" / "0.png")
    picture(tmp_path / "d" / "well" / "0.png")
    assert load("folder", tmp_path / "d", settings).train.y.tolist() == [1, 0]
    picture(tmp_path / "d" / "dead" / "0.png")
    with pytest.raises(DataError, match="expected classes among"):
        load("folder", tmp_path / "d", settings)


def test_other_classes_on_another_machine_are_refused(tmp_path):
    keys = {"dataset": "folder", "clients": 2, "method": "fedavg"}

    def agreed(folder, labels, **more):
        return assemble({**keys, "data-dir": str(table(tmp_path / folder, labels)), **more}).agreed

    server, client = agreed("a", ("ill", "well")), agreed("b", ("ill", "unwell"))
    words = str(disagreement("clinic", server, client))
    assert "clinic: names of classes, as folder.classes can give them: expected" in words
    assert "unwell" not in client, "names stay on the machine"
    named = {"folder.classes": "ill,well,unwell"}
    assert (
        disagreement("clinic", agreed("a", ("ill", "well"), **named), agreed("b", ("ill", "unwell"), **named)) is None
    )


def mixed(path):
    for i in range(4):
        picture(path / "a" / f"{i}.png", (20, 12), "RGB", (200, 0, 0))
        picture(path / "b" / f"{i}.png", (12, 30), "L", 50)
    picture(path / "b" / "4.png", (12, 30), "RGB", (200, 0, 0))
    return path


def test_images_of_mixed_size_and_colour_say_how_many(tmp_path):
    with pytest.raises(DataError, match=r"expected images of one size \(folder.resize = 64\), got 12x20 and 30x12 \("):
        load("folder", mixed(tmp_path))
    words = r"expected 9 images of one number of channels \(folder.channels = 3\), got 5 of 3 channels, 4 of 1 channel"
    with pytest.raises(DataError, match=words):
        load("folder", tmp_path, FolderSettings(resize="8"))


def test_of_many_sizes_of_arrays_four_are_named(tmp_path):
    for label, sides in (("a", range(10, 17)), ("b", [10])):
        (tmp_path / label).mkdir()
        for side in sides:
            np.save(tmp_path / label / f"{side}.npy", np.zeros((10, side), np.uint8))
    with pytest.raises(DataError, match=r"got 2 of 10x10, 1 of 10x11, 1 of 10x12, 1 of 10x13, and 3 of 3 more kinds$"):
        load("folder", tmp_path)


@pytest.mark.parametrize(
    ("keys", "shape"),
    [
        ({"resize": "8", "channels": 3}, (3, 8, 8)),
        ({"resize": 16, "channels": 1}, (1, 16, 16)),
        ({"resize": "8x10", "channels": 1}, (1, 8, 10)),
    ],
)
def test_images_are_brought_to_one_size_and_colour(tmp_path, keys, shape):
    assert load("folder", mixed(tmp_path), FolderSettings(**keys)).info.input_shape == shape


def test_resizing_cuts_around_the_centre_without_distortion(tmp_path):
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 8:22] = 255  # the square in the middle, and what smoothing reaches beyond it
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "0.png")
    assert (load("folder", tmp_path, FolderSettings(resize="5")).train.x == 1).all()


def test_a_resized_copy_is_not_taken_for_the_images_themselves(tmp_path):
    for name in "ab":
        picture(tmp_path / name / "0.png", (20, 20))
    assert load("folder", tmp_path).info.input_shape == (1, 20, 20)
    assert load("folder", tmp_path, FolderSettings(resize="8")).info.input_shape == (1, 8, 8)


def test_broken_files_are_named_and_left_out(tmp_path):
    for name in "ab":
        picture(tmp_path / name / "0.png")
    for number in range(5):
        (tmp_path / "a" / f"broken{number}.png").write_bytes(b"no png")
    words = (
        r'broken0.png: expected a PNG or JPEG image \(folder.on-bad-file = "skip" leaves out what cannot be read\), got'
    )
    with pytest.raises(DataError, match=words):
        load("folder", tmp_path)
    source = load("folder", tmp_path, FolderSettings(on_bad_file="skip"))
    assert source.train.y.tolist() == [0, 1]
    assembly = assemble(
        {"dataset": "folder", "data-dir": str(tmp_path), "folder.on-bad-file": "skip", "method": "local"}
    )
    (line,) = [note for note in assembly.notes if "on-bad-file" in note]
    assert "5 files that cannot be read are left out: " in line
    assert "broken2.png and 2 more" in line


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_files_that_are_not_read_are_counted_by_suffix(tmp_path, parts):
    """Also one that comes after the data was cached; hidden ones are not meant. Suffixes may be in upper case."""
    for home in (tmp_path / part for part in parts):
        for label in ("cat", "dog"):
            (home / label).mkdir(parents=True)
            picture(home / label / "0.png")
            (home / label / "0.png").rename(home / label / "0.PNG")
            picture(home / label / "1.JPeG")
            (home / label / ".DS_Store").write_bytes(b"x")
    assert load("folder", tmp_path).info.notes == ()
    last = tmp_path / parts[-1] / "cat"
    for name in ("a.webp", "b.WEBP", "c.csv"):
        (last / name).write_bytes(b"x")
    for _ in range(2):  # from the files and from the cache
        sources._remembered.cache_clear()
        source = load("folder", tmp_path)
        assert source.x.shape == (4 * len(parts), 12, 20)
        (line,) = source.info.notes
        assert line == "data-dir: files other than .png, .jpg, .jpeg, .npy are ignored: 2 of .webp, 1 of .csv"


def test_a_directory_of_broken_files_alone_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"no png")
    with pytest.raises(DataError, match="got none that can be read"):
        load("folder", tmp_path, FolderSettings(on_bad_file="skip"))


@pytest.mark.parametrize(
    ("key", "value"), [("resize", "0"), ("resize", "8x"), ("resize", "99999"), ("channels", 2), ("on-bad-file", "ask")]
)
def test_values_that_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"folder.{key}: expected"):
        assemble({f"folder.{key}": value})
