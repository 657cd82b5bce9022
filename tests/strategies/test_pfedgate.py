"""pFedGate against its paper: one round by hand, the limit case, what travels and what never does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sepal.client_app.build import Node, Shared, build_host
from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.cache import CachedStore
from sepal.method import ClientInfo, Payload, Plan, Upload
from sepal.models.gated import GatedModule
from sepal.protocol.messages import read_reply
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.pfedgate.server import PFedGateServer
from sepal.wire.tensors import whole
from tests.scratch_store import ScratchStore
from tests.strategies.baselines import Sent
from tests.strategies.pfedgate import BATCH, FLAT, alone, flat, parts
from tests.strategies.recorded_messages import bytes_of, record_messages

# The server


def test_an_index_is_averaged_over_those_that_sent_it_and_nobodys_stays():
    """Two clients of 1 and 3 examples send Δ = 4 and Δ = 8: (1·4 + 3·8)/4 = 7 where both did."""
    server, _ = parts()
    state, blocks = server.init(), server.gated.blocks(0.3)
    first, second = blocks.first.copy(), blocks.first.copy()
    first[1], second[2] = True, True
    uploads = Sent()
    for name, examples, on, value in (("a", 1, first, 4.0), ("b", 3, second, 8.0)):
        start = server.model(state)
        model = {key: array + np.float32(value) for key, array in start.items()}
        sent = server.gated.update(start, model, on, 0.3, server.coding)
        uploads.append(Upload(ClientInfo(name, examples), Payload(sent)))
    after, metrics = server.aggregate(state, uploads, Plan(1))
    change = flat(server, after.weights) - flat(server, state.weights)
    expected = np.zeros(len(blocks.names))
    expected[blocks.first], expected[1], expected[2] = 7, 4, 8
    np.testing.assert_allclose(change, np.repeat(expected, blocks.sizes), atol=1e-5)
    untouched = np.repeat(expected == 0, blocks.sizes)
    assert (flat(server, after.weights) == flat(server, state.weights))[untouched].all()
    assert metrics["share-uploaded"] == pytest.approx((blocks.share(first) + blocks.share(second)) / 2)
    assert server.aggregate(state, Sent(), Plan(1))[0].weights.keys() == state.weights.keys()


def test_budgets_below_one_block_have_blocks_of_their_own():
    """s = .1 with B = 5 has s_min = .05, so its blocks are others than those of s = .3; entries decide."""
    server, _ = parts(**{"pfedgate.keep": 0.0})
    state = server.init()
    uploads, masks = Sent(), []
    for name, capacity in (("a", 0.1), ("b", 0.3)):
        client, blocks = ClientInfo(name, 2, capacity), server.gated.blocks(capacity)
        start = server.model(state)
        model = {key: array + np.float32(1) for key, array in start.items()}
        content = seal(Payload(server.gated.update(start, model, blocks.first, capacity, server.coding)))
        uploads.append(Upload(client, unseal(content, server.upload_schema(state, client, Plan(1)))))
        masks.append(np.repeat(blocks.first, blocks.sizes))
    assert masks[0].sum() < masks[1].sum()
    moved = flat(server, server.aggregate(state, uploads, Plan(1))[0].weights) != flat(server, state.weights)
    assert np.array_equal(moved, masks[0] | masks[1])


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
        fedavg = assemble({**fedavg.setup.config.flat(), "momentum": 0.9, "local-epochs": 1})
        fedavg_host = build_host(Shared.around(fedavg, "cpu"), Node(number, 4), "run", ScratchStore())
        start = server.model(server.init())
        _, upload = host.algorithm.train(host.algorithm.init(), Payload(), Plan(1))
        trained, _ = fedavg_host.algorithm.train(fedavg_host.algorithm.init(), Payload(), Plan(1))
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
    start = dict(client.setup.weights)
    client.trainer.network("gated-0.3", lambda: client.gated.module(0.3)).module.ever[:] = True  # of a client before it
    after, upload = client.train(client.init(), Payload(), Plan(1))
    on, blocks = upload.tensors["blocks"].mask(), client.blocks
    before, now = (client.gated.flat.join(model) for model in (start, after.model))
    changed = np.logical_or.reduceat(before != now, blocks.bounds[:-1])
    assert np.array_equal(changed, on)
    assert not on.all()
    assert np.array_equal(upload.tensors["delta"].dense(), now - before)
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


OWN_FIGURES = {"masks", "multiply-adds", "seconds", "share", "share-multiply-adds", "share-uploaded", "steps"}
OWN_FIGURES |= {"unseen-test-labels"}


@pytest.mark.parametrize("gating", ["sample", "batch", "client"])
def test_the_gate_never_appears_in_any_message(gating, monkeypatch):
    """Of a whole run with optimizer states: every message to and from a client, and every state that was stored."""
    recorded, states, save = record_messages(monkeypatch), [], CachedStore.save

    def kept(store, name, stored, origin):
        states.append(stored.state)
        return save(store, name, stored, origin)

    monkeypatch.setattr(CachedStore, "save", kept)
    keys = {"pfedgate.gating": gating, "pfedgate.keep-optimizer": True, "momentum": 0.9, "evaluate-every": 1}
    strategy = run_in_process(assemble({**FLAT, **keys}))
    metrics = {name for _, reply in recorded for name in read_reply(reply)[0].metrics}
    messages = [bytes_of(part) for pair in recorded for part in pair]
    assert len(messages) >= 40
    assert len(states) >= 12
    assert {name for name in metrics if "." not in name} == OWN_FIGURES
    assert {name.partition(".")[0] for name in metrics - OWN_FIGURES} == {"received", "kept", "trained", "pooled"}
    secrets = [array for state in states for array in state.gate.values()]
    secrets += [array for state in states for name, array in state.optimizer.items() if "/gate." in name]
    secrets = [array.ravel() for array in secrets if array.size > 1 and np.ptp(array) > 0]
    assert len(secrets) > 100
    everything = b"".join(messages)
    model = strategy.progress.server.weights["fc2.weight"].ravel()
    assert model[:4].tobytes() in everything, "what does travel is found in this way"
    for array in secrets:
        for begin in (0, array.size // 2 - 2, array.size - 4):
            assert array[max(begin, 0) :][:4].tobytes() not in everything


def test_a_client_without_a_step_sends_nothing_and_keeps_the_first_gate():
    client = alone(1)
    after, upload = client.train(client.init(), Payload(), Plan(1))
    assert upload.tensors["blocks"].nnz == upload.tensors["delta"].nnz == 0
    first = client.gated.first_gate(0.3)
    assert all(np.array_equal(after.gate[name], first[name]) for name in first)
    server = PFedGateServer(client.setup)
    payload = unseal(seal(upload), server.upload_schema(server.init(), client.trainer.client, Plan(1)))
    state = server.aggregate(server.init(), Sent([Upload(client.trainer.client, payload)]), Plan(1))[0]
    assert all(np.array_equal(state.weights[name], array) for name, array in client.setup.weights.items())


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
    trained, _ = client.train(client.init(), Payload(), Plan(1))
    assert {name.partition("/")[0] for name in trained.optimizer} == {"momentum_buffer"}
    assert {name.partition("/")[2].partition(".")[0] for name in trained.optimizer} == {"model", "gate"}
    again, _ = client.train(trained, Payload(), Plan(1))
    restarted, _ = client.train(replace(trained, optimizer={}), Payload(), Plan(1))
    assert not np.array_equal(again.model["fc2.weight"], restarted.model["fc2.weight"])
    assert alone(10, **keys).train(client.init(), Payload(), Plan(1))[0].optimizer == {}


@pytest.mark.parametrize("gating", ["sample", "batch", "client"])
def test_a_client_goes_on_with_its_gate_and_its_statistics(gating):
    """In the next round, and where it is predicted for: a client whose gate began anew would give something else."""
    client = alone(24, **{"pfedgate.gating": gating, "pfedgate.keep": 0.5})
    trained, _ = client.train(client.init(), Payload(), Plan(1))
    first = client.gated.first_gate(0.5)
    moved = ("linear.weight", "norm.running_mean", "norm.running_var", "batch_norm.running_mean")
    assert all(not np.array_equal(trained.gate[name], first[name]) for name in moved)
    download = Payload({name: whole(array) for name, array in trained.model.items()})
    trained_again, _ = client.train(trained, download, Plan(2))
    anew, _ = client.train(replace(trained, gate={}), download, Plan(2))
    assert all(not np.array_equal(trained_again.gate[name], anew.gate[name]) for name in moved)
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    received, fresh = (client.predictor(state, download, Plan(2))(x) for state in (trained, client.init()))
    assert not torch.allclose(received, fresh)
    kept = client.predictor(trained, None, Plan(2))(x)
    assert torch.equal(received, kept), "the same model behind the same gate"


def test_the_first_gate_follows_from_the_seed_alone():
    """The same for two clients of a run, another in a run of another seed."""
    first, second = (parts(number)[1].algorithm.gated.first_gate(0.3) for number in (0, 1))
    elsewhere = parts(0, seed=6)[1].algorithm.gated.first_gate(0.3)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["linear.weight"], elsewhere["linear.weight"])


@pytest.mark.parametrize("without", ["none", "pre-norm", "post-norm", "sigmoid"])
@pytest.mark.parametrize("gating", ["sample", "batch", "client"])
def test_by_default_every_weight_m_starts_at_one(gating, without):
    """The last layer before the sigmoid is 0, and 2·σ(0) = 1: the model is the plain one; the paper's M is near .5."""
    keys = {"pfedgate.gating": gating, "pfedgate.keep": 1.0, "pfedgate.without": without, "evaluate.shift": False}
    half, open_gate = (alone(12, **{**keys, "pfedgate.start": start}) for start in ("half", "one"))
    x, weights = open_gate.trainer.x, open_gate.setup.weights
    module = open_gate._loaded(weights, open_gate.init())[1]
    gates, on = module.sparse_weights(x)
    assert on.all()
    assert torch.equal(gates, torch.ones_like(gates))
    plain = open_gate.setup.make()
    plain.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    torch.testing.assert_close(module.train()(x), plain(x))
    gates = half._loaded(weights, half.init())[1].sparse_weights(x)[0]
    assert without == "sigmoid" or gates.mean() < 0.6


