"""pFedGate against its paper: one round by hand, the limit case, what travels and what never does, the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import client_app.host
import sepal.server.downloads
from client_app.build import Node, Shared, build_host
from models.gated import GatedModule
from sepal.client.training import Trainer
from sepal.errors import ConfigError, ModelError, ProtocolError, SepalError, WireError
from sepal.protocol.method import ClientInfo, Payload, Plan, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.wire import encode, inspect
from sepal.wire.tensors import SparseTensor, Support, members, whole
from sepal_engines.in_process import run_in_process
from strategies.assembly import assemble
from strategies.pfedgate.client import PFedGateClient
from strategies.pfedgate.contract import Gated
from strategies.pfedgate.server import PFedGateServer
from tests.stores import ScratchStore
from tests.strategies.baselines import Sent
from tests.test_methods_common import Lines

FLAT = {
    "method": "pfedgate",
    "dataset": "digits",
    "clients": 4,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "batch-size": 8,
    "evaluate-every": 0,
    "rounds": 3,
    "seed": 5,
    "pfedgate.keep": 0.3,
}
BATCH = {"pfedgate.gating": "batch"}


def parts(number=0, **keys):
    """A server algorithm and a client's host on a few digits."""
    assembly = assemble({**FLAT, **keys})
    host = build_host(Shared.around(assembly, "cpu"), Node(number, 4), "run", ScratchStore())
    return assembly.method.make_server(assembly.task), host


def two_rows(input_shape, classes):
    """Borders of blocks cut each row several times."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.ReLU(), nn.Linear(2, classes, bias=False))


def alone(examples, capacity=1.0, x=None, **keys):
    """A client algorithm over examples of random pixels."""
    assembly = assemble({**FLAT, **keys})
    x = torch.randn(examples, 1, 8, 8, generator=torch.Generator().manual_seed(1)) if x is None else x
    y = torch.arange(len(x)) % 10
    trainer = Trainer(ClientInfo("c", len(x), capacity), assembly.task.config, x, y, x[:0], y[:0], assembly.make)
    return PFedGateClient(assembly.task, trainer)


def flat(server, weights):
    return server.gated.flat.join(weights)


# The server


def test_an_index_is_averaged_over_those_that_sent_it_and_nobodys_stays():
    """Two clients of 1 and 3 examples send Δ = 4 and Δ = 8: (1·4 + 3·8)/4 = 7 where both did."""
    server, _ = parts()
    state, blocks = server.init(), server.gated.blocks(0.3)
    one, two = blocks.first.copy(), blocks.first.copy()
    one[1], two[2] = True, True
    uploads = Sent()
    for name, examples, on, value in (("a", 1, one, 4.0), ("b", 3, two, 8.0)):
        start = server.model(state)
        model = {key: array + np.float32(value) for key, array in start.items()}
        sent = server.gated.update(start, model, on, 0.3, server.coding)
        uploads.append(Upload(ClientInfo(name, examples), Payload(sent)))
    after, metrics = server.aggregate(state, uploads, Plan(1))
    moved = flat(server, after.weights) - flat(server, state.weights)
    expected = np.zeros(len(blocks.names))
    expected[blocks.first], expected[1], expected[2] = 7, 4, 8
    np.testing.assert_allclose(moved, np.repeat(expected, blocks.sizes), atol=1e-5)
    untouched = np.repeat(expected == 0, blocks.sizes)
    assert (flat(server, after.weights) == flat(server, state.weights))[untouched].all()
    assert metrics["share-uploaded"] == pytest.approx((blocks.share(one) + blocks.share(two)) / 2)
    assert server.aggregate(state, Sent(), Plan(1))[0].weights.keys() == state.weights.keys()


def test_budgets_below_one_block_have_blocks_of_their_own():
    """s = .1 with B = 5 has s_min = .05, so its blocks are others than those of s = .3; entries decide."""
    server, _ = parts(**{"pfedgate.keep": 0.0})
    state = server.init()
    uploads, held = Sent(), []
    for name, capacity in (("a", 0.1), ("b", 0.3)):
        client, blocks = ClientInfo(name, 2, capacity), server.gated.blocks(capacity)
        start = server.model(state)
        model = {key: array + np.float32(1) for key, array in start.items()}
        content = seal(Payload(server.gated.update(start, model, blocks.first, capacity, server.coding)))
        uploads.append(Upload(client, unseal(content, server.upload_schema(state, client, Plan(1)))))
        held.append(np.repeat(blocks.first, blocks.sizes))
    assert held[0].sum() < held[1].sum()
    moved = flat(server, server.aggregate(state, uploads, Plan(1))[0].weights) != flat(server, state.weights)
    assert np.array_equal(moved, held[0] | held[1])


def test_at_full_budget_with_all_gates_at_one_it_is_fedavg_bit_for_bit(monkeypatch):
    """W + Σ n_i(W_i - W)/Σ n_i, in float64, of the models that FedAvg's clients return."""

    def ones(module, x):
        return torch.ones(1, len(module.on)), np.ones(len(module.on), bool)

    monkeypatch.setattr(GatedModule, "sparse_weights", ones)
    keys = {"pfedgate.keep": 1.0, "pfedgate.gating": "batch", "pfedgate.clip": 1e9, "momentum": 0.9}
    keys["local-epochs"] = 1
    uploads, total, sums = Sent(), 0, 0.0
    for number in range(4):
        server, host = parts(number, **keys)
        fedavg = assemble({**{k: v for k, v in FLAT.items() if not k.startswith("pfedgate")}, "method": "fedavg"})
        fedavg = assemble({**fedavg.task.config.flat(), "momentum": 0.9, "local-epochs": 1})
        theirs = build_host(Shared.around(fedavg, "cpu"), Node(number, 4), "run", ScratchStore())
        start = server.model(server.init())
        _, upload = host.algorithm.train(host.algorithm.init(), Payload(), Plan(1))
        trained, _ = theirs.algorithm.train(theirs.algorithm.init(), Payload(), Plan(1))
        uploads.append(Upload(host.info, upload))
        delta = flat(server, trained.model) - flat(server, start)
        assert np.abs(delta).max() > 1e-3
        total += host.info.examples
        sums = sums + delta.astype(np.float64) * host.info.examples
    after = server.aggregate(server.init(), uploads, Plan(1))[0]
    expected = (flat(server, start).astype(np.float64) + sums / total).astype(np.float32)
    assert flat(server, after.weights).tobytes() == expected.tobytes()


