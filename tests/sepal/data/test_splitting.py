"""From dealt rows to train, validation and test: disjoint, covering, test like train."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepal.config import PartitionSettings, SplitSettings
from sepal.config.data import PartitionName
from sepal.data import DataSpec
from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import Source
from sepal.data.splitting import split
from sepal.errors import DataError

BALANCED = np.tile(np.arange(10), 60)


def spec(name="iid", clients=5, seed=0, split=None, **partition):
    return DataSpec("digits", "", PartitionSettings(name=name, **partition), split or SplitSettings(), clients, seed)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["iid", "dirichlet", "lambda-mix", "pathological", "shards"]),
    clients=st.integers(1, 8),
    seed=st.integers(0, 1000),
    fraction=st.sampled_from([0.0, 0.1, 0.25, 0.5]),
    validation=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_parts_are_disjoint_and_inside(name, clients, seed, fraction, validation):
    y = np.random.default_rng(seed).integers(0, 10, 600)
    source = Source(CATALOGUE["digits"], np.zeros((600, 8, 8), np.uint8), y, 450)
    held_out = SplitSettings(test_fraction=fraction, validation=validation)
    parts = split(spec(name, clients, seed, held_out, alpha=1.0), source)
    rows = np.concatenate([rows for part in parts for rows in part])
    assert len(np.unique(rows)) == len(rows)
    for part in parts:
        assert min(len(part.train), len(part.test)) >= 1
        assert (len(part.validation) > 0) == (validation > 0)
        if fraction == 0:
            assert part.train.max() < 450 <= part.test.min()
    if name in ("iid", "dirichlet", "lambda-mix") and fraction > 0:
        assert len(rows) == 600


def test_fraction_of_each_clients_pooled_data(toy):
    """DM-PFL A.1.3: a quarter of each client's data, here 600 + 200 rows over 4 clients, is its test part."""
    for part in split(spec(clients=4, split=SplitSettings(test_fraction=0.25)), toy(BALANCED, BALANCED[:200])):
        assert (len(part.train), len(part.validation), len(part.test)) == (135, 15, 50)


def test_a_source_without_a_test_part_takes_a_quarter(toy):
    for part in split(spec(clients=3), toy(BALANCED)):  # 200 rows each
        assert (len(part.train), len(part.validation), len(part.test)) == (135, 15, 50)


# How far the label shares of a client's test part may be from those of its training part (half of the summed
# differences). Where parts of both are dealt at random, chance alone gives about .04 with the 800 test rows below.
ALIKE = {
    "iid": ({}, 0.08),
    "natural": ({}, 0.08),
    "lambda-mix-0": ({"lambda_": 0.0}, 0.08),
    "lambda-mix-half": ({"lambda_": 0.5}, 0.05),
    "lambda-mix": ({"lambda_": 1.0}, 0.002),
    "dirichlet": ({"alpha": 0.3}, 0.01),
    "pathological": ({"classes": 3}, 0.01),
    "shards": ({}, 0.01),
    "extended-dirichlet": ({"alpha": 10.0, "classes": 4}, 0.01),
    "quantity-skew": ({"beta": 1.0, "min_examples": 1000}, 0.08),
    "domain": ({}, 0.1),  # 660 test rows for each of two clients of one domain
    "domain-dirichlet": ({"within": "dirichlet"}, 0.05),  # test rows of a domain differ from its others by chance
    "two-class": ({}, 0.05),  # 40 clients, the smallest of them with 20 test rows
}


OWNED = ("natural", "domain")


def test_every_partition_is_in_the_table():
    assert set(map(name_of, ALIKE)) | {"auto"} == set(get_args(PartitionName))


def name_of(case):
    return "domain" if case == "domain-dirichlet" else case.removesuffix("-0").removesuffix("-half")


