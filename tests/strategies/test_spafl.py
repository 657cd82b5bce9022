"""SpaFL: rounds by hand, what a client that was away catches up on, the case in which it is Local, and bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan
from sepal.strategies.baselines.spafl import ClientState, masked_rows, tau
from sepal.study.method_checks.cases import Case
from sepal.wire.tensors import whole
from tests.sepal.engines.test_secure_in_process import run
from tests.strategies.federation import Federation
from tests.strategies.linear import NAME, Linear, close

FIRST = ((0.4, -0.2), (0.1, 0.3))
A, B = [((1, 2), (1, 0))], [((2, -1), (0, 1))]
KEYS = {"spafl.penalty": 0.1}


def toy(**keys):
    return Linear("spafl", FIRST, ("a", ClientInfo("b", 3)), **KEYS, **keys)


def test_a_round_by_hand():
    """Both rows are on. a: out (0, .7), e (-1, .7), g = e·out = (0, .49): ∂L/∂τ = (0 - .1, -.49 - .1);
    ∂L/∂w = e·x + g·sign(w)/2 = ((-1, -2), (.7 + .245, 1.4 + .245)). b: out (1, -.1), e (1, -1.1), g = (1, .11).
    τ' = ((.01 + .11)/2, (.059 + .021)/2) = (.06, .04), and each row moves by τ'/2 against the sign of its sum.
    """
    rounds = toy()
    rounds.round(1, a=A, b=B)
    close(rounds.states["a"].model[NAME], ((0.5, 0), (0.0055, 0.1355)))
    close(rounds.states["b"].model[NAME], ((0.15, -0.05), (0.3145, 0.1845)))
    close(rounds.sent("a", tau(NAME)), (0.01, 0.059))
    close(rounds.sent("b", tau(NAME)), (0.11, 0.021))
    close(rounds.state.thresholds[tau(NAME)], (0.06, 0.04))
    close(rounds.received("a", 2), ((0.47, -0.03), (-0.0145, 0.1155)))
    close(rounds.received("b", 2), ((0.12, -0.08), (0.2945, 0.1645)))
    # What a keeps is masked by its own thresholds: the mean of |.0055| and |.1355| is .0705, above .059
    close(rounds.clients["a"].personal_weights(rounds.states["a"])[NAME], ((0.5, 0), (0.0055, 0.1355)))
    assert rounds.clients["a"].trainer.reports == {"density": 1.0}
    state = replace(rounds.states["a"], thresholds={NAME: np.array([0.01, 0.08], np.float32)})
    close(rounds.clients["a"].personal_weights(state)[NAME], ((0.5, 0), (0, 0)))


def test_with_the_code_s_gate_no_gradient_of_the_data_reaches_the_thresholds():
    """|s| ≤ 1: ∂L/∂τ = -c·exp(0) for all, and w gets the gradient of the masked weight alone."""
    rounds = toy(**{"spafl.gate": "far"})
    rounds.round(1, a=A, b=B)
    close(rounds.state.thresholds[tau(NAME)], (0.01, 0.01))
    close(rounds.states["a"].model[NAME], ((0.5, 0), (0.03, 0.16)))
    close(rounds.received("a", 2), ((0.495, -0.005), (0.025, 0.155)))


@pytest.mark.parametrize(("gate", "expected"), [("open", (3, 8)), ("near", (3, 0)), ("far", (0, 8))])
def test_gates_and_a_row_that_is_off(gate, expected):
    """Rows (1, 2) with τ = 1 (s = .5) and (2, 6) with τ = 6 (s = -2, off); of the sum of ŵ g is (3, 8)."""
    weight = torch.tensor([[1.0, 2.0], [2.0, 6.0]], requires_grad=True)
    threshold = torch.tensor([1.0, 6.0], requires_grad=True)
    masked = masked_rows(weight, threshold, gate)
    close(masked.detach(), ((1, 2), (0, 0)))
    masked.sum().backward()
    close(threshold.grad, [-g for g in expected])
    close(weight.grad, ((1 + expected[0] / 2,) * 2, (expected[1] / 2,) * 2))


def test_a_client_that_was_away_follows_all_changes_at_once_and_its_own_thresholds_stay():
    rounds = toy()
    rounds.round(1, a=A, b=B)
    before = rounds.states["a"]
    rounds.round(2, b=B)
    rounds.round(3, b=A)
    change = rounds.state.thresholds[tau(NAME)]  # since τ = 0, which a received last
    row = before.model[NAME]
    followed = row - (change * np.sign(row.sum(1)))[:, None] / 2
    assert abs(followed[1]).mean() < change[1]  # and so it is off
    close(rounds.received("a", 4), (followed[0], (0, 0)))
    assert rounds.states["a"] is before
    # and b what has changed since round 3
    state = rounds.states["b"]
    assert (rounds.state.thresholds[tau(NAME)] != state.received[NAME]).all()
    moved = rounds.clients["b"].moved(state, {NAME: change})[NAME]
    step = change - state.received[NAME]
    close(moved, state.model[NAME] - (step * np.sign(state.model[NAME].sum(1)))[:, None] / 2)


@pytest.mark.parametrize(("follow", "divisor"), [("inputs", 12), ("kernel", 4), ("no", np.inf)])
def test_a_filter_follows_by_its_entries_or_as_the_code_has_it_by_its_kernel(follow, divisor):
    algorithm = Linear("spafl", FIRST, ("a",), **{"spafl.follow": follow}).clients["a"]
    algorithm.masked = (Parameter("conv", (1, 3, 2, 2), Role.WEIGHT),)
    state = ClientState({"conv": np.full((1, 3, 2, 2), -1, np.float32)}, {}, {"conv": np.array([0.2], np.float32)})
    moved = algorithm.moved(state, {"conv": np.array([1.4], np.float32)})["conv"]
    close(moved, np.full((3, 2, 2), -1 + 1.2 / divisor))
    close(state.model["conv"], np.full((3, 2, 2), -1))


def test_a_layer_of_which_no_row_would_be_on_is_whole():
    rounds = toy()
    download = Payload({tau(NAME): whole(np.array([5, 5], np.float32))})
    algorithm, state = rounds.clients["a"], rounds.states["a"]
    received = algorithm.received_weights(state, download, Plan(2))[NAME]
    close(received, np.array(FIRST) - np.array([[2.5], [2.5]]))
    after = algorithm.adapt(state, download, Plan(2))
    close(after.thresholds[NAME], (0.01, 0.01))  # from 0 with no gradient but the penalty's


def test_the_penalty_rises_over_the_rounds_that_are_set():
    algorithm = toy(**{"spafl.penalty-rounds": 10}).clients["a"]
    assert [algorithm.penalty(round) for round in (5, 10)] == pytest.approx([0.05, 0.1 / (1 + np.exp(-5))])
    assert toy().clients["a"].penalty(5) == 0.1


def test_without_penalty_and_gradients_of_thresholds_it_is_local():
    keys = {"spafl.penalty": 0.0, "spafl.gate": "far", "momentum": 0.9}
    spafl, local = (Federation([1.0, 1.0], method=m, **k) for m, k in (("spafl", keys), ("local", {"momentum": 0.9})))
    for federation in (spafl, local):
        state = federation.server.init()
        for number in (1, 2):
            state, _ = federation.round(state, number)
    for name, array in local.states[0].model.items():
        np.testing.assert_array_equal(spafl.states[0].model[name], array)


def test_the_ledger_has_the_bytes_of_the_formula():
    """4·F each way for F filters and neurons, in payloads of less than 32 bytes a tensor beside; nothing in round 1."""
    case = Case("spafl", {"method": "spafl"})
    weights = [p for p in case.assembly().setup.layout if p.role is Role.WEIGHT]
    least = 4 * sum(p.shape[0] for p in weights)
    for entry in case.finished().trained:
        if entry.round == 1 and entry.direction == "down":
            assert entry.payload == 0
        else:
            assert least < entry.payload <= least + 48 * len(weights)
    assert least < 0.02 * 4 * sum(p.size for p in weights)


def test_secure_sums_give_the_mean_of_the_thresholds():
    secure, plain = (run(method="spafl", secure=mode, rounds=2)[0].progress.server for mode in ("sum", "off"))
    for name, array in plain.thresholds.items():
        assert np.abs(array).max() > 1e-5
        np.testing.assert_allclose(secure.thresholds[name], array, atol=1e-6)