@pytest.mark.parametrize("without", ["none", "post-norm"])
def test_a_gate_that_starts_at_one_learns(without):
    """Its first gradient reaches the last layer before the sigmoid alone; from the second step on it reaches all."""
    client = alone(24, **{"pfedgate.start": "one", "pfedgate.keep": 0.5, "pfedgate.without": without})
    state, _ = client.train(client.init(), Payload(), Plan(1))
    first = client.gated.first_gate(0.5)
    changed = {name for name, array in state.gate.items() if not np.array_equal(array, first[name])}
    assert "linear.weight" in changed
    assert without == "post-norm" or "batch_norm.weight" in changed


def test_keys_reach_the_gated_module():
    """L = 40 blocks of digits-cnn; one path has one output for each block."""
    plain, keys = alone(4).gated.module(0.5), {"paths": 1, "shift": 2.0, "start": "one", "solver": "greedy-value"}
    keys["norm-variance"] = "unbiased"
    changed = alone(4, **{f"pfedgate.{key}": value for key, value in keys.items()}).gated.module(0.5)
    assert (plain.paths, changed.paths) == (2, 1)
    assert len(plain.gate.linear.weight) == 2 * len(changed.gate.linear.weight) == 2 * len(plain.on)
    assert (plain.gate.shift, changed.gate.shift) == (0.0, 2.0)
    assert (plain.gate.start, changed.gate.start) == ("half", "one")
    assert (plain.gate.norm.correction, changed.gate.norm.correction) == (0, 1)
    values = np.random.default_rng(0).random((50, len(plain.on)))
    exact, greedy = plain.choose(values), changed.choose(values)
    assert (values * exact).sum() > (values * greedy).sum()


