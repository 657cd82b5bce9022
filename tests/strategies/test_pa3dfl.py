"""Pa3dFL as a whole: a round beside an independent computation, widths on both sides, ablations, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import models
from client_app.build import Node, Shared, build_host
from models.decomposed import cut, initial_weights
from models.weights import load_weights
from sepal.errors import ModelError, RoundError, SepalError
from sepal.protocol.method import ClientInfo, Upload, resolve
from sepal.protocol.payloads import seal, unseal
from sepal.protocol.tensors import dense_specs
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest, digest_arrays
from sepal.wire import decode
from sepal_engines.in_process import run_in_process, worker
from strategies.assembly import assemble
from strategies.pa3dfl.client import mix
from strategies.pa3dfl.contract import Shape
from tests.stores import ScratchStore
from tests.strategies.baselines import Sent

FLAT = {
    "method": "pa3dfl",
    "dataset": "digits",
    "clients": 4,
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "pa3dfl.embedding": 8,
    "pa3dfl.hidden": 6,
    "seed": 3,
}
CAPACITIES = [1.0, 0.25, 1 / 256, 0.5]  # widths 1, 1/2, 1/16 and 11/16 (.7071 on the grid of 1/16)


class Federation:
    """A server algorithm and hosts of clients, and messages between them by hand."""

    def __init__(self, capacities=CAPACITIES[:2], **keys):
        self.assembly = assemble({**FLAT, **keys})
        self.server = self.assembly.method.make_server(self.assembly.task)
        shared = Shared.around(self.assembly, "cpu")
        nodes = [Node(number, 4, capacity=capacity) for number, capacity in enumerate(capacities)]
        self.hosts = [build_host(shared, node, "run", ScratchStore()) for node in nodes]
        self.states = [host.algorithm.init() for host in self.hosts]
        self.plan = self.server.plan(1)

    def first(self):
        """The server's state with all clients in it."""
        return self.server.joined(self.server.init(), [host.info for host in self.hosts])

    def download(self, state, number):
        """What client ``number`` gets, over the wire."""
        host, plan = self.hosts[number], self.plan
        schema = host.algorithm.download_schema(self.states[number], plan)
        return unseal(seal(self.server.newcomer(state, host.info, plan)), schema)

    def upload(self, state, number, payload):
        info = replace(self.hosts[number].info, examples=10 * (number + 1))
        return Upload(info, unseal(seal(payload), self.server.upload_schema(state, info, self.plan)))

    def trained(self, state, number):
        host = self.hosts[number]
        after, payload = host.algorithm.train(self.states[number], self.download(state, number), self.plan)
        self.states[number] = after
        return self.upload(state, number, payload)

    def round(self, state):
        """The uploads of all clients, and what the server makes of them."""
        uploads = Sent(self.trained(state, number) for number in range(len(self.hosts)))
        return uploads, *self.server.aggregate(state, uploads, self.plan)


def arrays(payload):
    return {name: tensor.dense() for name, tensor in payload.tensors.items()}


def padded(value, shape):
    out = np.zeros(shape)
    out[tuple(slice(side) for side in value.shape)] = value
    return out


def units(network, name, others):
    """h of each layer for client ``name``, who attends itself and ``others``: equations 8 and 9 in float64."""
    w = {key: value.astype(np.float64) for key, value in network.weights.items()}
    table = np.stack([*(network.embeddings[other] for other in others), network.embeddings[name]]).astype(np.float64)
    for number in range(3):
        table = np.maximum(table, 0) if number else table
        table = table @ w[f"encoder.{number}.weight"].T + w[f"encoder.{number}.bias"]
    scores = table @ table[-1] / np.sqrt(table.shape[1])
    found = []
    for log_tau, weight, bias in zip(w["log-temperature"], w["hidden.weight"], w["hidden.bias"], strict=True):
        a = np.exp(scores / np.exp(log_tau) - (scores / np.exp(log_tau)).max())
        found.append(np.maximum(weight @ (a / a.sum() @ table) + bias, 0))
    return found


# ------------------------------------------------------------------------------------------------------------- a round


