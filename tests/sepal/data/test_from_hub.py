"""AG News, Shakespeare and Tiny-ImageNet in miniature, as the hub has them: both layouts, and one test per error.

The hub itself is never asked here.
"""

from __future__ import annotations

import io
import json
from urllib.parse import quote

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from sepal.config import PartitionSettings, SplitSettings
from sepal.data import DataSpec, client_data, load
from sepal.data.catalogue import LETTERS
from sepal.data.sources import hub
from sepal.data.splitting import split
from sepal.errors import DataError

CLASSES = ["World", "Sports", "Business", "Sci/Tech"]
TEXT = "  The king's men, who sleep; and all the rest of England wake to see the morning come, O my sweet lord! "


def class_labels(names):
    """The hub's metadata of a column of classes."""
    feature = {"label": {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}


def publish(directory, name, parts, converted=True, metadata=None):
    """Write the parts of a data set where a download puts them: as the hub converts them, or as its owner has them."""
    home = directory / "hf" / quote(name, safe="")
    for part, columns in parts.items():
        path = (
            home / part / "0000.parquet" if converted else home / "data" / f"{part}-00000-of-00001-1359597a978b.parquet"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    if converted:
        (home / hub.PARTS).write_text(json.dumps({"splits": sorted(parts)}))


def png(value, size=(64, 64), mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


NEWS = {
    "train": {"text": ["Stocks fall, fall again", "Rovers win 3-0", "Stocks rise"], "label": [2, 1, 2]},
    "test": {"text": ["Rovers fall<br />hard"], "label": [1]},
}


@pytest.mark.parametrize("converted", [True, False])
def test_ag_news(tmp_path, converted):
    """Words of the training part by frequency, then alphabet: fall, stocks (2 each), 0, 3, again, rise, rovers, win."""
    publish(tmp_path, "fancyzhx/ag_news", NEWS, converted, class_labels(CLASSES))
    source = load("ag-news", tmp_path)
    assert source.train.x.shape == (3, 128)
    assert source.train.x[:, :5].tolist() == [[3, 2, 2, 6, 0], [8, 9, 5, 4, 0], [3, 7, 0, 0, 0]]
    assert source.test.x[0, :4].tolist() == [8, 2, 1, 0], "the test part adds no words"
    assert (source.train.y.tolist(), source.test.y.tolist()) == ([2, 1, 2], [1])
    assert source.info.class_names == tuple(CLASSES)


def windows(text):
    return {"x": [text[n : n + 80] for n in range(len(text) - 80)], "y": list(text[80:])}


@pytest.mark.parametrize("converted", [True, False])
def test_shakespeare(tmp_path, converted, caplog):
    """Roles are clients by their sorted names; a class is the letter's place among LEAF's 80, a token two more."""
    both = windows(4 * TEXT), windows(4 * TEXT[::-1])
    count = len(both[0]["y"])
    columns = {key: both[0][key] + both[1][key] for key in ("x", "y")}
    columns["y"][count - 1] = "_"
    columns["x"][0] = "é" + columns["x"][0][1:]
    columns["character_id"] = ["MACBETH_WITCH"] * count + ["HAMLET_OSRIC"] * count
    publish(tmp_path, "flwrlabs/shakespeare", {"train": columns}, converted)
    source = load("shakespeare", tmp_path)
    assert len(source.y) == 2 * count - 1
    assert source.test is None
    assert f"shakespeare: 1 of {2 * count} windows are left out" in caplog.text
    assert source.natural.tolist() == [1] * (count - 1) + [0] * count
    assert source.y[:3].tolist() == [LETTERS.index(letter) for letter in TEXT[80:83]]
    assert source.train.x[0, 0] == 1, "é is none of LEAF's letters"
    assert source.train.x[1].tolist() == [2 + LETTERS.index(letter) for letter in TEXT[1:81]]


def publish_roles(directory, *texts):
    columns = {key: [cell for text in texts for cell in windows(text)[key]] for key in ("x", "y")}
    columns["character_id"] = [f"ROLE_{n}" for n, text in enumerate(texts) for _ in windows(text)["y"]]
    publish(directory, "flwrlabs/shakespeare", {"train": columns})
    return columns


@pytest.mark.parametrize("by", ["random", "time"])
def test_no_letter_of_shakespeare_s_held_out_windows_is_in_another_part(tmp_path, by):
    """336 windows: the last quarter is the test part, 84; 79 are left out; of 173, the last 17; 79 are left out."""
    publish_roles(tmp_path, 4 * TEXT, 4 * TEXT[::-1], TEXT)
    spec = DataSpec("shakespeare", tmp_path, PartitionSettings(name="natural"), SplitSettings(by=by), clients=3)
    first, second, short = split(spec, load("shakespeare", tmp_path))
    for client in (first, second):
        assert tuple(map(len, client)) == (77, 17, 84)
        letters = [{n for row in rows for n in range(row, row + 80)} for rows in client]
        assert not letters[0] & letters[1]
        assert not (letters[0] | letters[1]) & letters[2]
    assert tuple(map(len, short)) == (24, 0, 0), "too few windows for a gap"


def test_shakespeare_in_another_order_or_dealt_by_another_rule_is_refused(tmp_path):
    """Neighbours would be in two parts, or with two clients."""
    columns = publish_roles(tmp_path, 4 * TEXT, 4 * TEXT[::-1])
    spec = DataSpec("shakespeare", tmp_path, PartitionSettings(name="iid"), clients=2)
    with pytest.raises(DataError, match=r"partition.name: expected natural for shakespeare, .* next 79 .*, got iid"):
        client_data(spec, 0)
    publish(tmp_path / "shuffled", "flwrlabs/shakespeare", {"train": {k: v[::5] + v[1::5] for k, v in columns.items()}})
    with pytest.raises(DataError, match="expected windows of a role in the order of its text"):
        load("shakespeare", tmp_path / "shuffled")


@pytest.mark.parametrize(("converted", "test"), [(True, "valid"), (False, "valid"), (True, "validation")])
def test_tiny_imagenet(tmp_path, converted, test):
    parts = {
        "train": {"image": [png(10), png(20, mode="L"), png(30)], "label": [0, 199, 7]},
        test: {"image": [png(40)], "label": [7]},
    }
    publish(tmp_path, "zh-plus/tiny-imagenet", parts, converted)
    source = load("tiny-imagenet", tmp_path)
    assert source.x[:, 5, 6].tolist() == [[10, 0, 255], [20, 20, 20], [30, 0, 255], [40, 0, 255]]
    assert (source.train.y.tolist(), source.test.y.tolist()) == ([0, 199, 7], [7])
    assert source.test.x.shape == (1, 3, 64, 64)
    assert source.test.x[0, 0, 0, 0] == pytest.approx((40 / 255 - 0.4802) / 0.2770, abs=1e-5)


GOOD_IMAGES = {"image": [png(1)], "label": [0]}


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("fancyzhx/ag_news", {"train": NEWS["train"]}, "a part test with rows, got train"),
        ("fancyzhx/ag_news", NEWS | {"test": {"text": [None], "label": [1]}}, "row 0, column text: expected a text"),
        ("fancyzhx/ag_news", NEWS | {"test": {"text": ["a"], "label": [4]}}, "whole numbers from 0 to 3, got up to 4"),
        ("fancyzhx/ag_news", NEWS | {"test": {"text": ["a"]}}, "the columns of the data set on the hub"),
        ("flwrlabs/shakespeare", {"train": windows(TEXT)}, "the columns of the data set on the hub"),
        (
            "flwrlabs/shakespeare",
            {"train": {"x": [""], "y": ["a"], "character_id": ["b"]}},
            "80 letters in each row, got",
        ),
        (
            "flwrlabs/shakespeare",
            {"train": {"x": ["a" * 80], "y": ["ab"], "character_id": ["b"]}},
            "1 letter in each row, got 'ab'",
        ),
        (
            "flwrlabs/shakespeare",
            {"train": {"x": ["a" * 80], "y": ["_"], "character_id": ["b"]}},
            "training examples in shakespeare, got none",
        ),
        (
            "zh-plus/tiny-imagenet",
            {"train": {"image": [png(1, (63, 64))], "label": [0]}, "valid": GOOD_IMAGES},
            "row 0, column image: expected an image of 64 x 64",
        ),
        ("zh-plus/tiny-imagenet", {"train": GOOD_IMAGES, "test": GOOD_IMAGES}, "a part valid or validation with rows"),
    ],
)
def test_files_that_are_others_are_one_line(tmp_path, name, parts, message):
    data_set = {"fancyzhx/ag_news": "ag-news", "flwrlabs/shakespeare": "shakespeare"}.get(name, "tiny-imagenet")
    publish(tmp_path, name, parts)
    with pytest.raises(DataError, match=message) as error:
        load(data_set, tmp_path)
    assert "\n" not in str(error.value)


def test_classes_in_another_order_are_refused(tmp_path):
    publish(tmp_path, "fancyzhx/ag_news", NEWS, metadata=class_labels(CLASSES[::-1]))
    with pytest.raises(DataError, match="classes World, Sports, Business, Sci/Tech, got Sci/Tech, Business"):
        load("ag-news", tmp_path)


def test_missing_files_are_downloaded_by_their_name_on_the_hub(tmp_path, monkeypatch):
    asked = []

    def fetched(name, directory):
        asked.append(name)
        publish(directory, "x", NEWS)
        return directory / "hf" / "x"

    monkeypatch.setenv("SEPAL_DOWNLOAD", "1")
    monkeypatch.setattr(hub, "_fetched", fetched)
    assert len(load("ag-news", tmp_path).y) == 4
    assert asked == ["fancyzhx/ag_news"]
    assert (tmp_path / "hf" / "fancyzhx%2Fag_news" / hub.PARTS).exists()