@pytest.mark.parametrize("gating", ["sample", "client"])
def test_shares_of_weights_and_of_multiply_adds_by_hand(gating):
    """Over the training part as it is evaluated; multiply-adds of a tensor are shared out by its entries."""
    client = alone(20, **{"pfedgate.gating": gating, "pfedgate.keep": 0.5})
    state, _ = client.train(client.init(), Payload(), Plan(1))
    figures = client.trainer.spent()
    module = client._loaded(state.model, state)[1].eval()
    if gating == "client":
        module.pool([client.trainer.x])
    with torch.no_grad():
        masks = (module.sparse_weights(client.trainer.x)[0] != 0).numpy()
    entries = {name: sum(sizes) for name, sizes in client.blocks.by_tensor().items()}
    # conv1: 9·16 weights at 64 places; conv2: 9·16·32 at 16; fc1: 128·32; fc2: 32·10
    adds = {"conv1.weight": 9 * 16 * 64, "conv2.weight": 9 * 16 * 32 * 16, "fc1.weight": 128 * 32, "fc2.weight": 320}
    adds_per_weight = [adds.get(name, 0) / entries[name] for name in client.blocks.names] * client.blocks.sizes
    assert figures["share"] == pytest.approx((masks * client.blocks.sizes).sum(1).mean() / sum(entries.values()))
    assert figures["share-multiply-adds"] == pytest.approx((masks * adds_per_weight).sum(1).mean() / sum(adds.values()))


def test_a_novel_client_trains_its_gate_and_nothing_else():
    client = alone(20, **{"pfedgate.novel-epochs": 3, "local-epochs": 1, "momentum": 0.9, "weight-decay": 0.01})
    start = {name: array + np.float32(0.01) for name, array in client.setup.weights.items()}
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
