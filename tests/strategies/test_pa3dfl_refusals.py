"""Pa3dFL: what is refused, a step that is not finite, and a hostile upload."""

from dataclasses import replace

import numpy as np
import pytest

from sepal.errors import ModelError, RoundError, SepalError
from sepal.method import ClientInfo, Payload, dense
from sepal.protocol.payloads import seal, unseal
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from tests.strategies.baselines import Sent
from tests.strategies.pa3dfl import CAPACITIES, FLAT, Federation, arrays


def test_an_upload_of_another_width_is_refused_in_one_line():
    federation = Federation([1.0, 0.25])
    state = federation.first()
    wide = federation.hosts[0].algorithm.train(federation.states[0], federation.download(state, 0), federation.plan)[1]
    schema = federation.server.upload_schema(state, federation.hosts[1].info, federation.plan)
    with pytest.raises(SepalError, match=r"^body\.conv1\.theta_v.*expected.*got") as refusal:
        unseal(seal(wide), schema)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "capacity", "words"),
    [
        ({}, 0.003, "capacity: expected 0.00390625 .* to 1, got 0.003"),
        ({"model": "mnist-cnn-bn"}, 1.0, "model: expected layers of the kinds convolution"),
        (
            {"pa3dfl.most-mib": 1, "pa3dfl.hidden": 512},
            1.0,
            r"hypernetwork: expected at most 1 MiB .*pa3dfl.decoder-rank\), got \d+",
        ),
        ({"pa3dfl.least": 0.3}, 1.0, "smallest width: expected 1/n"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(keys, capacity, words):
    if "model" in keys:
        keys = {**keys, "dataset": "own", "own.shape": "1x28x28", "own.classes": 10, "own.data": "a:b"}
        keys |= {"rounds": 1, "local-epochs": 1, "batch-size": 8, "lr": 0.1, "optimizer": "sgd"}
    with pytest.raises(SepalError, match=words) as refusal:
        send_first({**FLAT, **keys}, ClientInfo("a", 1, capacity))
    assert "\n" not in str(refusal.value)


def send_first(flat, client):
    assembly = assemble(flat)
    server = assembly.method.make_server(assembly.setup)
    server.newcomer(server.init(), client, server.plan(1))


def test_a_client_of_too_little_capacity_refuses_itself():
    with pytest.raises(ModelError, match="capacity: expected"):
        Federation([0.003])


@pytest.mark.parametrize("choice", ["go-on", "end"])
def test_a_step_that_is_not_finite_leaves_the_state_or_ends_the_run(choice, caplog):
    """A decoder at 1e30 makes the change, squared, more than float32 holds."""
    federation = Federation(CAPACITIES[:1], **{"pa3dfl.non-finite": choice})
    server, state = federation.server, federation.first()
    uploads = Sent([federation.trained(state, 0)])
    name = "decoder.local_head.weight.bias"
    weights = {**state.hypernetwork.weights, name: np.full_like(state.hypernetwork.weights[name], 1e30)}
    bent = replace(state, hypernetwork=replace(state.hypernetwork, weights=weights))
    if choice == "end":
        with pytest.raises(RoundError, match=r"round 1: the .* step: expected a finite loss and norm, got loss inf, "):
            server.aggregate(bent, uploads, federation.plan)
        return
    after, metrics = server.aggregate(bent, uploads, federation.plan)
    assert digest(after) == digest(bent)
    assert "round 1: the hypernetwork's step was not finite (loss inf, norm " in caplog.text
    assert metrics["hypernetwork.finite"] == 0
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_hostile_upload_moves_the_hypernetwork_by_no_more_than_a_clipped_step():
    """The largest values that are admitted, in all personal tensors: the step's length is rate · clip = .1."""
    federation = Federation([1.0, 1.0])
    server, state = federation.server, federation.first()
    honest, hostile = (federation.trained(state, number) for number in range(2))
    large = {p.name: np.full(p.shape, 1e6, np.float32) for p in server.full.personal}
    tensors = {**arrays(hostile.payload), **large}
    hostile = federation.upload(state, 1, Payload(dense(tensors, server.full.shared, server.coding)))
    after, metrics = server.aggregate(state, Sent([honest, hostile]), federation.plan)
    assert metrics["hypernetwork.norm"] > 1e6
    weights, network = state.hypernetwork.weights, after.hypernetwork.weights
    squares = sum(((network[n].astype(np.float64) - w) ** 2).sum() for n, w in weights.items())
    squares += sum(
        ((after.hypernetwork.embeddings[n] - e) ** 2).sum() for n, e in state.hypernetwork.embeddings.items()
    )
    assert squares**0.5 == pytest.approx(0.1, rel=1e-2)
    sent = arrays(server.download(after, federation.hosts[0].info, federation.plan))
    assert all(abs(sent[p.name]).max() < 10 for p in server.full.personal)