# What travels


@pytest.mark.parametrize("gating", ["sample", "batch", "client"])
def test_what_is_sent_is_exactly_what_changed(gating):
    """Despite momentum and weight decay, which would move masked weights."""
    client = alone(12, **{"pfedgate.gating": gating, "batch-size": 4, "momentum": 0.9, "weight-decay": 0.01})
    start = dict(client.task.weights)
    after, upload = client.train(client.init(), Payload(), Plan(1))
    on, blocks = upload.tensors["blocks"].mask(), client.blocks
    moved = blocks.changed(client.gated.flat.join(start), client.gated.flat.join(after.model))
    assert np.array_equal(moved, on)
    assert not on.all()
    delta = client.gated.flat.join(after.model) - client.gated.flat.join(start)
    assert np.array_equal(upload.tensors["delta"].dense(), delta)
    assert upload.tensors["delta"].nnz == blocks.sizes[on].sum()
    assert client.trainer.spent()["share-uploaded"] == pytest.approx(blocks.share(on))


def test_positions_do_not_travel():
    """digits-cnn at s = .3: header, one bit a block, four bytes an entry."""
    server, host = parts(**BATCH)
    _, upload = host.algorithm.train(host.algorithm.init(), Payload(), Plan(1))
    content = seal(upload)
    assert len(content.data) <= 4 * upload.tensors["delta"].nnz + 100
    back = unseal(content, server.upload_schema(server.init(), host.info, Plan(1)))
    assert np.array_equal(back.tensors["delta"].dense(), upload.tensors["delta"].dense())


