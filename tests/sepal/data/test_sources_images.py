"""Image sources in miniature (digits, idx files, CIFAR), downloads, and torchvision; one test per error."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
import sys
from urllib.error import URLError

import numpy as np
import pytest

from sepal.config import PartitionSettings
from sepal.data import DataSpec, client_data, info, load, source_names
from sepal.data.catalogue import CATALOGUE
from sepal.data.sources import torchvision_import
from sepal.data.sources.idx import read_idx
from sepal.errors import DataError
from sepal.models import names as model_names

RNG = np.random.default_rng(0)


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(raw, stems, classes=10, packed=False, counts=(40, 20)):
    raw.mkdir(parents=True)
    written = []
    for stem, count in zip(stems, counts, strict=True):
        for kind, array in (
            ("images-idx3-ubyte", RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)),
            ("labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % classes),
        ):
            data = idx_bytes(array)
            path = raw / f"{stem}-{kind}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
            written.append(array)
    return written


def test_every_name_is_a_source_with_facts_and_a_model_we_have():
    assert set(CATALOGUE) | {"folder", "hf", "own"} == set(source_names())
    for name, facts in CATALOGUE.items():
        assert facts == info(name)
        assert set(facts.defaults) == {"model", "lr", "batch-size", "optimizer", "local-epochs", "rounds"}
        assert facts.defaults["model"] in model_names()
        assert len(set(facts.class_names)) in (0, facts.classes)
        assert len(facts.mean) == len(facts.std) == (1 if facts.kind == "text" else facts.input_shape[0])


def test_unknown_name():
    with pytest.raises(DataError, match=r"dataset: expected one of ag-news, .*, got mnits"):
        info("mnits")


def test_a_path_as_name_is_told_where_it_belongs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match=r"dataset: expected folder, with data-dir = a.csv for a file .*, got a.csv"):
        info("a.csv")


def test_digits():
    source = load("digits")
    assert source.train.x.shape == (len(source.train), 1, 8, 8)
    assert source.train.x.dtype == np.float32
    assert len(source.train) + len(source.test) == 1797
    assert float(source.train.x.mean()) == pytest.approx(0, abs=0.01)
    assert float(source.train.x.std()) == pytest.approx(1, abs=0.01)
    shares = np.bincount(source.test.y) / np.bincount(np.concatenate([source.train.y, source.test.y]))
    assert shares == pytest.approx([0.2] * 10, abs=0.003)


# idx: MNIST, Fashion-MNIST, EMNIST


@pytest.mark.parametrize(
    ("name", "cls", "packed"),
    [("mnist", "MNIST", False), ("mnist", "MNIST", True), ("fashion-mnist", "FashionMNIST", 1)],
)
def test_idx_files(tmp_path, name, cls, packed):
    images, labels, _, test_labels = write_idx(tmp_path / cls / "raw", ("train", "t10k"), packed=bool(packed))
    source = load(name, tmp_path)
    facts = source.info
    assert source.train.x[:, 0] == pytest.approx((images / 255 - facts.mean[0]) / facts.std[0], abs=1e-5)
    assert source.train.y.tolist() == labels.tolist()
    assert source.test.y.tolist() == test_labels.tolist()


def test_emnist_is_turned_upright(tmp_path):
    stems = ("emnist-byclass-train", "emnist-byclass-test")
    images, *_ = write_idx(tmp_path / "EMNIST" / "raw" / "gzip", stems, 62, True, (70, 62))
    source = load("emnist", tmp_path)
    assert np.array_equal(source.x[:70], images.transpose(0, 2, 1))
    assert set(source.y.tolist()) == set(range(62))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an idx header"),
        (b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"\0\0\0\0", "an idx header of uint8"),
        (b"\0\0\x08\x03\0\0", "an idx header"),
        (idx_bytes(np.zeros(5, np.uint8))[:-1], "5 bytes of data after the header, got 4 bytes"),
    ],
)
def test_idx_errors(tmp_path, data, message):
    (tmp_path / "labels").write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "labels")


def test_idx_that_is_not_gzip(tmp_path):
    (tmp_path / "labels.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="a readable idx file"):
        read_idx(tmp_path / "labels.gz")


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.zeros(39, np.uint8), "labels for images"), (np.full(40, 10, np.uint8), "labels below 10, got 10")],
)
def test_idx_labels_that_do_not_fit(tmp_path, array, message):
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw, ("train", "t10k"))
    (raw / "train-labels-idx1-ubyte").write_bytes(idx_bytes(array))
    with pytest.raises(DataError, match=message):
        load("mnist", tmp_path)


def test_changed_files_are_read_anew(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", ("train", "t10k"))
    spec = DataSpec("mnist", tmp_path, PartitionSettings(name="iid"), clients=2)
    assert len(client_data(spec, 0).test) == 10
    for path in (tmp_path / "MNIST" / "raw").iterdir():
        path.unlink()
    (tmp_path / "MNIST" / "raw").rmdir()
    write_idx(tmp_path / "MNIST" / "raw", ("train", "t10k"), counts=(40, 30))
    assert len(client_data(spec, 0).test) == 15


# Downloads


@pytest.mark.parametrize(
    "name",
    [
        "mnist",
        "fashion-mnist",
        "emnist",
        "cifar-10",
        "cifar-100",
        "har",
        "imdb",
        "femnist",
        "ag-news",
        "shakespeare",
        "tiny-imagenet",
    ],
)
def test_missing_files_are_one_line_that_says_what_to_put_where(tmp_path, name):
    with pytest.raises(DataError, match=r"^data-dir: expected ") as error:
        load(name, tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_download_that_fails_is_the_same_line(tmp_path, monkeypatch):
    class Datasets:
        @staticmethod
        def MNIST(root, download):
            raise URLError("no network\nhere")

    monkeypatch.setenv("SEPAL_DOWNLOAD", "1")
    monkeypatch.setattr(torchvision_import, "torchvision", lambda: Datasets)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.* the download failed: here>"):
        load("mnist", tmp_path)


def test_a_download_that_works_is_read(tmp_path, monkeypatch):
    class Datasets:
        @staticmethod
        def MNIST(root, download):
            write_idx(tmp_path / "MNIST" / "raw", ("train", "t10k"))

    monkeypatch.setenv("SEPAL_DOWNLOAD", "1")
    monkeypatch.setattr(torchvision_import, "torchvision", lambda: Datasets)
    assert len(load("mnist", tmp_path).train) == 40


def test_a_download_that_brings_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("sepal.data.sources.idx.download", lambda *_, **__: None)
    with pytest.raises(DataError, match=r"MNIST/raw: expected train-images-idx3-ubyte, .* got 0 of these files"):
        load("mnist", tmp_path)


def test_torchvision_imports_and_its_models_work():
    assert torchvision_import.torchvision("models").resnet18(num_classes=2).fc.out_features == 2


def test_torchvision_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(DataError, match="torchvision: expected to be installed"):
        torchvision_import.torchvision()


def test_other_errors_of_torchvision_pass(monkeypatch):
    def fail(name):
        raise RuntimeError("something else")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_import.torchvision()


# CIFAR


@pytest.fixture
def cifar_100(tmp_path, monkeypatch):
    """A miniature of CIFAR-100's python version, with torchvision's MD5s set to its files'."""
    cls, home = torchvision_import.torchvision().CIFAR100, tmp_path / "cifar-100-python"
    home.mkdir()
    data = RNG.integers(0, 256, (120, 3072), dtype=np.uint8)
    members = {
        "train": {"data": data[:100], "fine_labels": list(range(100)), "coarse_labels": [0] * 100},
        "test": {"data": data[100:], "fine_labels": list(range(20)), "coarse_labels": [0] * 20},
        "meta": {"fine_label_names": [str(i) for i in range(100)]},
    }
    sums = {}
    for name, content in members.items():
        (home / name).write_bytes(pickle.dumps(content))  # as it is published; read only if its MD5 is the known one
        sums[name] = hashlib.md5((home / name).read_bytes()).hexdigest()
    monkeypatch.setattr(cls, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(cls, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": sums["meta"]})
    return tmp_path, data


def test_cifar_100(cifar_100):
    directory, data = cifar_100
    source = load("cifar-100", directory)
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (source.info.mean, source.info.std))
    assert source.train.x == pytest.approx((data[:100].reshape(-1, 3, 32, 32) / 255 - mean) / std, abs=1e-5)
    assert source.test.y.tolist() == list(range(20))
    assert source.x.dtype == np.uint8


def test_cifar_100_of_another_md5_is_not_unpickled(cifar_100):
    directory, _ = cifar_100
    (directory / "cifar-100-python" / "train").write_bytes(b"another file")
    with pytest.raises(DataError, match=r"the published files \(their MD5s\)"):
        load("cifar-100", directory)
