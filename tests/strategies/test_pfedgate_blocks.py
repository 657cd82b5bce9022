"""pFedGate's blocks: how tensors are cut, what is sent of them, and the refusals."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepal import models
from sepal.errors import ConfigError, ProtocolError
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Upload
from sepal.method.means import mean_of_holders
from sepal.strategies.pfedgate.blocks import exact, split
from sepal.wire.tensors import SparseTensor

SHAPES = st.lists(st.sampled_from([(3,), (7,), (4, 5), (13, 1), (6, 2, 3, 3), (40,)]), min_size=1, max_size=6)


def layout(*shapes):
    roles = {1: Role.BIAS}
    return tuple(Parameter(f"l{i}.w", shape, roles.get(len(shape), Role.WEIGHT)) for i, shape in enumerate(shapes))


def test_tensors_are_cut_as_the_paper_says():
    # B = 5, s = .5: s_min = .2. 20 entries: ⌊4⌋, then 16 in four. 13: ⌊2.6⌋ = 2, then 11 in four of ⌈11/4⌉ = 3, the
    # last with 2. A bias of 3: ⌊.6⌋ = 0, so no first block, then 3 in parts of 1.
    blocks = split(layout((4, 5), (13, 1), (3,)), 5, 0.5)
    assert blocks.by_tensor() == {"l0.w": [4, 4, 4, 4, 4], "l1.w": [2, 3, 3, 3, 2], "l2.w": [1, 1, 1]}
    assert blocks.first.tolist() == [True, *[False] * 4, True, *[False] * 4, False, False, False]
    assert blocks.bounds.tolist() == [0, 4, 8, 12, 16, 20, 22, 25, 28, 31, 33, 34, 35, 36]


def test_least_share_is_half_the_budget_where_one_of_b_blocks_would_break_it():
    blocks = split(layout((40,)), 5, 0.1)  # s_min = .05: ⌊2⌋, then 38 in four of 10; the published code keeps 1/5
    assert blocks.least == Fraction(1, 20)
    assert blocks.by_tensor() == {"l0.w": [2, 10, 10, 10, 8]}
    assert split(layout((40,)), 5, 0.2).by_tensor() == {"l0.w": [8] * 5}  # s = 1/B exactly


def test_first_blocks_do_not_suffer_from_binary_fractions():
    # int(49 · (1/49)) is 0 in floats, and .29 · 100 is 28.999…
    assert split(layout((49,)), 49, 1.0).sizes.tolist() == [1] * 49
    assert int(exact(0.29) * 100) == 29


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet-cifar10", (3, 32, 32), 10, 50),  # 5 layers, weight and bias, 5 blocks each
        ("cnn-emnist", (1, 28, 28), 62, 40),
        ("cnn-cifar100", (3, 32, 32), 100, 40),
    ],
)
def test_number_of_blocks_of_the_papers_models(name, shape, classes, count):
    parameters = models.layout(models.build(name, shape, classes))
    blocks = split(parameters, 5, 0.5)
    assert len(blocks.names) == count
    assert blocks.sizes.sum() == sum(parameter.size for parameter in parameters)


def test_kind_of_a_bias_is_that_of_its_layer():
    parameters = models.layout(models.build("digits-cnn", (1, 8, 8), 10))
    blocks = split(parameters, 5, 0.5)
    kinds = dict(zip(blocks.names, blocks.linear.tolist(), strict=True))
    assert {name for name, linear in kinds.items() if linear} == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}


def test_statistics_are_not_cut():
    norm = (Parameter("n.weight", (10,), Role.NORM), Parameter("n.running_mean", (10,), Role.STATISTIC))
    assert set(split(norm, 5, 0.5).names) == {"n.weight"}


def test_costs_of_tensors_are_shared_out_by_entries():
    blocks = split(layout((4, 5), (10,)), 5, 0.5)
    assert blocks.costs({"l0.w": 60}).tolist() == [12] * 5 + [0] * 5  # 3 for each of 4 entries; the bias costs nothing


@given(SHAPES, st.integers(2, 7), st.sampled_from([0.1, 0.3, 0.5, 1.0]), st.randoms(use_true_random=False))
def test_positions_are_the_entries_of_the_blocks(shapes, parts, keep, random):
    blocks = split(layout(*shapes), parts, keep)
    mask = blocks.first | np.array([random.random() < 0.5 for _ in blocks.names])
    positions = blocks.positions(mask)
    assert positions.size == blocks.sizes[mask].sum()
    flat = np.zeros(blocks.bounds[-1], bool)
    for on, begin, end in zip(mask, blocks.bounds, blocks.bounds[1:], strict=False):
        flat[begin:end] = on
    assert np.array_equal(np.flatnonzero(flat), positions)


def test_payload_refusals():
    blocks = split(layout((4, 5), (3,)), 5, 0.5)
    full = np.ones(8, bool)
    with pytest.raises(ProtocolError, match=r"blocks: expected every tensor's first block, got without that of l0.w"):
        blocks.positions(np.arange(8) > 0)
    with pytest.raises(ProtocolError, match=r"blocks: expected shape \(8,\), got \(7,\)"):
        blocks.positions(full[:7])


@pytest.mark.parametrize(
    ("parts", "keep", "words"),
    [
        (1, 0.5, "pfedgate.blocks: expected at least 2"),
        (5, 0.0, r"pfedgate.keep: expected a share in \(0, 1\]"),
        (5, 1.5, "pfedgate.keep"),
    ],
)
def test_settings_out_of_range(parts, keep, words):
    with pytest.raises(ConfigError, match=words):
        split(layout((4, 5)), parts, keep)


def test_share_sent_in_a_round_of_independent_masks():
    # q = 1 − Π(1 − p_j): of p_j = .5 after one, two and three steps 1 − .5, 1 − .25, 1 − .125. Eight equal blocks and
    # three masks, each of which halves what the others leave on and what they leave off, are exactly independent.
    blocks = split(layout((64,)), 8, 1.0)
    number, ever = np.arange(8), np.zeros(8, bool)
    shares = []
    for bit in (1, 2, 4):
        ever |= (number & bit) == 0
        shares.append(blocks.share(ever))
    assert shares == [0.5, 0.75, 0.875]


class List(list):
    """A round's uploads."""


def test_an_index_is_averaged_over_those_that_sent_it():
    # Appendix G: blocks sent by clients 1 … 4: {0, 2}, {1, 2}, {0, 1}, {0, 1, 2}. Index 0 averages clients 1, 3 and 4.
    # With n = 1, 2, 3, 4 and values 10·client: (10·1 + 30·3 + 40·4)/8 = 32.5; (20·2 + 30·3 + 40·4)/9 = 32.22…;
    # (10·1 + 20·2 + 40·4)/7 = 30.
    blocks = split(layout((3,)), 4, 1.0)  # three blocks of one entry, none of them a first
    uploads = List()
    for client, sent in enumerate([(0, 2), (1, 2), (0, 1), (0, 1, 2)], 1):
        index = blocks.positions(np.isin(np.arange(3), sent))
        tensor = SparseTensor((3,), index, np.full(index.size, 10 * client, np.float32))
        uploads.append(Upload(ClientInfo(f"c{client}", client), Payload({"l0.w": tensor})))
    averaged = mean_of_holders(uploads, {"l0.w": (3,)})
    assert np.allclose(averaged.mean["l0.w"], [32.5, 290 / 9, 30])
