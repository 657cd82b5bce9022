"""FedMask: masks averaged where structures overlap, what travels, what stays as drawn, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.errors import SepalError
from sepal.masks.packed import unpack
from sepal.method import ClientInfo, Payload, Schema, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.baselines.fedmask import signed
from sepal.wire import inspect
from sepal.wire.tensors import members
from tests.strategies.baselines import Sent, run
from tests.strategies.by_hand import data, gradients
from tests.strategies.federation import Federation
from tests.strategies.linear import NAME, Linear

MLP = {"model": "tests.strategies.federation:mlp", "split.validation": 0.0, "fedmask.keep": 0.5}


def federation(capacities=(1.0, 1.0), **keys):
    return Federation(list(capacities), method="fedmask", **{**MLP, **keys})


def sent(server, name, units, rows, output):
    """An upload of a client that holds ``units`` of fc1's 8, its bits of these rows, and of the whole output layer."""
    parts = server.parts
    mask = np.zeros((8, 64), bool)
    mask[units] = rows
    structure = {"fc1.weight": np.packbits(np.isin(np.arange(8), units))}
    bits = parts.bits({"fc1.weight": mask, "fc2.weight": output}, structure)
    return Upload(ClientInfo(name, 10), Payload({"fc1.weight/units": members(np.isin(np.arange(8), units)), **bits}))


def test_bits_are_averaged_over_those_that_hold_them():
    """a holds units 0 to 3 with all bits off, b units 2 to 5 with all on, c 3 to 6 with all off.

    0, 1: a alone, off. 2: a off and b on, .5, on. 3: 1 of 3, off. 4, 5: b on and c off, on. 6: c alone, off. 7: nobody,
    stays as it was. Of the output layer everybody holds everything: 2 of 3 on the diagonal, 1 of 3 elsewhere.
    """
    server = federation().server
    diagonal, full = np.eye(10, 8, dtype=bool), np.ones((10, 8), bool)
    uploads = Sent(
        [
            sent(server, "a", [0, 1, 2, 3], False, diagonal),
            sent(server, "b", [2, 3, 4, 5], True, full),
            sent(server, "c", [3, 4, 5, 6], False, np.zeros((10, 8), bool)),
        ]
    )
    state, _ = server.aggregate(server.init(), uploads, server.plan(1))
    masks = {name: array != 0 for name, array in server.model(state).items()}
    assert masks["fc1.weight"][:7].all(1).tolist() == masks["fc1.weight"][:7].any(1).tolist()
    assert masks["fc1.weight"][:7].all(1).tolist() == [False, False, True, False, True, True, False]
    np.testing.assert_array_equal(masks["fc1.weight"][7], server.parts.first["fc1.weight"][7] >= 0)
    np.testing.assert_array_equal(masks["fc2.weight"], diagonal)
    assert sorted(state.structures) == ["a", "b", "c"]
    down = server.download(state, ClientInfo("a", 10), server.plan(2)).tensors
    assert down["fc1.weight"].mask().reshape(4, 64).all(1).tolist() == [False, False, True, False]
    assert server.aggregate(state, Sent(), server.plan(2))[0].masks["fc1.weight"].tobytes() == (
        state.masks["fc1.weight"].tobytes()
    )


def test_two_rounds_by_hand():
    """A weight counts where its score m is at least 0; dF/dm = W·σ(m)·(1 - σ(m))·dF/d(W·bit), one step of rate 2.

    The structure is the 4 of 8 units with the largest mean scores after round 1. In round 2 scores go on from those of
    round 1, with the signs of the received bits, and only those of the structure move.
    """
    federated = federation([1.0], **{"fedmask.lr": 2.0, "fedmask.momentum": 0.0})
    (host,) = federated.hosts
    parts = host.algorithm.parts
    x, y = data(host)

    def moved(scores, structure):
        bits = {name: score >= 0 for name, score in scores.items()}
        theta = {**parts.weights, **{name: parts.weights[name] * bit for name, bit in bits.items()}}
        slope, _ = gradients(theta, np.arange(8), x, np.eye(10)[y])
        soft = {name: 1 / (1 + np.exp(-score.astype(np.float64))) for name, score in scores.items()}
        return {
            n: m - 2 * structure[n] * slope[n] * parts.weights[n] * soft[n] * (1 - soft[n]) for n, m in scores.items()
        }

    expected = moved(parts.first, parts.entries({}))
    state, _ = federated.round(federated.server.init(), 1)
    after = federated.states[0]
    for name, scores in expected.items():
        np.testing.assert_allclose(after.scores[name], scores, rtol=1e-4, atol=1e-7, err_msg=name)
    means = expected["fc1.weight"].mean(1)
    structure_entries = parts.entries(after.structure)
    assert structure_entries["fc1.weight"].all(1).tolist() == (means >= np.sort(means)[4]).tolist()
    bits = unpack(state.masks, parts.masked)
    again = {name: signed(after.scores[name], bits[name] & structure_entries[name]) for name in expected}
    federated.round(state, 2)
    for name, scores in moved(again, structure_entries).items():
        np.testing.assert_allclose(federated.states[0].scores[name], scores, rtol=1e-4, atol=1e-7, err_msg=f"2 {name}")


