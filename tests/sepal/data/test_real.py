"""The published data sets themselves, where SEPAL_DATA names a directory that has them."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.config import PartitionSettings, SplitSettings
from sepal.data import DataSpec, client_data, load, pooled_test
from sepal.data.sources.words import tokenize


def whole(name, directory):
    if not any((directory / folder).exists() for folder in PLACES[name]):
        pytest.skip(f"{name} is not in SEPAL_DATA")
    return load(name, directory)


PLACES = {
    "mnist": ["MNIST"],
    "fashion-mnist": ["FashionMNIST"],
    "cifar-10": ["cifar-10-batches-py"],
    "har": ["HAR", "UCI HAR Dataset"],
    "imdb": ["aclImdb"],
}


@pytest.mark.parametrize(
    ("name", "train", "test", "per_class"),
    [("mnist", 60_000, 10_000, None), ("fashion-mnist", 60_000, 10_000, 6000), ("cifar-10", 50_000, 10_000, 5000)],
)
def test_images(real_data, name, train, test, per_class):
    source = whole(name, real_data)
    assert (source.train_count, len(source.y)) == (train, train + test)
    # Drawn at random: MNIST's even and odd rows come from different writers, with different amounts of ink.
    sample = source.take(np.random.default_rng(0).permutation(train)[:6000])
    assert sample.x.mean(axis=(0, 2, 3)) == pytest.approx(0, abs=0.02)
    assert sample.x.std(axis=(0, 2, 3)) == pytest.approx(1, abs=0.02)
    if per_class:
        assert np.bincount(source.y[:train]).tolist() == [per_class] * 10


def test_fashion_mnist_lambda_one(real_data):
    """FedPSE, N = 5: each client has two classes, in train and test, the same ones."""
    whole("fashion-mnist", real_data)
    spec = DataSpec("fashion-mnist", real_data, PartitionSettings(name="lambda-mix"), clients=5)
    for client in range(5):
        data = client_data(spec, client)
        assert len(data.train) + len(data.validation) == 12_000
        assert set(data.train.y) == set(data.test.y) == {2 * client, 2 * client + 1}
        assert len(data.test) == 2000
    assert len(pooled_test(spec)) == 10_000


def test_mnist_shards_of_sub_fedavg(real_data):
    whole("mnist", real_data)
    partition = PartitionSettings(name="shards", shard_size=250)
    spec = DataSpec("mnist", real_data, partition, SplitSettings(test_of_labels=True), clients=100)
    data = client_data(spec, 17)
    assert len(data.train) + len(data.validation) == 500
    assert set(data.test.y) == set(data.train.y)
    assert len(data.test) >= 892  # all test images of a digit: 892 of the rarest


def test_har_by_person(real_data):
    source = whole("har", real_data)
    assert source.x.shape == (10_299, 9, 128)
    assert np.bincount(source.natural)[1:4].tolist() == [347, 302, 341]
    data = client_data(DataSpec("har", real_data, PartitionSettings(name="natural"), clients=30), 0)
    assert len(data.test) == round(0.25 * 347)
    assert data.unseen_test_labels == 0


@pytest.mark.e2e  # 50,000 reviews: ten seconds
def test_imdb(real_data):
    source = whole("imdb", real_data)
    assert source.x.shape == (50_000, 256)
    assert np.bincount(source.y).tolist() == [25_000, 25_000]
    assert (source.x.min(), source.x.max()) == (0, 9999)
    review = next((real_data / "aclImdb" / "train" / "neg").glob("0_*.txt")).read_text(encoding="utf-8")
    assert (source.x[0] > 0).sum() == min(256, len(list(tokenize(review))))
