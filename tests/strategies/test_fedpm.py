"""FedPM: rounds by hand, what a prior remembers, which bits predict and travel, limit cases, and bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, WireError
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedpm import ServerState, bits, drawn, probability, signed_constants
from sepal.study.method_checks.cases import Case
from sepal.wire import encode, inspect
from sepal.wire.tensors import members, whole
from tests.strategies.baselines import Sent
from tests.strategies.federation import Federation
from tests.strategies.linear import NAME, Linear, close

W, S = (1, -1, 1), np.array([[0, 1, -1]], np.float32)  # θ = (.5, .731059, .268941)
# A: bits 110, y = 0, e = -1, ∂L/∂m = (-1, 1, -1). B: bits 011, y = 1, e = -2, ∂L/∂m = (0, 2, -4).
A, B = ((1, 1, 1), 1), ((0, 1, 2), 3)
BITS = {"a": (1, 1, 0), "b": (0, 1, 1)}
KEYS = {"fedpm.weights": "drawn", "momentum": 0.0}


def toy(**keys):
    """Two clients that are sent S in round 2."""
    rounds = Linear("fedpm", W, ("a", "b"), **{**KEYS, **keys})
    rounds.state, rounds.began = ServerState({NAME: S}), {"a", "b"}
    return rounds


def trained(monkeypatch, **keys):
    """The clients' scores after a step on A and B, whose training draws the bits of the example."""
    rounds = toy(**keys)
    for name, example in (("a", A), ("b", B)):
        uniform = 1 - torch.tensor([BITS[name]], dtype=torch.float32)
        monkeypatch.setattr(torch, "rand", lambda shape, generator, uniform=uniform: uniform)
        rounds.trained(name, 2, [example])
    return [rounds.states[name].scores[NAME] for name in "ab"]


def test_a_step_by_hand(monkeypatch):
    """∂L/∂s = ∂L/∂m·θ(1 - θ) with θ(1 - θ) = (.25, .196612, .196612): A (-.25, .196612, -.196612), B (0, .393224,
    -.786448). A's third entry is off, and its score rises: a bit is a factor and not a gate.
    """
    a, b = trained(monkeypatch)
    close(a, (0.025, 0.980339, -0.980339))
    close(b, (0, 0.960678, -0.921355))
    close(probability(a), (0.506250, 0.727175, 0.272825))
    close(probability(b), (0.5, 0.723257, 0.284682))


def test_a_step_of_the_code_by_hand(monkeypatch):
    """The same times θ: A (-.125, .143735, -.052877), B (0, .287470, -.211508)."""
    a, b = trained(monkeypatch, **{"fedpm.gradient": "probability"})
    close(a, (0.0125, 1 - 0.0143735, -1 + 0.0052877))
    close(b, (0, 1 - 0.0287470, -1 + 0.0211508))


def test_the_first_step_of_adam_by_hand(monkeypatch):
    """It moves each score by the rate, whatever the gradient's size; without a gradient not at all."""
    a, b = trained(monkeypatch, optimizer="adam")
    close(a, (0.1, 0.9, -0.9), 1e-5)
    close(b, (0, 0.9, -0.9), 1e-5)


def upload(name, mask):
    return Upload(ClientInfo(name, 1), Payload({NAME: members(np.array([mask], bool), entropy_coded=True)}))


def uploads(*masks):
    return Sent([upload(f"{number}", mask) for number, mask in enumerate(masks)])


def test_a_mean_by_hand():
    """Bits 110, 011, 110: α = (3, 4, 2), β = (2, 1, 3), mode (2/3, 1, 1/3); with ε = .01 (.663333, .99, .336667)."""
    server, masks = toy().server, uploads((1, 1, 0), (0, 1, 1), (1, 1, 0))
    state, figures = server.aggregate(ServerState({NAME: S}), masks, server.plan(2))
    close(state.scores[NAME], (0.678184, 4.595120, -0.678184))
    close(probability(state.scores[NAME]), (0.663333, 0.99, 0.336667))
    close(figures["probability"], 0.663333)


