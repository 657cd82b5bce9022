"""``dataset = "hf"``: local copies of Hugging Face data sets, and what is said of one that cannot be reached."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.config import HubReading, HubSettings, RunConfig
from sepal.data.federation import federated_data
from sepal.data.sources import hub
from sepal.data.sources.folder import read as read_folder
from sepal.errors import DataError, ProtocolError

datasets = pytest.importorskip("datasets")
ROWS = 24


def photographs(rows=ROWS, low=0):
    """Rows with images of several sizes, a class label and an owner."""
    random = np.random.default_rng(low)
    images = [Image.fromarray(random.integers(0, 255, (10 + n % 3, 12, 3)).astype(np.uint8)) for n in range(rows)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    features["owner"] = datasets.Value("string")
    cells = {"image": images, "label": [n % 2 for n in range(rows)], "owner": [f"p{n % 3}" for n in range(rows)]}
    return datasets.Dataset.from_dict(cells, datasets.Features(features))


def table(rows=ROWS):
    x = np.arange(rows)
    cells = {"height": x * 1.5, "weight": x, "label": [("ill", "well")[n % 2] for n in x], "note": ["text"] * rows}
    return datasets.Dataset.from_dict(cells)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    parts = {"train": photographs(), "test": photographs(9, 1)}
    datasets.DatasetDict(parts).save_to_disk(place)
    return place


def reading(resize="", **keys):
    return HubReading.model_validate({"resize": resize, "hf": HubSettings.model_validate(keys)})


def test_a_saved_data_set_has_its_parts_classes_and_images_of_one_size(saved):
    source = hub.read(saved, reading("8x8"))
    assert (source.x.shape, source.x.dtype) == ((ROWS + 9, 8, 8, 3), np.uint8)
    assert source.train_count == ROWS
    assert source.info.class_names == ("cat", "dog")
    assert source.y[:4].tolist() == [0, 1, 0, 1]
    assert source.info.input_shape == (3, 8, 8)


def test_images_are_those_of_a_folder(saved, tmp_path):
    """Pixel by pixel: scaled and cut in the same way."""
    for number, image in enumerate(photographs()["image"]):
        where = tmp_path / f"{number:02d}"
        where.mkdir()
        image.save(where / "a.png")
    keys = reading("8x8")
    there = hub.read(saved, keys)
    np.testing.assert_array_equal(there.x[: there.train_count], read_folder(tmp_path, keys).x)


def test_parquet_files_belong_to_the_part_that_they_are_named_after(tmp_path):
    (tmp_path / "data").mkdir()
    table(20).to_parquet(tmp_path / "data" / "train-00000-of-00002.parquet")
    table(10).to_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    table(6).to_parquet(tmp_path / "data" / "test-0.parquet")
    source = hub.read(tmp_path, reading())
    assert (source.train_count, len(source.y)) == (30, 36)
    assert source.info.columns == ("height", "weight"), "columns of texts are no inputs"
    assert source.info.table, "standardised by each client, as a CSV file's"
    assert source.info.class_names == ("ill", "well")
    assert source.x[2].tolist() == [3.0, 2.0]


def test_missing_numbers_are_refused_or_left_to_the_clients(tmp_path):
    """Whole numbers, too: pyarrow's null."""
    datasets.Dataset.from_dict({"a": [1, None, 3], "b": [0.5, None, None], "label": [0, 1, 1]}).save_to_disk(tmp_path)
    with pytest.raises(DataError, match=r"train, row 1, column a: .*folder.missing.*got 3 without one: 2 in b, 1 in a"):
        hub.read(tmp_path, reading())
    source = hub.read(tmp_path, HubReading(missing="mean"))
    assert np.isnan(source.x).sum(axis=0).tolist() == [1, 2]
    assert (source.info.name, source.info.table, source.info.columns) == ("hf", True, ("a", "b"))


def test_owners_are_the_natural_partition(saved):
    config = {"hf": {"person": "owner", "test": ""}, "folder": {"resize": "8"}, "partition": {"min_examples": 1}}
    data = federated_data(RunConfig.model_validate({"dataset": "hf", "data_dir": str(saved), **config}))
    assert data.info.partition == "natural"
    sizes = [
        sum(map(len, (part.train, part.validation, part.test))) for part in (data.client(n, 3, "") for n in range(3))
    ]
    assert sizes == [8, 8, 8]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"label": "class"}, "hf.inputs, hf.person: expected columns among image, label, owner, got class"),
        ({"train": "all"}, "hf.train: expected one of test, train, got all"),
        ({"person": "owner"}, "hf.person: expected no test part"),
        ({"inputs": "image,owner"}, "hf.inputs: expected one column, or several of numbers, got image, owner"),
        ({"inputs": "owner"}, "column owner: expected images, numbers, or arrays of one shape, got string"),
        ({}, "expected 24 images of one size (folder.resize = 64), got 8 of 10x12, 8 of 11x12, 8 of 12x12"),
    ],
)
def test_what_does_not_fit_is_one_line(saved, keys, words):
    with pytest.raises(DataError) as refused:
        hub.read(saved, reading(**keys))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_data_set_is_downloaded_once_and_what_cannot_be_reached_is_named(tmp_path, monkeypatch):
    asked = []

    def load_dataset(name, configuration, cache_dir):
        asked.append((name, configuration))
        if len(asked) == 1:
            raise ConnectionError("no route\nto host")
        return datasets.DatasetDict({"train": table()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setenv("SEPAL_DOWNLOAD", "1")
    with pytest.raises(DataError) as refused:
        hub.local_copy("me/herbs:raw", tmp_path)
    expected = "me/herbs:raw from the Hugging Face hub, or without hf.name a local copy in data-dir"
    assert str(refused.value) == f"hf.name: expected {expected}, got ConnectionError: no route to host"
    assert [path for path in (tmp_path / "hf").iterdir() if path.is_dir()] == [], "nothing half-written"
    place = hub.local_copy("me/herbs:raw", tmp_path)
    assert hub.local_copy("me/herbs:raw", tmp_path) == place
    assert asked == [("me/herbs", "raw")] * 2
    assert len(hub.read(place).y) == ROWS
    monkeypatch.setenv("SEPAL_DOWNLOAD", "0")
    with pytest.raises(DataError, match="SEPAL_DOWNLOAD=0"):
        hub.local_copy("me/other", tmp_path)


def test_a_node_downloads_what_its_operator_allows_and_reads_its_own_copy_first():
    named = {"dataset": "hf", "hf.name": "me/herbs"}
    with pytest.raises(ProtocolError, match=r"hf\.name: expected a data set that this node allows"):
        local_config(named, Node(0, 1))
    assert local_config(named, Node(0, 1, allow=frozenset({"me/herbs"})))["hf.name"] == "me/herbs"
    found = local_config(named, Node(0, 1, data_dir="/copy"))
    assert (found["hf.name"], found["data-dir"]) == ("", "/copy")


def test_a_run_on_a_local_copy(saved, tmp_path):
    keys = {"dataset": "hf", "data-dir": saved, "folder.resize": 8, "clients": 2, "rounds": 2, "partition.name": "iid"}
    sets = [f"--set={key}={value}" for key, value in {**keys, "method": "fedpse", "lr": 0.01}.items()]
    result = CliRunner().invoke(app, ["run", *sets, "--name=hub", f"--out={tmp_path}", "--workers=1"])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "hub" / "summary.json").read_text())["accuracy"]["trained"]["mean"] > 0
