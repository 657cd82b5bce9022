"""Windows, and the indices of a cut: taken entries go back where they were, and what does not fit is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepal.errors import ModelError
from sepal.layout import Parameter, Role
from sepal.masks.cuts import Axis, ChannelGroup, Cut, parameters, scales, window, windows

# A convolution of 4 channels with its norm, 2 × 2 maps flattened, a hidden layer of 3, two classes.
LAYOUT = (
    Parameter("conv.weight", (4, 1, 3, 3), Role.WEIGHT),
    Parameter("norm.weight", (4,), Role.NORM),
    Parameter("norm.running_var", (4,), Role.STATISTIC),
    Parameter("fc.weight", (3, 16), Role.WEIGHT),
    Parameter("fc.bias", (3,), Role.BIAS),
    Parameter("head.weight", (2, 3), Role.WEIGHT),
    Parameter("temperature", (), Role.BIAS),
)
CONV = ChannelGroup(
    "conv",
    4,
    (Axis("conv.weight", 0), Axis("norm.weight", 0), Axis("norm.running_var", 0), Axis("fc.weight", 1, block=4)),
    scale="norm.weight",
)
FC = ChannelGroup("fc", 3, (Axis("fc.weight", 0), Axis("fc.bias", 0), Axis("head.weight", 1)))
COUPLING = (CONV, FC)


def full():
    return {p.name: np.arange(p.size, dtype=np.float32).reshape(p.shape) for p in LAYOUT}


def test_a_channel_takes_its_row_its_norm_and_its_block_of_inputs():
    cut = Cut(LAYOUT, COUPLING, {"conv": np.array([0, 3]), "fc": np.array([2])})
    small = cut.take(full())
    assert [p.shape for p in cut.layout] == [(2, 1, 3, 3), (2,), (2,), (1, 8), (1,), (2, 1), ()]
    assert {name: array.shape for name, array in small.items()} == {p.name: p.shape for p in cut.layout}
    np.testing.assert_array_equal(small["conv.weight"].reshape(2, 9), [np.arange(9), np.arange(27, 36)])
    np.testing.assert_array_equal(small["norm.running_var"], [0, 3])
    # Channel 0 has inputs 0 … 3 and channel 3 has inputs 12 … 15 of unit 2, whose row begins at 2 · 16 = 32.
    np.testing.assert_array_equal(small["fc.weight"], [[32, 33, 34, 35, 44, 45, 46, 47]])
    np.testing.assert_array_equal(small["head.weight"], [[2], [5]])
    np.testing.assert_array_equal(cut.positions("fc.weight"), [32, 33, 34, 35, 44, 45, 46, 47])
    np.testing.assert_array_equal(cut.positions("temperature"), [0])
    assert parameters(LAYOUT) == 36 + 4 + 48 + 3 + 6 + 1  # without the running variance
    assert parameters(cut.layout) == 18 + 2 + 8 + 1 + 2 + 1


def test_a_group_that_is_not_named_is_whole():
    cut = Cut(LAYOUT, COUPLING, {})
    assert cut.layout == cut.full == LAYOUT
    part = cut.take(full())
    for name, array in full().items():
        np.testing.assert_array_equal(part[name], array)
    part["fc.bias"][:] = 9
    assert all(mask.all() for mask in cut.masks().values())


def test_what_is_taken_is_a_copy():
    weights = full()
    for channels in ({}, {"fc": np.array([1])}):
        Cut(LAYOUT, COUPLING, channels).take(weights)["fc.bias"][...] = 99
    assert weights["fc.bias"].max() == 2


kept_sets = st.fixed_dictionaries(
    {},
    optional={
        group.name: st.sets(st.integers(0, group.size - 1), min_size=1).map(lambda channels: np.array(sorted(channels)))
        for group in COUPLING
    },
)


@given(kept_sets)
def test_taken_entries_go_back_where_they_were(kept):
    cut, weights = Cut(LAYOUT, COUPLING, kept), full()
    small, masks = cut.take(weights), cut.masks()
    base = {name: -1 - array for name, array in weights.items()}
    whole, filled, onto = cut.put(small), cut.put(small, fill=-7), cut.put(small, base)
    for name, array in weights.items():
        np.testing.assert_array_equal(whole[name], np.where(masks[name], array, 0))
        np.testing.assert_array_equal(filled[name], np.where(masks[name], array, -7))
        np.testing.assert_array_equal(onto[name], np.where(masks[name], array, base[name]))
        np.testing.assert_array_equal(cut.positions(name), np.flatnonzero(masks[name]))
        np.testing.assert_array_equal(cut.take(onto)[name], small[name])
        assert whole[name].dtype == onto[name].dtype == np.float32
        np.testing.assert_array_equal(base[name], -1 - array)
    assert [mask.sum() for mask in masks.values()] == [p.size for p in cut.layout]


def test_a_cut_of_a_cut_goes_through_the_full_shape():
    before = Cut(LAYOUT, COUPLING, {"conv": np.array([0, 1, 3])})
    after = Cut(LAYOUT, COUPLING, {"conv": np.array([1, 3]), "fc": np.array([0, 2])})
    again = after.take(before.put(before.take(full())))
    for name, array in after.take(full()).items():
        np.testing.assert_array_equal(again[name], array)


def test_masks_of_bools_and_single_tensors_go_both_ways():
    cut = Cut(LAYOUT, COUPLING, {"fc": np.array([0, 2])})
    mask = cut.put({"fc.bias": np.array([True, False])})
    assert mask["fc.bias"].dtype == np.bool_
    np.testing.assert_array_equal(mask["fc.bias"], [True, False, False])
    total = np.zeros((3, 16))
    total[cut.mesh("fc.weight")] += 1  # a sum over clients of different cuts needs no full tensor each
    assert total.sum(1).tolist() == [16, 0, 16]


@pytest.mark.parametrize(
    ("width", "rounding", "count"),
    [
        (1, "down", 10),
        (0.25, "down", 2),  # 2.5
        (0.25, "nearest", 3),
        (0.25, "up", 3),
        (0.24, "nearest", 2),
        (0.01, "down", 1),  # never none
        (1 / 3, "up", 4),
    ],
)
def test_count_of_a_window(width, rounding, count):
    np.testing.assert_array_equal(window(10, width, rounding=rounding), np.arange(count))


def test_errors_of_floating_point_do_not_add_a_channel():
    assert 0.07 * 100 > 7
    assert len(window(100, 0.07, rounding="up")) == 7
    assert 0.29 * 100 < 29
    assert len(window(100, 0.29, rounding="down")) == 29
    assert len(window(6, 2 / 3, rounding="down")) == 4


def test_windows_roll_and_wrap_as_in_fedrolex():
    # FedRolex, section 3: round j begins at j mod K; what goes beyond the last channel continues at the first.
    assert window(5, 0.6, 0).tolist() == [0, 1, 2]
    assert window(5, 0.6, 2).tolist() == [2, 3, 4]
    assert window(5, 0.6, 4).tolist() == [0, 1, 4]
    assert window(5, 0.6, 7).tolist() == [2, 3, 4]
    channels = np.concatenate([window(5, 0.4, round) for round in range(5)])
    assert np.bincount(channels).tolist() == [2] * 5  # after as many rounds as channels each was held equally often


def test_windows_consist_of_whole_units():
    assert window(8, 0.3, unit=4).tolist() == [0, 1, 2, 3]
    assert window(8, 0.6, unit=2, rounding="down").tolist() == [0, 1, 2, 3]
    assert window(8, 0.5, 3, unit=2).tolist() == [0, 1, 6, 7]
    assert window(4, 0.1, unit=4).tolist() == [0, 1, 2, 3]  # one unit is all there is


def test_windows_of_every_group():
    by_group = windows((CONV, ChannelGroup("gn", 4, (), unit=2)), 0.5, 1)
    assert {name: index.tolist() for name, index in by_group.items()} == {"conv": [1, 2], "gn": [2, 3]}


@pytest.mark.parametrize("width", [0, -0.5, 1.5, float("nan")])
def test_a_width_out_of_range_is_refused(width):
    with pytest.raises(ModelError, match=r"width: expected a fraction in \(0, 1\], got"):
        window(4, width)


def test_scales_are_those_of_batch_norms():
    assert scales(COUPLING) == {"conv": "norm.weight"}
    with pytest.raises(ModelError, match=r"model: expected a BatchNorm, .* got none behind fc$"):
        scales((FC,))
    with pytest.raises(ModelError, match="none behind any layer"):
        scales(())


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"conv2": [0]}, "kept: expected groups among conv, fc, got conv2"),
        ({"conv": [0, 4]}, "kept conv: expected channels 0 … 3, got channel 4"),
        ({"conv": [-1, 2]}, "kept conv: expected channels 0 … 3, got channel -1"),
        ({"fc": []}, "kept fc: expected at least one of 3 channels, got none"),
        ({"fc": [2, 1]}, r"kept fc: expected channels in increasing order, each once, got \[2, 1\]"),
        ({"fc": [1, 1]}, r"each once, got \[1, 1\]"),
        ({"fc": [0.0, 1.0]}, "kept fc: expected integers along one axis, got float64"),
        ({"fc": [True, False, True]}, "expected integers along one axis, got bool"),
        ({"fc": [[0, 1]]}, r"one axis, got int64 of shape \(1, 2\)"),
        ({"fc": 1}, r"one axis, got int64 of shape \(\)"),
        ({"pairs": [0, 1, 3]}, r"kept pairs: expected whole runs of 2 channels, .* got \[0, 1, 3\]"),
        ({"pairs": [1, 2]}, "whole runs of 2"),
    ],
)
def test_a_choice_that_the_model_does_not_have_is_one_named_line(kept, words):
    coupling = (*COUPLING, ChannelGroup("pairs", 4, (), unit=2)) if "pairs" in kept else COUPLING
    with pytest.raises(ModelError, match=words) as caught:
        Cut(LAYOUT, coupling, {name: np.array(channels) for name, channels in kept.items()})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "axis", [Axis("no.weight", 0), Axis("fc.bias", 1), Axis("fc.bias", 0, 2), Axis("fc.weight", 1)]
)
def test_a_coupling_of_another_layout_is_refused(axis):
    with pytest.raises(ModelError, match=f"coupling: expected {axis.tensor} with .* got another layout"):
        Cut(LAYOUT, (ChannelGroup("fc", 3, (axis,)),), {"fc": np.array([0])})


def test_tensors_that_do_not_fit_are_refused():
    cut = Cut(LAYOUT, COUPLING, {"fc": np.array([0, 2])})
    with pytest.raises(ModelError, match=r"weights fc.bias: expected shape \(3,\), got shape \(2,\)"):
        cut.take({"fc.bias": np.zeros(2)})
    with pytest.raises(ModelError, match=r"weights fc.bias: expected shape \(2,\), got shape \(3,\)"):
        cut.put({"fc.bias": np.zeros(3)})
    with pytest.raises(ModelError, match=r"expected shape \(3,\), got shape \(2,\)"):
        cut.put({"fc.bias": np.zeros(2)}, {"fc.bias": np.zeros(2)})
    with pytest.raises(ModelError, match=r"base: expected every tensor that is put back, got fc.bias missing"):
        cut.put({"fc.bias": np.zeros(2)}, {})
    with pytest.raises(ModelError, match="got more unknown to the model"):
        cut.take({"more": np.zeros(2)})
