"""Shares of noise: their numbers, the sampler, rounding within its bound, and rounds whose sums have them."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from sepal.errors import ProtocolError
from sepal.secure import noise
from sepal.secure.client import _packed, _Session, _unpacked
from sepal.secure.formats import Terms
from sepal.secure.noise import Shares, discrete_gaussian, inverted, noised
from sepal.secure.ring import Ring
from tests.sepal.secure.rounds import KEYS, MASK, SHARE, UNMASK, Round

SECRET = bytes(range(32))


def secret(number):
    return number.to_bytes(32, "little")


# The numbers of a share


def test_the_example_of_the_page():
    """n = 4, c = 1: t = ⌊8/3⌋ + 1 = 3, h = max(3, 3) - 1 = 2; d = 16, z = 1: r = max(256, 4·4, ⌈4·1.41⌉).

    D = 256² + 16/4 + 256 + 4/2 = 65798, σ² = D/2 = 32899, σ = 181.38, T = ⌈17·181.38⌉ = ⌈3083.5⌉.
    """
    shares = Shares(0.5, 1.0, 16, 4, 1)
    assert (shares.honest, shares.steps, shares.most_squared) == (2, 256, 65798)
    assert (shares.variance, shares.largest) == (32899, 3084)
    assert shares.step == 0.5 / 256
    assert shares.refused(16) is None


def test_the_example_of_the_paper_s_size():
    """n = 50, d = 2^20: r = 4·2^10; D = 4096² + 2^18 + 4096 + 2^9 is 4128.4² (the reference's 4128.434086)."""
    shares = Shares(1.0, 1.0, 2**20, 50, 1)
    assert shares.steps == 4096
    assert math.sqrt(shares.most_squared) == pytest.approx(4128.434086, abs=1e-6)
    assert shares.honest == 33  # t = 34
    assert float(shares.variance) == pytest.approx(4128.434086**2 / 33, rel=1e-9)


GRID = [
    Shares(0.3, z, d, n, c)
    for z in (0.01, 0.3, 1.0, 7.0)
    for d in (1, 16, 2410, 10**6)
    for n in (3, 4, 5, 10, 101)
    for c in (0, 1, n - 2)
]


@pytest.mark.parametrize("shares", GRID[::3])
def test_the_fewest_honest_clients_have_the_noise_of_the_keys(shares):
    """With any number that makes no round void, less the colluders; a share has at least four steps."""
    z, d, n, c = shares.multiplier, shares.entries, shares.clients, shares.colluders
    fewest = max(max(2 * n // 3, c) + 1, c + 2)
    assert (fewest - c) * shares.variance == Fraction(z) ** 2 * shares.most_squared
    assert shares.variance >= 16
    r = shares.steps
    assert shares.most_squared >= r * r + d / 4 + r + math.sqrt(d) / 2  # √(2·ln(1/β)) = 1
    assert math.sqrt(shares.most_squared) < 1.01 * r


@pytest.mark.parametrize("bits", [16, 32])
def test_no_sum_that_is_not_refused_can_wrap(bits):
    """Not even if all of the clients have their whole change, and the largest share, in one entry."""
    possible = [shares for shares in GRID if not shares.refused(bits)]
    assert len(possible) > 10
    for shares in possible:
        assert shares.clients * (shares.steps + shares.largest) < 2 ** (bits - 1)


@pytest.mark.parametrize(
    ("shares", "bits", "why"),
    [
        (Shares(1.0, 1.0, 10**6, 50, 1), 16, "secure-bits: expected 32: a sum with its noise could wrap"),
        (Shares(1.0, 100.0, 10**6, 5, 1), 32, r"privacy.noise: expected at most 28\.15 with 1000000 entries and 5"),
        (Shares(1.0, 1e-8, 10, 5, 1), 32, "privacy.noise: expected a multiplier with which no sum of 32 bits can wrap"),
    ],
)
def test_what_is_impossible_is_refused_in_a_line(shares, bits, why):
    with pytest.raises(ProtocolError, match=why):
        shares.check(bits)


# The sampler


def test_the_table_is_that_of_the_distribution():
    """σ² = ½: P[k] ∝ e^(-k²). 1 + 2·(e^-1 + e^-4 + e^-9 + …) = 1.772637, so P[0] = .564131."""
    variance = Fraction(1, 2)
    boundaries = list(noise._boundaries(variance))
    reach = len(boundaries) // 2
    assert reach == 13  # ⌈17·.7071⌉
    assert (boundaries[reach] - boundaries[reach - 1]) / 2**192 == pytest.approx(0.564131, abs=1e-6)
    with localcontext() as context:
        context.prec = 120
        weights = [Decimal(-k * k).exp() for k in range(-reach, reach + 1)]
        for j in range(2 * reach):
            exact = sum(weights[: j + 1]) / sum(weights) * 2**192
            assert abs(boundaries[j] - exact) <= 2


@pytest.mark.parametrize("variance", [Fraction(16), Fraction(5506), Fraction(3, 7) * 10**6])
def test_weights_do_not_drift_along_a_long_table(variance):
    weights = noise._weights(variance)
    assert len(weights) == noise._reach(variance) + 1
    with localcontext() as context:
        context.prec = 150
        for k in (1, len(weights) // 2, len(weights) - 1):
            exact = (Decimal(-k * k) * variance.denominator / (2 * variance.numerator)).exp() * 2**320
            assert abs(weights[k] - exact) < 2**70
    assert weights[-1] < 2 ** (320 - 200)  # what lies beyond


def test_a_number_that_64_bits_do_not_decide_is_decided_by_128_more():
    variance = Fraction(1, 2)
    boundaries = list(noise._boundaries(variance))
    middle = boundaries[len(boundaries) // 2]  # up to which there are -13 … 0
    words = np.array([middle >> 128] * 2 + [(middle >> 128) - 1, (middle >> 128) + 1, 0, 2**64 - 1], np.uint64)
    low = middle % 2**128
    asked = []

    def more(place):
        asked.append(place)
        return [low - 1, low, None, None, 2**127, 0][place].to_bytes(16, "little")

    drawn = inverted(variance, words, more).tolist()
    assert drawn[:4] == [0, 1, 0, 1]
    assert asked == [0, 1, 4, 5]  # also the ends, where many boundaries have the same 64 bits
    assert drawn[4] < -5
    assert drawn[5] > 5


def test_draws_have_the_distribution():
    """χ² over -3 … 3 and the rest, 7 degrees of freedom, of 100,000 draws from one secret: above 40 with 1e-6."""
    drawn = discrete_gaussian(Fraction(2), 100_000, SECRET)
    weights = {k: math.exp(-k * k / 4) for k in range(-30, 31)}
    expected = {k: 100_000 * weights[k] / sum(weights.values()) for k in range(-3, 4)}
    counts = {k: int((drawn == k).sum()) for k in expected}
    terms = [(counts[k] - expected[k]) ** 2 / expected[k] for k in expected]
    rest = 100_000 - sum(expected.values())
    terms.append((100_000 - sum(counts.values()) - rest) ** 2 / rest)
    assert sum(terms) < 40


def test_the_sum_of_the_fewest_honest_shares_has_the_variance_of_the_keys():
    """Of 100,000 entries of 3 shares: a variance is off by √(2/100,000) = .45 %, so 2 % is more than 4 deviations."""
    shares = Shares(1.0, 1.5, 100_000, 5, 1)
    zero = np.zeros(100_000, np.float32)
    total = sum(noised(zero, shares, secret(number), b"") for number in range(shares.honest))
    assert total.var() == pytest.approx(1.5**2 * shares.most_squared, rel=0.02)
    assert abs(total.mean()) < 4.5 * math.sqrt(1.5**2 * shares.most_squared / 100_000)


def test_draws_are_those_of_the_secret_and_of_what_they_are_for():
    variance = Fraction(5506)
    drawn = discrete_gaussian(variance, 5, SECRET, b"sum")
    assert drawn.tolist() == [42, -18, 104, 90, 86]
    assert discrete_gaussian(variance, 9, SECRET, b"sum")[:5].tolist() == drawn.tolist()
    for other in (discrete_gaussian(variance, 5, secret(1), b"sum"), discrete_gaussian(variance, 5, SECRET, b"mus")):
        assert (other != drawn).all()


# Clipping and rounding


def squared(steps):
    return sum(int(step) ** 2 for step in steps)


def steps_of(change, shares, key=SECRET):
    return noise._rounded(np.asarray(change, np.float32), shares, key, b"")


def test_a_rounded_change_is_within_the_bound_though_a_first_attempt_often_is_not(monkeypatch):
    """1,024 entries of about 7½ and 8½ steps: E‖x‖² = Σ(y² + ¼), and D has one standard deviation to spare."""
    shares = Shares(1.0, 1.0, 1024, 5, 1)
    change = np.where(np.arange(1024) % 2, 7.5, 8.5).astype(np.float32)
    lengths = [squared(steps_of(change, shares, secret(number))) for number in range(60)]
    assert max(lengths) <= shares.most_squared
    assert max(lengths) > shares.steps**2  # the sensitivity has grown, and noise is of the grown one
    tries = []
    monkeypatch.setattr(noise, "packed", lambda attempt: tries.append(attempt) or attempt.to_bytes(4, "little"))
    for number in range(60):
        steps_of(change, shares, secret(number))
    assert tries.count(0) == 60
    assert 0 < tries.count(1) < 40


def test_where_no_attempt_succeeds_fractions_are_left_out(monkeypatch):
    monkeypatch.setattr(noise, "ATTEMPTS", 0)
    shares = Shares(1.0, 1.0, 4, 5, 1)
    assert steps_of([0.51, -0.51, 0.0, 0.003], shares).tolist() == [130, -130, 0, 0]  # of 256


@pytest.mark.parametrize("size", [1.01, 1e3, 1e30])
def test_a_change_of_any_size_is_clipped(size):
    shares = Shares(0.25, 1.0, 1000, 5, 1)
    change = np.zeros(1000, np.float32)
    change[:4] = np.array([1, -1, 1, -1]) * 0.125 * size
    steps = steps_of(change, shares)
    assert np.abs(np.abs(steps[:4]) - shares.steps / 2).max() <= 1
    assert squared(steps) <= shares.most_squared
    assert not steps[4:].any()


@pytest.mark.parametrize("entry", [float("nan"), float("inf"), -float("inf")])
def test_a_change_that_is_no_number_is_none(entry):
    assert not steps_of([1.0, entry, 0.0], Shares(1.0, 1.0, 3, 5, 1)).any()


def test_rounding_is_unbiased_where_the_clip_is_far():
    """Mean of 40,000 times ⌊.3 + u⌋, whose standard deviation is .0023."""
    shares = Shares(1.0, 1.0, 40_000, 5, 1)
    steps = steps_of(np.full(40_000, 0.3 * shares.step), shares)
    assert set(steps.tolist()) == {0, 1}
    assert abs(steps.mean() - 0.3) < 0.012


# Rounds

NAMES = [f"client-{number}" for number in range(7)]
CHANGES = {name: np.linspace(-0.2, 0.1, 3) * number for number, name in enumerate(NAMES)}
SECRETS = {name: secret(number) for number, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    "lost",
    [{}, *({NAMES[3]: step} for step in (KEYS, SHARE, MASK, UNMASK)), {NAMES[0]: SHARE, NAMES[6]: MASK}],
)
def test_a_sum_has_the_changes_and_shares_of_those_in_it_and_nothing_else(lost):
    round = Round(CHANGES, clip=0.25, noise=0.5, colluders=1, noise_secrets=SECRETS)
    vector, names = round.run(lost)
    asked = 7 - list(lost.values()).count(KEYS)
    shares, bound = Shares(0.25, 0.5, 3, asked, 1), asked.to_bytes(4, "little")
    expected = sum(
        noised(CHANGES[name].astype(np.float32), shares, SECRETS[name], bound + round.opening(name).commitment)
        for name in names
    )
    assert Ring(3, 32).centred(vector)[0].tolist() == expected.tolist()


def test_a_clients_own_secret_is_new_in_each_round_and_erased_with_the_masked_input():
    round = Round(CHANGES, clip=0.25, noise=0.5)
    round.run()
    for name in NAMES:
        kept = {_unpacked(data.partition(b"\n")[2]).noise_secret for data in round.vaults[name].written}
        (own,) = kept - {b""}
        assert len(own) == 32
        assert own not in round.vaults[name].data
    again = Round(CHANGES, clip=0.25, noise=0.5)
    again.run()
    assert round.vaults[NAMES[0]].written[0] != again.vaults[NAMES[0]].written[0]


def test_a_vault_that_was_put_back_gives_another_sum_other_noise():
    """With the same secret and as many clients. Had the noise followed from these, it would be that of another sum."""
    vectors = []
    for _ in range(2):
        round = Round(CHANGES, clip=0.25, noise=0.5)
        members = round.members()
        session = _unpacked(round.vaults[NAMES[0]].data.partition(b"\n")[2])
        others = {number: member.public for number, member in enumerate(members.members) if number}
        same = replace(session, noise_secret=SECRET, others=others, total=float(len(members.members)))
        vectors.append(round.client(NAMES[0])._vector(same))
    first, second = (Ring(3, 32).centred(vector)[0] for vector in vectors)
    assert (first != second).all()


@pytest.mark.parametrize("told", [{"clip": 0.5}, {"noise": 0.1}, {"noise": 0.0, "clip": 0.0}])
def test_a_client_that_was_told_another_clip_or_noise_is_in_no_sum(told):
    class Misled(Round):
        def opening(self, name, **changes):
            return super().opening(name, **(told if name == NAMES[2] else {}), **changes)

    round = Misled(CHANGES, clip=0.25, noise=0.5)
    members = round.members()
    ciphertexts = round.shared(members)
    with pytest.raises(ProtocolError, match="shares of clients that were told the same of this round"):
        round.client(NAMES[2]).answer("mask", 1, members.mask_question(2, ciphertexts), {})


def test_without_noise_a_sum_is_about_what_it_was_before_there_was_noise():
    """The digest of a release without the two fields: the client of one can be in a sum with that of another."""
    terms, keys = Terms("run", 1, "model", 32, 1.0, 3, 0, 7.0, 1), {0: b"k" * 64}
    roster = hashlib.sha256(bytes(4) + b"k" * 64).hexdigest()
    text = (
        f'{{"bits":32,"colluders":1,"entries":3,"figures":0,"keys":"{roster}","model":"model","range":1.0,'
        '"round":1,"run":"run","total":7.0}'
    )
    assert terms.context(keys) == hashlib.sha256(text.encode()).digest()
    assert replace(terms, clip=1.0, noise=1.0).context(keys) != terms.context(keys)


def test_a_vault_of_a_release_that_knew_no_noise_can_be_read():
    line, _, rest = _packed(_Session(round=3, b=b"b" * 32)).partition(b"\n")
    head = {key: value for key, value in json.loads(line).items() if "noise" not in key and key != "clip"}
    del head["repeatable"]
    assert _unpacked(json.dumps(head).encode() + b"\n" + rest) == _Session(round=3, b=b"b" * 32)


def test_a_round_whose_sum_could_wrap_is_refused_by_its_clients():
    round = Round({name: np.zeros(5000) for name in NAMES}, bits=16, clip=0.25, noise=9.0)
    members = round.members()
    with pytest.raises(ProtocolError, match="secure-bits: expected 32: a sum with its noise could wrap"):
        round.shared(members)
