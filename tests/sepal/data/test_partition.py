"""Dealing: every rule is disjoint, deterministic, independent of the order of clients, and what its paper says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepal.config.data import PartitionSettings, SplitSettings
from sepal.data import federation, partition
from sepal.data.partition import Rule, deal, deal_by_person
from sepal.data.partitioners import LambdaMixPartitioner
from sepal.data.spec import DataSpec
from sepal.errors import DataError

COVERING = ("iid", "dirichlet", "lambda-mix")


def rule(name, clients, seed=0, part="all", **values):
    return Rule(PartitionSettings(name=name, **values), clients, seed, part)


def labels_of(seed, count, classes):
    return np.random.default_rng(seed).integers(0, classes, count)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["iid", "dirichlet", "lambda-mix", "pathological", "shards"]),
    clients=st.integers(1, 12),
    count=st.integers(100, 400),
    classes=st.integers(2, 10),
    seed=st.integers(0, 2**40),
    lambda_=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_each_example_at_most_once_every_client_some_all_covered(name, clients, count, classes, seed, lambda_):
    labels = labels_of(seed, count, classes)
    parts = deal(rule(name, clients, seed, alpha=1.0, lambda_=lambda_, min_examples=1), labels)
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) > 0
    assert len(np.unique(together)) == len(together)
    assert all((np.diff(part) > 0).all() for part in parts)
    if name in COVERING:
        assert sorted(together) == list(range(count))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**40), clients=st.integers(50, 70))
def test_two_class_covers_and_gives_each_client_two(seed, clients):
    labels = labels_of(seed, 2000, 10)
    parts = deal(rule("two-class", clients, seed), labels)
    assert sorted(np.concatenate(parts)) == list(range(2000))
    assert {len(np.unique(labels[part])) for part in parts} == {2}


@pytest.mark.parametrize("name", ["iid", "dirichlet", "lambda-mix", "pathological", "shards", "two-class"])
def test_same_seed_same_parts_other_seed_others(name):
    labels = labels_of(1, 3000, 10)
    first, again, other_seed = (deal(rule(name, 50, seed, min_examples=1), labels) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other_seed, strict=True))


def test_global_generators_are_left_alone():
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    deal(rule("dirichlet", 5), labels_of(0, 1000, 10))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in deal(rule("iid", 7), labels_of(0, 1000, 10))]
    assert max(sizes) - min(sizes) <= 1


def test_lambda_one_with_five_clients_gives_each_exactly_two_classes():
    """FedPSE C.1: ten balanced classes, sorted and cut into five chunks: classes 2i and 2i + 1 to client i."""
    labels = np.tile(np.arange(10), 60)
    parts = deal(rule("lambda-mix", 5, lambda_=1.0), labels)
    assert [sorted(set(labels[part])) for part in parts] == [[2 * i, 2 * i + 1] for i in range(5)]
    assert [len(part) for part in parts] == [120] * 5


def test_lambda_zero_is_spread_evenly_and_half_is_half_sorted():
    labels = np.repeat(np.arange(10), 600)
    even = deal(rule("lambda-mix", 5, lambda_=0.0), labels)
    assert all(80 <= count <= 160 for part in even for count in np.bincount(labels[part], minlength=10))
    half = np.bincount(labels[deal(rule("lambda-mix", 5, lambda_=0.5), labels)[0]], minlength=10)
    # Client 0 has half of classes 0 and 1 (the sorted half), and a tenth of every class (a fifth of the other half).
    assert half[:2].sum() > 600
    assert all(30 <= count <= 90 for count in half[2:])


def test_the_sorted_fraction_is_drawn_by_class():
    """λ = .5, 10 × 60 rows, N = 10: the sorted half has 30 rows of class i, which are all that client i has of them.

    Drawn from all rows, the half would have 30 ± 2.7 of a class, and chunks would end in the middle of another one.
    """
    labels = np.repeat(np.arange(10), 60)
    maker = LambdaMixPartitioner(10, "label", 0.5, 0)
    parts = maker._deal(labels)
    assert [sorted(labels[part[:30]]) for part in parts] == [[i] * 30 for i in range(10)]


def test_dirichlet_small_alpha_is_more_skewed_than_large():
    labels = np.repeat(np.arange(10), 600)

    def spread(alpha):
        parts = deal(rule("dirichlet", 10, alpha=alpha, min_examples=1), labels)
        return np.mean([np.bincount(labels[part], minlength=10).max() / len(part) for part in parts])

    assert spread(0.1) > 0.35 > 0.2 > spread(100.0)


def test_very_many_classes_are_drawn_for_less_often(monkeypatch):
    """A label that is different in each row: each draw gives the last client all of them, and takes seconds."""
    drawn = []
    monkeypatch.setattr(
        partition, "dirichlet_sizes", lambda rule, counts, draw: drawn.append(len(counts)) or np.zeros(2)
    )
    for classes in (20_000, 2_000_000):
        drawn.clear()
        with pytest.raises(DataError, match=r"partition\.min-examples: .*, got none in \d+ draws? of"):
            deal(rule("dirichlet", 2), np.arange(classes))
        assert drawn
        assert sum(drawn) <= max(1_000_000, classes)


def test_dirichlet_redraws_until_everybody_has_enough():
    labels = np.repeat(np.arange(10), 60)
    assert min(map(len, deal(rule("dirichlet", 10, alpha=0.3, min_examples=25), labels))) >= 25


@pytest.mark.parametrize("alpha", [0.01, 0.3, 10.0])
@pytest.mark.parametrize("clients", [1, 7])
def test_the_sizes_of_a_draw_are_those_that_it_would_deal(alpha, clients):
    labels = labels_of(3, 500, 6)
    dealt = rule("dirichlet", clients, seed=5, part="train", alpha=alpha)
    for draw in range(3):
        sizes = partition.dirichlet_sizes(dealt, np.unique(labels, return_counts=True)[1], draw)
        assert list(sizes) == list(map(len, partition._dealt(dealt, labels, draw)))


def test_nothing_is_dealt_before_every_client_has_enough(monkeypatch):
    """Dealing takes nearly all of the time: 200 draws of MNIST for a hundred clients took 75 seconds."""
    dealt = []
    monkeypatch.setattr(partition, "_dealt", lambda *arguments: dealt.append(arguments))
    with pytest.raises(DataError, match="got none in 200 draws"):
        deal(rule("dirichlet", 10, alpha=0.01), np.repeat(np.arange(4), 10))
    assert not dealt


def test_pathological_gives_the_number_of_classes_asked_for():
    labels = np.repeat(np.arange(10), 100)
    for classes in (1, 3):
        parts = deal(rule("pathological", 20, classes=classes), labels)
        assert {len(np.unique(labels[part])) for part in parts} == {classes}
        assert set(labels[np.concatenate(parts)]) == set(range(10))


def test_shards_of_the_papers_size():
    """Sub-FedAvg 4.1: two shards of 250 of 60,000 examples for each of 100 clients: 500 examples, few labels."""
    labels = np.repeat(np.arange(10), 600)
    parts = deal(rule("shards", 10, shards=2, shard_size=25), labels)
    assert {len(part) for part in parts} == {50}
    assert max(len(np.unique(labels[part])) for part in parts) <= 2


def test_two_class_quantities():
    """DM-PFL A.1.3: 90 % of the clients hold half of the examples."""
    sizes = np.sort([len(part) for part in deal(rule("two-class", 100), np.repeat(np.arange(10), 600))])
    assert sizes[:90].sum() == pytest.approx(3000, rel=0.02)
    assert len(set(sizes)) > 10


def test_natural_follows_the_people():
    people = np.array(["c", "a", "b", "a", "c", "b", "a"])
    parts = deal(rule("natural", 3, min_examples=2), np.zeros(7, dtype=np.int64), people)
    assert [part.tolist() for part in parts] == [[1, 3, 6], [2, 5], [0, 4]]


def test_natural_takes_a_seeded_choice_of_those_with_enough():
    people = np.repeat(np.arange(20), [3] * 10 + [12] * 10)
    parts = deal(rule("natural", 4, min_examples=10), np.zeros(150, dtype=np.int64), people)
    owners = [set(people[part]) for part in parts]
    assert all(len(owner) == 1 and min(owner) >= 10 for owner in owners)
    assert [len(part) for part in parts] == [12] * 4


def test_deal_by_person_leaves_a_person_without_rows_empty():
    parts = deal_by_person(np.array([5, 7]), np.array([7, 7, 9]))
    assert [part.tolist() for part in parts] == [[], [0, 1]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (rule("iid", 41), "clients: expected at most as many as examples"),
        (rule("natural", 3), "partition.name: expected a rule other than natural"),
        (rule("dirichlet", 10, alpha=0.01), "got none in 200 draws of Dir.0.01. with so many for each"),
        (rule("pathological", 5, classes=9), "partition.name: expected a rule that suits 5 clients"),
        (rule("shards", 5, shard_size=30), "partition.name: expected a rule that suits 5 clients"),
        (rule("two-class", 5), "clients: expected enough for two-class"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(DataError, match=message):
        deal(wrong, np.repeat(np.arange(4), 10))


def test_too_few_people():
    with pytest.raises(DataError, match="clients: expected 1 or less: there are 1 people with at least 10 examples"):
        deal(rule("natural", 2), np.zeros(12, dtype=np.int64), np.array([1] * 10 + [2] * 2))


def test_a_client_without_data_is_an_error(monkeypatch):
    monkeypatch.setattr("sepal.data.partition._dealt", lambda *_: [np.arange(4), np.arange(0)])
    with pytest.raises(DataError, match=r"partition: expected data for every client .*, got none for \[1\]"):
        deal(rule("iid", 2), np.zeros(4, dtype=np.int64))


def test_an_example_dealt_twice_is_an_error(monkeypatch):
    monkeypatch.setattr("sepal.data.partition._dealt", lambda *_: [np.array([0, 1]), np.array([1, 2])])
    with pytest.raises(DataError, match="each example with at most one client"):
        deal(rule("iid", 2), np.zeros(4, dtype=np.int64))


def test_a_partition_that_cannot_be_drawn_is_tried_once_for_all_clients(monkeypatch, tmp_path):
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path))
    drawn, sizes = [], partition.dirichlet_sizes
    monkeypatch.setattr(partition, "dirichlet_sizes", lambda *arguments: drawn.append(arguments) or sizes(*arguments))
    spec = DataSpec("digits", "", PartitionSettings(name="dirichlet", alpha=0.0001), SplitSettings(), clients=100)
    for client in range(3):
        with pytest.raises(DataError, match="none in 200 draws"):
            federation.client_data(spec, client)
    assert len(drawn) == 200