@pytest.mark.parametrize(("every", "theta"), [(5, (0.6, 1, 0.4)), (1, (0.5, 1, 0.5))])
def test_a_prior_that_is_not_reset_by_hand(every, theta):
    """After 110, 011, 110 of round 1, 110 and 011 in round 2: α = (4, 6, 3), β = (3, 1, 4), mode (.6, 1, .4)."""
    server = toy(**{"fedpm.reset-every": every, "fedpm.softening": 1e-4}).server
    state = ServerState({NAME: S})
    for number, masks in ((1, [(1, 1, 0), (0, 1, 1), (1, 1, 0)]), (2, [(1, 1, 0), (0, 1, 1)])):
        state, _ = server.aggregate(state, uploads(*masks), server.plan(number))
    close(probability(state.scores[NAME]), 1e-4 + (1 - 2e-4) * np.array(theta))


def test_a_prior_lasts_until_each_client_could_have_had_its_turn():
    """Of BASE's four clients two send in each round, one in the second: the fourth begins anew, after five uploads."""
    server, state, counts = toy().server, ServerState({NAME: S}), []
    for number, senders in ((1, 2), (2, 1), (3, 2), (4, 2)):
        state, _ = server.aggregate(state, uploads(*[(1, 1, 0)] * senders), server.plan(number))
        counts.append(state.uploads)
    assert counts == [2, 3, 5, 2]


def test_a_round_without_uploads_changes_nothing_and_a_missed_reset_is_made_up_for():
    server = toy(**{"fedpm.reset-every": 2, "fedpm.softening": 1e-4}).server
    state, _ = server.aggregate(ServerState({NAME: S}), uploads((1, 1, 0)), server.plan(1))
    assert server.aggregate(state, uploads(), server.plan(3)) == (state, {})
    later, _ = server.aggregate(state, uploads((0, 1, 1)), server.plan(4))
    close(probability(later.scores[NAME]), (1e-4, 0.9999, 0.9999))


def test_one_client_and_hardly_any_softening_give_the_client_its_last_bits():
    server = toy(**{"fedpm.softening": 1e-4}).server
    state, _ = server.aggregate(ServerState({NAME: S}), uploads((1, 0, 1)), server.plan(2))
    close(np.round(probability(state.scores[NAME])), (1, 0, 1), 0)


def test_the_mean_of_many_clients_bits_is_the_mean_of_their_probabilities():
    rng = np.random.default_rng(0)
    masks = [drawn(np.repeat(S, 1_000, 0), rng) for _ in range(20)]
    close(np.mean(masks, (0, 1)), probability(S)[0], 4 * 0.5 / math.sqrt(20_000))


def test_bits_are_drawn_anew_in_each_forward_pass_and_once_more_to_send(monkeypatch):
    rounds, draws, plain = toy(), [], torch.rand

    def noted(shape, generator):
        draws.append(plain(shape, generator=generator))
        return draws[-1]

    monkeypatch.setattr(torch, "rand", noted)
    rounds.trained("a", 2, [A, B, A])
    assert len(draws) == 3
    assert not torch.equal(draws[0], draws[1])
    sent = []
    for number in range(3, 20):
        rounds.states["a"] = rounds.clients["a"].init()
        sent.append(rounds.trained("a", number, [A]).tensors[NAME].mask().tolist())
    assert len({str(mask) for mask in sent}) > 2, "a round has draws of its own"


def test_bits_have_the_gradient_of_the_probability_where_they_are_off_too():
    score = torch.tensor([0.0, 0.0], requires_grad=True)
    on = bits(score, torch.tensor([0.4, 0.6]), "identity")
    assert on.tolist() == [1, 0]
    on.sum().backward()
    close(score.grad, (0.25, 0.25))


def test_constants_have_euler_s_number_over_the_root_of_the_fan_in():
    layout = (
        Parameter("conv.weight", (4, 3, 2, 2), Role.WEIGHT),
        Parameter("conv.bias", (4,), Role.BIAS),
        Parameter("fc.weight", (5, 16), Role.WEIGHT),
    )
    constants = signed_constants(layout, 0)
    for name, fan_in in (("conv.weight", 12), ("conv.bias", 12), ("fc.weight", 16)):
        close(np.abs(constants[name]), np.full(constants[name].shape, 2.718281828 / math.sqrt(fan_in)).squeeze())
    assert 0.3 < (constants["fc.weight"] > 0).mean() < 0.7
    assert (signed_constants(layout, 1)["fc.weight"] != constants["fc.weight"]).any()


