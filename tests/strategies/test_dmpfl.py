"""DM-PFL against its paper: eq. 4 and 5, the 30 % rule, Algorithms 1 to 4, masks, the limit case, evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.layout import Parameter, Role
from sepal.masks.packed import spread, unpack
from sepal.method import ClientInfo, Payload, Plan, Upload
from sepal.method.means import mean_of_holders
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.strategies.dmpfl.client import adaptive, entropy, prefers_personal
from sepal.strategies.dmpfl.contract import Hyper, budgets
from sepal.strategies.dmpfl.server import global_mask
from sepal.wire.tensors import SparseTensor
from tests.strategies.dmpfl import FLAT, first_round, parts

# Equations by hand


def upload(examples, index, values):
    """One client's w_c at m_c, of three positions."""
    tensor = SparseTensor((3,), np.array(index, np.int64), np.array(values, np.float32))
    return Upload(ClientInfo(f"c{examples}", examples), Payload({"w": tensor}))


def test_eq_5_by_hand():
    """|D| = 1 holds {0, 1} with (2, 4), |D| = 3 holds {1} with 8; w_g was (9, 9, 9).

    Position 0: 1·2 / 1 = 2. Position 1: (1·4 + 3·8) / (1 + 3) = 7. Position 2: nobody's, stays 9.
    """
    mean = mean_of_holders([upload(1, [0, 1], [2, 4]), upload(3, [1], [8])], {"w": (3,)})
    assert mean.over({"w": np.full(3, 9, np.float32)})["w"].tolist() == [2, 7, 9]
    assert mean.holders["w"].tolist() == [1, 2, 0]


def test_eq_5_of_three_clients_by_hand():
    """|D| = 5, 3, 2 hold (1, 1, ·), (2, ·, ·) and (·, 3, 5).

    (5·1 + 3·2) / 8 = 1.375; (5·1 + 2·3) / 7 = 1.5714; 2·5 / 2 = 5.
    """
    uploads = [upload(5, [0, 1], [1, 1]), upload(3, [0], [2]), upload(2, [1, 2], [3, 5])]
    mean = mean_of_holders(uploads, {"w": (3,)})
    assert mean.over({"w": np.zeros(3, np.float32)})["w"].tolist() == pytest.approx([1.375, 11 / 7, 5])
    assert mean.holders["w"].tolist() == [2, 2, 1]


def test_eq_5_counts_a_regrown_zero():
    """A selected 0 is covered: (1·0 + 3·8) / 4 = 6, not 8."""
    mean = mean_of_holders([upload(1, [1], [0]), upload(3, [1], [8])], {"w": (3,)})
    assert mean.over({"w": np.zeros(3, np.float32)})["w"].tolist() == [0, 6, 0]


# Of 10 clients, .3·10 = 3: three holders are not more than 30 %, four are. Of 3 clients, .9: one holder is enough.
@pytest.mark.parametrize(
    ("holders", "clients", "expected"),
    [
        ([3, 4, 10, 4], 10, [1, 2]),  # |w| = (9, 5, 3, 1), budget 2: 0 is largest, but held by three of ten
        ([3, 3, 3, 4], 10, [3]),  # only one position passes: m_g is smaller than its budget
        ([1, 0, 1, 1], 3, [0, 2]),
        ([0, 0, 0, 0], 3, []),
    ],
)
def test_the_30_percent_rule_by_hand(holders, clients, expected):
    weights = {"w": np.array([9, -5, 3, 1], np.float32)}
    mask = global_mask(weights, {"w": np.array(holders)}, clients, {"w": 2}, 0.3, {"w": np.zeros(4, bool)})
    assert np.flatnonzero(mask["w"]).tolist() == expected


@pytest.mark.parametrize(
    ("last", "holders", "expected"),
    [
        ([1, 1, 0, 0], [0, 10, 10, 0], [0, 1]),  # 0 was in m_g and nobody covers it: it stays, by its |w| of 9
        ([1, 1, 0, 0], [3, 10, 10, 0], [1, 2]),  # three of ten cover it, which is not more than 30 %: it goes
        ([0, 1, 0, 1], [0, 10, 10, 0], [1, 2]),  # 0 was not in m_g; 3 was, nobody covers it, and two others are larger
        ([0, 0, 0, 1], [0, 0, 10, 0], [2, 3]),
    ],
)
def test_a_position_that_nobody_could_judge_stays_eligible(last, holders, expected):
    """Section 3.3.2: the server does not at once discard the positions of the round before. |w| = (9, 5, 3, 1)."""
    weights, last = {"w": np.array([9, -5, 3, 1], np.float32)}, {"w": np.array(last, bool)}
    mask = global_mask(weights, {"w": np.array(holders)}, 10, {"w": 2}, 0.3, last)
    assert np.flatnonzero(mask["w"]).tolist() == expected


