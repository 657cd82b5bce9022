"""TailorFL: importances, filters, two rounds of training, all beside independent NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sepal.method import ClientInfo, Payload
from sepal.strategies.baselines.tailorfl import Tailored
from sepal.strategies.baselines.tailorfl_filters import correlations, top, tuned
from tests.strategies.by_hand import data, gradients, softmax
from tests.strategies.federation import Federation

MLP = {"model": "tests.strategies.federation:mlp", "split.validation": 0.0, "tailorfl.personal": 0.6}


def test_importances_and_two_rounds_by_hand():
    """fc1 of 8 units is personal (2 layers with the output; the first ⌊2·.4⌋ = 0 are shared).

    Importances start at 1: z = V·(s ⊙ h) + c, so by s: Σ over examples of h ⊙ Vᵀ·(softmax - onehot)/n, plus λ·2s/8. 10
    passes of one batch, lr .5, cut to [0, 1]. Capacities 1 and .25 keep 8 and 4 units. Then weights go out over the
    width, come back times it, and count n_i/width.
    """
    federation = Federation([1.0, 0.25], method="tailorfl", **MLP)
    server, state = federation.server, federation.server.init()
    w = {name: value.astype(np.float64) for name, value in federation.setup.weights.items()}
    assert server.plan(1).who == "all"
    first, _ = federation.round(state, 1)
    assert first.weights is state.weights
    kept_filters = []
    for host, count in zip(federation.hosts, (8, 4), strict=True):
        x, y = data(host)
        h, s = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0), np.ones(8)
        for _ in range(10):
            # importance multiplies before the activation; s ≥ 0, so after it is the same
            slope = (softmax((h * s) @ w["fc2.weight"].T + w["fc2.bias"]) - np.eye(10)[y]) / len(y)
            s = np.clip(s - 0.5 * ((h * (slope @ w["fc2.weight"])).sum(0) + 0.5 * 2 * s / 8), 0, 1)
        np.testing.assert_allclose(first.importance[host.info.name], s, rtol=1e-4, atol=1e-5)
        kept_filters.append(np.sort(np.argsort(-(s**2), kind="stable")[:count]))
        np.testing.assert_array_equal(first.filters[host.info.name]["fc1"], kept_filters[-1])
    state = first
    for round in (2, 3):
        total, count = ({n: np.zeros_like(v) for n, v in w.items()} for _ in range(2))
        for host, rows, width in zip(federation.hosts, kept_filters, (1, 0.5), strict=True):
            x, y = data(host)
            start = {n: v / width for n, v in w.items()}
            slope, _ = gradients(start, rows, x, np.eye(10)[y])
            for n, value in w.items():
                mask = np.zeros(value.shape, bool)
                mask[{"fc1.weight": (rows,), "fc1.bias": (rows,), "fc2.weight": (slice(None), rows)}.get(n, ...)] = True
                total[n] += mask * (start[n] - 0.5 * slope[n]) * width * len(y) / width
                count[n] += mask * len(y) / width
        w = {n: np.where(count[n] > 0, total[n] / np.maximum(count[n], 1e-9), w[n]) for n in w}
        old = state
        state, _ = federation.round(state, round)
        for n, value in w.items():
            np.testing.assert_allclose(state.weights[n], value, rtol=1e-4, atol=2e-5, err_msg=f"{round} {n}")
        names = [host.info.name for host in federation.hosts]
        similar = correlations([old.importance[name] for name in names])
        moved = tuned([old.filters[name]["fc1"] for name in names], similar, 8, 0.05)
        assert [state.filters[name]["fc1"].tolist() for name in names] == [kept.tolist() for kept in moved]
        kept_filters = moved


def test_correlations_by_hand():
    """(1, 2, 3) and (2, 4, 6): 1; and (3, 2, 1): -1; a constant: 0."""
    vectors = [np.array(v, np.float32) for v in ([1, 2, 3], [2, 4, 6], [3, 2, 1], [5, 5, 5])]
    expected = [[1, 1, -1, 0], [1, 1, -1, 0], [-1, -1, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(correlations(vectors), expected, atol=1e-12)


def test_filters_move_towards_similar_clients_by_hand():
    """Of 6 filters a keeps 0 1 2, b 3 4 5, c 0 1 5. a is similar to b (.9), not to c (0).

    a should share .9·3 = 2.7 with b and shares 0: each of b's weighs 2.7. With c it should share 0 and shares 2: c's
    weigh -2. So its own weigh -2, -2, 0, the others 2.7, 2.7, 2.7 - 2 = .7. 0 goes for 3: with alpha 0 once. With
    alpha 1 up to 3 times: then it shares 1 with b (2.7 - 1 = 1.7 each) and 1 with c (-1): its own 1, 2, 3 weigh -1, 0,
    1.7, the others 0, 4, 5: -1, 1.7, .7: 1 goes for 4. It shares 2 with b (.7) and 0 with c: 2, 3, 4 weigh 0, .7, .7,
    the others 0, 1, 5: 0, 0, .7: 2 goes for 5.
    """
    filters = [np.array(kept) for kept in ([0, 1, 2], [3, 4, 5], [0, 1, 5])]
    similar = np.array([[1, 0.9, 0], [0.9, 1, 1], [0, 1, 1]])
    assert tuned(filters, similar, 6, 0.0)[0].tolist() == [1, 2, 3]
    assert tuned(filters, similar, 6, 1.0)[0].tolist() == [3, 4, 5]
    assert tuned([np.arange(6)], np.eye(1), 6, 1.0)[0].tolist() == list(range(6))


def test_top_takes_the_first_of_equals_in_order():
    assert top(np.array([1.0, 3.0, 3.0, 0.0, 3.0]), 2).tolist() == [1, 2]


def test_shared_layers_keep_the_filters_of_greatest_norm_for_all():
    """digits-cnn has four layers with the output: the first two are shared, fc1 is personal."""
    federation = Federation([0.25, 0.25], method="tailorfl")
    state, _ = federation.round(federation.server.init(), 1)
    state, _ = federation.round(state, 2)
    a, b = (state.filters[host.info.name] for host in federation.hosts)
    for name, count in (("conv1", 8), ("conv2", 16)):
        size = np.square(state.weights[f"{name}.weight"].reshape(2 * count, -1), dtype=np.float64).sum(1)
        size += np.square(state.weights[f"{name}.bias"], dtype=np.float64)
        np.testing.assert_array_equal(a[name], np.sort(np.argsort(-size)[:count]))
        np.testing.assert_array_equal(a[name], b[name])
    assert [group.name for group in federation.server.personal] == ["fc1"]
    assert len(a["fc1"]) == 16


def test_who_joins_after_round_1_gets_the_filters_of_greatest_norm():
    federation = Federation([1.0, 0.25], method="tailorfl")
    state, _ = federation.round(federation.server.init(), 1, [0])
    late = federation.hosts[1].info
    filters = federation.server.filters(state, late)
    assert {name: len(kept) for name, kept in filters.items()} == {"conv1": 8, "conv2": 16, "fc1": 16}
    after, _ = federation.round(state, 2, [1])
    assert late.name not in after.filters
    assert (after.weights["fc2.bias"] != state.weights["fc2.bias"]).all()


def test_positions_never_travel():
    federation = Federation([1.0, 0.25], method="tailorfl")
    server = federation.server
    state, _ = federation.round(server.init(), 1)
    content = server.download(state, federation.hosts[1].info, server.plan(2))
    assert all(tensor.index is None for tensor in content.tensors.values())
    assert content.tensors["fc1.weight"].shape == (16, 16 * 4)


@pytest.mark.parametrize("round", [1, 2])
def test_an_upload_of_importances_has_its_round(round):
    server = Federation([1.0], method="tailorfl").server
    names = list(server.upload_schema(server.init(), ClientInfo("a", 1), server.plan(round)).tensors)
    assert (names == ["fc1/importance"]) is (round == 1)


def test_nobody_shares_filters_with_an_evicted_client():
    federation = Federation([1.0, 0.25, 0.25], method="tailorfl", **MLP)
    server = federation.server
    state, _ = federation.round(server.init(), 1)
    names = [host.info.name for host in federation.hosts]
    left = server.evicted(state, [names[1], "stranger"])
    assert sorted(left.filters) == sorted(left.importance) == [names[0], names[2]]
    assert all(left.filters[name] is state.filters[name] for name in left.filters)
    federation.welcomed.discard(1)
    server.tuned_filters(left, left.weights)


def test_the_received_model_of_round_1_is_the_whole_first_one():
    """A client of a quarter holds all of W_0 then, on which it trains importances, and has no filters yet."""
    federation = Federation([0.25], method="tailorfl", **MLP)
    (host,) = federation.hosts
    algorithm, plan = host.algorithm, federation.server.plan(1)
    x = algorithm.trainer.x
    logits = algorithm.predictor(algorithm.init(), Payload(), plan)(x)
    w = {name: torch.from_numpy(np.array(value)) for name, value in federation.setup.weights.items()}
    hidden = torch.relu(x.flatten(1) @ w["fc1.weight"].T + w["fc1.bias"])
    torch.testing.assert_close(logits, hidden @ w["fc2.weight"].T + w["fc2.bias"])
    assert algorithm.predictor(algorithm.init(), None, plan) is None


@pytest.mark.parametrize(("personal", "layers"), [(0.0, 0), (0.8, 4), (1.0, 5)])
def test_the_share_of_personal_layers_is_exact(personal, layers):
    """Of five layers .8 are four; 5·(1 - .8) is .9999999999999998 in binary. The output layer has no group."""
    shared = Tailored()
    shared.coupling = tuple("abcd")
    shared.setup = SimpleNamespace(hyper=SimpleNamespace(personal=personal))
    assert len(shared.personal) == max(0, layers - 1)