def test_who_joins_late_starts_from_all_of_the_servers_bits():
    """It is predicted for with them, and with every score on their side its first structure is found."""
    federated = federation()
    state, _ = federated.round(federated.server.init(), 1)
    plan, late = federated.server.plan(2), federation().hosts[0].algorithm
    sealed = seal(federated.server.newcomer(state, ClientInfo("late", 10), plan))
    download = unseal(sealed, late.download_schema(late.init(), plan))
    server = federated.server.model(state)
    arrived = late.received_weights(late.init(), download, plan)
    assert all(np.array_equal(arrived[name], server[name]) for name in server)
    first = late.received_weights(late.init(), Payload(), federated.server.plan(1))
    assert not np.array_equal(arrived["fc1.weight"], first["fc1.weight"])
    late.trainer.fit = lambda *_, **__: None  # what it starts from
    after = late.adapt(late.init(), download, plan)
    assert all(np.array_equal(score >= 0, server[name] != 0) for name, score in after.scores.items())
    assert set(after.structure) == {"fc1.weight"}


def test_weights_biases_and_structures_stay_and_only_bits_travel():
    """digits' MLP: 4 of 8 units of 64 inputs and 80 weights of the output layer are 336 bits."""
    federated = federation()
    state, structures = federated.server.init(), []
    for round in (1, 2, 3):
        plan = federated.server.plan(round)
        payload = federated.hosts[0].algorithm.train(federated.states[0], federated.download(state, 0, plan), plan)[1]
        entries = {entry.name: entry for entry in inspect(seal(payload).data).tensors}
        assert ("fc1.weight/units" in entries) is (round == 1)
        assert sum(np.prod(entry.shape) for name, entry in entries.items() if "/" not in name) == 336
        assert {entry.value_bytes for entry in entries.values()} == {0}
        state, _ = federated.round(state, round)
        structures.append({name: bits.tobytes() for name, bits in federated.states[0].structure.items()})
    assert structures[0] == structures[2]
    algorithm = federated.hosts[0].algorithm
    personal = algorithm.personal_weights(federated.states[0])
    first = federated.server.parts.weights
    covered = algorithm.parts.entries(federated.states[0].structure)
    for name, array in personal.items():
        same = array == first[name]
        assert same.all() if name.endswith("bias") else (same | (array == 0)).all()
        if name in covered:
            assert not array[~covered[name]].any()
            assert 0.05 < (array[covered[name]] == 0).mean() < 0.95


def test_weights_have_one_size_a_layer_and_w_0s_signs_or_are_w_0():
    """fc1, before a ReLU: √(4 / .5 / 64) = .3536. fc2, the output layer: √(2 / .5 / 8) = .7071."""
    federated = federation()
    first, signed_weights = federated.setup.weights, federated.server.parts.weights
    np.testing.assert_allclose(np.abs(signed_weights["fc1.weight"]), 0.125**0.5, rtol=1e-6)
    np.testing.assert_allclose(np.abs(signed_weights["fc2.weight"]), 0.5**0.5, rtol=1e-6)
    np.testing.assert_array_equal(signed_weights["fc1.weight"] < 0, first["fc1.weight"] < 0)
    np.testing.assert_array_equal(signed_weights["fc1.bias"], first["fc1.bias"])
    drawn = federation(**{"fedmask.weights": "drawn"}).server.parts.weights
    assert all(np.array_equal(drawn[name], array) for name, array in first.items())