def test_the_rule_is_exact_where_the_float_product_is_not():
    """.29·100 is 28.999999999999996 in floats; 29 holders of 100 are not more than 29 %."""
    last = {"w": np.zeros(2, bool)}
    mask = global_mask({"w": np.ones(2, np.float32)}, {"w": np.array([29, 30])}, 100, {"w": 1}, 0.29, last)
    assert mask["w"].tolist() == [False, True]


def test_eq_4_by_hand():
    """θ_c = w_g ⊙ (m_g ∩ m_c) + w_c ⊙ (m_c − m_g), entry by entry; after phase 1 the overlap is the client's own."""
    server, host, _ = parts(**{"dmpfl.initial-mask": "own"})
    algorithm, plan = host.algorithm, server.plan(1)
    state = algorithm.with_download(algorithm.init(), server.newcomer(server.init(), host.info, plan))
    mask, shared = unpack(state.mask, algorithm.layout), unpack(state.global_mask, algorithm.layout)
    ones = {name: np.full(m.sum(), 1, np.float32) for name, m in shared.items()}
    twos = {name: np.full(m.sum(), 2, np.float32) for name, m in mask.items()}
    state = replace(state, personal=twos, shared=ones)
    for name, tensor in algorithm.personal_model(state).items():
        np.testing.assert_array_equal(tensor, (shared[name] & mask[name]) * 1 + (mask[name] & ~shared[name]) * 2)
    for name, tensor in algorithm.personal_model(replace(state, ahead=True)).items():
        np.testing.assert_array_equal(tensor, mask[name] * 2)
    for name, tensor in algorithm.global_model(state).items():
        np.testing.assert_array_equal(tensor, shared[name] * 1)


def test_algorithm_4_by_hand():
    """(E_c, E_g, BE_c, BE_g) = (.3, .5, .1, .6).

    Sim .2: .3 − .8·.1 = .22 against .5 − .8·.6 = .02: global.
    Sim .95: .3 − .05·.1 = .295 < .5 − .05·.6 = .47: personal.
    """
    similarity = torch.tensor([0.2, 0.95])
    chosen = prefers_personal(torch.full((2,), 0.3), torch.full((2,), 0.5), similarity, 0.1, 0.6)
    assert chosen.tolist() == [False, True]