@pytest.mark.parametrize("gating", ["sample", "batch", "client"])
def test_the_gate_never_appears_in_any_message(gating, monkeypatch):
    """Names of all tensors on the wire, and the bytes of everything that a client keeps beside its model."""
    sent, states = [], []

    def spy(payload):
        sent.append(seal(payload))
        return sent[-1]

    save = ScratchStore.save

    def keep(store, name, stored, origin):
        states.append(stored.state)
        return save(store, name, stored, origin)

    monkeypatch.setattr(client_app.host, "seal", spy)
    monkeypatch.setattr(sepal.server.downloads, "seal", spy)
    names = set(assemble(FLAT).task.weights)
    hosts = [parts(number, **{"pfedgate.gating": gating})[1] for number in range(2)]
    server, _ = parts(**{"pfedgate.gating": gating})
    state, clients = server.init(), [host.algorithm.init() for host in hosts]
    for round in (1, 2, 3):
        uploads = Sent()
        for number, host in enumerate(hosts):
            plan = server.plan(round)
            down = spy((server.newcomer if round == 1 else server.download)(state, host.info, plan))
            download = unseal(down, host.algorithm.download_schema(clients[number], plan))
            clients[number], upload = host.algorithm.train(clients[number], download, plan)
            states.append(clients[number])
            uploads.append(Upload(host.info, unseal(spy(upload), server.upload_schema(state, host.info, plan))))
        state = server.aggregate(state, uploads, server.plan(round))[0]
    run_in_process(assemble({**FLAT, "pfedgate.gating": gating, "pfedgate.keep-optimizer": True, "momentum": 0.9}))
    assert len(sent) > 20
    for content in sent:
        assert set(content.scalars) == set()
        assert not content.data or {e.name for e in inspect(content.data).tensors} <= names | {"blocks", "delta"}
    secrets = [array for state in states for array in state.gate.values() if array.size > 3 and np.ptp(array) > 0]
    assert len(secrets) > 20
    for array in secrets:
        assert not any(array.tobytes()[:16] in content.data for content in sent)


def test_a_client_without_a_step_sends_nothing_and_keeps_the_first_gate():
    client = alone(1)
    after, upload = client.train(client.init(), Payload(), Plan(1))
    assert upload.tensors["blocks"].nnz == upload.tensors["delta"].nnz == 0
    first = client.gated.first_gate(0.3)
    assert all(np.array_equal(after.gate[name], first[name]) for name in first)
    server = PFedGateServer(client.task)
    payload = unseal(seal(upload), server.upload_schema(server.init(), client.trainer.client, Plan(1)))
    state = server.aggregate(server.init(), Sent([Upload(client.trainer.client, payload)]), Plan(1))[0]
    assert all(np.array_equal(state.weights[name], array) for name, array in client.task.weights.items())


# The client


def test_the_first_gate_is_the_same_whoever_trained_before_in_this_process():
    assembly = assemble(FLAT)
    shared = Shared.around(assembly, "cpu")
    hosts = [build_host(shared, Node(number, 4), "run", ScratchStore()) for number in range(2)]
    hosts[0].algorithm.train(hosts[0].algorithm.init(), Payload(), Plan(1))
    after, _ = hosts[1].algorithm.train(hosts[1].algorithm.init(), Payload(), Plan(1))
    alone_, _ = parts(1)[1].algorithm.train(hosts[1].algorithm.init(), Payload(), Plan(1))
    assert all(np.array_equal(after.gate[name], alone_.gate[name]) for name in after.gate)