def test_by_default_people_are_the_clients_where_examples_have_owners(toy):
    people = np.repeat([7, 8, 9], 20)
    source = toy([0, 1] * 30, natural=people)
    assert source.info.partition == "dirichlet", "digits have no owners"
    owned = replace(source, info=replace(source.info, natural=True))
    for i, part in enumerate(split(spec("auto", 3), owned)):
        assert set(people[np.concatenate(part)]) == {7 + i}
    labels = [0, 1] * 100
    assert str(split(spec("auto", 3), toy(labels))) == str(split(spec("dirichlet", 3), toy(labels)))


@pytest.mark.parametrize(("case", "subsample"), [*((case, 12_000) for case in ALIKE), ("dirichlet", 0)])
def test_every_client_is_tested_on_the_labels_that_it_trains_on(toy, case, subsample):
    values, bound = ALIKE[case]
    rng, clients = np.random.default_rng(5), 5
    labels = np.concatenate([rng.permutation(np.tile(np.arange(10), count)) for count in (3000, 1000)])
    name = name_of(case)
    people = (labels + np.arange(len(labels)) % 4) % {"natural": 5, "domain": 3}[name] if name in OWNED else None
    source = toy(labels[:30_000], labels[30_000:], people)
    parts = split(spec(name, 40 if name == "two-class" else clients, 1, subsample=subsample, **values), source)
    for part in parts:
        train, test = np.concatenate([part.train, part.validation]), part.test
        shares = [np.bincount(source.y[rows], minlength=10) / len(rows) for rows in (train, test)]
        assert np.abs(shares[0] - shares[1]).sum() / 2 <= bound
        assert np.isin(source.y[test], source.y[train]).mean() >= 0.998


@pytest.mark.parametrize("name", ["dirichlet", "pathological", "shards"])
def test_test_follows_train(toy, name):
    source = toy(np.tile(np.arange(10), 600), np.tile(np.arange(10), 200))
    for part in split(spec(name, 10, split=SplitSettings(validation=0), min_examples=100), source):
        train, test = (np.bincount(source.y[rows], minlength=10) for rows in (part.train, part.test))
        # A third of each class, to one row (largest remainders).
        assert np.abs(test - train / 3).max() <= 1


def test_unassigned_training_rows_leave_their_share_of_the_test_rows_out(toy):
    source = toy(np.tile(np.arange(10), 600), np.tile(np.arange(10), 200))
    parts = split(spec("shards", 10, shards=2, shard_size=150, split=SplitSettings(validation=0)), source)
    assert sum(len(part.train) for part in parts) == 3000
    assert sum(len(part.test) for part in parts) == pytest.approx(1000, abs=10)


def test_everybody_gets_a_test_row(toy):
    """Ten rows of 6,000 are a share of .3 of 20 test rows: rounded to none, so one is given."""
    source = toy(np.tile(np.arange(10), 60), np.tile(np.arange(10), 2))
    for seed in range(5):
        assert all(len(part.test) for part in split(spec("dirichlet", 10, seed, alpha=0.3), source))


def test_all_test_rows_of_the_labels(toy):
    """Sub-FedAvg 4.1: the parts overlap between clients."""
    source = toy(BALANCED, np.tile(np.arange(10), 20))
    parts = split(spec("shards", 10, split=SplitSettings(test_of_labels=True)), source)
    for part in parts:
        owned = set(source.y[part.train]) | set(source.y[part.validation])
        assert len(part.test) == 20 * len(owned)
        assert set(source.y[part.test]) == owned
    assert sum(len(part.test) for part in parts) > 200


def test_lambda_mix_cuts_the_test_rows_by_the_same_rule(toy):
    source = toy(BALANCED, np.tile(np.arange(10), 20))
    for i, part in enumerate(split(spec("lambda-mix", 5), source)):
        assert set(source.y[part.train]) == set(source.y[part.test]) == {2 * i, 2 * i + 1}
        assert len(part.test) == 40


