"""Pa3dFL: a round beside an independent computation, the choice of α, and the ablations."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sepal.models.decomposed import cut, initial_weights
from sepal.models.weights import load_weights
from sepal.storage.serialize import digest, digest_arrays
from sepal.strategies.pa3dfl.client import mix
from sepal.strategies.pa3dfl.contract import DecomposedShape
from tests.strategies.baselines import Sent
from tests.strategies.pa3dfl import CAPACITIES, Federation, arrays


def padded(value, shape):
    out = np.zeros(shape)
    out[tuple(slice(side) for side in value.shape)] = value
    return out


def units(network, name, others):
    """h of each layer for client ``name``, who attends itself and ``others``: equations 8 and 9 in float64."""
    w = {key: value.astype(np.float64) for key, value in network.weights.items()}
    table = np.stack([*(network.embeddings[other_client] for other_client in others), network.embeddings[name]]).astype(
        np.float64
    )
    for number in range(3):
        table = np.maximum(table, 0) if number else table
        table = table @ w[f"encoder.{number}.weight"].T + w[f"encoder.{number}.bias"]
    scores = table @ table[-1] / np.sqrt(table.shape[1])
    unit_outputs = []
    for log_tau, weight, bias in zip(w["log-temperature"], w["hidden.weight"], w["hidden.bias"], strict=True):
        a = np.exp(scores / np.exp(log_tau) - (scores / np.exp(log_tau)).max())
        unit_outputs.append(np.maximum(weight @ (a / a.sum() @ table) + bias, 0))
    return unit_outputs


# ------------------------------------------------------------------------------------------------------------- a round


def test_a_round_of_two_widths_by_hand():
    """θ_u: plain mean. Personal: sent = (W·h + b) cut; b ← b - γ/2·Σ(sent - new), W ← W - γ/2·Σ(sent - new)⊗h.

    The clients have unlike numbers of examples, which must not count. Both take part at width 1 and 1/2; beyond the
    narrow one's prefix only the wide one moves the decoders. The gradient is not clipped (clip = 1e9).
    """
    federation = Federation(**{"lr": 0.1, "pa3dfl.clip": 1e9, "pa3dfl.rate": 0.1})
    server = federation.server
    names = [host.info.name for host in federation.hosts]
    state = federation.first()
    sent = [arrays(federation.download(state, number)) for number in range(2)]
    uploads, after, metrics = federation.round(state)
    new = [arrays(upload.payload) for upload in uploads]
    for p in server.full.general:
        np.testing.assert_array_equal(sent[0][p.name], state.general[p.name])
        mean = (new[0][p.name].astype(np.float64) + new[1][p.name]) / 2
        np.testing.assert_array_equal(after.general[p.name], mean.astype(np.float32))
    before, moved, loss = state.hypernetwork, after.hypernetwork, 0.0
    h = [units(before, names[0], names[1:]), units(before, names[1], names[:1])]
    for p in server.full.personal:
        weight, bias = before.weights[f"decoder.{p.name}.weight"], before.weights[f"decoder.{p.name}.bias"]
        layer, step = server.hypernetwork.layer[p.name], np.zeros(p.shape)
        slope = np.zeros(weight.shape)
        for number in range(2):
            weights = sent[number][p.name]
            whole = weight @ h[number][layer] + bias
            np.testing.assert_allclose(weights, whole[tuple(slice(n) for n in weights.shape)], rtol=1e-4, atol=1e-6)
            change = padded(weights.astype(np.float64) - new[number][p.name], p.shape)
            loss += (change**2).sum() / 4
            step += change / 2
            slope += change[..., None] * h[number][layer] / 2
        np.testing.assert_allclose(moved.weights[f"decoder.{p.name}.bias"], bias - 0.1 * step, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            moved.weights[f"decoder.{p.name}.weight"], weight - 0.1 * slope, rtol=1e-3, atol=1e-5
        )
    assert metrics["hypernetwork.loss"] == pytest.approx(loss, rel=1e-4)
    assert metrics["hypernetwork.absorbed"] > 0
    assert metrics["hypernetwork.finite"] == 1
    mean_h = np.mean([[unit @ unit for unit in outputs] for outputs in h])
    assert metrics["hypernetwork.h"] == pytest.approx(mean_h, rel=1e-4)
    assert 1 <= metrics["hypernetwork.attended"] <= 2


def test_a_step_of_a_client_by_hand():
    """One step on all examples: local head by softmax - one-hot; the body by differences of CE(global head) + λ·reg.

    The gradient of CE by the head's logits z is (softmax(z) - onehot(y))/n, so the local head moves by -lr times that,
    transposed, times the features. What the local head does must not move the body: the body's numbers are derived
    without it.
    """
    keys = {"batch-size": 1000, "local-epochs": 1, "lr": 0.1, "pa3dfl.lambda": 0.01, "momentum": 0.0}
    federation = Federation([0.25], **keys)
    state, client = federation.first(), federation.hosts[0].algorithm
    start = client.received_weights(federation.states[0], federation.download(state, 0), federation.plan)
    new = arrays(federation.trained(state, 0).payload)
    x, y = client.trainer.x.double(), client.trainer.y
    module = client.shape.module()
    load_weights(module, start)
    module = module.double()

    features = module.features(x).detach()
    head = torch.from_numpy(start["local_head.weight"]).double(), torch.from_numpy(start["local_head.bias"]).double()
    z = features @ head[0].T + head[1]
    slope = (torch.softmax(z, 1) - F.one_hot(y, 10)) / len(y)
    np.testing.assert_allclose(new["local_head.weight"], head[0] - 0.1 * slope.T @ features, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(new["local_head.bias"], head[1] - 0.1 * slope.sum(0), rtol=1e-4, atol=1e-6)

    def loss():
        """CE under the global head, with each weight put together output by output; and λ·Σ off-diagonal²."""
        total, h = torch.zeros((), dtype=torch.float64), x
        for name in ("conv1", "conv2", "fc1"):
            layer = module.body.get_submodule(name)
            u = layer.theta_u.view(layer.components, -1, layer.rank)
            outputs = [u[i] @ v for v in layer.theta_v for i in range(layer.components)]  # o_ij at j·R1 + i: (k², S)
            if name == "fc1":
                h = F.relu(F.linear(h.flatten(1), torch.cat(outputs), layer.bias))
                continue
            weight = torch.stack([o.T.reshape(-1, 3, 3) for o in outputs])
            h = F.max_pool2d(F.relu(F.conv2d(h, weight, layer.bias, padding=1)), 2)
            for ui in u:
                gram = ui.T @ ui
                total += 0.01 * (gram - torch.diag(torch.diag(gram))).square().sum()
        return total + F.cross_entropy(module.global_head(h), y)

    with torch.no_grad():
        for name in ("conv1.theta_u", "conv2.theta_u", "conv2.theta_v", "fc1.theta_v", "fc1.bias"):
            entries = module.body.get_parameter(name).view(-1)
            for at in (0, len(entries) // 3, len(entries) - 1):
                value, losses = float(entries[at]), []
                for step in (1e-6, -1e-6):
                    entries[at] = value + step
                    losses.append(float(loss()))
                entries[at] = value
                stepped = value - 0.1 * (losses[0] - losses[1]) / 2e-6
                assert new[f"body.{name}"].reshape(-1)[at] == pytest.approx(stepped, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("values", ["fp32", "fp16"])
def test_where_no_client_changed_anything_the_hypernetwork_stays_to_the_bit(values):
    federation = Federation(CAPACITIES, values=values)
    state = federation.first()
    echoes = Sent(federation.upload(state, n, federation.download(state, n)) for n in range(4))
    after, metrics = federation.server.aggregate(state, echoes, federation.plan)
    assert metrics["hypernetwork.norm"] == metrics["hypernetwork.loss"] == 0
    assert digest_arrays(dict(after.hypernetwork.weights)) == digest_arrays(dict(state.hypernetwork.weights))
    assert set(after.hypernetwork.embeddings) == {host.info.name for host in federation.hosts}
    moved = federation.server.aggregate(state, federation.round(state)[0], federation.plan)[1]
    assert moved["hypernetwork.norm"] > 0


# --------------------------------------------------------------------------------------------------------------- alpha


def test_alpha_is_the_best_of_eleven_on_validation_data_and_the_state_keeps_it():
    federation = Federation([0.25], **{"local-epochs": 3, "lr": 0.1})
    state, client = federation.first(), federation.hosts[0].algorithm
    download = federation.download(state, 0)
    start = client.received_weights(federation.states[0], download, federation.plan)
    after, upload = client.train(federation.states[0], download, federation.plan)
    trained = {**start, **arrays(upload)}
    m0, m1 = client.recovered(start, "global_head"), client.recovered(trained, "local_head")
    x, y = client.trainer.x_validation, client.trainer.y_validation
    ranks = []
    for step in range(11):
        logits = client._predict({n: m0[n] * (1 - step / 10) + m1[n] * (step / 10) for n in m0})(x)
        ranks.append((int((logits.argmax(1) == y).sum()), -float(F.cross_entropy(logits, y))))
    assert after.alpha == ranks.index(max(ranks)) / 10
    assert len(set(ranks)) > 5
    client_logits = client.predictor(after, None, federation.plan)(x)
    np.testing.assert_allclose(float(F.cross_entropy(client_logits, y)), -max(ranks)[1], rtol=1e-4)
    received = client.predictor(after, download, federation.plan)(x)
    np.testing.assert_allclose(float(F.cross_entropy(received, y)), -ranks[0][1], rtol=1e-4)
    assert digest(client.adapt(federation.states[0], download, federation.plan)) == digest(after)
    assert client.trainer.spent()["alpha"] == after.alpha


def test_ties_take_the_least_alpha_and_no_validation_data_the_trained_model():
    client = Federation([0.25]).hosts[0].algorithm
    same = client.recovered({**client.head, **client_first(client)}, "global_head")
    assert client.choose(same, same)[0] == 0
    client.trainer.x_validation, client.trainer.y_validation = client.trainer.x[:0], client.trainer.y[:0]
    assert client.choose(same, same)[0] == 1
    ruined = {name: np.full_like(array, np.nan) for name, array in same.items()}
    assert digest_arrays(mix(same, ruined, 0.0)) == digest_arrays(same)
    assert digest_arrays(mix(same, ruined, 1.0)) == digest_arrays(ruined)
    assert all(digest_arrays(mix(same, same, step / 10)) == digest_arrays(same) for step in range(11))
    far = {name: np.full_like(array, 1e8) for name, array in same.items()}
    assert digest_arrays(mix(far, same, 1.0)) == digest_arrays(same), "1e8 + (x - 1e8) is not x in float32"


def client_first(client):
    return cut(
        initial_weights(DecomposedShape(client.setup, 1.0).module(), 3), client.shape.general + client.shape.personal
    )


# ----------------------------------------------------------------------------------------------------------- ablations


def test_averaged_by_position_at_width_1_is_a_plain_average():
    federation = Federation([1.0, 1.0], **{"pa3dfl.personal": "position"})
    state = federation.first()
    uploads, after, metrics = federation.round(state)
    assert metrics == {}
    a, b = (arrays(upload.payload) for upload in uploads)
    for name, array in {**after.general, **after.personal}.items():
        np.testing.assert_array_equal(array, ((a[name].astype(np.float64) + b[name]) / 2).astype(np.float32))
        assert (a[name] != b[name]).any()


def test_averaged_by_position_at_two_widths_takes_each_entry_from_those_who_hold_it():
    federation = Federation([1.0, 0.25], **{"pa3dfl.personal": "position"})
    uploads, after, _ = federation.round(federation.first())
    name = "body.fc1.theta_v"
    wide, narrow = (arrays(upload.payload)[name] for upload in uploads)
    inside = tuple(slice(side) for side in narrow.shape)
    assert narrow.size < wide.size
    expected = wide.copy()
    expected[inside] = (wide[inside].astype(np.float64) + narrow) / 2
    np.testing.assert_array_equal(after.personal[name], expected)


def test_averaged_by_position_entries_that_nobody_sampled_holds_stay_as_they_were():
    """Widths 1/2 and 3/16 after a round with width 1: beyond 1/2 the state's values, between the two the wider's."""
    federation = Federation([1.0, 0.25, 0.05], **{"pa3dfl.personal": "position"})
    first = federation.first()
    _, state, _ = federation.round(first)
    uploads = Sent(federation.trained(state, number) for number in (1, 2))
    after, _ = federation.server.aggregate(state, uploads, federation.plan)
    wide, narrow = (arrays(upload.payload) for upload in uploads)
    cut_layers = []
    for p in federation.server.full.personal:
        name, before, new = p.name, state.personal[p.name], after.personal[p.name]
        holds = [padded(np.ones(sent[name].shape), p.shape) == 1 for sent in (wide, narrow)]
        nobody, only_wide = ~holds[0], holds[0] & ~holds[1]
        np.testing.assert_array_equal(new[nobody], before[nobody])
        np.testing.assert_array_equal(new[only_wide], padded(wide[name], p.shape).astype(np.float32)[only_wide])
        mean = (padded(wide[name], p.shape) + padded(narrow[name], p.shape)) / 2
        np.testing.assert_array_equal(new[holds[1]], mean.astype(np.float32)[holds[1]])
        if nobody.any():
            cut_layers.append(name)
            assert only_wide.any()
            assert before[nobody].any()
            assert (before[nobody] != first.personal[name][nobody]).any(), "the first round moved them"
            assert (new[only_wide] != before[only_wide]).any()
    bodies = [f"body.{layer}.{parameter}" for layer in ("conv1", "conv2") for parameter in ("theta_v", "bias")]
    assert set(cut_layers) == {*bodies, "body.fc1.theta_v"}


def test_kept_locally_nothing_personal_travels_and_clients_go_on_from_their_own():
    federation = Federation([1.0, 0.25], **{"pa3dfl.personal": "local"})
    state, first = federation.first(), federation.states[1]
    uploads, after, metrics = federation.round(state)
    assert metrics == {}
    assert not after.personal
    assert {p.name for p in federation.server.full.general} == set(uploads[1].payload.tensors)
    assert {p.name for p in federation.hosts[1].algorithm.shape.personal} == set(federation.states[1].personal)
    personal = federation.states[1].personal["body.conv2.theta_v"]
    assert (personal != first.personal["body.conv2.theta_v"]).any()
    client = federation.hosts[1].algorithm
    again = client.received_weights(federation.states[1], federation.download(after, 1), federation.plan)
    np.testing.assert_array_equal(again["body.conv2.theta_v"], personal)
    np.testing.assert_array_equal(again["global_head.bias"], federation.assembly.setup.weights["fc2.bias"])


def test_flancs_decomposition_trains_at_mixed_widths():
    """Of conv2, 16 → 32 channels of 3 × 3: θ_u is (9·R1, R2) = (9·1, 16), θ_v (outputs, inputs/R1, R2)."""
    federation = Federation(CAPACITIES, **{"pa3dfl.decomposition": "flanc"})
    first = federation.first()
    uploads, after, metrics = federation.round(first)
    assert first.general["body.conv2.theta_u"].shape == (9, 16)
    factors = [upload.payload.tensors["body.conv2.theta_v"].shape for upload in uploads]
    assert factors == [(32, 16, 16), (16, 8, 16), (2, 1, 16), (22, 11, 16)]  # widths 1, 1/2, 1/16, 11/16
    assert metrics["hypernetwork.norm"] > 0
    assert all(state.model for state in federation.states)
    assert all(np.isfinite(array).all() for array in after.general.values())
