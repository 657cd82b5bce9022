"""FEMNIST, HAR and IMDB in miniature, in every form in which they are published; one test per error."""

from __future__ import annotations

import io
import json
from collections import Counter

import numpy as np
import pytest

from sepal.config import PartitionSettings
from sepal.data import DataSpec, client_data, load
from sepal.data.sources.har import CHANNELS
from sepal.data.sources.words import encode, first_words, tokenize, vocabulary
from sepal.errors import DataError

RNG = np.random.default_rng(0)


# FEMNIST


def leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {
            user: {"x": [(np.full(784, label) / 255).tolist() for label in labels], "y": list(labels)}
            for user, labels in users.items()
        },
    }
    path.write_text(json.dumps(content))


def test_femnist_of_leaf_keeps_writers_and_test_parts(tmp_path):
    leaf(tmp_path / "femnist/train/all_data_0.json", {"f01": range(12), "f02": range(20, 35)})
    leaf(tmp_path / "femnist/train/all_data_1.json", {"f03": range(2)})
    leaf(tmp_path / "femnist/test/all_data_0.json", {"f01": [3, 61], "f02": [20]})
    source = load("femnist", tmp_path)
    assert (len(source.train), len(source.test)) == (29, 3)
    assert (source.x[:, 5, 5] == source.y).all()  # grey values / 255 came back exactly
    spec = DataSpec("femnist", tmp_path, PartitionSettings(name="natural"), clients=2)
    data = [client_data(spec, client) for client in range(2)]
    assert [part.test.y.tolist() for part in data] == [[3, 61], [20]]
    assert data[0].unseen_test_labels >= 1
    assert len(data[1].train) + len(data[1].validation) == 15


def test_femnist_of_flwr_datasets(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    def png(value):
        file = io.BytesIO()
        Image.fromarray(np.full((28, 28), value, np.uint8)).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    columns = {
        "image": [png(value) for value in (0, 61, 5)],
        "writer_id": ["b", "a", "b"],
        "hsf_id": [0, 0, 0],
        "character": [0, 61, 5],
    }
    (tmp_path / "femnist" / "data").mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "femnist" / "data" / "train-0.parquet")
    source = load("femnist", tmp_path)
    assert (source.x[:, 0, 0] == source.y).all()
    assert source.natural.tolist() == ["b", "a", "b"]
    assert source.test is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "LEAF's JSON with users and user_data"),
        ('{"users": ["a"]}', "LEAF's JSON"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.1, 0.2]], "y": [1]}}}', "x of 784 values each"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}), "grey values from 0 to 1"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1.0] * 784], "y": [62]}}}), "classes from 0 to 61"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1.0] * 784], "y": [1, 2]}}}), "2 images of 28 × 28"),
        ('{"users": [], "user_data": {}}', "at least one writer"),
    ],
)
def test_femnist_errors(tmp_path, content, message):
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    (tmp_path / "femnist" / "train" / "all.json").write_text(content)
    with pytest.raises(DataError, match=message):
        load("femnist", tmp_path)


def test_femnist_test_without_train(tmp_path):
    leaf(tmp_path / "femnist/test/all.json", {"f01": [1]})
    with pytest.raises(DataError, match="dataset: expected training examples in femnist"):
        load("femnist", tmp_path)


def test_femnist_parquet_that_is_not(tmp_path):
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="Parquet with image, writer_id and character"):
        load("femnist", tmp_path)


# HAR


def uci(home, rows=(30, 12)):
    tables = {}
    for part, count in zip(("train", "test"), rows, strict=True):
        (home / part / "Inertial Signals").mkdir(parents=True)
        np.savetxt(home / part / f"y_{part}.txt", np.arange(count) % 6 + 1, fmt="%d")
        np.savetxt(home / part / f"subject_{part}.txt", np.arange(count) % 3 + (1 if part == "train" else 4), fmt="%d")
        for channel in CHANNELS:
            tables[channel, part] = RNG.normal(size=(count, 128))
            np.savetxt(home / part / "Inertial Signals" / f"{channel}_{part}.txt", tables[channel, part], fmt=" %.7e")
    return tables


@pytest.mark.parametrize("folder", ["UCI HAR Dataset", "HAR/UCI HAR Dataset"])
def test_har_as_uci_publishes_it(tmp_path, folder):
    tables = uci(tmp_path / folder)
    source = load("har", tmp_path)
    assert source.x.shape == (42, 9, 128)
    assert source.x[3, 4] == pytest.approx(tables["body_gyro_y", "train"][3], abs=1e-5)
    assert source.x[31, 8] == pytest.approx(tables["total_acc_z", "test"][1], abs=1e-5)
    assert sorted(set(source.y.tolist())) == list(range(6))
    assert sorted(set(source.natural.tolist())) == [1, 2, 3, 4, 5, 6]
    assert source.test is None


