"""Lies in the payload kinds of FedProto, IFCA, SCAFFOLD and drawn entries, one at a time, against the server's schema.

All other tensors of the payload are honest, so what is refused is refused for the lie.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sepal.errors import SepalError
from sepal.method.compression.updates import UPDATE
from sepal.method.tensors import dense
from sepal.protocol.payloads import seal, unseal
from sepal.protocol.types import ClientInfo, Payload, Upload
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedproto import CLASSES, PROTOTYPES, SHARES, message
from sepal.strategies.baselines.ifca import CHOSEN
from sepal.strategies.baselines.scaffold import VARIATE
from sepal.wire.tensors import SparseTensor, Support, ValueCoding, at, members, whole
from tests.strategies.baselines import Sent

DIGITS = {"dataset": "digits", "partition.name": "iid", "partition.subsample": 120, "clients": 4, "seed": 1}
COMPRESSED = {"compress.name": "randk", "compress.keep": 0.05}
FIRST, LAST = "conv1.weight", "fc2.bias"  # of digits-cnn
WHO = ClientInfo("client-00000", 30)


def server_of(method, **keys):
    assembly = assemble({**DIGITS, "method": method, **keys})
    return assembly.setup, assembly.method.make_server(assembly.setup)


def admitted(server, tensors):
    """The tensors as the server reads them in round 2."""
    schema = server.upload_schema(server.init(), WHO, server.plan(2))
    return unseal(seal(Payload(tensors)), schema).tensors


def prototypes(present=(0, 3), classes=10, features=32, shares=None):
    mask = np.isin(np.arange(classes), present)
    shares = np.full(classes, 1 / len(present), np.float32) if shares is None else shares
    return message(mask, np.ones((classes, features), np.float32), ValueCoding.FP32, shares)


def rows_of(*present):
    index = np.concatenate([np.arange(32 * row, 32 * (row + 1)) for row in present]).astype(np.int64)
    return at(np.ones((10, 32), np.float32), index)


PROTOTYPE_LIES = {
    "a class beyond the last": (lambda t: {**t, CLASSES: members(np.arange(11) == 10)}, "classes shape"),
    "no class": (lambda t: {**t, CLASSES: members(np.zeros(10, bool))}, "classes count"),
    "rows of another class, with positions": (lambda t: {**t, PROTOTYPES: rows_of(0, 4)}, "derived support"),
    "more rows than classes": (lambda t: {**t, PROTOTYPES: prototypes((0, 3, 4))[PROTOTYPES]}, "prototypes count"),
    "fewer rows than classes": (lambda t: {**t, PROTOTYPES: prototypes((0,))[PROTOTYPES]}, "prototypes count"),
    "all rows": (lambda t: {**t, PROTOTYPES: whole(np.ones((10, 32), np.float32))}, "derived support"),
    "wider rows": (lambda t: {**t, PROTOTYPES: prototypes(features=33)[PROTOTYPES]}, "prototypes shape"),
    "very many classes": (lambda t: prototypes(classes=100_000, features=1), "classes shape"),
    "classes with values": (lambda t: {**t, CLASSES: at(np.ones(10, np.float32), np.array([0, 3]))}, "without values"),
    "shares of others": (lambda t: {**t, SHARES: prototypes((1,))[SHARES]}, "shares count"),
    "no shares": (lambda t: {CLASSES: t[CLASSES], PROTOTYPES: t[PROTOTYPES]}, "shares: expected"),
}


@pytest.mark.parametrize("lie", PROTOTYPE_LIES)
def test_prototypes_are_the_rows_of_the_classes_that_a_client_names(lie):
    _, server = server_of("fedproto")
    make, words = PROTOTYPE_LIES[lie]
    admitted(server, prototypes())
    with pytest.raises(SepalError, match=words):
        admitted(server, make(prototypes()))


@pytest.mark.parametrize("share", [-1.0, -1e6, 0.0])
def test_a_share_below_zero_counts_as_none_and_one_above_as_one(share):
    """Examples of a class are n_i times its share: nobody takes from others' weight, or has more than its examples."""
    _, server = server_of("fedproto")

    def sent(name, shares, value):
        tensors = prototypes((0,), shares=np.full(10, shares, np.float32))
        values = np.full(32, value, np.float32)
        return Upload(
            replace(WHO, name=name), Payload({**tensors, PROTOTYPES: replace(tensors[PROTOTYPES], values=values)})
        )

    state, _ = server.aggregate(server.init(), Sent([sent("a", 1.0, 1.0), sent("b", share, 5.0)]), server.plan(2))
    assert state.prototypes[0].tolist() == [1.0] * 32
    state, _ = server.aggregate(server.init(), Sent([sent("a", 1.0, 1.0), sent("b", 1e6, 5.0)]), server.plan(2))
    assert state.prototypes[0].tolist() == [3.0] * 32
    state, _ = server.aggregate(server.init(), Sent([sent("b", share, 5.0)]), server.plan(2))
    assert not state.classes.any()


