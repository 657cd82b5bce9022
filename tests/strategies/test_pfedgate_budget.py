"""pFedGate: the budget always holds, what is refused, and the ablations within it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepal.client_app.build import Node, Shared, build_host
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, ModelError, ProtocolError, SepalError, WireError
from sepal.method import ClientInfo, Payload, Plan
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.pfedgate.contract import GatedModels
from sepal.strategies.pfedgate.server import PFedGateServer
from sepal.study.method_checks.cases import RoundLog
from sepal.wire import encode
from sepal.wire.tensors import SparseTensor, Support, members
from tests.scratch_store import ScratchStore
from tests.strategies.pfedgate import BATCH, FLAT, alone, parts

TASKS = {
    "digits-cnn": assemble(FLAT).setup,
    "two rows": assemble({**FLAT, "model": "tests.strategies.pfedgate:two_rows"}).setup,
    "normed": assemble({**FLAT, "model": "tests.strategies.pfedgate:normed"}).setup,
}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 100).map(lambda percent: percent / 100),
    st.sampled_from(["sample", "batch", "client"]),
    st.sampled_from(["weights", "multiply-adds"]),
    st.sampled_from(sorted(TASKS)),
    st.sampled_from([1, 2]),
    st.sampled_from(["exact", "greedy-value"]),
    st.sampled_from([0.0, 0.01, 0.2]),
    st.integers(0, 1000),
)
def test_the_achieved_share_never_exceeds_the_budget(parts, keep, gating, cost, model, paths, solver, least, seed):
    keys = {"blocks": parts, "keep": keep, "gating": gating, "cost": cost, "paths": paths}
    keys |= {"solver": solver, "least": min(least, keep)}
    setup = TASKS[model]
    setup = replace(setup, hyper=setup.hyper.model_copy(update=keys))
    gated = GatedModels(setup)
    module, blocks = gated.module(keep), gated.blocks(keep)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(6, *setup.input_shape, generator=random)
    module.gate.linear.weight.data.copy_(torch.randn(module.gate.linear.weight.shape, generator=random) * 3)
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
    reports = []

    class Watch(RoundLog):
        def round(self, progress, record, line):
            reports.extend((reply.client.capacity, reply.metrics) for reply in record.replies.values())

    keys = {"pfedgate.keep": 0.0, "capacity.profile": "0.1,0.5", "rounds": 1, "local-epochs": 1}
    run_in_process(assemble({**FLAT, **keys}), observers=[Watch()])
    assert {capacity for capacity, _ in reports} == {0.1, 0.5}
    for capacity, metrics in reports:
        assert 0 < metrics["share"] <= capacity
        assert 0 < metrics["share-multiply-adds"] <= 1
        assert metrics["masks"] >= 1


@pytest.mark.parametrize(
    ("keys", "capacity", "budget"),
    [
        ({}, 1.0, 0.5),  # the default without a profile of capacities
        ({}, 0.2, 0.2),  # a node that sets its own capacity
        ({"capacity.profile": "0.2,1"}, 1.0, 1.0),
        ({"capacity.profile": "0.2,1"}, 0.2, 0.2),
        ({"pfedgate.keep": 0.0}, 1.0, 1.0),
        ({"pfedgate.keep": 0.0}, 0.2, 0.2),
        ({"pfedgate.keep": 0.3}, 0.2, 0.3),
    ],
)
def test_without_a_budget_a_client_has_half_or_its_capacity(keys, capacity, budget):
    flat = {key: value for key, value in FLAT.items() if key != "pfedgate.keep"}
    server = PFedGateServer(assemble({**flat, **keys}).setup)
    assert server.gated.keep(ClientInfo("a", 5, capacity)) == budget


def test_by_default_half_of_the_blocks_are_off():
    """At s = 1 with M at one, pFedGate is FedAvg on updates: a default that does nothing."""
    flat = {key: value for key, value in FLAT.items() if not key.startswith("pfedgate")}
    shares = []

    class Watch(RoundLog):
        def round(self, progress, record, line):
            shares.extend(client["metrics"]["share"] for client in line["clients"])

    run_in_process(assemble({**flat, "rounds": 1}), observers=[Watch()])
    assert len(shares) >= 4
    assert all(0.2 <= share <= 0.5 for share in shares)


def test_by_batch_every_share_of_shift_is_evaluated():
    """Without a replaced example it is the test part itself, in the same batches."""
    strategy = run_in_process(assemble({**FLAT, **BATCH, "evaluate.shift": True, "rounds": 2}))
    accuracy = strategy.report.accuracy
    for view in ("received", "trained", "kept"):
        assert accuracy[f"{view}-shift-0"]["mean"] == accuracy[view]["mean"]
        assert {f"{view}-shift-{percent}" for percent in (20, 40, 60, 80, 100)} <= accuracy.keys()


# Bad input


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"batch-size": 1}, "batch-size: expected at least 2: the gate normalises over the batch, got 1"),
        ({"pfedgate.least": 0.4}, r"pfedgate.least: expected at most the budget of every client, here 0.3, got 0.4"),
    ],
)
@pytest.mark.parametrize("side", ["server", "client"])
def test_keys_that_do_not_fit_are_refused_before_anything_is_trained(side, keys, words):
    assembly = assemble({**FLAT, **keys})
    make = {"server": lambda: PFedGateServer(assembly.setup), "client": lambda: alone(10, **keys)}[side]
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_server_cannot_ask_for_a_gate_of_any_size():
    """The gate has d_X·2·L weights, and L grows with B."""
    with pytest.raises(ConfigError, match=r"pfedgate.blocks: expected less than or equal to 100, got 1000000000"):
        assemble({**FLAT, "pfedgate.blocks": 10**9})


def test_a_capacity_below_the_first_blocks_share_is_refused_before_round_1():
    with pytest.raises(SepalError, match=r"pfedgate.least: expected at most the budget .* here 0.15, got 0.2"):
        run_in_process(assemble({**FLAT, "pfedgate.keep": 0.0, "pfedgate.least": 0.2, "capacity.profile": "0.15"}))


def test_text_is_refused():
    from sepal import models
    from sepal.models.weights import initial_weights, layout

    setup = assemble(FLAT).setup
    make = lambda: models.build("embedding-linear", (20,), 2, 100)  # noqa: E731
    text = replace(setup, layout=layout(make()), weights=initial_weights(make(), 1), make=make, input_shape=(20,))
    for cost in ("weights", "multiply-adds"):
        with pytest.raises(ModelError, match=r"model: expected inputs that are numbers, .*\(Embedding\)"):
            PFedGateServer(replace(text, hyper=setup.hyper.model_copy(update={"cost": cost})))


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
    entry_count = int(blocks.sizes[blocks.first].sum())
    assert unseal(bent(blocks.first, entry_count), schema).tensors["delta"].nnz == entry_count
    without = blocks.first.copy()
    without[0] = False
    without[1] = True
    cases = [
        (
            bent(without, entry_count),
            ProtocolError,
            "blocks: expected every tensor's first block, got without that of conv1",
        ),
        (
            bent(blocks.first, entry_count + 1),
            WireError,
            rf"delta count: expected {entry_count} of the known support, got {entry_count + 1}",
        ),
        (bent(blocks.first, entry_count - 1), WireError, "delta count"),
        (bent(blocks.first, entry_count, explicit=True), WireError, "delta index: expected derived support"),
        (bent(blocks.first[:-1], entry_count), WireError, "blocks shape"),
        (bent(np.zeros(len(blocks.names), bool), 1), WireError, "delta count: expected 0 of the known support, got 1"),
    ]
    for content, kind, words in cases:
        with pytest.raises(kind, match=words):
            unseal(content, schema)


def test_everything_may_be_always_on():
    """s_min = 1: each tensor is its first block, and nothing is left to cut."""
    assembly = assemble({"dataset": "digits", "method": "pfedgate", "pfedgate.least": 1.0, "pfedgate.keep": 1.0})
    assembly.method.make_server(assembly.setup).init()


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
    server = assembly.method.make_server(assembly.setup)
    download = server.newcomer(server.init(), host.info, server.plan(1))
    host.algorithm.train(host.algorithm.init(), download, server.plan(1))
    assert trainer.steps == 0