def test_entropy_and_the_choice_for_each_example():
    """Uniform logits over 4 classes: ln 4. Equal outputs (Sim = 1): E_c < E_g is false, so θ_g; a surer θ_c wins."""
    assert entropy(torch.zeros(1, 4)).item() == pytest.approx(np.log(4))
    same = torch.full((1,), 0.3)
    assert prefers_personal(same, same, torch.ones(1), 0.0, 0.0).tolist() == [False]  # a tie goes to θ_g
    personal, shared = torch.tensor([[1.0, 0.0], [9.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(adaptive(personal, shared, 0.0, 0.0), torch.tensor([[1.0, 0.0], [9.0, 0.0]]))
    opposite = adaptive(
        torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 0.1, 2.0
    )  # shifted: θ_g's base is higher
    torch.testing.assert_close(opposite, torch.tensor([[0.0, 1.0]]))


# Masks


def test_budgets():
    layout = (
        Parameter("a", (10, 4), Role.WEIGHT),
        Parameter("b", (10,), Role.BIAS),
        Parameter("c", (2, 10), Role.WEIGHT),
    )
    assert budgets(layout, Hyper()) == {"a": 20, "b": 10, "c": 10}
    assert budgets(layout, Hyper(dense_first=True)) == {"a": 40, "b": 10, "c": 10}
    erk = budgets(layout, Hyper(budget="erk"))  # ε·(14, 12) of 30 in all: 16.15 and 13.85
    assert erk == {"a": 16, "b": 10, "c": 14}


def test_first_masks_are_common_or_own():
    for mask_kind in ("common", "own"):
        masks = [parts(n, **{"dmpfl.initial-mask": mask_kind})[1].algorithm.init().mask for n in range(2)]
        common = parts(**{"dmpfl.initial-mask": mask_kind})[0].init().global_mask
        same = [all(np.array_equal(m[name], common[name]) for name in common) for m in masks]
        assert same == [mask_kind == "common"] * 2
        assert any(not np.array_equal(masks[0][n], masks[1][n]) for n in common) == (mask_kind == "own")


def test_first_masks_by_magnitude_hold_the_largest_first_weights():
    """The same for all, of as many entries as those that are drawn; all that is left out is smaller."""
    server, host, assembly = parts(**{"dmpfl.mask-by": "magnitude"})
    state, client = server.init(), host.algorithm.init()
    drawn = unpack(parts()[0].init().global_mask, server.layout)
    masks, client_masks = unpack(state.global_mask, server.layout), unpack(client.mask, server.layout)
    assert {part.name for part in server.parts} == {"conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"}
    for name, mask in masks.items():
        size = np.abs(assembly.setup.weights[name])
        assert np.array_equal(mask, client_masks[name])
        assert mask.sum() == drawn[name].sum()
        assert mask.all() or size[~mask].max() <= size[mask].min()
    assert any(not np.array_equal(masks[part.name], drawn[part.name]) for part in server.parts)
    run_in_process(assemble({**FLAT, "dmpfl.mask-by": "magnitude", "rounds": 4}))


def test_own_masks_by_magnitude_are_refused():
    """W_0 is the same for all clients, and so would the masks be."""
    keys = {"dmpfl.mask-by": "magnitude", "dmpfl.initial-mask": "own"}
    with pytest.raises(ConfigError, match=r"dmpfl\.initial-mask: expected common with dmpfl\.mask-by = magnitude"):
        run_in_process(assemble({**FLAT, **keys}))


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9, "weight-decay": 0.01}, {"optimizer": "adam", "lr": 0.01}])
def test_a_mask_is_kept_in_phase_1_and_its_size_when_it_moves(optimizer):
    """|m_c| never changes, tensor by tensor; what regrows is 0, what stays (or comes back at once) keeps its value."""
    server, host, _ = parts(**optimizer, **{"dmpfl.initial-mask": "own"})
    algorithm, start = host.algorithm, host.algorithm.init()
    before = unpack(start.mask, algorithm.layout)
    _, plain, _ = first_round(server, host)
    assert digest(plain.mask) == digest(start.mask)
    plan = Plan(1, "1", scalars={"prune": 0.5})
    _, change, sent = first_round(server, host, plan)
    after = unpack(change.mask, algorithm.layout)
    trained, readjusted = spread(plain.personal, before), spread(change.personal, after)
    for p in algorithm.parts:
        assert after[p.name].sum() == before[p.name].sum() == algorithm.budget[p.name]
        assert (after[p.name] != before[p.name]).any()
        np.testing.assert_array_equal(readjusted[p.name], np.where(after[p.name], trained[p.name], 0))
        assert not readjusted[p.name][after[p.name] & ~before[p.name]].any()
        assert sent.tensors[p.name].nnz == algorithm.budget[p.name]
    adapted = algorithm.adapt(start, server.newcomer(server.init(), host.info, plan), plan)
    assert digest(adapted.mask) == digest(start.mask), "nothing is sent: the mask stays what the server knows"


@pytest.mark.parametrize(
    "optimizer", [{}, {"momentum": 0.9, "weight-decay": 0.05}, {"optimizer": "adam", "lr": 0.01, "weight-decay": 0.05}]
)
def test_the_frozen_overlap_is_bit_identical_after_phase_2b(optimizer):
    server, host, _ = parts(**optimizer, **{"dmpfl.initial-mask": "own"})
    algorithm = host.algorithm
    download, after, sent = first_round(server, host, Plan(1, "2b", scalars={"prune": 0.0}))
    assert sent == Payload()
    assert download.tensors == {}, "in round 1 the client derives w_g and m_g"
    mask, shared = unpack(after.mask, algorithm.layout), unpack(after.global_mask, algorithm.layout)
    received = server.model(server.init())
    start, model = spread(algorithm.init().personal, mask), algorithm.personal_model(after)
    for p in algorithm.layout:
        overlap, free = mask[p.name] & shared[p.name], mask[p.name] & ~shared[p.name]
        assert model[p.name][overlap].tobytes() == received[p.name][overlap].tobytes()
        assert not model[p.name][~mask[p.name]].any()
        if p in algorithm.parts:
            assert overlap.any()
            assert (model[p.name][free] != start[p.name][free]).mean() > 0.5, "the rest is trained"
        else:
            assert overlap.all(), "biases are shared, so they are frozen"