def test_har_npz(tmp_path):
    (tmp_path / "HAR").mkdir()
    x = np.ones((4, 9, 128), np.float32)
    np.savez(tmp_path / "HAR" / "har.npz", x=x, y=[0, 1, 2, 5], subject=[1, 1, 2, 2])
    examples = load("har", tmp_path).train
    assert examples.x[0, 6, 0] == pytest.approx((1 - 0.80475) / 0.41411, abs=1e-5)
    assert examples.x.dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((4, 9, 128)), "y": np.zeros(4, int)}, "an npz file with x, y and subject"),
        ({"x": np.ones((4, 561)), "y": np.zeros(4, int), "subject": np.ones(4, int)}, r"x \(n, 9, 128\)"),
        ({"x": np.ones((2, 9, 128)), "y": np.array([0, 6]), "subject": np.ones(2, int)}, "six activities"),
    ],
)
def test_har_npz_errors(tmp_path, arrays, message):
    (tmp_path / "HAR").mkdir()
    np.savez(tmp_path / "HAR" / "har.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load("har", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [("1 2\nx y\n", "a table of numbers"), ("1\n2\n", "x .n, 9, 128. with y")]
)
def test_har_uci_errors(tmp_path, content, message):
    uci(tmp_path / "UCI HAR Dataset")
    (tmp_path / "UCI HAR Dataset" / "train" / "y_train.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        load("har", tmp_path)


def test_har_channels_of_different_lengths(tmp_path):
    uci(tmp_path / "UCI HAR Dataset")
    signals = tmp_path / "UCI HAR Dataset" / "test" / "Inertial Signals"
    np.savetxt(signals / "body_acc_y_test.txt", np.ones((3, 128)))
    with pytest.raises(DataError, match="the same number of rows in each file of a part"):
        load("har", tmp_path)


# IMDB


def test_imdb_tokenizer_by_hand():
    words = ["it's", "great", "great", "fun", "10", "10"]
    assert list(tokenize("It's GREAT,<br /><br />great fun: 10/10!")) == words
    counts = Counter()
    assert first_words(["b a b", "a c b"], 2, counts) == [["b", "a"], ["a", "c"]]
    assert counts == {"b": 3, "a": 2, "c": 1}  # also of words that are not kept
    assert first_words(["b a b"], 2) == [["b", "a"]]
    numbers = vocabulary(counts, size=4)
    assert numbers == {"b": 2, "a": 3}  # c is beyond the four
    assert encode(["a", "c", "b"], numbers, 5).tolist() == [3, 1, 2, 0, 0]
    assert encode(["a", "b", "a"], numbers, 2).tolist() == [3, 2]
    assert vocabulary(Counter("yx"), size=9) == {"x": 2, "y": 3}  # ties in alphabetical order


def test_imdb_miniature(tmp_path):
    for part, sign, text in (
        ("train", "neg", "bad bad film"),
        ("train", "pos", "good film"),
        ("test", "neg", "bad"),
        ("test", "pos", "unheard film"),
    ):
        (tmp_path / "aclImdb" / part / sign).mkdir(parents=True)
        (tmp_path / "aclImdb" / part / sign / "0_1.txt").write_text(text)
    source = load("imdb", tmp_path)
    assert source.train.x.shape == (2, 256)
    assert source.train.x.dtype == np.int32
    assert source.train.x[:, :4].tolist() == [[2, 2, 3, 0], [4, 3, 0, 0]]
    assert source.test.x[:, :2].tolist() == [[2, 0], [1, 3]]  # the test part adds no words
    assert source.train.y.tolist() == source.test.y.tolist() == [0, 1]


def test_imdb_without_reviews(tmp_path):
    for part in ("train", "test"):
        for sign in ("pos", "neg"):
            (tmp_path / "aclImdb" / part / sign).mkdir(parents=True)
    with pytest.raises(DataError, match=r"expected reviews as .txt files"):
        load("imdb", tmp_path)


def test_imdb_unreadable_review(tmp_path):
    for part in ("train", "test"):
        for sign in ("pos", "neg"):
            (tmp_path / "aclImdb" / part / sign / "0_1.txt").mkdir(parents=True)
    with pytest.raises(DataError, match="a readable review"):
        load("imdb", tmp_path)