def test_a_round_of_two_widths_by_hand():
    """θ_u: plain mean. Personal: sent = (W·h + b) cut; b ← b - γ/2·Σ(sent - new), W ← W - γ/2·Σ(sent - new)⊗h.

    The clients have unlike numbers of examples, which must not count. Both take part at width 1 and 1/2; beyond the
    narrow one's prefix only the wide one moves the decoders. The gradient is not clipped (clip = 1e9).
    """
    federation = Federation(**{"pa3dfl.clip": 1e9, "pa3dfl.rate": 0.1})
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
            here = sent[number][p.name]
            whole = weight @ h[number][layer] + bias
            np.testing.assert_allclose(here, whole[tuple(slice(n) for n in here.shape)], rtol=1e-4, atol=1e-6)
            change = padded(here.astype(np.float64) - new[number][p.name], p.shape)
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
    mean_h = np.mean([[unit @ unit for unit in each] for each in h])
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
    start = client.arrived(federation.states[0], federation.download(state, 0), federation.plan)
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
                kept, found = float(entries[at]), []
                for step in (1e-6, -1e-6):
                    entries[at] = kept + step
                    found.append(float(loss()))
                entries[at] = kept
                moved = kept - 0.1 * (found[0] - found[1]) / 2e-6
                assert new[f"body.{name}"].reshape(-1)[at] == pytest.approx(moved, rel=1e-4, abs=1e-6)


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
    start = client.arrived(federation.states[0], download, federation.plan)
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
    mine = client.predictor(after, None, federation.plan)(x)
    np.testing.assert_allclose(float(F.cross_entropy(mine, y)), -max(ranks)[1], rtol=1e-4)
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


def client_first(client):
    return cut(initial_weights(Shape(client.task, 1.0).module(), 3), client.shape.general + client.shape.personal)


# -------------------------------------------------------------------------------------------------------------- widths


def test_both_sides_compute_the_width_and_only_the_clients_width_travels():
    federation = Federation(CAPACITIES)
    state, sizes = federation.first(), []
    for number, width in enumerate((1, 1 / 2, 1 / 16, 11 / 16)):
        client = federation.hosts[number].algorithm
        assert client.shape.width == width
        payload = federation.server.download(state, client.trainer.client, federation.plan)
        layout = Shape(federation.assembly.task, width).shared
        assert {name: tensor.shape for name, tensor in payload.tensors.items()} == {p.name: p.shape for p in layout}
        sizes.append(len(seal(payload).data))
    assert sizes[2] < sizes[1] < sizes[3] < sizes[0]


def test_the_share_of_the_smallest_width_is_that_of_table_2():
    """CIFAR-100's CNN with 10 classes: 21,043 of 797,962 parameters at width 1/16, both heads counted: .0264."""
    federation = Federation([1.0])
    task = federation.assembly.task
    plain = models.build("cnn-cifar100-pa3dfl", (3, 32, 32), 10)
    made = replace(
        task,
        layout=models.layout(plain),
        make=lambda: models.build("cnn-cifar100-pa3dfl", (3, 32, 32), 10),
        input_shape=(3, 32, 32),
    )
    assert Shape.of(made, 1 / 256).share == pytest.approx(21_043 / 797_962, abs=1e-9)


def test_multiply_adds_count_a_recovered_weight_once_a_batch():
    """digits-cnn at width 1, forward: conv1 9·16·8² = 9,216, conv2 9·16·32·4² = 73,728 an example; weights are put
    together at 9·9·16·1 = 1,296 and 9·16·32·16 = 73,728 a batch. fc1 (R1 = R2 = 2): inner 16·2·128 = 4,096, outer
    16·2·2 = 64; heads 2·320. Backward is twice that, without the gradients of the image (9,216), of the fixed head's
    weight (320) and of the local head's detached features (320). 48 examples make 3 batches of 16.
    """
    example = 3 * (9_216 + 73_728 + 4_096 + 64 + 640) - 9_216 - 640
    federation = Federation([1.0], **{"local-epochs": 1, "batch-size": 16})
    trainer = federation.hosts[0].algorithm.trainer
    federation.trained(federation.first(), 0)
    expected = len(trainer.y) * example + 3 * 3 * (1_296 + 73_728)
    assert len(trainer.y) == 48
    assert trainer.spent()["multiply-adds"] == pytest.approx(expected, rel=1e-9)


def mixed(monkeypatch):
    monkeypatch.setattr(worker, "Node", lambda number, of: Node(number, of, capacity=CAPACITIES[number % 4]))


