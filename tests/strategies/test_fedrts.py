"""FedRTS: a round by hand with given draws, what clients report, who votes, limit cases, and bytes by its formula."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.errors import ConfigError
from sepal.layout import Role
from sepal.masks.selection import count
from sepal.method import ClientInfo, Payload, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.baselines import fedrts
from sepal.strategies.baselines.fedrts import moving
from sepal.study.method_checks.cases import Case
from sepal.wire.tensors import SparseTensor, Support, members
from tests.strategies.baselines import Sent, assert_same_model, run
from tests.strategies.linear import NAME, Linear, close

FIRST = (3, 2, -1, 0.1, 0.2, 0.3)  # 0, 1 and 2 are on
CLIENTS = (ClientInfo("a", 1), ClientInfo("b", 3))
# f is .8 in every round, as nearly as the cosine is 1: k = int(2.4) = 2, κ = 1
KEYS = {"fedrts.adjust-every": 1, "fedrts.until": 10**6, "fedrts.fraction": 0.81}
VALUES = {"a": (0.5, -0.1, 0.3), "b": (0.2, 0.6, -0.4)}
GROWN = {"a": (0, 2), "b": (1, 2)}  # of the three entries that are off: 3 and 5, 4 and 5


class Draws:
    """Stands for the generator: Beta's draws are given."""

    def __init__(self, *numbers):
        self.numbers, self.asked = numbers, []

    def beta(self, alpha, beta):
        self.asked.append((alpha.copy(), beta.copy()))
        return np.array([self.numbers])


def toy(**keys):
    return Linear("fedrts", FIRST, CLIENTS, **{**KEYS, **keys})


def by_hand(rounds, round=1, grown=GROWN):
    """A round with the uploads above; returns the server's new state."""
    plan, sent = rounds.server.plan(round), Sent()
    for name, values in VALUES.items():
        on = np.flatnonzero(rounds.state.masks[NAME])
        tensor = SparseTensor((1, 6), on, np.array(values, np.float32), Support.DERIVED)
        off = np.isin(np.arange(3), grown.get(name, ()))
        payload = Payload({**({f"{NAME}/grow": members(off)} if grown else {}), NAME: tensor})
        schema = rounds.server.upload_schema(rounds.state, rounds.infos[name], plan)
        sent.append(Upload(rounds.infos[name], unseal(seal(payload), schema)))
    return rounds.server.aggregate(rounds.state, sent, plan)[0]


@pytest.mark.parametrize(
    ("draw", "on", "weights"), [("sample", (0, 2, 4), (0.275, 0, -0.225)), ("mean", (1, 4, 5), (0, 0.425, 0))]
)
def test_a_round_by_hand(monkeypatch, draw, on, weights):
    """W = .25·a + .75·b = (.275, .425, -.225). The largest entry of a is 0, of b and of W 1:
    X = ½·(0, 1, 0) + ½·(.25, .75, 0) = (.125, .875, 0), so α = 1 + 10·X = (2.25, 9.75, 1) and β = (9.75, 2.25, 11).
    Off: X = ½·½ + ½·(.25, .75, 1) = (.375, .625, .75): α = (4.75, 7.25, 8.5), β = (7.25, 4.75, 3.5).
    Means (.1875, .8125, .0833, .3958, .6042, .7083). New entries are 0.
    """
    draws = Draws(0.55, 0.35, 0.80, 0.40, 0.62, 0.48)
    monkeypatch.setattr(fedrts, "derive", lambda *parts: draws)
    state = by_hand(toy(**{"fedrts.draw": draw}))
    close(state.alpha[NAME], (2.25, 9.75, 1, 4.75, 7.25, 8.5))
    close(state.beta[NAME], (9.75, 2.25, 11, 7.25, 4.75, 3.5))
    assert np.flatnonzero(state.masks[NAME]).tolist() == list(on)
    close(state.weights[NAME], (*weights, 0, 0, 0))
    assert len(draws.asked) == (draw == "sample")


def test_gamma_is_the_weight_of_the_mean():
    """γ = 1: X is h of the mean, (0, 1, 0), and ½ of entries that are off; γ = 0: the clients' shares."""
    close(by_hand(toy(**{"fedrts.aggregate": 1.0})).alpha[NAME], (1, 11, 1, 6, 6, 6))
    close(by_hand(toy(**{"fedrts.aggregate": 0.0})).alpha[NAME], (3.5, 8.5, 1, 3.5, 8.5, 11))


def test_between_adjustments_entries_that_are_on_are_counted_and_nothing_moves():
    rounds = toy(**{"fedrts.adjust-every": 2})
    state = by_hand(rounds, 1, {})
    close(state.alpha[NAME], (2.25, 9.75, 1, 1, 1, 1))
    close(state.beta[NAME], (9.75, 2.25, 11, 1, 1, 1))
    np.testing.assert_array_equal(state.masks[NAME], rounds.state.masks[NAME])
    rounds.state = state
    assert by_hand(rounds, 2).alpha[NAME].sum() == pytest.approx(state.alpha[NAME].sum() + 10 + 17.5)


