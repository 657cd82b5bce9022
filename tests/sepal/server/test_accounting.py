"""ε of noise on sums: the worked rows of n = 1000 clients, 50 a round, 200 rounds, δ = 1000^-1.1."""

from __future__ import annotations

import math

import pytest

dp_accounting = pytest.importorskip("dp_accounting")

from sepal.config import PrivacySettings, RunConfig  # noqa: E402
from sepal.errors import ConfigError  # noqa: E402
from sepal.secure.noise import Shares  # noqa: E402
from sepal.server import accounting  # noqa: E402
from sepal.server.accounting import Spent, epsilon_after, exceeds_budget, without_amplification  # noqa: E402
from sepal.server.central_noise import CentralNoise  # noqa: E402

DELTA = 1000**-1.1
# z: RDP and PLD with the draw; without amplification a client in 10 and in 200 rounds. Computed with dp-accounting
# 0.6.0 for q = 0.05; the last two by its PLD accountant, of which the exact value differs by its discretisation.
ROWS = {
    0.5: (22.162650782341128, 18.555783836290193, 40.0043470600278, 492.1055944429726),
    1.0: (4.014266279376008, 3.422840755073854, 14.722347148858885, 145.62751669179494),
    2.0: (1.2710646727215922, 1.102531334808793, 5.915669308561676, 47.444025246678976),
}


def config(**keys):
    plain = {"mode": "central", "sampling": "poisson", "clip": 1.0, "noise": 1.0, "delta": DELTA}
    privacy = PrivacySettings(**{**plain, **keys})
    secure = "sum" if privacy.distributed else "off"
    return RunConfig(clients=1000, clients_per_round=50, rounds=200, privacy=privacy, secure=secure)


def after(rounds, client=0):
    return Spent({1: rounds}, {"a": client})


@pytest.mark.parametrize("noise", ROWS)
def test_the_worked_rows(noise):
    rdp, pld, ten, all_rounds = ROWS[noise]
    keys = config(noise=noise)
    assert epsilon_after(keys, after(200))["epsilon"] == pytest.approx(rdp, rel=1e-6)
    assert epsilon_after(keys, after(200), tight=True)["epsilon"] == pytest.approx(pld, rel=1e-3)
    assert without_amplification(noise, 10, DELTA) == pytest.approx(ten, rel=1e-3)
    assert without_amplification(noise, 200, DELTA) == pytest.approx(all_rounds, rel=1e-3)


def test_a_gaussian_release_is_charged_by_the_exact_curve():
    """δ(ε) = Φ(1/2z - εz) - e^ε·Φ(-1/2z - εz) (Balle and Wang 2018, Theorem 8): 9 releases at 2 are one at 2/√9."""
    epsilon, z = without_amplification(2.0, 9, 1e-5), 2 / 3
    normal = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    delta = normal(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * normal(-1 / (2 * z) - epsilon * z)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_draws_of_a_fixed_size_are_not_taken_as_amplification_and_the_librarys_way_has_a_trap():
    """Of its `SampledWithoutReplacement`, z is noise over the sensitivity of the function. For replacing a client that
    is 2C, not C, so z = 1 is to be passed as ½: 54.49, and not 7.32, which looks like the ε of the keys.
    """
    from dp_accounting.rdp import RdpAccountant

    def fixed(z):
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, dp_accounting.GaussianDpEvent(z))
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, 200))
        return accountant.get_epsilon(DELTA)

    assert fixed(1.0) == pytest.approx(7.322288811480018, rel=1e-6)
    assert fixed(0.5) == pytest.approx(54.48604712155523, rel=1e-6)
    ours = epsilon_after(config(**{"sampling": "fixed"}), after(200, 10))
    assert ours["epsilon"] is None
    assert accounting.bounded_epsilon(ours) == pytest.approx(14.7223471, rel=1e-6)


def test_adaptive_clipping_costs_nothing_beyond_z():
    """q = .05, m = 50: σ_b = 2.5, so bits have 2σ_b = 5; z = 1 gives z_Δ = (1 - 1/25)^-½. Both together have z's ε."""
    central = CentralNoise.of(config(**{"quantile": 0.5}), b"")
    for noise, of_updates in ((0.5, 0.502518907629606), (1.0, 1.0206207261596576), (2.0, 2.182178902359924)):
        keys = config(**{"quantile": 0.5, "noise": noise})
        assert CentralNoise.of(keys, b"").multiplier_of_updates == pytest.approx(of_updates, rel=1e-12)
    from dp_accounting.rdp import RdpAccountant

    gaussians = [
        dp_accounting.GaussianDpEvent(z) for z in (central.multiplier_of_updates, 2 * central.deviation_of_bits)
    ]
    accountant = RdpAccountant(orders=accounting._orders())
    event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.ComposedDpEvent(gaussians))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 200))
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon_after(config(), after(200))["epsilon"], rel=1e-9)


