"""Sub-FedAvg against its paper: worked numbers, one round by hand, gates, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, ModelError
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, RunSetup, Upload
from sepal.strategies.assembly import assemble
from sepal.strategies.subfedavg.contract import Hyper
from sepal.strategies.subfedavg.pruning import distance, floor, paper_cost, pruned_step
from sepal.strategies.subfedavg.server import SubFedAvgServer
from sepal.wire.tensors import Support
from tests.strategies import subfedavg
from tests.strategies.subfedavg import FLAT, HYBRID, Received, of_model, parts, rounds

# Worked numbers


@pytest.mark.parametrize(
    ("size", "rounds", "costs"),
    [
        # 500 rounds of 10 clients, LeNet-5: 5000 · 62,006 · (32 + 32·(1 - p) + p) / 8 bytes. (2.40 × FLOPs of its
        # hybrid variant: tests/models/test_narrow.py.)
        (62_006, 500, {0: 2.480e9, 0.3: 2.120e9, 0.5: 1.880e9, 0.7: 1.639e9}),
        # 300 rounds of 10 clients, 21,840 parameters: 3000 · 21,840 · 64 / 8 = 524.16 MB at p = 0.
        (21_840, 300, {0: 524.16e6, 0.3: 447.99e6, 0.5: 397.2e6, 0.7: 346.4e6}),
    ],
)
def test_the_papers_cost_table(size, rounds, costs):
    for pruned, published in costs.items():
        assert rounds * 10 * paper_cost(size, pruned) == pytest.approx(
            published, abs=0.5e6 if size > 50_000 else 0.05e6
        )


def test_distance_by_hand():
    """(1, 1, 0, 1) and (1, 0, 0, 1) differ in one of four entries."""
    first, second = ({"w": np.array(bits, bool)} for bits in ([1, 1, 0, 1], [1, 0, 0, 1]))
    assert distance(first, second, (Parameter("w", (4,), Role.WEIGHT),)) == 0.25
    assert distance(first, second, ()) == 0


# .9⁴ = .656 < .7 ≤ .9³ = .729; .9⁷ = .478 < .5 ≤ .9⁶ = .531; .9¹² = .282 < .3 ≤ .9¹¹ = .314. The last step is trimmed.
@pytest.mark.parametrize(("target", "steps"), [(0.3, 4), (0.5, 7), (0.7, 12)])
def test_the_target_is_reached_exactly_after_the_published_number_of_prunings(target, steps):
    score, masks = {"w": np.arange(1, 10_001, dtype=np.float32)}, {"w": np.ones(10_000, bool)}
    left = []
    for _ in range(steps + 2):
        masks = pruned_step(score, masks, {"w": floor(10_000, target)}, 0.1)
        left.append(int(masks["w"].sum()))
    assert left[:3] == [9000, 8100, 7290]
    assert left[steps - 2] > round(10_000 * (1 - target)) == left[steps - 1] == left[-1]
    assert masks["w"][-left[-1] :].all(), "the smallest go"


def test_one_step_takes_a_tenth_of_what_is_left_of_each_layer_and_no_bias():
    """digits-cnn: of 144, 4608, 4096 and 320 weights go 14, 461, 410 and 32, rounded half up."""
    run = rounds(1)
    kept = run.host.algorithm.kept(run.client)
    assert {p: mask.size - mask.sum() for p, mask in kept.items()} == {
        "conv1.weight": 14,
        "conv2.weight": 461,
        "fc1.weight": 410,
        "fc2.weight": 32,
    }
    masks = run.server.prunable.masks(kept)
    assert all(masks[p.name].all() for p in run.server.layout if p.role is not Role.WEIGHT)
    assert run.metrics["pruned"] == pytest.approx((14 + 461 + 410 + 32) / 9258)
    assert run.metrics["paper-cost"] == pytest.approx(paper_cost(9258, 917 / 9258))


def test_a_step_by_percentile_takes_what_the_authors_code_takes():
    """|w| = 1 … 13 at 10 %: the percentile is 1 + .1·12 = 2.2, below which are 1 and 2, so 11 stay. .1·13 = 1.3 is 1.

    Of 11 entries the percentile is the second smallest itself, so only one is below it.
    """
    for size, percentile, by_count in ((13, 11, 12), (11, 10, 10)):
        score, masks = {"w": np.arange(1, size + 1, dtype=np.float32)}, {"w": np.ones(size, bool)}
        for by, expected in (("percentile", percentile), ("count", by_count)):
            after = pruned_step(score, masks, {"w": 1}, 0.1, by)["w"]
            assert np.flatnonzero(after).tolist() == list(range(size - expected, size))
    assert pruned_step(score, masks, {"w": 11}, 0.1, "percentile")["w"].all(), "not beyond the target"
    algorithm = parts(**{"subfedavg.step-by": "percentile"})[1].algorithm
    after = algorithm.candidate(algorithm.setup.weights, algorithm.prunable.whole)
    # of 144, 4608, 4096 and 320 distinct sizes, ⌈.1·(n - 1)⌉: 14.3, 460.7, 409.5 and 31.9, rounded up
    gone = {name: mask.size - mask.sum() for name, mask in after.items()}
    assert gone == {"conv1.weight": 15, "conv2.weight": 461, "fc1.weight": 410, "fc2.weight": 32}


GAMMAS = (
    [0.642, 0.84, 0.804, 0.544, 0.745, 0.584],
    [0.817, 0.446, 0.703, 0.499, 0.6, 0.13, 0.832, 0.78, 0.01, 0.888, 0.538, 0.054, 0.19, 0.948, 0.395, 0.286],
)


def test_the_authors_cut_of_channels_at_once():
    """LeNet-5's 6 and 16 channels, γ as above: ⌊.45·6⌋ + 1 = 3 go of one layer and ⌊.45·16⌋ + 1 = 8 of the other.

    The sizes in order are .544 .584 .642 | .745 … and … .446 .499 | .538 …: 22 → 3 + 8, the floor, in one step. Ours
    ranks both layers together, a tenth of what is left at a time: 22, 20, 18, 16, 14, 13, 12, 11.
    """
    counts = {}
    for cut in ("at-once", "steps"):
        prunable = of_model("lenet5-bn", (3, 32, 32), **{"subfedavg.channel-cut": cut}).prunable
        masks, weights = prunable.whole, {}
        for name, gammas in zip(("conv1", "conv2"), GAMMAS, strict=True):
            weights[prunable.scales[name]] = -np.array(gammas, np.float32)  # the sign does not matter
        counts[cut] = [22]
        while len(counts[cut]) < 9:
            masks = {**masks, **prunable.prune_channels(weights, masks)}
            counts[cut].append(prunable.channels_left(masks))
            if cut == "at-once":
                assert masks["conv1"].astype(int).tolist() == [0, 1, 1, 0, 1, 0]
                assert masks["conv2"].astype(int).tolist() == [1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0]
    assert counts == {"at-once": [22] + 8 * [11], "steps": [22, 20, 18, 16, 14, 13, 12, 11, 11]}


@pytest.mark.parametrize("cut", ["at-once", "steps"])
def test_channels_of_odd_layers_reach_their_target_over_the_wire(cut):
    """At .7, 48 channels leave 14; cut at once, 16 and 32 leave 16 - 11 = 5 and 32 - 22 = 10 in two steps."""
    keys = {**HYBRID, "subfedavg.channel-cut": cut, "subfedavg.channel-target": 0.7, "subfedavg.step": 0.5}
    run = rounds(3, **keys)
    assert run.server.prunable.channels_left(run.host.algorithm.kept(run.client)) == (15 if cut == "at-once" else 14)


# One round by hand


def tiny(**keys):
    """A server over w (2, 2) and b (2,), which starts at 9."""
    config = assemble(FLAT).setup.config
    layout = (Parameter("w", (2, 2), Role.WEIGHT), Parameter("b", (2,), Role.BIAS))
    weights = {p.name: np.full(p.shape, 9, np.float32) for p in layout}
    return SubFedAvgServer(RunSetup(layout, weights, config, Hyper(**keys)))


def sent(server, name, before, mask, values, bias):
    """What a client uploads that has ``mask`` left of w, from ``before``."""
    weights = {"w": np.array(values, np.float32), "b": np.array(bias, np.float32)}
    payload = subfedavg.sent(server, {"w": np.array(before, bool)}, {"w": np.array(mask, bool)}, weights)
    return Upload(ClientInfo(name, 10 if name == "a" else 30), payload)


def test_two_rounds_by_hand():
    """a keeps (0, 0), (0, 1) with 2, 4; b keeps (0, 1), (1, 0) with 8, 0. They have 10 and 30 examples and count alike.

    (0, 0): 2. (0, 1): (4 + 8) / 2 = 6. (1, 0): b's 0, which it kept. (1, 1): nobody's, stays 9.
    Of 6 parameters 2 are gone at each: pruned 1/3, and 2 · 6·(32 + 32·2/3 + 1/3)/8 = 80.5 bytes by the formula.
    In round 2 a prunes (0, 1), too, and sends 3: half is gone, and 6·(32 + 16 + 1/2)/8 = 36.375 bytes more.
    """
    server, whole = tiny(), [[1, 1], [1, 1]]
    a = sent(server, "a", whole, [[1, 1], [0, 0]], [[2, 4], [0, 0]], [1, 1])
    b = sent(server, "b", whole, [[0, 1], [1, 0]], [[0, 8], [0, 0]], [3, 5])
    state, metrics = server.aggregate(server.init(), Received([a, b]), server.plan(1))
    assert state.weights["w"].tolist() == [[2, 6], [0, 9]]
    assert state.weights["b"].tolist() == [2, 3]
    assert metrics == {"paper-cost": pytest.approx(80.5), "pruned": pytest.approx(1 / 3), "channels-pruned": 0}
    down = server.download(state, b.client, server.plan(2)).tensors
    assert down["w"].support is Support.DERIVED
    assert (down["w"].index.tolist(), down["w"].values.tolist()) == ([1, 2], [6, 0])
    a = sent(server, "a", [[1, 1], [0, 0]], [[1, 0], [0, 0]], [[3, 0], [0, 0]], [4, 4])
    state, metrics = server.aggregate(state, Received([a]), server.plan(2))
    assert state.weights["w"].tolist() == [[3, 6], [0, 9]]
    assert metrics == {"paper-cost": pytest.approx(80.5 + 36.375), "pruned": 0.5, "channels-pruned": 0}
    assert server.kept(state, "b")["w"].tolist() == [[False, True], [True, False]]


def test_unstructured_at_target_0_is_fedavg_with_equal_weights_bit_for_bit():
    pruning_run = run_in_process(assemble({**FLAT, "subfedavg.target": 0.0}))
    fedavg = run_in_process(assemble({**FLAT, "method": "fedavg", "fedavg.weights": "equal"}))
    pruned_weights, fedavg_weights = (s.algorithm.model(s.progress.server) for s in (pruning_run, fedavg))
    assert pruned_weights.keys() == fedavg_weights.keys()
    assert all(np.array_equal(pruned_weights[name], fedavg_weights[name]) for name in pruned_weights)
    assert pruning_run.report.accuracy == fedavg.report.accuracy


# Gates


@pytest.mark.parametrize("keys", [{}, HYBRID])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_clients_prune_whatever_the_number_of_epochs(epochs, keys):
    run = rounds(2, **{**keys, "local-epochs": epochs})
    assert run.metrics["pruned"] > 0.05
    assert run.metrics["channels-pruned"] > 0 or not keys


def test_with_one_epoch_the_distance_is_to_the_mask_before():
    """A tenth of all weights goes in the first step: about .1, which is more than .09 and less than .11."""
    assert rounds(1, **{"local-epochs": 1, "subfedavg.distance": 0.09}).metrics["pruned"] > 0.09
    assert rounds(1, **{"local-epochs": 1, "subfedavg.distance": 0.11}).metrics["pruned"] == 0


# A tenth of what is left, rounded, until a step is less than .05 of all channels: 22, 20, 18, 16, 14 and then 1 of 22.
# 30, 27, 24, 22, 20, 18, 16, and 48, 43, 39, 35, 31, 28, 25: then 1 is left to the target, a step of less than .05.
@pytest.mark.parametrize(
    ("model", "shape", "stops", "target"),
    [
        ("lenet5-bn", (3, 32, 32), 14, 11),
        ("mnist-cnn-bn", (1, 28, 28), 16, 15),
        ("digits-cnn-bn", (1, 8, 8), 25, 24),
    ],
)
def test_with_one_epoch_the_default_distance_keeps_channels_from_their_target(model, shape, stops, target):
    for least, expected in ((Hyper().channel_distance, stops), (0.0, target)):
        algorithm = of_model(model, shape, **{"local-epochs": 1, "subfedavg.channel-distance": least})
        algorithm.accuracy = lambda weights, kept: 1.0
        weights, kept = algorithm.setup.weights, algorithm.prunable.whole
        for _ in range(15):
            kept = algorithm.prune(weights, kept, kept)
        assert algorithm.prunable.channels_left(kept) == expected
        assert kept["fc2.weight"].sum() == kept["fc2.weight"].size / 2, "weights go on, which no channel takes"


def test_gates_open_at_equality():
    """With one epoch a step of 917 of 9,168 weights, or of 5 of 48 channels, is the distance itself."""
    one_epoch = {"local-epochs": 1}
    assert rounds(1, **one_epoch, **{"subfedavg.distance": 917 / 9168}).metrics["pruned"] > 0
    run = rounds(1, **one_epoch, **{**HYBRID, "subfedavg.channel-distance": 5 / 48, "subfedavg.distance": 1.0})
    assert run.metrics["channels-pruned"] == 5 / 48
    algorithm = parts(**{"subfedavg.accuracy": 0.5, "subfedavg.distance": 0.0})[1].algorithm
    whole = algorithm.prunable.whole
    for accuracy, pruned in ((0.5, 917 / 9258), (0.499, 0)):
        algorithm.accuracy = lambda weights, kept, value=accuracy: value
        after = algorithm.gated(algorithm.setup.weights, whole, whole)
        assert algorithm.prunable.pruned(after) == pytest.approx(pruned)


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_the_gate_is_about_the_model_before_or_after_the_step(keys):
    """The paper tests before pruning, the authors' code after it: with the step's masks, and nothing else changed."""
    algorithm = parts(**{**keys, "subfedavg.accuracy": 0.5})[1].algorithm
    weights, whole = algorithm.setup.weights, algorithm.prunable.whole
    last = algorithm.prunable.within(algorithm.candidate(weights, whole))
    masks, tested_models = algorithm.prunable.masks(last), []
    for of, expected in (("before", whole), ("after", last)):
        algorithm.hyper = algorithm.hyper.model_copy(update={"accuracy_of": of})

        def note(tested, masks, expected=expected):
            tested_models.append(tested)
            assert all(np.array_equal(masks[name], mask) for name, mask in expected.items())
            return 0.0

        algorithm.accuracy = note
        algorithm.gated(weights, whole, whole)
    assert all(np.array_equal(tested_models[0][name], array) for name, array in weights.items())
    assert all(np.array_equal(tested_models[1][name], array * masks[name]) for name, array in weights.items())


def test_defaults_are_the_papers():
    """Acc_th is the ground truth's; see NOTES.md."""
    hyper = Hyper()
    assert (hyper.variant, hyper.target, hyper.channel_target, hyper.step) == ("un", 0.5, 0.5, 0.1)
    assert (hyper.accuracy, hyper.distance, hyper.channel_distance) == (0.5, 1e-4, 0.05)
    assert (hyper.step_by, hyper.channel_cut, hyper.accuracy_of) == ("count", "steps", "before")