def test_clients_report_their_largest_gradients_outside_the_mask():
    """y = 3 + 2 - 1 = 4, w ← w - .1·4·x on what is on; then y = 2.8: the gradient is 2.8·x, largest at 4 and 5."""
    rounds = toy()
    payload = rounds.trained("a", 1, [((1, 1, 1, 0.5, 3, -2), 0)])
    assert payload.tensors[f"{NAME}/grow"].positions().tolist() == [1, 2]
    close(rounds.sent("a"), (2.6, 1.6, -1.4, 0, 0, 0))
    close(rounds.states["a"].model[NAME], (2.6, 1.6, -1.4, 0, 0, 0))


def test_the_share_that_may_move_falls_to_nothing_and_no_more_move_than_are_off():
    server = toy(**{"fedrts.until": 20, "fedrts.adjust-every": 5, "fedrts.fraction": 0.4}).server
    assert [round for round in range(1, 40) if server.adjusts(round)] == [5, 10, 15, 20]
    assert [server.plan(round).scalars["fraction"] for round in (9, 10, 20, 25)] == pytest.approx([0, 0.2, 0, 0])
    assert server.fraction(9) > 0.2
    masks = {"w": np.arange(10) < 8}
    assert [moving(masks, fraction)["w"] for fraction in (0.0, 0.13, 0.249, 0.5)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("rounds", "expected"), [(4, [1]), (12, [1, 2, 3, 4, 5]), (20, [2, 4, 6, 8]), (200, [*range(10, 100, 10)])]
)
def test_by_default_masks_move_in_short_runs_too(rounds, expected):
    """T_end is the middle; ΔT is 10, or T_end/4 rounded down where that is less. At T_end k is 0."""
    server = toy(rounds=rounds, **{"fedrts.until": 0, "fedrts.adjust-every": 0}).server
    assert [round for round in range(1, rounds + 1) if server.plan(round).scalars["fraction"] > 0] == expected


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"fedrts.adjust-every": 10, "fedrts.until": 0}, r"fedrts\.adjust-every: expected .* T_end is 10 of 20"),
        ({"fedrts.adjust-every": 30, "fedrts.until": 300}, r"fedrts\.adjust-every: "),
        ({"fedrts.adjust-every": 0, "fedrts.until": 1}, r"fedrts\.until: expected .* T_end is 1 of 20"),
    ],
)
def test_keys_with_which_clients_would_never_report_are_refused(keys, error):
    with pytest.raises(ConfigError, match=error):
        toy(rounds=20, **keys)
    toy(rounds=20, **{"fedrts.keep": 1.0, **keys})
    toy(rounds=3, **keys)  # a trial


def test_a_client_that_was_away_gets_the_new_mask():
    rounds = Linear("fedrts", FIRST, CLIENTS, **KEYS, seed=5)
    data = [((1, 1, 1, -2, 3, 0.5), 0)]
    for number in (1, 2, 3):
        rounds.round(number, b=data)
    assert np.flatnonzero(rounds.state.masks[NAME]).tolist() != [0, 1, 2]
    np.testing.assert_array_equal(rounds.received("a", 4), rounds.state.weights[NAME])
    mask = rounds.state.masks[NAME]
    rounds.round(4, a=data, b=data)
    np.testing.assert_array_equal(rounds.states["a"].model[NAME] != 0, mask)


def test_first_masks_may_be_drawn_and_both_sides_agree():
    rounds = Linear("fedrts", np.arange(1.0, 41), CLIENTS, **{**KEYS, "fedrts.first": "drawn"})
    np.testing.assert_array_equal(rounds.received("a", 1), rounds.state.weights[NAME])
    assert rounds.state.masks[NAME].sum() == 20
    assert not rounds.state.masks[NAME][0, 20:].all()


def test_with_all_weights_it_is_fedavg():
    keys = {"fedrts.keep": 1.0, "fedrts.adjust-every": 1, "fedrts.until": 3}
    assert_same_model(run("fedrts", **keys), run("fedavg"))


def test_the_ledger_has_the_bytes_of_the_formula():
    """4·d·P beside what is dense each way; down also the mask, and up k positions: at most a bit for each entry."""
    case = Case("fedrts", {"method": "fedrts", "fedrts.keep": 0.2, "fedrts.adjust-every": 2, "fedrts.until": 4})
    run, layout = case.finished(), case.assembly().setup.layout
    weights = sum(p.size for p in layout if p.role is Role.WEIGHT)
    others, header = sum(p.size for p in layout) - weights, 48 * len(layout)
    least = 4 * (count(0.2, weights) + others)
    for entry in run.trained:
        if entry.round == 1 and entry.direction == "down":
            assert entry.payload == 0
            continue
        positions = weights / 8 if entry.direction == "down" else 0.8 * weights / 8 * (entry.round == 2)
        assert least + positions / 4 < entry.payload <= least + positions + header