@pytest.mark.parametrize("view", ["sampled", "threshold"])
def test_the_model_that_predicts_has_the_same_bits_on_both_sides_and_in_each_round(view):
    rounds = toy(**{"fedpm.view": view})
    received = [np.squeeze(rounds.received("a", number)) for number in (2, 3)]
    close(received[0], received[1], 0)
    close(received[0], rounds.model, 0)
    assert set(received[0]) <= {0, 1, -1}
    if view == "threshold":
        close(received[0], (0, -1, 0), 0)


def test_sampled_bits_follow_the_probabilities():
    algorithm = toy().clients["a"]
    on = algorithm.on("w", np.full((10_000,), math.log(0.2 / 0.8), np.float32))
    assert abs(on.mean() - 0.2) < 0.02


def test_the_optimizer_s_state_stays_with_the_client_or_not():
    kept = toy(optimizer="adam")
    kept.trained("a", 2, [A])
    assert {label.partition("/")[0] for label in kept.states["a"].optimizer} >= {"exp_avg", "exp_avg_sq"}
    moments = {label: array.copy() for label, array in kept.states["a"].optimizer.items()}
    kept.trained("a", 3, [A])
    assert any((moments[label] != array).any() for label, array in kept.states["a"].optimizer.items())
    fresh = toy(optimizer="adam", **{"fedpm.keep-optimizer": False})
    fresh.trained("a", 2, [A])
    assert fresh.states["a"].optimizer == {}


def test_uploads_are_entropy_coded_and_values_are_refused():
    """A layer of 100 × 100 of which 20 % are on: less than a bit each, by at most 1.02 of the entropy."""
    server = Linear("fedpm", np.ones((100, 100)), ("a",)).server
    mask = np.random.default_rng(0).random((100, 100)) < 0.2
    schema = server.upload_schema(server.init(), ClientInfo("a", 1), server.plan(1))
    payload = Payload({NAME: members(mask, entropy_coded=True)})
    (entry,) = inspect(encode(payload.tensors)).tensors
    share = mask.mean()
    entropy = -10_000 * (share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8
    assert entry.index.value == "ans"
    assert entropy < entry.index_bytes < 1.02 * entropy
    np.testing.assert_array_equal(unseal(seal(payload), schema).tensors[NAME].mask(), mask)
    with pytest.raises(WireError, match="expected a mask without values, got fp32"):
        unseal(seal(Payload({NAME: whole(np.ones((100, 100)))})), schema)


def test_the_ledger_has_the_bytes_of_the_formula():
    """4·P down, and nothing in round 1; at most P/8 up, in payloads of less than 48 bytes a tensor beside."""
    case = Case("fedpm", {"method": "fedpm"})
    masked = [p for p in case.assembly().setup.layout if p.role is not Role.NORM]
    size = sum(p.size for p in masked)
    for entry in case.finished().trained:
        if entry.round == 1 and entry.direction == "down":
            assert entry.payload == 0
            continue
        least, most = (4 * size, 4 * size) if entry.direction == "down" else (0.6 * size / 8, size / 8 + len(masked))
        assert least < entry.payload <= most + 48 * len(masked)


def test_training_does_not_depend_on_who_else_trains_in_the_process():
    """Draws are made from the client's own generator: its scores are the same with and without a second client."""
    alone, together = Federation([1.0], method="fedpm"), Federation([1.0, 1.0], method="fedpm")
    for federation in (alone, together):
        federation.round(federation.server.init(), 1)
    for name, array in alone.states[0].scores.items():
        np.testing.assert_array_equal(together.states[0].scores[name], array)


def test_the_least_softening_is_within_what_a_round_may_change():
    """Of one client a round all bits agree: below it the guard undid every round of an honest run, and ended it."""
    keys = {"method": "fedpm", "dataset": "digits", "partition.name": "iid", "partition.subsample": 40, "clients": 4}
    keys |= {"clients-per-round": 1, "rounds": 3, "evaluate-every": 0, "fedpm.reset-every": 1, "seed": 1}
    strategy = run_in_process(assemble({**keys, "fedpm.softening": 1e-4}))
    assert (strategy.progress.closed, strategy.report.undone) == (True, 0)
    for least in (9e-5, 1e-17, 0.0):
        with pytest.raises(ConfigError, match=r"fedpm\.softening: expected"):
            assemble({**keys, "fedpm.softening": least})