def test_natural_with_the_sources_own_test_rows(toy):
    people = np.array([*[1, 2, 3] * 20, 1, 1, 3, 2])
    parts = split(spec("natural", 3), toy([0] * 60, [1] * 4, people))
    assert [part.test.tolist() for part in parts] == [[60, 61], [63], [62]]


def test_subsample_reduces_both_parts_in_proportion(toy):
    parts = split(spec(clients=3, subsample=300), toy(BALANCED, np.tile(np.arange(10), 20)))
    assert sum(len(part.train) + len(part.validation) for part in parts) == 300
    assert sum(len(part.test) for part in parts) == 100


def test_validation_never_takes_the_last_row_and_gives_at_least_one(toy):
    parts = split(spec("iid", 5, split=SplitSettings(validation=0.9, test_fraction=0.5)), toy([0, 1] * 10))
    assert [(len(part.train), len(part.validation), len(part.test)) for part in parts] == [(1, 1, 2)] * 5


def test_the_run_seed_moves_the_partition_unless_split_seed_is_given(toy):
    source = toy(BALANCED)

    def train(seed, fixed=-1):
        return split(spec("iid", 3, seed, SplitSettings(seed=fixed)), source)[0].train.tolist()

    assert train(1) != train(2)
    assert train(1, fixed=5) == train(2, fixed=5) == train(5)


def test_subsample_keeps_the_shares_of_the_classes(toy):
    """Of 300, 200 and 100 rows a third: 100, 67, 33 (66.7 and 33.3 rounded to a sum of 200); of 30, 20, 10 the same."""
    labels = np.repeat([0, 1, 2], [300, 200, 100])
    source = toy(labels, labels[::10])
    parts = split(spec("iid", 1, subsample=200, split=SplitSettings(validation=0)), source)
    assert np.bincount(source.y[parts[0].train]).tolist() == [100, 67, 33]
    assert np.bincount(source.y[parts[0].test]).tolist() == [10, 7, 3]


def test_subsample_beyond_the_source(toy):
    with pytest.raises(DataError, match=r"partition.subsample: expected at most 600 for digits, got 601"):
        split(spec(subsample=601), toy(BALANCED))


def test_test_of_labels_needs_a_test_part(toy):
    with pytest.raises(DataError, match=r"split.test-of-labels: expected a source with a test part"):
        split(spec(split=SplitSettings(test_of_labels=True)), toy(BALANCED))


def test_one_example_is_trained_on(toy):
    parts = split(spec("iid", 4), toy([0, 1, 2, 3, 4]))  # one client has two
    assert sorted((len(part.train), len(part.validation), len(part.test)) for part in parts) == [
        *[(1, 0, 0)] * 3,
        (1, 0, 1),
    ]


def test_no_client_with_test_rows_is_refused(toy):
    with pytest.raises(DataError, match=r"partition: expected test examples for a client, .*, got none for any"):
        split(spec("iid", 5), toy([0, 1, 2, 3, 4]))


def test_people_without_test_rows_are_clients_without_them(toy):
    parts = split(spec("natural", 2), toy([0] * 20, [1] * 2, [1, 2] * 10 + [1, 1]))
    assert [len(part.test) for part in parts] == [2, 0]
    assert min(len(part.train) for part in parts) > 0


def test_labels_without_test_rows_leave_a_client_without_them(toy):
    parts = split(spec("pathological", 4, classes=1), toy([0, 1, 2, 3] * 10, [0, 1, 2]))
    assert sorted(len(part.test) for part in parts) == [0, 1, 1, 1]


def test_own_validation_rows_are_dealt_like_test_rows(toy):
    source = replace(toy(BALANCED[:300], BALANCED[:150]), validation_count=50)
    for part in split(spec("pathological", 5, classes=2), source):
        trained_labels = set(source.y[part.train])
        assert part.train.max() < 300 <= part.validation.min() <= part.validation.max() < 350 <= part.test.min()
        assert set(source.y[part.validation]) == set(source.y[part.test]) == trained_labels
    for part in split(spec(split=SplitSettings(test_fraction=0.25)), source):
        assert 300 <= part.validation.min() <= part.validation.max() < 350
        assert not (set(part.train) | set(part.test)) & set(range(300, 350))
    for part in split(spec(split=SplitSettings(validation=0.0)), source):
        assert len(part.validation) == 0
        assert not set(part.train) & set(range(300, 350))