def test_channels_are_ranked_by_size_over_all_layers_and_the_largest_of_each_stays():
    """Half of 48 go. conv1's 16 are all smaller than conv2's 32; its largest in size is negative and stays.

    So 15 go from conv1, and from conv2 the 9 smallest in size, of which -9 is not one.
    """
    algorithm = parts(**{**HYBRID, "subfedavg.step": 0.5})[1].algorithm
    small, large = np.linspace(0.01, 0.16, 16, dtype=np.float32), np.arange(1, 33, dtype=np.float32)
    small[3], large[5], large[20] = -0.5, -90, -0.9
    weights = {**algorithm.setup.weights, "norm1.weight": small, "norm2.weight": large}
    after = algorithm.prunable.prune_channels(weights, algorithm.prunable.whole)
    assert np.flatnonzero(after["conv1"]).tolist() == [3]
    assert np.flatnonzero(~after["conv2"]).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 20]


def test_a_client_reports_how_far_its_candidates_are_apart_even_where_a_gate_stays_shut():
    """With one epoch the distance is the step: 917 of 9,168 weights; of a hybrid, 5 of 48 channels."""
    settings = {"local-epochs": 1, "subfedavg.accuracy": 1.0}
    spent = rounds(1, **settings).host.algorithm.trainer.spent()
    assert (spent["pruned"], spent["distance"], "channel-distance" in spent) == (0, 917 / 9168, False)
    spent = rounds(1, **{**HYBRID, **settings}).host.algorithm.trainer.spent()
    assert (spent["pruned"], spent["channel-distance"]) == (0, 5 / 48)