def model(setup, number, chosen=None):
    tensors = {f"{number}/{name}": whole(array) for name, array in setup.weights.items()}
    return {CHOSEN: members(np.arange(3) == (number if chosen is None else chosen)), **tensors}


CLUSTER_LIES = {
    "two models": (lambda s: {**model(s, 1), CHOSEN: members(np.arange(3) < 2)}, "cluster count"),
    "no model": (lambda s: {**model(s, 1), CHOSEN: members(np.zeros(3, bool))}, "cluster count"),
    "a number beyond the last": (lambda s: {**model(s, 1), CHOSEN: members(np.arange(4) == 3)}, "cluster shape"),
    "tensors of another model": (lambda s: model(s, 1, chosen=2), "1/conv1.weight"),
    "tensors of two models": (lambda s: {**model(s, 1), **model(s, 2, chosen=1)}, "2/conv1.weight"),
    "a model that is not there": (lambda s: {CHOSEN: model(s, 1)[CHOSEN], **model(s, 7, 1)}, "name: expected one of"),
    "one tensor less": (lambda s: dict(list(model(s, 1).items())[:-1]), f"1/{LAST}: expected"),
}


@pytest.mark.parametrize("lie", CLUSTER_LIES)
def test_an_upload_is_the_one_model_whose_number_it_says(lie):
    setup, server = server_of("ifca", **{"ifca.models": 3})
    make, words = CLUSTER_LIES[lie]
    assert set(admitted(server, model(setup, 1))) == set(model(setup, 1))
    with pytest.raises(SepalError, match=words):
        admitted(server, make(setup))


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        (f"{VARIATE}{FIRST}", None, "expected to be in the payload"),
        (f"{VARIATE}{FIRST}", whole(np.ones(3, np.float32)), "shape"),
        (f"{VARIATE}{LAST}", at(np.ones(10, np.float32), np.array([1])), "count"),
        (f"{VARIATE}{LAST}", members(np.ones(10, bool)), "values"),
    ],
)
def test_a_control_variate_is_as_its_parameter(name, tensor, words):
    setup, server = server_of("scaffold")
    weights = {**setup.weights, **{f"{VARIATE}{key}": array for key, array in setup.weights.items()}}
    honest = dense(weights, server.shared(), ValueCoding.FP32)
    admitted(server, honest)
    lie = {key: tensor if key == name else part for key, part in honest.items()}
    with pytest.raises(SepalError, match=words):
        admitted(server, {key: part for key, part in lie.items() if part is not None})


def test_a_large_control_variate_stays_until_its_client_is_heard_again_or_evicted():
    """Not defended: c is over the whole roster, also those that were not sampled, so one lie acts in later rounds."""
    setup, server = server_of("scaffold")
    names = [f"client-{number}" for number in range(4)]
    state = server.joined(server.init(), [ClientInfo(name, 10) for name in names])

    def round_of(state, *uploads):
        sent = [
            Upload(
                ClientInfo(name, 10),
                Payload(
                    dense(
                        {**setup.weights, **{f"{VARIATE}{k}": np.full_like(w, size) for k, w in setup.weights.items()}},
                        server.shared(),
                        ValueCoding.FP32,
                    )
                ),
            )
            for name, size in uploads
        ]
        return server.aggregate(state, Sent(sent), server.plan(2))[0]

    lied = round_of(state, *((name, 0.0) for name in names[1:]), (names[0], 8.0))
    assert lied.control[FIRST].max() == 2.0
    later = lied
    for _ in range(10):
        later = round_of(later, *((name, 0.0) for name in names[1:]))
    assert later.control[FIRST].max() == 2.0
    assert round_of(later, (names[0], 0.0)).control[FIRST].max() == 0.0
    assert server.evicted(later, names[:1]).control[FIRST].max() == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda u: replace(u, support=Support.EXPLICIT), "derived support"),
        (lambda u: SparseTensor(u.shape, u.index[:-1], u.values[:-1], Support.DERIVED), "count"),
        (lambda u: SparseTensor((u.size + 1,), u.index, u.values, Support.DERIVED), "shape"),
        (lambda u: members(u.mask()), "derived support"),
        (lambda u: whole(np.ones(u.shape, np.float32)), "derived support"),
        (lambda u: replace(u, support=Support.SAME), "derived support"),
    ],
)
def test_drawn_entries_are_those_of_the_round_and_no_positions_are_sent(change, words):
    _, server = server_of("fedavg", **COMPRESSED)
    index = server.supports.of(2)
    honest = SparseTensor((server.flat.size,), index, np.ones(index.size, np.float32), Support.DERIVED)
    assert np.array_equal(admitted(server, {UPDATE: honest})[UPDATE].index, index)
    with pytest.raises(SepalError, match=words):
        admitted(server, {UPDATE: change(honest)})