def test_another_sum_of_a_round_is_charged_as_another_release_of_the_same_clients():
    """Two releases at z are one at z/√2, under one draw; the client in it is charged for both."""
    spent = Spent().plus(1, ("a", "b")).plus(2, ("a",)).plus(0, ("c",))
    assert spent == Spent({1: 1, 2: 1}, {"a": 3, "b": 1})
    assert (spent.most, spent.releases) == (3, 3)
    once, twice = (epsilon_after(config(), Spent({releases: 100}))["epsilon"] for releases in (1, 2))
    assert twice == pytest.approx(
        epsilon_after(config(**{"noise": 1 / math.sqrt(2)}), Spent({1: 100}))["epsilon"], rel=1e-9
    )
    assert twice > once


@pytest.mark.parametrize(
    ("keys", "rounds", "how"),
    [
        ({}, 200, "PLD"),
        ({"noise": 0.3}, 200, "RDP, as ε is at least 30"),
        ({"sampling": "fixed"}, 200, "exact curve of the Gaussian mechanism"),
    ],
)
def test_what_computed_epsilon_is_named(keys, rounds, how):
    """PLD only where it is called: not for fixed draws, and not for a large ε."""
    spent = after(rounds, 10)
    pld, called = accounting._pld, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "_pld", lambda *about: called.append(about) or pld(*about))
        epsilon_after(config(**keys), spent, tight=True)
    assert bool(called) == (how == "PLD")
    assert accounting.accountant_of(config(**keys), spent) == how


def test_a_budget_ends_a_run_before_the_round_that_would_exceed_it():
    """ε of PLD is 3.4228 after 200 rounds and 3.4319 after 201."""
    keys = config(**{"budget": 3.43})
    assert not exceeds_budget(keys, after(199))
    assert exceeds_budget(keys, after(200))
    assert not exceeds_budget(config(), after(10**6))


def test_a_budget_without_room_for_a_round_is_refused():
    """z = 1: Φ(½ - 3.352) - e^3.352·Φ(-½ - 3.352) = .002172 - 28.56·.00005855 = .000501 = 1000^-1.1."""
    with pytest.raises(ConfigError, match=r"budget: expected at least 3\.35[0-9], the ε of one round, got 2"):
        accounting.check_budget(config(**{"budget": 2.0, "sampling": "fixed"}))


def test_the_line_before_a_run_has_both():
    line = accounting.before_the_run(config())
    assert "ε = 3.42 after 200 rounds" in line
    assert "14.7 for a client that is drawn 10 times, and 146 if in all rounds" in line
    assert "no amplification" in accounting.before_the_run(config(**{"sampling": "fixed"}))


# Noise by the clients together

SHARES = {"mode": "distributed", "sampling": "fixed"}


@pytest.mark.parametrize(
    ("rounds", "epsilon"), [(1, 3.7399579746059732), (10, 16.06892540185975), (200, 152.98755140591612)]
)
def test_the_worked_rows_of_sums_of_shares(rounds, epsilon):
    """n = 50, d = 2^20, r = 4096, z = 1, computed with dp-accounting 0.6.0 from Theorem 1, where τ is 7e-107."""
    spent = epsilon_after(config(**SHARES), after(3, rounds))
    assert spent == {"epsilon": None, "epsilon_no_amplification": pytest.approx(epsilon, rel=1e-6)}
    assert accounting.bounded_epsilon(spent) > without_amplification(1.0, rounds, DELTA)
    twice = epsilon_after(config(**SHARES, noise=2.0), after(3, 4 * rounds))  # k/z² is the same
    assert twice["epsilon_no_amplification"] == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(("clients", "entries", "noise"), [(50, 2**20, 1.0), (3, 10, 0.01), (60_000, 10**9, 0.3)])
def test_the_theorem_gives_no_more_than_what_is_charged(clients, entries, noise):
    """Of the fewest honest clients, and of all: RDP(α) = α/2·D/(kσ²) + τ_k·d, τ_k = 10·Σ exp(-2π²σ²j/(j + 1))."""
    shares = Shares(1.0, noise, entries, clients, 1)
    variance, alpha = float(shares.variance), 2.0
    for count in (shares.honest, clients):
        tau = 10 * sum(math.exp(-2 * math.pi**2 * variance * j / (j + 1)) for j in range(1, count))
        theorem = alpha / 2 * shares.most_squared / (count * variance) + tau * entries
        assert tau * entries <= accounting.TAU
        assert theorem <= (alpha / 2 / noise**2 + accounting.TAU) * (1 + 1e-12)


def test_a_budget_bounds_what_is_charged_for_sums_of_shares():
    keys = config(**SHARES, budget=16.1)
    assert not exceeds_budget(keys, after(9, 9))
    assert exceeds_budget(keys, after(10, 10))
    with pytest.raises(ConfigError, match=r"budget: expected at least 3\.74, the ε of one round"):
        accounting.check_budget(config(**SHARES, budget=3.0))
    assert accounting.accountant_of(keys, after(1, 1)) == "RDP of sums of discrete Gaussians"


def test_the_line_before_a_run_with_shares_says_against_whom():
    line = accounting.before_the_run(config(**SHARES))
    assert "ε = 153 after 200 rounds for a client in all of them" in line
    assert "against a server that follows the protocol and at most 1 client on its side" in line