@pytest.mark.parametrize(("name", "keys"), [("natural", {}), ("domain", {}), ("domain", {"within": "dirichlet"})])
def test_own_validation_and_test_rows_are_those_of_the_client_s_owner(toy, name, keys):
    owners = np.array(["a", "b", "c"])[np.random.default_rng(0).integers(0, 3, 450)]
    source = replace(toy(BALANCED[:300], BALANCED[:150], natural=owners), validation_count=50)
    clients = 3 if name == "natural" else 6
    for client, part in enumerate(split(spec(name, clients, min_examples=1, **keys), source)):
        assert [set(owners[rows]) for rows in part] == [{"abc"[client % 3]}] * 3


def test_own_validation_rows_are_as_many_for_each_with_iid_and_few_of_them_are_no_error(toy):
    source = replace(toy(BALANCED[:300], BALANCED[:150]), validation_count=50)
    assert {len(part.validation) for part in split(spec("iid", 5), source)} == {10}
    few = split(spec("iid", 5), replace(source, validation_count=3))
    assert sum(len(part.validation) for part in few) <= 3


def windows(people=3, seconds=40):
    """Overlapping windows of each person in the order of recording, six activities twice, as in HAR."""
    labels = np.repeat(np.tile(np.arange(6), 2), seconds)  # window k of a person has readings 64·k to 64·k + 127
    y = np.tile(labels, people)
    person = np.repeat(np.arange(people), len(labels))
    return Source(CATALOGUE["har"], np.zeros((len(y), 9, 128), np.float32), y, len(y), person)


def readings(rows):
    return {reading for row in rows for reading in range(64 * row, 64 * row + 128)}


def test_split_by_time_puts_no_reading_into_two_parts():
    """The last quarter of each label is the test part; a random split shares readings between the parts."""
    source = windows()
    keys = {"test_fraction": 0.25, "validation": 0.1}
    for by in ("time", "random"):
        for part in split(spec("natural", 3, split=SplitSettings(by=by, **keys)), source):
            sets = [readings(rows) for rows in part]
            shared = [bool(a & b) for a, b in ((sets[0], sets[1]), (sets[0], sets[2]), (sets[1], sets[2]))]
            assert shared == [by == "random"] * 3
            assert {int(label) for label in source.y[part.test]} == set(range(6))
            if by == "time":
                assert np.bincount(source.y[part.test]).tolist() == [20] * 6, "a quarter of 80"
                for label in range(6):
                    times = [rows[source.y[rows] == label] for rows in part]
                    assert times[0].max() < times[1].min() <= times[1].max() < times[2].min()


def test_split_by_time_loses_only_the_rows_beside_the_parts():
    """480 rows of a person: 120 are tests, in six runs with a row before each, and after all but the last."""
    parts = split(spec("natural", 3, split=SplitSettings(by="time", test_fraction=0.25, validation=0.0)), windows())
    assert [(len(part.train), len(part.test)) for part in parts] == [(480 - 120 - 11, 120)] * 3


def test_split_by_time_needs_a_test_part_of_its_own(toy):
    settings = SplitSettings(by="time")
    with pytest.raises(DataError, match=r"split.by: expected random where the source has a test part"):
        split(spec(clients=3, split=settings), toy(BALANCED, BALANCED[:200]))
    for part in split(spec(clients=300, split=settings), toy(BALANCED)):  # two examples each, neighbours or not
        assert len(part.train) >= 1
        assert len(part.train) + len(part.test) <= 2