class Stop(BaseException):
    pass


class Watch:
    """Keeps the rounds' lines; stops where it is told to."""

    def __init__(self, stop=0):
        self.stop, self.lines = stop, []

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.lines.append(line)
        if record.round == self.stop:
            raise Stop

    def closed(self, progress, line):
        pass


def test_mixed_capacities_run_to_the_end_and_a_killed_run_continues_to_the_same_bits(monkeypatch, tmp_path):
    mixed(monkeypatch)
    assembly, watch = assemble({**FLAT, "clients-per-round": 3}), Watch()
    whole = run_in_process(assembly, observers=[watch])
    clients = sorted(watch.lines[-1]["clients"], key=lambda client: client["name"])
    metrics = [client["metrics"] for client in clients]
    assert [figures["width"] for figures in metrics] == [1, 0.5, 1 / 16, 11 / 16]
    shares = [figures["share"] for figures in metrics]
    assert shares[2] < shares[1] < shares[3] < shares[0]
    assert all(0 <= figures["alpha"] <= 1 for figures in metrics)
    assert {"hypernetwork.absorbed", "hypernetwork.h", "hypernetwork.attended"} <= set(watch.lines[0]["method"])
    state = resolve(assembly.method.server_state)
    for stop in (1, 3):
        where = {"state_dir": tmp_path / f"{stop}" / "clients"}
        with pytest.raises(Stop):
            run_in_process(
                assembly, store=DiskRunStore(tmp_path / f"{stop}" / "s", state), observers=[Watch(stop)], **where
            )
        resumed = run_in_process(assembly, store=DiskRunStore(tmp_path / f"{stop}" / "s", state), **where)
        assert digest(resumed.progress.server) == digest(whole.progress.server)
        assert resumed.report.digests == whole.report.digests


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
        ({"pa3dfl.most-mib": 1, "pa3dfl.hidden": 512}, 1.0, "hypernetwork: expected at most 1,048,576 bytes"),
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
    server = assembly.method.make_server(assembly.task)
    server.newcomer(server.init(), client, server.plan(1))


def test_a_client_of_too_little_capacity_refuses_itself():
    with pytest.raises(ModelError, match="capacity: expected"):
        Federation([0.003])


# ----------------------------------------------------------------------------------------------- what the server holds


def test_embeddings_and_hypernetwork_never_leave_the_server_but_count_in_its_digest():
    """Every message of a run's last state: general and personal tensors alone, no scalar, no embedding's bytes."""
    strategy = run_in_process(assemble(FLAT))
    server, state = strategy.algorithm, strategy.progress.server
    assert len(state.hypernetwork.embeddings) == 4
    plan = server.plan(5)
    assert not plan.scalars
    embeddings = state.hypernetwork.embeddings
    for name in embeddings:
        for capacity in CAPACITIES:
            content = seal(server.download(state, ClientInfo(name, 10, capacity), plan))
            assert not content.scalars
            specs = dense_specs(Shape.of(strategy.task, capacity).shared)
            assert list(decode(content.data, specs)) == [p.name for p in server.full.shared]
            assert all(embedding.tobytes() not in content.data for embedding in embeddings.values())
    held = server.model(state)
    network = {f"hypernetwork/{name}" for name in state.hypernetwork.weights}
    assert network | {f"embedding/{name}" for name in state.hypernetwork.embeddings} < set(held)
    for changed in ("embedding/client-00000", "hypernetwork/log-temperature", "body.conv1.theta_u"):
        assert digest_arrays({**held, changed: held[changed] + 1}) != digest_arrays(dict(held))


def test_who_joins_late_has_an_embedding_from_its_name_and_takes_part_at_once():
    federation = Federation(CAPACITIES[:3])
    server = federation.server
    state = server.joined(server.init(), [host.info for host in federation.hosts[:2]])
    first = Sent(federation.trained(state, number) for number in (0, 1))
    state, _ = server.aggregate(state, first, federation.plan)
    late = federation.hosts[2].info
    assert late.name not in state.hypernetwork.embeddings
    state = server.joined(state, [late])
    joined = state.hypernetwork.embeddings[late.name]
    upload = federation.trained(state, 2)
    after, metrics = server.aggregate(state, Sent([upload]), federation.plan)
    assert metrics["hypernetwork.norm"] > 0
    moved = after.hypernetwork.embeddings[late.name] - joined
    assert 0 < np.abs(moved).max() < 0.5
    again = federation.download(state, 2), federation.download(state, 2)
    assert digest_arrays(arrays(again[0])) == digest_arrays(arrays(again[1]))