def test_masks_that_do_not_differ_enough_between_first_and_last_epoch_are_not_applied():
    assert rounds(1, **{"local-epochs": 2, "subfedavg.distance": 0.0}).metrics["pruned"] > 0.09
    assert rounds(1, **{"local-epochs": 2, "subfedavg.distance": 0.5}).metrics["pruned"] == 0


@pytest.mark.parametrize(("channels", "weights"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_gates_of_the_hybrid_variant_are_independent(channels, weights):
    run = rounds(1, **{**HYBRID, "subfedavg.channel-distance": channels, "subfedavg.distance": weights})
    assert (run.metrics["channels-pruned"] > 0) is (channels == 0)
    fc2 = run.host.algorithm.kept(run.client)["fc2.weight"]  # no channel takes anything of it
    assert (not fc2.all()) is (weights == 0)


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_a_client_whose_gate_never_opens_stays_dense_and_the_run_goes_on(keys):
    strategy = run_in_process(assemble({**FLAT, **keys, "subfedavg.accuracy": 1.0, "rounds": 3, "lr": 1e-6}))
    server = strategy.progress.server
    assert strategy.progress.round == 4
    assert all(strategy.algorithm.prunable.pruned(strategy.algorithm.kept(server, name)) == 0 for name in server.kept)


def test_a_client_without_validation_examples_does_not_prune():
    server, host = parts()
    trainer = host.algorithm.trainer
    trainer.x_validation, trainer.y_validation = trainer.x_validation[:0], trainer.y_validation[:0]
    weights = dict(server.setup.weights)
    assert host.algorithm.accuracy(weights, host.algorithm.kept(host.algorithm.init())) == 0


def test_targets_are_met_exactly_and_both_sides_hold_the_same_masks():
    """fc weights that go with a channel count, so that channels alone may pass the target of fc1 only."""
    for keys in ({}, HYBRID):
        run = rounds(9, **{**keys, "subfedavg.target": 0.6, "subfedavg.step": 0.3, "subfedavg.channel-target": 0.25})
        masks = run.host.algorithm.kept(run.client)
        server_masks = run.server.kept(run.state, run.host.info.name)
        assert all(np.array_equal(masks[name], server_masks[name]) for name in masks)
        assert {p.name: masks[p.name].sum() for p in run.server.prunable.weights} == {
            p.name: p.size - round(0.6 * p.size) for p in run.server.prunable.weights
        }
        if keys:
            assert run.metrics["channels-pruned"] == 0.25  # 12 of 16 + 32


def test_the_last_step_on_weights_is_taken_from_what_a_channel_cut_of_the_same_round_leaves():
    """digits-cnn-bn, target .1 of fc1's 4,096 weights: 3,686 are left. 5 of 48 channels go at once, here 3 of conv2,
    whose 4 inputs each of fc1's 32 units are 384 weights: 3,712 are left, so the step takes the 26 smallest of these,
    not a tenth. The candidate from before the cut would take 410 of all, and with the channels' more than the target.
    """
    run = rounds(1, **{**HYBRID, "subfedavg.target": 0.1, "subfedavg.accuracy": 0.9, "subfedavg.distance": 0.0})
    algorithm = run.host.algorithm
    kept = algorithm.kept(run.client)
    assert all(mask.all() for mask in kept.values())
    weights, rng = algorithm.personal_weights(run.client), np.random.default_rng(0)
    size = rng.permutation(np.arange(1, 4097, dtype=np.float32)).reshape(32, 128)
    scale1, scale2 = np.ones(16, np.float32), np.ones(32, np.float32)
    scale1[[3, 9]], scale2[[0, 7, 31]] = 0.01, 0.02
    weights = {**weights, "fc1.weight": size, "norm1.weight": scale1, "norm2.weight": scale2}
    algorithm.accuracy = lambda weights, kept: 1.0
    after = algorithm.prune(weights, kept, kept)
    assert np.flatnonzero(~after["conv1"]).tolist() == [3, 9]
    assert np.flatnonzero(~after["conv2"]).tolist() == [0, 7, 31]
    left = np.ones((32, 128), bool)
    left.reshape(32, 32, 4)[:, [0, 7, 31]] = False
    assert left.sum() == 3712
    left &= size > np.sort(size[left])[25]
    assert left.sum() == 3686
    np.testing.assert_array_equal(after["fc1.weight"], left)


# Bad input


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"subfedavg.variant": "hy"}, ModelError, "model: expected BatchNorm2d .* got none in digits-cnn"),
        ({"split.validation": 0.0}, ConfigError, "split.validation: expected more than 0"),
        ({"subfedavg.target": 1.0}, ConfigError, "subfedavg.target: expected less than 1, got 1.0"),
        ({"subfedavg.channel-target": -0.1}, ConfigError, "subfedavg.channel-target: expected greater"),
    ],
)
def test_bad_input_is_one_line_before_the_first_round(keys, error, message):
    with pytest.raises(error, match=message) as caught:
        run_in_process(assemble({**FLAT, **keys}))
    assert "\n" not in str(caught.value)
