"""The mechanism of central noise: what one client can change, what the noise follows from, and where the clip goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sepal.server.central_noise import CentralNoise, next_clip, on_grid

ONE = 2**40
CENTRAL = CentralNoise(clients=50, population=1000, noise=1.0, quantile=0.0, poisson=True, secret=b"s" * 32)
ADAPTIVE = replace(CENTRAL, quantile=0.5)


def updates(count=20, size=30, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=size).astype(np.float32), bool(number % 2)) for number in range(count)]


def summed(changes, central=CENTRAL, clip=1.0, size=30):
    return central.summed(changes, size, clip, "a model")


def length(entries):
    """The exact norm of integers, squared: Python's integers have no size."""
    return sum(int(entry) ** 2 for entry in entries)


@pytest.mark.parametrize("size", [1, 7, 100_003])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 3e5])
def test_no_update_is_longer_than_one_on_the_grid_however_it_was_sent(size, scale):
    """The norm in exact arithmetic: rounding of norm, factor or entries must not make it 1 + something."""
    change = (np.random.default_rng(size).normal(size=size) * scale).astype(np.float32)
    clip = float(np.linalg.norm(change.astype(np.float64))) / 3
    assert 0.999 * ONE**2 < length(on_grid(change, clip)) <= ONE**2


def test_an_update_within_the_clip_keeps_its_length():
    """(3, -4)/10 of norm ½ at C = 1: 0.3·2^40 and -0.4·2^40, towards 0, in float32 (0.3 is 0.30000001192…)."""
    entries = on_grid(np.array([0.3, -0.4], np.float32), 1.0)
    wanted = [int(np.float64(np.float32(value)) * ONE) for value in (0.3, -0.4)]
    assert np.abs(entries - wanted).max() <= 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_nothing(value):
    assert not on_grid(np.array([1.0, value], np.float32), 1.0).any()


def test_removing_a_client_changes_the_sum_by_its_clipped_update_exactly():
    changes = updates()
    without = summed(changes[:7] + changes[8:])
    difference = summed(changes).entries - without.entries
    assert (difference == on_grid(changes[7][0], 1.0)).all()
    assert length(difference) <= ONE**2


def test_the_order_of_updates_changes_no_bit():
    assert summed(updates()).digest() == summed(updates()[::-1]).digest()


def test_the_same_sum_has_the_same_noise_and_any_other_has_other_noise():
    """Of what a release depends on, one thing is changed at a time: the noise of no entry stays."""
    total = summed(updates())

    def noise(central=CENTRAL, part=total, clip=1.0, round=3):
        mean, _ = central.released(part, clip, round)
        return np.rint(mean * ONE * central.clients / clip) - part.entries

    first = noise()
    assert (noise() == first).all()
    one_step = replace(total, entries=total.entries + (np.arange(30) == 4))
    others = [
        noise(part=one_step),
        noise(part=replace(total, of="another model")),
        noise(round=4),
        noise(clip=2.0),
        noise(central=replace(CENTRAL, secret=b"t" * 32)),
        noise(central=replace(CENTRAL, noise=1.5)) / 1.5,
    ]
    assert all((np.abs(other - first) > 1e3).all() for other in others)


def test_the_noise_on_the_sum_has_standard_deviation_z_times_c():
    """σ = 1.5·0.2 over 100,000 entries: the estimate is off by 0.2 % (1/√(2d)), so 1 % is 4.5 of that."""
    central = replace(CENTRAL, noise=1.5)
    total = central.summed([], 100_000, 0.2, "")
    mean, _ = central.released(total, 0.2, 1)
    assert np.std(mean * central.clients) == pytest.approx(0.3, rel=0.01)
    assert abs(np.mean(mean * central.clients)) < 0.005


def test_a_mean_has_a_fixed_divisor_whoever_came():
    one = [(np.eye(1, 30, dtype=np.float32)[0], True)]
    quiet = replace(CENTRAL, noise=1e-9)
    assert quiet.released(summed(one * 10, quiet), 1.0, 1)[0][0] == pytest.approx(10 / 50, rel=1e-6)


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_the_clip_finds_the_median_from_below_and_from_above(start):
    """100 clients with norms around 1, log-normal: the median is 1. 25 factors of e^0.1 lead from .1 or 10 to there."""
    norms = np.exp(np.random.default_rng(1).normal(size=100) * 0.5)
    norms /= np.median(norms)
    central = replace(ADAPTIVE, clients=100)
    clip, seen = start, []
    for round in range(1, 81):
        total = central.summed(((np.zeros(1, np.float32), norm <= clip) for norm in norms), 1, clip, "")
        clip = central.released(total, clip, round)[1]
        seen.append(clip)
    assert 0.85 < np.exp(np.mean(np.log(seen[-30:]))) < 1.15


def test_the_clip_falls_when_most_updates_are_within_it():
    """All within C and γ = ½: e^(-0.2·½). None: e^(0.2·½). The sign is the point: the other one runs away."""
    assert next_clip(2.0, 1.0, 0.5) == pytest.approx(2 * np.exp(-0.1))
    assert next_clip(2.0, 0.0, 0.5) == pytest.approx(2 * np.exp(0.1))
    assert next_clip(2.0, 0.9, 0.9) == 2.0


def test_the_bits_have_noise_of_their_own():
    """σ_b = 50/20. The clip after 400 rounds of bits that are the same tells: the noise moves it."""
    total = summed(updates(), ADAPTIVE)
    clips = np.array([ADAPTIVE.released(total, 1.0, round)[1] for round in range(400)])
    shares = 0.5 - np.log(clips) / 0.2
    assert np.std(shares * 50) == pytest.approx(2.5, rel=0.15)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.01)


def test_a_draw_takes_each_client_by_itself():
    """1,000 clients with probability .05 over 200 rounds: 50 a round with variance 47.5, so 50 ± 2 over them all."""
    names = [f"c{number}" for number in range(1000)]
    drawn = [CENTRAL.drawn(names, round) for round in range(200)]
    sizes = np.array([len(part) for part in drawn])
    assert abs(sizes.mean() - 50) < 2
    assert np.var(sizes) == pytest.approx(47.5, rel=0.4)
    assert CENTRAL.drawn(names, 3) == drawn[3]
    assert CENTRAL.drawn(names[:500], 3) == [name for name in drawn[3] if int(name[1:]) < 500]
    assert replace(CENTRAL, secret=b"t" * 32).drawn(names, 3) != drawn[3]


def test_what_stands_for_a_release_confirms_no_guess_of_its_sum():
    total = summed(updates())
    assert CENTRAL.name(total, 1.0, 3) == CENTRAL.name(total, 1.0, 3)
    assert CENTRAL.name(total, 1.0, 3) != replace(CENTRAL, secret=b"t" * 32).name(total, 1.0, 3)