def test_phase_2a_trains_within_the_global_mask_and_leaves_w_c_alone():
    server, host, _ = parts(**{"dmpfl.initial-mask": "own", "momentum": 0.9, "weight-decay": 0.01})
    _, after, sent = first_round(server, host, Plan(1, "2a", scalars={"prune": 0.0}))
    start = host.algorithm.init()
    assert digest((after.mask, after.personal)) == digest((start.mask, start.personal))
    shared, received = unpack(server.init().global_mask, host.algorithm.layout), server.model(server.init())
    for p in host.algorithm.parts:
        assert sent.tensors[p.name].index.tolist() == np.flatnonzero(shared[p.name]).tolist()
        assert (sent.tensors[p.name].values != received[p.name][shared[p.name]]).any()


# The limit case


@pytest.mark.parametrize("schedule", ["1:1", "2a:1", "1:1,2a:1"])
def test_keeping_everything_is_fedavg(schedule):
    """keep = 1 without phase 2b: m_g = m_c = 1, eq. 5 is the weighted mean, both phases are FedAvg: the same bits."""
    keys = {"clients-per-round": 2, "rounds": 4, "momentum": 0.5}
    dmpfl_run = run_in_process(assemble({**FLAT, **keys, "dmpfl.keep": 1.0, "dmpfl.schedule": schedule}))
    plain = {k: v for k, v in FLAT.items() if not k.startswith("dmpfl.")}
    fedavg_run = run_in_process(assemble({**plain, **keys, "method": "fedavg"}))
    expected, got = (
        fedavg_run.algorithm.model(fedavg_run.progress.server),
        dmpfl_run.algorithm.model(dmpfl_run.progress.server),
    )
    for name, tensor in expected.items():
        assert got[name].tobytes() == tensor.tobytes()


# Evaluation


def test_a_newcomer_is_evaluated_with_the_global_model_and_later_with_its_own():
    server, host, _ = parts(**{"dmpfl.initial-mask": "own"})
    algorithm, plan, x = host.algorithm, server.plan(1), host.algorithm.trainer.x[:7]
    download = server.newcomer(server.init(), host.info, plan)
    assert algorithm.predictor(algorithm.init(), None, plan) is None
    received = algorithm.predictor(algorithm.init(), download, plan)(x)
    torch.testing.assert_close(received, algorithm.trainer.predictor(server.model(server.init()))(x), rtol=0, atol=0)
    after, _ = algorithm.train(algorithm.init(), download, plan)
    personal = algorithm.predictor(after, None, plan)(x)
    expected = algorithm.trainer.predictor(spread(after.personal, unpack(after.mask, algorithm.layout)))(x)
    torch.testing.assert_close(personal, expected, rtol=0, atol=0)
    again = algorithm.predictor(after, download, plan)(x)  # eq. 4: the overlap is the received one again
    assert not torch.equal(personal, again)


def test_adaptive_inference_measures_base_entropies_after_phase_2b_and_uses_both_models():
    server, host, _ = parts(**{"dmpfl.initial-mask": "own", "dmpfl.adaptive-inference": True})
    algorithm, x = host.algorithm, host.algorithm.trainer.x
    _, trained, _ = first_round(server, host)
    assert trained.entropies == ()
    plan = Plan(2, "2b", scalars={"prune": 0.0})
    after = algorithm.adapt(trained, server.newcomer(server.init(), host.info, plan), plan)
    logits = [
        algorithm.trainer.predictor(model, use)(x)
        for model, use in ((algorithm.personal_model(after), "model"), (algorithm.global_model(after), "global"))
    ]
    means = [float(entropy(out).mean(dtype=torch.float64)) for out in logits]
    assert after.entropies == pytest.approx(means)
    predict = algorithm.predictor(after, None, plan)
    torch.testing.assert_close(predict(x), adaptive(*logits, *after.entropies), rtol=0, atol=0)


def test_sparse_training_is_accounted_by_the_density_of_each_layer():
    """Uniform .5: every layer at algorithm its multiply-adds; a readjustment adds one dense pass over the data."""
    server, host, assembly = parts()
    dense = parts(**{"dmpfl.keep": 1.0})
    first_round(server, host)
    first_round(dense[0], dense[1])
    algorithm, full = host.spent()["multiply-adds"], dense[1].spent()["multiply-adds"]
    shares = {p.name: host.algorithm.budget[p.name] / p.size for p in host.algorithm.parts}
    assert algorithm / full == pytest.approx(0.5, abs=0.01)
    assert set(shares.values()) == {0.5}
    first_round(server, host, Plan(1, "1", scalars={"prune": 0.5}))
    assert host.spent()["multiply-adds"] == algorithm + full / assembly.setup.config.local_epochs