def test_model_and_gate_have_rates_and_clipping_of_their_own():
    """One step of SGD with the gradients clipped to 1e-4: each part moves by its rate times that, whatever the other's.

    Entries move by rounding, too, so the norms are met to a few per cent.
    """
    keys = {"lr": 20.0, "pfedgate.rate": 500.0, "pfedgate.clip": 1e-4, "batch-size": 64, "local-epochs": 1, **BATCH}
    client = alone(10, **keys)
    after, upload = client.train(client.init(), Payload(), Plan(1))
    assert client.trainer.steps == 1
    first = client.gated.first_gate(0.3)
    trained = [name for name in first if "running" not in name and name != "pooled"]
    gate = np.sqrt(sum(np.square(after.gate[name] - first[name], dtype=np.float64).sum() for name in trained))
    assert np.linalg.norm(upload.tensors["delta"].values.astype(np.float64)) == pytest.approx(2e-3, rel=0.05)
    assert gate == pytest.approx(5e-2, rel=0.05)


def test_optimizer_state_outlives_the_round_where_asked():
    keys = {"momentum": 0.9, "local-epochs": 1, **BATCH}
    client = alone(10, **keys, **{"pfedgate.keep-optimizer": True})
    one, _ = client.train(client.init(), Payload(), Plan(1))
    assert {name.partition("/")[0] for name in one.optimizer} == {"momentum_buffer"}
    assert {name.partition("/")[2].partition(".")[0] for name in one.optimizer} == {"model", "gate"}
    again, _ = client.train(one, Payload(), Plan(1))
    restarted, _ = client.train(replace(one, optimizer={}), Payload(), Plan(1))
    assert not np.array_equal(again.model["fc2.weight"], restarted.model["fc2.weight"])
    assert alone(10, **keys).train(client.init(), Payload(), Plan(1))[0].optimizer == {}


def test_a_novel_client_trains_its_gate_and_nothing_else():
    client = alone(20, **{"pfedgate.novel-epochs": 3, "local-epochs": 1, "momentum": 0.9, "weight-decay": 0.01})
    start = {name: array + np.float32(0.01) for name, array in client.task.weights.items()}
    download = Payload({name: whole(array) for name, array in start.items()})
    after = client.adapt(client.init(), download, Plan(4, novel=True))
    assert client.trainer.steps == 3 * 3, "three passes over 20 examples in batches of at most 8"
    assert all(np.array_equal(after.model[name], array) for name, array in start.items())
    assert not np.array_equal(after.gate["linear.weight"], client.gated.first_gate(0.3)["linear.weight"])
    both = client.adapt(client.init(), download, Plan(4))
    assert not np.array_equal(both.model["fc2.weight"], start["fc2.weight"]), "a participant trains both"


def test_novel_clients_are_apart_in_the_report():
    strategy = run_in_process(assemble({**FLAT, "novel-clients": 0.25, "rounds": 2}))
    assert set(strategy.report.novel["accuracy"]) >= {"received", "trained", "pooled"}
    assert strategy.report.novel["gap"]["trained"] is not None


def predictions(client, state, x):
    return client.predictor(state, None, Plan(1))(x)


def test_by_batch_an_evaluation_is_cut_into_batches_as_training_is():
    client = alone(30, **{"batch-size": 8, **BATCH})
    state, _ = client.train(client.init(), Payload(), Plan(1))
    x = torch.randn(20, 1, 8, 8)
    cut = torch.cat([predictions(client, state, part) for part in torch.tensor_split(x, 3)])
    assert torch.equal(predictions(client, state, x), cut)
    alone_ = torch.cat([predictions(client, state, part) for part in x.split(1)])
    assert not torch.allclose(cut, alone_)


@pytest.mark.parametrize("gating", ["sample", "client"])
def test_by_sample_and_by_client_predictions_do_not_depend_on_the_batch(gating):
    client = alone(30, **{"pfedgate.gating": gating, "pfedgate.keep": 0.5})
    state, _ = client.train(client.init(), Payload(), Plan(1))
    x = torch.randn(20, 1, 8, 8)
    single = torch.cat([predictions(client, state, part) for part in x.split(1)])
    torch.testing.assert_close(predictions(client, state, x), single, rtol=1e-4, atol=1e-5)


