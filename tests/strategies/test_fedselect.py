"""FedSelect: three rounds by hand, which entries are selected and how many, who starts again, limits, and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Plan
from sepal.study.method_checks.cases import Case
from tests.strategies.baselines import assert_same_model, run
from tests.strategies.federation import Federation
from tests.strategies.linear import NAME, Linear, close

FIRST = (0.5, -0.4, 0.3, 0.2)
A, B = [((1, 0, 1, 1), 0)], [((0, 1, 1, 0), 1)]
KEYS = {"fedselect.growth": 0.5, "fedselect.every": 1, "fedselect.limit": 1.0}
CODE = {"fedselect.since": "selection", "fedselect.first-value": "mean"}


def toy(**keys):
    return Linear("fedselect", FIRST, ("a", ClientInfo("b", 3)), **{**KEYS, **keys})


def own(rounds, name):
    """Which entries are a client's own; both sides agree on it."""
    shared = rounds.clients[name].masks(rounds.states[name].shared)[NAME]
    np.testing.assert_array_equal(rounds.server.masks(rounds.state.shared[name])[NAME], shared)
    return np.flatnonzero(~shared).tolist()


def test_three_rounds_of_the_code_by_hand():
    """Round 1, all shared. a: y = 1: (.5, -.4, .3, .2) - .1·x. b: y = -.1, e = -1.1: -.29, .41. Mean (.45, -.345, .305,
    .15). Round 2: a: y = .905: (.3595, -.345, .2145, .0595), moved since W_0 by (.1405, .055, .0855, .1405): entries 0
    and 3. b: y = -.04: (.45, -.241, .409, .15), moved by (.05, .159, .109, .05): entries 1 and 2. Both take the mean
    (.40475, -.293, .31175, .10475) once more. Round 3, a: own entries with e = .82125: .322625 and .022625; then the
    shared ones with e = .657 (y = .322625 + .31175 + .022625): .24605. Moved since round 2: -.293 by .052 from -.345,
    .24605 by .03155: entry 1. b: own entries with e = -.98125, -.194875 and .409875; the shared ones have x = 0.
    They moved by .04525 both. Of each entry there is one upload left.
    """
    rounds = toy(**CODE)
    rounds.round(1, a=A, b=B)
    close(rounds.sent("a"), (0.4, -0.4, 0.2, 0.1))
    close(rounds.sent("b"), (0.5, -0.29, 0.41, 0.2))
    close(rounds.model, (0.45, -0.345, 0.305, 0.15))
    assert not rounds.state.before
    rounds.round(2, a=A, b=B)
    close(rounds.sent("a"), (0.3595, -0.345, 0.2145, 0.0595))
    close(rounds.sent("b"), (0.45, -0.241, 0.409, 0.15))
    close(rounds.states["a"].selected[NAME], (0.3595, -0.345, 0.2145, 0.0595))  # from which it counts next
    assert own(rounds, "a") == [0, 3]
    assert own(rounds, "b") == [1, 2]
    close(rounds.model, (0.40475, -0.293, 0.31175, 0.10475))
    close(rounds.received("a", 3), rounds.model)
    assert rounds.round(3, a=A, b=B) == {"personal": 0.75}
    close(rounds.states["a"].model[NAME], (0.322625, -0.293, 0.24605, 0.022625))
    close(rounds.states["b"].model[NAME], (0.40475, -0.194875, 0.409875, 0.10475))
    assert own(rounds, "a") == [0, 1, 3]
    assert own(rounds, "b") in ([0, 1, 2], [1, 2, 3])  # .45 - .40475 and .15 - .10475, rounded
    close(rounds.model, (0.40475, -0.293, 0.24605, 0.10475))


def test_by_default_the_round_s_movement_counts_and_new_entries_keep_their_value():
    """Round 2 as above, but what moved in it: of a's entries three, by .0905; of b's two, by .104.
    a's next download has entries 1 and 3 alone.
    """
    rounds = toy()
    rounds.round(1, a=A, b=B)
    rounds.round(2, a=A, b=B)
    moved = np.abs(rounds.states["a"].model[NAME][0] - np.float32([0.45, -0.345, 0.305, 0.15]))
    assert own(rounds, "a") == sorted(np.argsort(-moved, kind="stable")[:2].tolist())
    assert own(rounds, "b") == [1, 2]
    kept, shared = own(rounds, "a"), np.ones(4, bool)
    shared[kept] = False
    assert rounds.download("a", Plan(3)).tensors[NAME].nnz == 2
    received = rounds.received("a", 3)[0]
    close(received[kept], rounds.states["a"].model[NAME][0][kept])
    close(received[shared], rounds.model[shared])


