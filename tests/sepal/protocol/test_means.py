"""The means over uploads, by hand: what counts as sent, who weighs how much, and what is left without uploads."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.method.means import (
    add,
    by_examples,
    equally,
    mean_of_holders,
    mean_of_prefixes,
    sparse_mean,
    values,
    weighted_mean,
)
from sepal.protocol.types import ClientInfo, Payload, Upload
from sepal.wire.tensors import SparseTensor, members, whole


def upload(examples, **tensors):
    return Upload(ClientInfo(f"c{examples}", examples), Payload(tensors))


def dense(*numbers):
    return whole(np.array(numbers, np.float32))


def sparse(index, numbers, size=3):
    return SparseTensor((size,), np.array(index, np.int64), np.array(numbers, np.float32))


def zeros(size=3):
    return {"w": np.zeros(size, np.float32)}


def test_uploads_weigh_by_their_examples_or_all_alike():
    assert [weigh(upload(7)) for weigh in (by_examples, equally)] == [7, 1]


def test_the_weighted_mean_by_hand():
    """n = (1, 3): (1·(2, 4) + 3·(6, 0))/4 = (5, 1); alike: (4, 2)."""
    sent = [upload(1, w=dense(2, 4)), upload(3, w=dense(6, 0))]
    mean = weighted_mean(sent, zeros(2))
    assert mean["w"].tolist() == [5, 1]
    assert mean["w"].dtype == np.float32
    assert weighted_mean(sent, zeros(2), weigh=equally)["w"].tolist() == [4, 2]


def test_the_weighted_mean_of_some_names_and_of_none():
    """Uploads are not read where no tensor is asked for; without uploads the previous values stay."""
    previous = {"v": np.full(1, 9, np.float32), "w": np.full(2, 8, np.float32)}
    mean = weighted_mean([upload(2, v=dense(1), w=dense(2, 4))], previous, ["w"])
    assert {name: array.tolist() for name, array in mean.items()} == {"w": [2, 4]}
    assert weighted_mean(iter([None]), previous, []) == {}
    assert weighted_mean([], previous) == previous
    assert list(weighted_mean([], previous, ["v"])) == ["v"]
    assert weighted_mean([upload(0, v=dense(1))], previous, ["v"])["v"].tolist() == [9], "weights of 0 in all"


def test_sums_run_in_float64():
    """2²⁴ + 1 is no float32: ten uploads of it have the mean 2²⁴ + 1, rounded once, at the end."""
    sent = [upload(1, w=dense(2.0**24)), upload(1, w=dense(1.0)), upload(1, w=dense(-(2.0**24)))]
    assert weighted_mean(sent, zeros(1))["w"][0] == np.float32(1 / 3)
    assert sparse_mean(sent, {"w": (1,)})["w"][0] == 1 / 3
    assert mean_of_holders(sent, {"w": (1,)}).mean["w"][0] == 1 / 3
    assert mean_of_prefixes(sent, zeros(1)).mean["w"][0] == 1 / 3


def test_in_the_sparse_mean_what_was_not_sent_counts_as_0():
    """n = (1, 3): entry 0: 1·4/4 = 1; entry 1: (1·8 + 3·4)/4 = 5; entry 2: nobody's."""
    sent = [upload(1, w=sparse([0, 1], [4, 8])), upload(3, w=sparse([1], [4]))]
    mean = sparse_mean(sent, {"w": (3,)})
    assert mean["w"].tolist() == [1, 5, 0]
    assert mean["w"].dtype == np.float64
    assert sparse_mean(sent, {"w": (3,)}, equally)["w"].tolist() == [2, 6, 0]
    assert sparse_mean([], {"w": (3,)})["w"].tolist() == [0, 0, 0]


def test_the_mean_of_holders_by_hand():
    """n = (1, 3): entry 0: 4, of one; entry 1: (1·8 + 3·0)/4 = 2, a sent 0 counts; entry 2: nobody's, as before."""
    sent = [upload(1, w=sparse([0, 1], [4, 8])), upload(3, w=sparse([1], [0]))]
    result = mean_of_holders(sent, {"w": (3,)})
    assert result.mean["w"].tolist() == [4, 2, 0]
    assert result.holders["w"].tolist() == [1, 2, 0]
    filled = result.over({"w": np.full(3, 9, np.float32)})["w"]
    assert (filled.tolist(), filled.dtype) == ([4, 2, 9], np.float32)
    assert mean_of_holders(sent, {"w": (3,)}, equally).mean["w"].tolist() == [4, 4, 0]
    assert mean_of_holders([], {"w": (3,)}).over({"w": np.full(3, 9, np.float32)})["w"].tolist() == [9, 9, 9]