def test_a_novel_client_has_an_embedding_and_a_received_model_in_the_closing_round(monkeypatch):
    mixed(monkeypatch)
    watch = Watch()
    strategy = run_in_process(assemble({**FLAT, "rounds": 2, "novel-clients": 0.25}), observers=[watch])
    (novel,) = strategy.progress.novel
    state = strategy.progress.server.hypernetwork
    assert len(state.embeddings) == 4
    drawn = strategy.algorithm.hypernetwork.join(replace(state, embeddings={}), [novel]).embeddings[novel]
    np.testing.assert_array_equal(state.embeddings[novel], drawn)  # it never trained
    figures = {client["name"]: client for client in watch.lines[-1]["clients"]}
    assert figures[novel]["received"] is not None
    assert figures[novel]["trained"] is not None


def test_nobody_attends_an_evicted_client():
    """What the others get is as if it had no embedding; a name that the server does not know changes nothing."""
    federation = Federation(CAPACITIES)
    server, state = federation.server, federation.first()
    names = sorted(state.hypernetwork.embeddings)
    left = server.evicted(state, [names[1], "stranger"])
    assert sorted(left.hypernetwork.embeddings) == [name for name in names if name != names[1]]
    before, after = (server.download(s, federation.hosts[0].info, federation.plan) for s in (state, left))
    assert digest_arrays(arrays(before)) != digest_arrays(arrays(after))


@pytest.mark.parametrize("choice", ["go-on", "end"])
def test_a_step_that_is_not_finite_leaves_the_state_or_ends_the_run(choice):
    """A decoder at 1e30 makes the change, squared, more than float32 holds."""
    federation = Federation(CAPACITIES[:1], **{"pa3dfl.non-finite": choice})
    server, state = federation.server, federation.first()
    uploads = Sent([federation.trained(state, 0)])
    name = "decoder.local_head.weight.bias"
    weights = {**state.hypernetwork.weights, name: np.full_like(state.hypernetwork.weights[name], 1e30)}
    bent = replace(state, hypernetwork=replace(state.hypernetwork, weights=weights))
    if choice == "end":
        with pytest.raises(RoundError, match="round 1: the hypernetwork's step: expected finite numbers, got loss inf"):
            server.aggregate(bent, uploads, federation.plan)
        return
    after, metrics = server.aggregate(bent, uploads, federation.plan)
    assert digest(after) == digest(bent)
    assert metrics["hypernetwork.finite"] == 0
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_round_without_uploads_changes_nothing():
    server = Federation([1.0]).server
    state = server.init()
    assert server.aggregate(state, Sent(), server.plan(1)) == (state, {})


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


def test_kept_locally_nothing_personal_travels_and_clients_go_on_from_their_own():
    federation = Federation([1.0, 0.25], **{"pa3dfl.personal": "local"})
    state, first = federation.first(), federation.states[1]
    uploads, after, metrics = federation.round(state)
    assert metrics == {}
    assert not after.personal
    assert {p.name for p in federation.server.full.general} == set(uploads[1].payload.tensors)
    assert {p.name for p in federation.hosts[1].algorithm.shape.personal} == set(federation.states[1].personal)
    own = federation.states[1].personal["body.conv2.theta_v"]
    assert (own != first.personal["body.conv2.theta_v"]).any()
    client = federation.hosts[1].algorithm
    again = client.arrived(federation.states[1], federation.download(after, 1), federation.plan)
    np.testing.assert_array_equal(again["body.conv2.theta_v"], own)
    np.testing.assert_array_equal(again["global_head.bias"], federation.assembly.task.weights["fc2.bias"])


def test_flancs_decomposition_trains_at_mixed_widths():
    federation = Federation(CAPACITIES, **{"pa3dfl.decomposition": "flanc"})
    _, after, metrics = federation.round(federation.first())
    assert metrics["hypernetwork.norm"] > 0
    assert all(state.model for state in federation.states)
    assert all(np.isfinite(array).all() for array in after.general.values())