def test_by_client_there_is_one_mask_from_the_training_part():
    client = alone(30, **{"pfedgate.gating": "client"})
    state, _ = client.train(client.init(), Payload(), Plan(1))
    assert client.trainer.spent()["masks"] == 1
    predictions(client, state, torch.randn(3, 1, 8, 8))
    module = client.trainer.network("gated-0.3").module
    with torch.no_grad():
        expected = module.gate(client.trainer.x).mean(0)
    torch.testing.assert_close(module.gate.pooled, expected)


# The budget

TASKS = {
    "digits-cnn": assemble(FLAT).task,
    "two rows": assemble({**FLAT, "model": "tests.strategies.test_pfedgate:two_rows"}).task,
}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 100).map(lambda percent: percent / 100),
    st.sampled_from(["sample", "batch", "client"]),
    st.sampled_from(["weights", "multiply-adds"]),
    st.sampled_from(["digits-cnn", "two rows"]),
    st.sampled_from([1, 2]),
    st.integers(0, 1000),
)
def test_the_achieved_share_never_exceeds_the_budget(parts, keep, gating, cost, model, paths, seed):
    keys = {"blocks": parts, "keep": keep, "gating": gating, "cost": cost, "paths": paths}
    task = TASKS[model]
    task = replace(task, hyper=task.hyper.model_copy(update=keys))
    gated = Gated(task)
    module, blocks = gated.module(keep), gated.blocks(keep)
    x = torch.randn(6, *task.input_shape, generator=torch.Generator().manual_seed(seed))
    module.gate.linear.weight.data.copy_(torch.randn(module.gate.linear.weight.shape) * 3)
    masks = [module.sparse_weights(x)[0].detach()]
    module.pool([x])
    module.eval()
    with torch.no_grad():
        masks.append(module.sparse_weights(x)[0])
    costs = blocks.sizes if cost == "weights" else blocks.costs(gated.multiply_adds)
    for mask in (torch.cat(masks) != 0).numpy():
        assert costs[mask].sum() / costs.sum() <= keep
        assert mask[blocks.first].all()


def test_a_run_reports_a_share_within_each_clients_budget():
    """Budgets from the clients' capacities; one of them is below 1/B."""
    found = []

    class Watch(Lines):
        def round(self, progress, record, line):
            found.extend((reply.client.capacity, reply.metrics) for reply in record.replies.values())

    keys = {"pfedgate.keep": 0.0, "capacity.profile": "0.1,0.5", "rounds": 1, "local-epochs": 1}
    run_in_process(assemble({**FLAT, **keys}), observers=[Watch()])
    assert {capacity for capacity, _ in found} == {0.1, 0.5}
    for capacity, metrics in found:
        assert 0 < metrics["share"] <= capacity
        assert 0 < metrics["share-multiply-adds"] <= 1
        assert metrics["masks"] >= 1


# Bad input


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"batch-size": 1}, "batch-size: expected at least 2: the gate normalises over the batch, got 1"),
        ({"pfedgate.least": 0.4}, r"pfedgate.least: expected at most the budget of every client, here 0.3, got 0.4"),
        ({**BATCH, "evaluate.shift": True}, "evaluate.shift: expected false where pfedgate.gating = batch"),
    ],
)
@pytest.mark.parametrize("side", ["server", "client"])
def test_keys_that_do_not_fit_are_refused_before_anything_is_trained(side, keys, words):
    assembly = assemble({**FLAT, **keys})
    make = {"server": lambda: PFedGateServer(assembly.task), "client": lambda: alone(10, **keys)}[side]
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_capacity_below_the_first_blocks_share_is_refused_before_round_1():
    with pytest.raises(SepalError, match=r"pfedgate.least: expected at most the budget .* here 0.15, got 0.2"):
        run_in_process(assemble({**FLAT, "pfedgate.keep": 0.0, "pfedgate.least": 0.2, "capacity.profile": "0.15"}))


