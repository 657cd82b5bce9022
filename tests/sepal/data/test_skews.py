"""Quantity skew, the extended Dirichlet, domains and feature noise: what their papers say, and their limit cases."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.config import PartitionSettings, RunConfig, SplitSettings
from sepal.data import DataSpec, client_data, pooled_test
from sepal.data.feature_noise import noise_level
from sepal.data.federation import DealtData, _entry, federated_data
from sepal.data.partition import Rule, deal, dirichlet_sizes, quantity_shares, quantity_sizes
from sepal.data.partitioners import ExtendedDirichletPartitioner
from sepal.errors import DataError

LABELS = np.repeat(np.arange(10), 600)  # n = 6,000, L = 10


def rule(name, clients=10, seed=0, **values):
    return Rule(PartitionSettings(name=name, **values), clients, seed)


def counts(parts, labels=LABELS):
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


@pytest.mark.parametrize(
    ("name", "people"),
    [("quantity-skew", None), ("extended-dirichlet", None), ("domain", np.arange(6000) * 7 % 3)],
)
def test_each_example_goes_to_one_client_by_the_seed_alone(name, people):
    first, again, other = (deal(rule(name, seed=seed), LABELS, people) for seed in (1, 1, 2))
    assert sorted(np.concatenate(first)) == list(range(6000))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


# Quantity skew


@pytest.mark.parametrize(
    ("beta", "spread", "median"), [(0.1, 0.212, 0.66), (0.5, 0.122, 0.36), (1.0, 0.090, 0.28), (5.0, 0.042, 0.17)]
)
def test_shares_have_the_law_of_the_symmetric_dirichlet(beta, spread, median):
    """A share of Dir_N(β) has mean 1/N and variance (1/N)(1 - 1/N)/(Nβ + 1), here with N = 10.

    β = .5: √(.1 · .9 / 6) = .1225. The median of the largest share is simulated (ground-truth page on splits).
    """
    assert spread == pytest.approx(np.sqrt(0.1 * 0.9 / (10 * beta + 1)), abs=5e-4)
    shares = np.array([quantity_shares(rule("quantity-skew", seed=seed, beta=beta)) for seed in range(1500)])
    assert shares.mean(axis=0) == pytest.approx([0.1] * 10, abs=5 * spread / np.sqrt(1500))
    assert shares.std() == pytest.approx(spread, rel=0.05)
    assert np.median(shares.max(axis=1)) == pytest.approx(median, abs=0.02)


def test_the_papers_redraws_would_discard_most_draws_and_a_floor_discards_none():
    """Fewer than ten of n = 6,000 examples for a client: 64 % of the draws at β = .5, nearly all at β = .1."""
    for beta, share in ((0.5, 0.64), (0.1, 1.0)):
        rules = [rule("quantity-skew", seed=seed, beta=beta) for seed in range(600)]
        few = [6000 * quantity_shares(drawn).min() < 10 for drawn in rules]
        assert np.mean(few) == pytest.approx(share, abs=0.06)
        assert all(quantity_sizes(drawn, 6000).min() >= 10 for drawn in rules[:50])


def test_a_floor_and_the_rest_by_shares():
    """m = 100 each of n = 6,000: client i has 100 + q_i · 5,000, rounded by largest remainder."""
    drawn = rule("quantity-skew", min_examples=100, seed=4)
    sizes = quantity_sizes(drawn, 6000)
    assert sizes.sum() == 6000
    assert np.abs(sizes - (100 + 5000 * quantity_shares(drawn))).max() < 1


def test_a_large_beta_gives_equal_sizes_and_classes_as_in_the_whole():
    """β = 10⁶, n = 1,000, N = 10: the sd of a size is 1,000 · √(.09/10⁷) = .095, so rounding gives 100 or 1 off it."""
    parts = deal(rule("quantity-skew", beta=1e6), LABELS[::6])
    assert {len(part) for part in parts} <= {99, 100, 101}
    skewed = counts(deal(rule("quantity-skew", beta=0.5, min_examples=300), LABELS))
    shares = skewed / skewed.sum(axis=1, keepdims=True)
    assert np.abs(shares - 0.1).max() < 5 * np.sqrt(0.09 / 300)  # 300 examples drawn at random have sd .017
    assert skewed.sum(axis=1).max() > 2 * skewed.sum(axis=1).min()


# Extended Dirichlet


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_a_client_has_the_classes_that_it_owns_and_no_other(classes):
    parts = deal(rule("extended-dirichlet", 30, classes=classes, alpha=10.0), LABELS)
    assert (counts(parts) > 0).sum(axis=1).max() == classes
    assert min(map(len, parts)) >= 10


def test_each_class_has_enough_owners():
    """max(⌊C·N/L⌋ // 5, 1): 2 · 100 / 10 = 20, a fifth is 4."""
    for seed in range(30):
        owned = ExtendedDirichletPartitioner(100, "label", 2, 1.0, 1, seed)._owners(10)
        assert (owned.sum(axis=1) == 2).all()
        assert owned.sum(axis=0).min() >= 4


def test_rare_draws_of_classes_are_waited_for_and_impossible_ones_refused_at_once():
    """C = 1, N = L = 10: a draw is a permutation with p = 10!/10¹⁰ = 3.6e-4, so 1,000 draws have one in 30 %."""
    for seed in range(3):
        owned = ExtendedDirichletPartitioner(10, "label", 1, 1.0, 1, seed)._owners(10)
        assert owned.sum(axis=0).tolist() == [1] * 10
    with pytest.raises(DataError, match=r"clients with 1 classes each .*, got 9 owners in all"):
        ExtendedDirichletPartitioner(9, "label", 1, 1.0, 1, 0)._owners(10)


def test_a_floor_that_the_examples_cannot_fill_is_refused_without_a_draw(monkeypatch):
    maker = ExtendedDirichletPartitioner(10, "label", 10, 1.0, 601, 0)
    monkeypatch.setattr(maker, "_rng", None)
    with pytest.raises(DataError, match=r"partition.min-examples: expected 6000 examples .*, got 6010 that they need"):
        maker._counts(np.ones((10, 10), bool), np.full(10, 600))


def test_a_large_alpha_gives_the_owners_of_a_class_equal_shares():
    """α → ∞ is #C=k; with one class each, nobody has examples before its class is dealt, so nobody is left out."""
    dealt = counts(deal(rule("extended-dirichlet", 30, classes=1, alpha=1e6), LABELS))
    for column in dealt.T:
        assert np.ptp(column[column > 0]) <= 4  # 600 / owners, each to sd 600 · √(1/4 · 1/(2·10⁶)) = .2, and rounding


def test_all_classes_are_the_balanced_dirichlet():
    """C = L: nobody begins a class with n/N examples or more, so nobody has more than n/N and one class: 600 + 600."""
    every_class, of_each = np.ones((10, 10), bool), np.full(10, 600)
    balanced = [ExtendedDirichletPartitioner(10, "label", 10, 0.3, 1, seed) for seed in range(50)]
    sizes = np.array([maker._counts(every_class, of_each).sum(axis=1) for maker in balanced])
    plain = np.array([dirichlet_sizes(rule("dirichlet", seed=seed), of_each, 0) for seed in range(50)])
    assert sizes.max() < 1200
    assert sizes.std() < 0.8 * plain.std()


def test_a_class_whose_owners_are_all_full_is_dealt_by_shares_alone():
    """Four classes of 60, 60, 60, 220 examples, N = 4, n/N = 100: owner 0 has class 3 alone, and begins it with 180."""
    maker = ExtendedDirichletPartitioner(4, "label", 2, 1.0, 1, 0)
    owned = np.zeros((4, 4), bool)
    owned[0, [0, 1, 3]], owned[1, 2], owned[2, 2], owned[3, 2] = True, True, True, True
    table = maker._counts(owned, np.array([60, 60, 60, 220]))
    assert table[0].tolist() == [60, 60, 0, 220]
    assert table.sum(axis=0).tolist() == [60, 60, 60, 220]


# Domains


@pytest.mark.parametrize("within", ["iid", "dirichlet"])
def test_each_client_has_one_domain_and_clients_take_turns(within):
    domains = np.array(["mnist", "svhn", "usps"])[np.arange(6000) % 3]
    parts = deal(rule("domain", 7, within=within), LABELS, domains)
    assert [set(domains[part]) for part in parts] == [{name} for name in ("mnist", "svhn", "usps") * 2 + ("mnist",)]
    assert sorted(np.concatenate(parts)) == list(range(6000))


# Feature noise


def noisy(noise=0.1, clients=4, **keys):
    split = SplitSettings(**keys)
    return DataSpec("digits", partition=PartitionSettings(name="iid", noise=noise), split=split, clients=clients)


def test_levels_are_those_of_the_paper():
    """σ · i/N, i = 1 … N, for σ = .1 and N = 10: .01 … .1; the authors' code has 0, .0111 … .1."""
    levels = [noise_level(0.1, client, 10) for client in range(10)]
    assert levels == pytest.approx([0.01 * i for i in range(1, 11)])


def test_each_client_has_noise_of_its_strength_on_all_parts_and_on_pixels_of_which_white_is_one():
    for client in range(4):
        plain, changed = (client_data(noisy(noise), client) for noise in (0.0, 0.1))
        for part in ("train", "validation", "test"):
            before, after = getattr(plain, part), getattr(changed, part)
            assert np.array_equal(before.y, after.y)
            difference = 0.3760 * (after.x - before.x)  # digits are divided by .376 after the pixels are in [0, 1]
            assert difference.std() == pytest.approx(0.1 * (client + 1) / 4, rel=0.1)
            assert abs(difference.mean()) < 5 * difference.std() / np.sqrt(difference.size)


def test_no_noise_changes_nothing_and_the_same_noise_comes_again():
    none, some, again = (client_data(noisy(noise), 2).train.x for noise in (0.0, 0.1, 0.1))
    default = DataSpec("digits", partition=PartitionSettings(name="iid"), clients=4)
    assert np.array_equal(none, client_data(default, 2).train.x)
    assert np.array_equal(some, again)
    assert some.dtype == np.float32


def test_parts_do_not_depend_on_the_noise_and_are_dealt_once():
    assert _entry(noisy(0.1), "state") == _entry(noisy(0.0), "state") != _entry(noisy(clients=3), "state")


def test_pooled_test_examples_have_their_clients_noise():
    """With all test rows for each client, which all have all classes, an example has the noise of client 0."""
    pooled = {row.tobytes() for row in pooled_test(noisy()).x}
    assert pooled == {row.tobytes() for client in range(4) for row in client_data(noisy(), client).test.x}
    shared = noisy(test_of_labels=True)
    assert np.array_equal(pooled_test(shared).x, client_data(shared, 0).test.x)
    assert np.array_equal(pooled_test(shared, 20).x, pooled_test(shared).x[_places(shared, 20)])


def _places(spec, count):
    whole = [row.tobytes() for row in pooled_test(spec).x]
    return [whole.index(row.tobytes()) for row in pooled_test(spec, count).x]


def test_noise_of_a_table_is_on_numbers_in_their_spread_and_not_on_categories(tmp_path):
    """`big` is 1,000 times `small`, and so is its noise; `site` is a category; a missing cell stays missing."""
    rng = np.random.default_rng(0)
    rows = [f"{x:.3f},{1000 * x:.1f},{'ab'[n % 2]},{n % 2}" for n, x in enumerate(rng.normal(size=400))]
    rows[7] = ",5,a,1"
    (tmp_path / "t.csv").write_text("\n".join(["small,big,site,label", *rows]))
    keys = {"dataset": "folder", "data-dir": str(tmp_path), "folder": {"missing": "mean"}}
    parts = []
    for noise in (0.0, 1.0):
        data = federated_data(RunConfig.model_validate({**keys, "partition": {"name": "iid", "noise": noise}}))
        assert isinstance(data, DealtData)
        parts.append(data.raw(0, 2).train.x)
    difference = parts[1] - parts[0]
    assert (difference[:, 2:] == 0).all()
    assert np.isnan(parts[1]).sum() == np.isnan(parts[0]).sum()
    spread = np.nanstd(difference[:, :2], axis=0)
    assert spread[1] / spread[0] == pytest.approx(1000, rel=0.2)
    assert spread[0] == pytest.approx(0.5, rel=0.2)  # client 1 of 2, and `small` has a standard deviation of 1