def test_a_mask_and_a_dense_tensor_have_holders_too():
    """A mask has ones where it is set."""
    sent = [upload(2, w=members(np.array([True, False, True])))]
    assert mean_of_holders(sent, {"w": (3,)}).mean["w"].tolist() == [1, 0, 1]
    result = mean_of_holders([upload(2, w=dense(5, 0, 7))], {"w": (3,)})
    assert (result.mean["w"].tolist(), result.holders["w"].tolist()) == ([5, 0, 7], [1, 1, 1])
    assert values(sent[0].payload.tensors["w"]).tolist() == [1, 1]


def test_the_mean_of_prefixes_by_hand():
    """A 2×2 tensor; one client has all of it (1 to 4), n = 1, another the first row's first entry (5), n = 3.

    Entry (0, 0), all alike: (1 + 5)/2 = 3; by examples (1 + 15)/4 = 4; the others are of the first client.
    """
    full, prefix = np.array([[1, 2], [3, 4]], np.float32), np.array([[5]], np.float32)
    sent, previous = [upload(1, w=whole(full)), upload(3, w=whole(prefix))], {"w": np.full((2, 2), 9, np.float32)}
    result = mean_of_prefixes(sent, previous)
    assert result.mean["w"].tolist() == [[3, 2], [3, 4]]
    assert result.holders["w"].tolist() == [[2, 1], [1, 1]]
    assert mean_of_prefixes(sent, previous, by_examples).mean["w"].tolist() == [[4, 2], [3, 4]]
    narrow = mean_of_prefixes(sent[1:], previous)
    assert narrow.over(previous)["w"].tolist() == [[5, 9], [9, 9]]
    assert mean_of_prefixes(iter([None]), {}).mean == {}, "uploads are not read"


@pytest.mark.parametrize(
    ("tensor", "expected"), [(sparse([0, 2], [1, 2]), [11, 10, 12]), (dense(1, 2, 3), [11, 12, 13])]
)
def test_adding_at_the_entries_of_a_tensor(tensor, expected):
    target = np.full(3, 10.0)
    add(target, tensor, tensor.values)
    assert target.tolist() == expected
    add(target, tensor, 1)
    assert (target - expected).tolist() == ([1, 0, 1] if tensor.index is not None else [1, 1, 1])


def of(*numbers):
    """An upload of one entry for each number; examples must not matter."""
    return [upload(1 + 10 * position, w=dense(number)) for position, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("numbers", "median", "trimmed"),
    [
        ([7], 7, 7),
        ([1, 9], 5, 5),
        ([100, 2, 1], 2, 2),  # one of each end goes
        ([0, 3, 1, 100], 2, 2),
        ([-100, 1, 2, 6, 100], 2, 3),
        ([-9, 0, 1, 2, 3, 4, 5, 6, 7, 99], 3.5, 3.5),  # two of each end: (1 + … + 6)/6
        ([-99, -98, 0, 1, 1, 1, 1, 8, 98, 99], 1, 2),  # (0 + 1 + 1 + 1 + 1 + 8)/6
    ],
)
def test_robust_means_by_hand(numbers, median, trimmed):
    """Yin et al., Definitions 1 and 2: of n values the ⌊n/5⌋ smallest and largest go, at least one of each if n > 2."""
    for how, expected in (("median", median), ("trimmed", trimmed)):
        assert weighted_mean(of(*numbers), zeros(1), robust=how)["w"].tolist() == [expected]
        mean = sparse_mean(of(*numbers), {"w": (1,)}, robust=how)["w"]
        assert (mean.tolist(), mean.dtype) == ([expected], np.float64)


def test_robust_means_take_each_entry_for_itself_and_what_was_not_sent_as_0():
    """Entry 0: 5, 0, 1; entry 1: 0, 0, 3; entry 2: 0, 4, 2."""
    sent = (upload(1, w=sparse([0], [5])), upload(1, w=sparse([2], [4])), upload(9, w=sparse([0, 1, 2], [1, 3, 2])))
    for how in ("median", "trimmed"):
        assert sparse_mean(sent, {"w": (3,)}, robust=how)["w"].tolist() == [1, 0, 2]


def test_robust_means_without_uploads_are_what_plain_means_are():
    previous = {"w": np.full(2, 8, np.float32)}
    assert weighted_mean([], previous, robust="median")["w"].tolist() == [8, 8]
    assert sparse_mean([], {"w": (2,)}, robust="median")["w"].tolist() == [0, 0]
    assert sparse_mean([upload(1)], {}, robust="trimmed") == {}
