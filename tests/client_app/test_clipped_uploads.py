"""What a client sends with central noise: its upload as a whole is clipped, and nothing that stays with it."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from sepal.client_app.build import Node
from sepal.client_app.clipped_uploads import ClippedUploads
from sepal.client_app.guard import check_noise
from sepal.config import PrivacySettings, RunConfig
from sepal.errors import ProtocolError
from sepal.protocol.messages import Order
from sepal.protocol.types import Kind, Payload, Plan
from sepal.wire.tensors import SparseTensor, ValueCoding, whole

FIRST = {"a": np.zeros(2, np.float32), "b": np.ones((1, 2), np.float32)}
CLIPS = ClippedUploads(FIRST, tells=True)


def upload(a, b, coding=ValueCoding.FP32):
    arrays = {"a": np.array(a, np.float32), "b": np.array([b], np.float32)}
    return Payload({name: SparseTensor(x.shape, None, x.reshape(-1), coding=coding) for name, x in arrays.items()})


def values(payload):
    return [payload.tensors[name].values.tolist() for name in ("a", "b")]


def test_the_norm_is_that_of_all_tensors_together():
    """From W_0, a changes by (3, 0) and b by (0, 4): norm 5. At C = 1 each change is a fifth: (.6, 0) and (0, .8)."""
    clipped, within = CLIPS.clipped(upload([3, 0], [1, 5]), Payload(), Plan(1, clip=1.0))
    assert not within
    assert np.allclose(values(clipped), [[0.6, 0], [1, 1.8]])
    as_it_was = upload([3, 0], [1, 5])
    assert CLIPS.clipped(as_it_was, Payload(), Plan(1, clip=5.0)) == (as_it_was, True)


def test_the_change_is_that_of_what_was_received():
    """From a = (3, 0) and b = (1, 5) nothing has changed."""
    download = Payload({"a": whole(np.array([3, 0], np.float32)), "b": whole(np.array([[1, 5]], np.float32))})
    assert CLIPS.clipped(upload([3, 0], [1, 5]), download, Plan(2, clip=0.1))[1]


def test_an_update_that_is_not_finite_is_sent_as_none_and_is_no_error():
    clipped, within = CLIPS.clipped(upload([np.nan, 0], [1, 5]), Payload(), Plan(1, clip=1.0))
    assert not within
    assert values(clipped) == [[0, 0], [1, 1]]


def test_values_keep_their_coding():
    clipped, _ = CLIPS.clipped(upload([3, 0], [1, 5], ValueCoding.FP16), Payload(), Plan(1, clip=1.0))
    assert {tensor.coding for tensor in clipped.tensors.values()} == {ValueCoding.FP16}


def test_scalars_and_a_round_without_a_clip_are_refused():
    with pytest.raises(ProtocolError, match="upload: expected values alone"):
        CLIPS.clipped(Payload({}, {"n": 3}), Payload(), Plan(1, clip=1.0))
    with pytest.raises(ProtocolError, match="clip: expected a number above 0"):
        CLIPS.clipped(upload([3, 0], [1, 5]), Payload(), Plan(1))


def test_a_node_that_demands_noise_of_its_own_refuses_noise_by_the_server():
    config = RunConfig(privacy=PrivacySettings(mode="central", clip=1.0, noise=50.0))
    order = Order("0" * 32, Kind.TRAIN, Plan(1))
    with pytest.raises(ProtocolError, match=r"privacy\.mode: expected local: this node adds the noise itself"):
        check_noise(Node(least_noise=5.0), config, order, ("",))
    check_noise(Node(), config, order, ("",))


@pytest.mark.parametrize(
    ("mode", "noise", "only_secure", "why"),
    [
        ("distributed", 5.0, True, ""),
        ("distributed", 4.0, True, r"privacy\.noise: expected at least 5"),
        ("local", 5.0, True, r"privacy\.mode: expected distributed: this node demands noise in a secure sum"),
        ("central", 5.0, True, r"privacy\.mode: expected distributed"),
        ("distributed", 5.0, False, r"privacy\.mode: expected local: this node adds the noise itself"),
    ],
)
def test_a_node_that_trusts_sums_alone_demands_noise_in_them(mode, noise, only_secure, why):
    more = {"secure": "sum", "clients": 3} if mode == "distributed" else {"clients": 3}
    config = RunConfig(privacy=PrivacySettings(mode=mode, clip=1.0, noise=noise), **more)
    order, node = Order("0" * 32, Kind.TRAIN, Plan(1)), Node(least_noise=5.0, only_secure=only_secure)
    with pytest.raises(ProtocolError, match=why) if why else nullcontext():
        check_noise(node, config, order, ())