def test_a_score_whose_bit_is_turned_stops_at_the_threshold():
    """Beyond it, a client that is outvoted would start farther from its own choice than if it had not voted."""
    score = np.array([0.5, 0.5, -0.5, -0.5, 0.0], np.float32)
    scores = signed(score, np.array([True, False, True, False, False]))
    np.testing.assert_allclose(scores, [0.5, -1e-6, 0, -0.5, -1e-6], rtol=1e-6)
    assert (scores >= 0).tolist() == [True, False, True, False, False]


def test_scores_have_the_runs_rate_unless_they_have_one_of_their_own():
    def scores(**keys):
        federated = federation([1.0], **keys)
        federated.round(federated.server.init(), 1)
        return federated.states[0].scores["fc1.weight"]

    same, separate = scores(lr=0.3), scores(lr=0.1, **{"fedmask.lr": 0.3})
    np.testing.assert_array_equal(same, separate)
    assert not np.array_equal(same, scores(lr=0.1))


def test_last_layers_alone_may_be_masked():
    """With the output layer alone 4 of its 8 input units are held; the others stay as they are."""
    federated = federation(**{"fedmask.layers": 1})
    state, _ = federated.round(federated.server.init(), 1)
    personal = federated.hosts[0].algorithm.personal_weights(federated.states[0])
    np.testing.assert_array_equal(personal["fc1.weight"], federated.setup.weights["fc1.weight"])
    assert (personal["fc2.weight"].any(0)).sum() <= 4
    assert set(federated.server.download(state, federated.hosts[0].info, federated.server.plan(2)).tensors) == {
        "fc2.weight"
    }


@pytest.mark.parametrize("units", [3, 5])
def test_a_structure_of_another_size_is_refused(units):
    server = federation().server
    schema = server.upload_schema(server.init(), ClientInfo("a", 10), server.plan(1))
    upload = sent(server, "a", [0, 1, 2, 3], True, np.ones((10, 8), bool)).payload.tensors
    bent = Payload({**upload, "fc1.weight/units": members(np.arange(8) < units)})
    with pytest.raises(SepalError, match=f"fc1.weight/units count: expected 4 to 4, got {units}"):
        unseal(seal(bent), schema)


def test_it_learns_on_digits():
    """Under weights that never move; the most frequent class of one's own data is worth about .3.

    With four arithmetics of an Intel Xeon, trained is between .856 and .899, and received between .627 and .802.
    """
    keys = {"local-epochs": 3, "batch-size": 8, "partition.subsample": 600, "clients-per-round": 0, "seed": 4}
    accuracy = run("fedmask", rounds=12, **keys, **{"partition.alpha": 1.0}).report.accuracy
    assert accuracy["trained"]["mean"] > 0.8
    assert accuracy["received"]["mean"] > 0.4


@pytest.mark.parametrize(("entropy_coded", "coding"), [(True, "ans"), (False, "gaps")])
def test_bits_are_entropy_coded_where_that_is_shorter_and_agreed_on(entropy_coded, coding):
    """Of a layer of 100 × 100 a fifth is on: the same masks, in fewer bytes."""
    keys = {"fedmask.keep": 1.0, "fedmask.entropy-coded": entropy_coded}
    server = Linear("fedmask", np.ones((100, 100)), ("a",), **keys).server
    mask = np.random.default_rng(0).random((100, 100)) < 0.2
    content = seal(Payload(server.parts.bits({NAME: mask}, {})))
    (entry,) = inspect(content.data).tensors
    assert entry.index.value == coding
    read = unseal(content, Schema(server.parts.specs(whole=True))).tensors
    np.testing.assert_array_equal(server.parts.read(read, {})[NAME], mask)


def test_bits_that_are_entropy_coded_are_refused_where_that_is_not_agreed_on():
    masks = {NAME: np.random.default_rng(0).random((100, 100)) < 0.2}
    plain, coded = (
        Linear("fedmask", np.ones((100, 100)), ("a",), **{"fedmask.entropy-coded": key}).server.parts
        for key in (False, True)
    )
    content = seal(Payload(coded.bits(masks, {})))
    with pytest.raises(SepalError, match="index: expected a coding without entropy coding, got ans"):
        unseal(content, Schema(plain.specs(whole=True)))
