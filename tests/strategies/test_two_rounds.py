"""Two rounds of one client by hand, for every method that keeps something between rounds.

The second round must start from what the first one left: the residual, the personal model, the head, α, the masks. A
first round alone cannot show this, because then everything is still W_0 or 0.

The model and its steps are those of one_example.py. The numbers are computed here in NumPy, in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.masks.packed import pack, spread, unpack
from sepal.method import Payload, Plan
from sepal.rng import derive
from sepal.strategies import registry
from sepal.strategies.dmpfl.contract import ClientState as DualState
from sepal.wire.tensors import SparseTensor
from tests.strategies.one_example import One, Product, X, client, dense, flat, four, logits, slope, step

# Sparse updates: what was not sent in round 1 is added in round 2


def test_fedstc_adds_its_residual_in_the_second_round():
    """p = .5, k = 2. Round 1 from 0: ΔW = .25·x = (.25, .5, 1, .125), μ = .75: sent (0, .75, .75, 0).

    Owed is (.25, -.25, .25, .125). The server has this client alone, so its update is the same: W = (0, .75, .75, 0).
    Round 2: w·x = 4.5, ΔW = .5·σ(-4.5)·x = .0055·x; with what is owed (.2555, -.239, .272, .1277). Entries 2 and 0 are
    the largest, μ = .2638. Without the residual entries 2 and 1 would be.
    """
    algorithm = client("fedstc", **{"fedstc.keep": 0.5})
    state, sent = algorithm.train(algorithm.init(), Payload(), Plan(1))
    assert flat(sent.tensors["update"]).tolist() == [0, 0.75, 0.75, 0]
    assert state.residual.tolist() == [0.25, -0.25, 0.25, 0.125]
    base = np.array([0, 0.75, 0.75, 0])
    state, again = algorithm.train(state, Payload({"1": sent.tensors["update"]}), Plan(2))
    gained = step(base) - base + [0.25, -0.25, 0.25, 0.125]
    mean = (gained[0] + gained[2]) / 2
    np.testing.assert_allclose(flat(again.tensors["update"]), [mean, 0, mean, 0], rtol=1e-5)
    np.testing.assert_allclose(state.residual, gained - [mean, 0, mean, 0], rtol=1e-4, atol=1e-7)
    assert mean == pytest.approx(0.2638, abs=1e-4)


def test_fedscr_adds_its_residual_in_the_second_round():
    """keep = .5 of four rows of one entry. Round 1: u = .25·x: sent (0, .5, 1, 0), owed (.25, 0, 0, .125).

    Round 2 from W = (0, .5, 1, 0): w·x = 5, u = .5·σ(-5)·x = .0033·x; with what is owed (.2533, .0067, .0134, .1267).
    The largest are entries 0 and 3. Without the residual they would be 2 and 1.
    """
    algorithm = client("fedscr", **{"fedscr.keep": 0.5})
    state, sent = algorithm.train(algorithm.init(), Payload(), Plan(1))
    assert flat(sent.tensors["w"]).tolist() == [0, 0.5, 1, 0]
    state, again = algorithm.train(state, four([0, 0.5, 1, 0]), Plan(2))
    base = np.array([0, 0.5, 1, 0])
    gained = step(base) - base + [0.25, 0, 0, 0.125]
    np.testing.assert_allclose(flat(again.tensors["w"]), gained * [1, 0, 0, 1], rtol=1e-5)
    np.testing.assert_allclose(state.residual["w"].reshape(-1), gained * [0, 1, 1, 0], rtol=1e-4)


def test_fedpse_adds_its_residual_and_its_base_in_the_second_round():
    """As FedSCR above with single entries. The download is added to the client's own base, not to W_0.

    Round 3 gets (1, 0, 0, 0): its base is (1, .5, 1, 0), although the client trained away from it twice.
    """
    algorithm = client("fedpse", **{"fedpse.keep": 0.5})
    state, sent = algorithm.train(algorithm.init(), four([0, 0, 0, 0]), Plan(1))
    assert flat(sent.tensors["w"]).tolist() == [0, 0.5, 1, 0]
    assert state.residual["w"].reshape(-1).tolist() == [0.25, 0, 0, 0.125]
    assert not state.base["w"].any()
    state, again = algorithm.train(state, Payload({"w": sent.tensors["w"]}), Plan(2))
    base = np.array([0, 0.5, 1, 0])
    gained = step(base) - base + [0.25, 0, 0, 0.125]
    np.testing.assert_allclose(flat(again.tensors["w"]), gained * [1, 0, 0, 1], rtol=1e-5)
    assert algorithm.received_weights(state, four([1, 0, 0, 0]), Plan(3))["w"].reshape(-1).tolist() == [1, 0.5, 1, 0]
    np.testing.assert_allclose(flat(state.model["w"]), step(base), rtol=1e-6, atol=1e-6)


# Personal models


def test_ditto_goes_on_from_its_personal_model():
    """λ = .5. v₁ = 0 + .5·(.5·x + .5·(w₁ - 0)); v₂ = v₁ + .5·(σ(-v₁·x)·x + .5·(w₂ - v₁)), w₁ = 1, w₂ = -1 everywhere.

    Received is the global model, trained and kept are v.
    """
    algorithm = client("ditto", **{"ditto.lambda": 0.5})
    state, _ = algorithm.train(algorithm.init(), four([1] * 4), Plan(1))
    first = step(np.zeros(4)) + 0.25 * np.ones(4)
    np.testing.assert_allclose(state.personal["w"].reshape(-1), first, rtol=1e-6)
    assert logits(algorithm, state, four([-1] * 4), Plan(2), X) == pytest.approx(-X.sum())
    state, sent = algorithm.train(state, four([-1] * 4), Plan(2))
    second = step(first) + 0.25 * (-1 - first)
    np.testing.assert_allclose(state.personal["w"].reshape(-1), second, rtol=1e-5)
    np.testing.assert_allclose(flat(sent.tensors["w"]), step(-np.ones(4)), rtol=1e-6, atol=1e-6)
    assert logits(algorithm, state, None, Plan(3), X) == pytest.approx(second @ X, rel=1e-5)


def test_ditto_epochs_are_passes_of_the_personal_model_only():
    """local-epochs 1, ditto.epochs 3, λ = 0: v makes three steps, what is uploaded one."""
    algorithm = client("ditto", **{"ditto.lambda": 0.0, "ditto.epochs": 3})
    state, sent = algorithm.train(algorithm.init(), four([0] * 4), Plan(1))
    np.testing.assert_allclose(state.personal["w"].reshape(-1), step(step(step(np.zeros(4)))), rtol=1e-6)
    np.testing.assert_allclose(flat(sent.tensors["w"]), step(np.zeros(4)), rtol=1e-6)


def test_apfl_goes_on_from_its_personal_model_and_its_alpha():
    """Received w = 1, then 2 (one weight, x = 2); v and α of round 1 enter round 2.

    v̄ = αv + (1-α)w; v ← v + .5·α·2σ(-2v̄); α ← α + .5·(v - w)·2σ(-2v̄), both from the values before the step.
    """
    algorithm = client("apfl", One, [2.0], **{"apfl.alpha": 0.5})
    state, v, alpha = algorithm.init(), 0.0, 0.5
    for number, w in ((1, 1.0), (2, 2.0), (3, 0.5)):
        mixed = alpha * v + (1 - alpha) * w
        assert logits(algorithm, state, dense(w=[w]), Plan(number), [2.0]) == pytest.approx(2 * mixed, rel=1e-5)
        slope_mixed = 2 * slope(2 * mixed)
        v, alpha = v - 0.5 * alpha * slope_mixed, alpha - 0.5 * (v - w) * slope_mixed
        state, sent = algorithm.train(state, dense(w=[w]), Plan(number))
        assert state.personal["w"][0] == pytest.approx(v, rel=1e-5)
        assert state.alpha == pytest.approx(alpha, rel=1e-5)
        assert sent.tensors["w"].values[0] == pytest.approx(step([w], [2.0])[0], rel=1e-5)
    assert 0 < alpha < 0.45


@pytest.mark.parametrize(
    ("method", "keys", "travels"),
    [
        ("fedper", {}, "b"),
        ("fedrep", {"fedrep.head-epochs": 1}, "b"),
        ("lg-fedavg", {"lg-fedavg.shared-layers": 1, "lg-fedavg.shared-end": "last"}, "h"),
    ],
)
def test_what_stays_with_the_client_is_used_in_the_second_round(method, keys, travels):
    """Received 3 in both rounds, x = 2: the other factor goes on from its own value of round 1, not from W_0 = 1.

    Its step is s + .5·2·3·σ(-2·3·s). Received is the product of 3 and that value. FedRep's body takes its step after
    the head, so it sees the new head; FedPer and LG-FedAvg step both from the same batch.
    """
    algorithm = client(method, Product, [2.0], start=1.0, **keys)
    state, stays, local_name = algorithm.init(), 1.0, {"b": "h", "h": "b"}[travels]
    for number in (1, 2):
        download = dense(**{travels: [3.0]})
        assert logits(algorithm, state, download, Plan(number), [2.0]) == pytest.approx(6 * stays, rel=1e-5)
        before, stays = stays, step([stays], [6.0])[0]
        state, sent = algorithm.train(state, download, Plan(number))
        assert state.model[local_name][0] == pytest.approx(stays, rel=1e-5)
        beside = stays if method == "fedrep" else before
        assert sent.tensors[travels].values[0] == pytest.approx(step([3.0], [2 * beside])[0], rel=1e-6)
    assert stays > 1.005


def test_local_goes_on_from_its_own_model():
    algorithm = client("local")
    state, _ = algorithm.train(algorithm.init(), Payload(), Plan(1))
    state, sent = algorithm.train(state, Payload(), Plan(2))
    np.testing.assert_allclose(state.model["w"].reshape(-1), step(step(np.zeros(4))), rtol=1e-6)
    assert sent.tensors == {}


# FedAvg + fine-tuning


def test_fedavg_ft_tunes_for_its_epochs_and_uploads_the_model_before():
    """local-epochs 1, fedavg-ft.epochs 3, evaluation every 2 rounds: round 1 is FedAvg's, round 2 is tuned.

    In round 2 one step is uploaded, three are kept. Round 3 starts from what is received again.
    """
    keys = {"fedavg-ft.epochs": 3, "evaluate-every": 2}
    algorithm = client("fedavg-ft", **keys)
    server = registry.get("fedavg-ft").make_server(algorithm.setup)
    state = algorithm.init()
    for number, steps in ((1, 1), (2, 3), (3, 1), (4, 3)):
        received = np.array([0.1, 0, 0, 0]) * number
        state, sent = algorithm.train(state, four(received), server.plan(number))
        trained = [step(received), step(step(step(received)))]
        np.testing.assert_allclose(flat(sent.tensors["w"]), trained[0], rtol=1e-6)
        np.testing.assert_allclose(state.model["w"].reshape(-1), trained[steps == 3], rtol=1e-6)
    tuned = algorithm.adapt(state, four([0] * 4), Plan(5))
    np.testing.assert_allclose(tuned.model["w"].reshape(-1), step(step(step(np.zeros(4)))), rtol=1e-6)


def test_fedbabu_tunes_in_adapt_only_and_never_moves_its_head_in_training():
    algorithm = client("fedbabu", Product, [2.0], start=1.0, **{"fedbabu.epochs": 2})
    state = algorithm.adapt(algorithm.init(), dense(b=[3.0]), Plan(1))
    assert state.model["h"][0] > 1
    state, sent = algorithm.train(state, dense(b=[3.0]), Plan(2))
    assert state.model["h"][0] == 1
    assert sent.tensors["b"].values[0] == pytest.approx(step([3.0], [2.0])[0], rel=1e-6)


# Masks


def test_dmpfl_keeps_its_personal_weights_from_phase_1_to_phase_2b():
    """m_c = {0, 1}, m_g = {1, 2}; w_c = W_0 = 0, x as above.

    Phase 1 trains θ_c under m_c, from (w_c0, w_g1): with w_g1 = .5, θ = (0, .5): one step. In phase 2b w_g1 = -1 is
    received: the overlap {1} is -1 and frozen, and entry 0 goes on from its value of phase 1.
    """
    algorithm = client("dmpfl")
    mask, shared = ({"w": np.array(m, bool).reshape(4, 1)} for m in ([1, 1, 0, 0], [0, 1, 1, 0]))
    bits, global_bits = pack(mask, algorithm.parts), pack(shared, algorithm.parts)
    state = DualState(bits, {"w": np.zeros(2, np.float32)}, global_bits, {"w": np.zeros(2, np.float32)})

    def received(values, version):
        tensor = SparseTensor((4, 1), np.array([1, 2]), np.array(values, np.float32))
        return Payload({"w": tensor}, {"mask": 0, "weights": version})

    start = np.array([0, 0.5, 0, 0])
    state, sent = algorithm.train(state, received([0.5, 9], 1), Plan(1, "1", scalars={"prune": 0.0}))
    first = step(start)[:2]
    np.testing.assert_allclose(flat(sent.tensors["w"]), [*first, 0, 0], rtol=1e-6)
    state, sent = algorithm.train(state, received([-1, 9], 2), Plan(2, "2b", scalars={"prune": 0.0}))
    assert sent.tensors == {}
    second = step([first[0], -1, 0, 0])[0]
    model = spread(state.personal, unpack(state.mask, algorithm.layout))["w"].reshape(-1)
    np.testing.assert_allclose(model, [second, -1, 0, 0], rtol=1e-5)


def test_subfedavg_prunes_what_is_left_of_its_mask_in_the_second_round():
    """A step prunes a quarter of what is left, 1 of 4, then 1 of 3 (.75, rounded half up); target .5.

    Round 1 from 0: w = .25·x = (.25, .5, 1, .125): entry 3 goes. Round 2 receives (1, -1, .1) at {0, 1, 2}:
    w·x = -.6, w + .5·σ(.6)·x = (1.32, -.35, 1.39): entry 1 goes, and entry 3 stays away.
    """
    keys = {"subfedavg.step": 0.25, "subfedavg.target": 0.5, "subfedavg.accuracy": 0.0, "subfedavg.distance": 0.0}
    algorithm = client("subfedavg", **keys)
    state, sent = algorithm.train(algorithm.init(), Payload(), Plan(1))
    assert algorithm.kept(state)["w"].reshape(-1).tolist() == [True, True, True, False]
    assert flat(sent.tensors["w"]).tolist() == [0.25, 0.5, 1, 0]
    received = SparseTensor((4, 1), np.array([0, 1, 2]), np.array([1, -1, 0.1], np.float32))
    state, sent = algorithm.train(state, Payload({"w": received}), Plan(2))
    expected = step([1, -1, 0.1, 0]) * [1, 0, 1, 0]
    assert algorithm.kept(state)["w"].reshape(-1).tolist() == [True, False, True, False]
    np.testing.assert_allclose(flat(sent.tensors["w"]), expected, rtol=1e-6)
    np.testing.assert_allclose(algorithm.personal_weights(state)["w"].reshape(-1), expected, rtol=1e-6)


# Predictions


def test_a_predictor_has_exactly_the_weights_that_it_was_given():
    """By value, on random weights: no method may be evaluated with other weights than its own."""
    rng = derive(0, "test")
    algorithm = client("fedavg")
    weights, x = {"w": rng.standard_normal((4, 1)).astype(np.float32)}, rng.standard_normal((5, 4)).astype(np.float32)
    logits = algorithm.trainer.predictor(weights)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(logits[:, 0], (x @ weights["w"])[:, 0], rtol=1e-5, atol=1e-6)