def test_text_is_refused():
    import models
    from models.weights import initial_weights, layout

    task = assemble(FLAT).task
    make = lambda: models.build("embedding-linear", (20,), 2, 100)  # noqa: E731
    text = replace(task, layout=layout(make()), weights=initial_weights(make(), 1), make=make, input_shape=(20,))
    for cost in ("weights", "multiply-adds"):
        with pytest.raises(ModelError, match=r"model: expected layers Conv1d, .* got embedding: Embedding"):
            PFedGateServer(replace(text, hyper=task.hyper.model_copy(update={"cost": cost})))


def bent(on, count, explicit=False):
    """An upload's bytes: the blocks ``on``, and so many values."""
    index = np.arange(count)
    support = Support.EXPLICIT if explicit else Support.DERIVED
    delta = SparseTensor((9258,), index, np.ones(count, np.float32), support)
    return replace(seal(Payload()), data=encode({"blocks": members(on), "delta": delta}))


def test_uploads_that_do_not_follow_the_contract_are_refused_by_name():
    server, host = parts()
    assert server.gated.flat.size == 9258
    schema, blocks = server.upload_schema(server.init(), host.info, Plan(1)), server.gated.blocks(0.3)
    held = int(blocks.sizes[blocks.first].sum())
    assert unseal(bent(blocks.first, held), schema).tensors["delta"].nnz == held
    without = blocks.first.copy()
    without[0] = False
    without[1] = True
    cases = [
        (bent(without, held), ProtocolError, "blocks: expected every tensor's first block, got without that of conv1"),
        (
            bent(blocks.first, held + 1),
            WireError,
            rf"delta count: expected {held} of the known support, got {held + 1}",
        ),
        (bent(blocks.first, held - 1), WireError, "delta count"),
        (bent(blocks.first, held, explicit=True), WireError, "delta index: expected derived support"),
        (bent(blocks.first[:-1], held), WireError, "blocks shape"),
        (bent(np.zeros(len(blocks.names), bool), 1), WireError, "delta count: expected 0 of the known support, got 1"),
    ]
    for content, kind, words in cases:
        with pytest.raises(kind, match=words):
            unseal(content, schema)


def test_everything_may_be_always_on():
    """s_min = 1: each tensor is its first block, and nothing is left to cut."""
    assembly = assemble({"dataset": "digits", "method": "pfedgate", "pfedgate.least": 1.0, "pfedgate.keep": 1.0})
    assembly.method.make_server(assembly.task).init()


@pytest.mark.parametrize("without", ["none", "pre-norm", "post-norm", "sigmoid"])
def test_the_ablations_of_table_2_train_and_keep_the_budget(without):
    """Without the sigmoid M and G may be negative: a block of negative importance stays off, the first ones are on."""
    client = alone(30, **{"pfedgate.without": without, "pfedgate.keep": 0.5})
    state, upload = client.train(client.init(), Payload(), Plan(1))
    figures = client.trainer.spent()
    assert 0 < figures["share"] <= 0.5
    assert figures["steps"] > 0
    assert np.isfinite(upload.tensors["delta"].values).all()
    parts = {name.partition(".")[0] for name in state.gate}
    assert ("norm" in parts, "batch_norm" in parts) == (without != "pre-norm", without != "post-norm")
    gates, _ = client._loaded(state.model, state)[1].eval().sparse_weights(client.trainer.x)
    assert bool((gates < 0).any()) is (without == "sigmoid")


@pytest.mark.parametrize("without", ["none", "post-norm"])
def test_a_client_with_one_example_makes_no_step(without):
    """The gate cannot be trained on a batch of one, whatever norms the ablation leaves."""
    keys = {"dataset": "digits", "method": "pfedgate", "clients": 2, "pfedgate.without": without}
    assembly = assemble(keys)
    host = build_host(Shared.around(assembly, "cpu"), Node(0, 2), "run", ScratchStore())
    trainer = host.algorithm.trainer
    trainer.x, trainer.y = trainer.x[:1], trainer.y[:1]
    server = assembly.method.make_server(assembly.task)
    download = server.newcomer(server.init(), host.info, server.plan(1))
    host.algorithm.train(host.algorithm.init(), download, server.plan(1))
    assert trainer.steps == 0