def test_a_client_that_was_away_selects_later_and_an_entry_that_nobody_shares_keeps_its_mean():
    rounds = toy(**{"fedselect.growth": 1.0})
    rounds.round(1, a=A, b=B)
    rounds.round(2, b=B)
    before = rounds.model
    assert own(rounds, "b") == [0, 1, 2, 3]
    rounds.round(3, b=B)  # sends no entry
    assert rounds.uploads["b"].tensors[NAME].nnz == 0
    close(rounds.model, before)
    close(rounds.received("a", 4), before)
    rounds.round(4, a=A)
    assert own(rounds, "a") == [0, 1, 2, 3]


def test_a_client_that_has_lost_its_state_gets_its_mask_back():
    rounds = toy()
    for number in (1, 2):
        rounds.round(number, a=A, b=B)
    before = own(rounds, "a")
    rounds.began, rounds.states["a"] = {"b"}, rounds.clients["a"].init()
    rounds.round(3, a=A)
    assert set(before) < set(own(rounds, "a"))
    assert rounds.server.evicted(rounds.state, ["a"]).shared.keys() == {"b"}


@pytest.mark.parametrize(("beyond", "last", "personal"), [(False, 37, 800), (True, 59, 822)])
def test_growth_ends_at_the_limit_or_one_step_beyond_it(beyond, last, personal):
    """.25 of 1000, of 750 (187.5, rounded half up: 188), 562, 421, 316, and of 237: with 59 more, 822 are personal."""
    server = toy(**{"fedselect.growth": 0.25, "fedselect.limit": 0.8, "fedselect.beyond": beyond}).server
    server.selectable = (Parameter("w", (1000,), Role.WEIGHT),)
    shared, new = np.ones(1000, bool), []
    while entries := server.new({"w": shared}).get("w"):
        new.append(entries)
        shared[np.flatnonzero(shared)[:entries]] = False
    assert new == [250, 188, 141, 105, 79, last]
    assert 1000 - shared.sum() == personal


def test_biases_are_never_selected_and_statistics_never_sent():
    federation = Federation([1.0, 1.0], method="fedselect", model="tests.strategies.baselines:normed", **KEYS)
    state = federation.server.init()
    for number in (1, 2):
        state, _ = federation.round(state, number)
    assert {p.name for p in federation.server.selectable} == {"1.weight", "2.weight", "4.weight"}
    assert not {p.name for p in federation.setup.layout if p.role is Role.STATISTIC} & set(state.weights)
    ours = [state.model["2.running_mean"] for state in federation.states]
    assert (ours[0] != ours[1]).any()


def test_without_a_selection_it_is_fedavg_with_equal_weights():
    keys = {"fedselect.every": 100, "local-epochs": 2}
    assert_same_model(run("fedselect", **keys), run("fedavg", **{"fedavg.weights": "equal", "local-epochs": 2}))


def test_the_ledger_has_the_bytes_of_the_formula():
    """4 for each shared entry each way; up also a bit, at most, for each shared entry of a round that selects."""
    case = Case("fedselect", {"method": "fedselect", "clients-per-round": 0, **KEYS, "fedselect.limit": 0.9})
    run = case.finished()
    algorithm, layout = run.strategy.algorithm, case.assembly().setup.layout
    size, header = sum(p.size for p in layout), 48 * len(layout)
    masks = {p.name: np.ones(p.shape, bool) for p in algorithm.exchanged}
    for round in range(1, 5):
        shared = sum(int(mask.sum()) for mask in masks.values())
        new = algorithm.new(masks) if algorithm.selects(Plan(round)) else {}
        positions = sum(masks[name].sum() for name in new) / 8
        for entry in (entry for entry in run.trained if entry.round == round):
            if round == 1 and entry.direction == "down":
                assert entry.payload == 0
            else:
                up = positions if entry.direction == "up" else 0
                assert 4 * shared + up * 0.5 < entry.payload <= 4 * shared + up + header
        for name, entries in new.items():
            mask = masks[name].reshape(-1)
            mask[np.flatnonzero(mask)[:entries]] = False
    assert shared < 0.3 * size
