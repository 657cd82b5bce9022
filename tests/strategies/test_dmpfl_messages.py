"""DM-PFL: what travels, in which round, and the published cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import ProtocolError, WireError
from sepal.masks.packed import pack, unpack
from sepal.method import Payload, Plan
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.dmpfl.contract import PHASES, ClientHolds
from sepal.strategies.dmpfl.server import DmPflServer
from sepal.wire import inspect
from tests.strategies.dmpfl import FLAT, Watch, first_round, parts


def coded(payload):
    """Tensor name to bytes of its index."""
    return {entry.name: entry.index_bytes for entry in inspect(seal(payload).data).tensors} if payload.tensors else {}


def test_a_mask_travels_only_where_the_other_side_lacks_it():
    server, host, assembly = parts()
    name, state = host.info.name, server.init()
    masked_names = {p.name for p in host.algorithm.parts}
    phase_1, phase_2a, phase_2b = (Plan(9, phase, scalars={"prune": 0.0}) for phase in PHASES)
    for plan in (phase_1, phase_2a, phase_2b):  # a newcomer derives W_0 and the first mask
        assert server.newcomer(state, host.info, plan).tensors == {}
    trained = replace(state, weights_version=3)
    sizes = coded(server.newcomer(trained, host.info, phase_1))
    assert set(sizes) == set(assembly.setup.weights)
    assert not any(sizes.values()), "the first mask is derived"
    moved = replace(state, mask_version=3, weights_version=3)
    sizes = coded(server.newcomer(moved, host.info, phase_1))
    assert {n for n, size in sizes.items() if size} == masked_names
    holding = replace(moved, held={name: ClientHolds(3, 2)})
    assert not any(coded(server.download(holding, host.info, phase_2a)).values())
    current = replace(moved, held={name: ClientHolds(3, 3)})
    assert server.download(current, host.info, phase_2b).tensors == {}
    assert server.download(current, host.info, phase_2a).tensors == {}
    assert not any(coded(first_round(server, host)[2]).values())
    sizes = coded(first_round(server, host, replace(phase_1, scalars={"prune": 0.3}))[2])
    assert {n for n, size in sizes.items() if size} == masked_names


def test_a_global_mask_below_its_budget_is_trained_in_phase_2a():
    """Where fewer positions are eligible than the budget, m_g is smaller, and so is the upload at it."""
    server, host, _ = parts()
    state, plan = server.init(), Plan(2, "2a", scalars={"prune": 0.0})
    name, mask = server.parts[0].name, unpack(state.global_mask, server.layout)
    mask[name].reshape(-1)[np.flatnonzero(mask[name])[:3]] = False
    smaller = replace(state, global_mask=pack(mask, server.parts), mask_version=1, weights_version=1)
    _, sent = host.algorithm.train(host.algorithm.init(), server.newcomer(smaller, host.info, plan), plan)
    got = unseal(seal(sent), server.upload_schema(smaller, host.info, plan))
    assert got.tensors[name].values.size == server.budget[name] - 3


def test_the_figures_say_how_far_the_global_mask_is_below_its_budget():
    """Here nobody covers anything and the mask before was empty, so no position is eligible."""
    server, host, _ = parts()
    nothing = {part.name: np.zeros(part.shape, np.int64) for part in server.layout}
    state = server.init()
    empty = replace(state, global_mask=pack({p.name: np.zeros(p.shape, bool) for p in server.parts}, server.parts))
    _, figures = server._select(empty, nothing, [host.info], Plan(1, "1"))
    assert figures["global-mask.entries"] == 0
    assert figures["global-mask.missing"] == sum(server.budget[part.name] for part in server.parts) > 0
    _, figures = server._select(state, nothing, [host.info], Plan(1, "1"))
    assert figures["global-mask.missing"] == 0


def test_a_client_refuses_what_it_cannot_place():
    server, host, _ = parts()
    algorithm, plan = host.algorithm, server.plan(1)
    download = server.newcomer(replace(server.init(), weights_version=4), host.info, plan)
    schema = algorithm.download_schema(algorithm.init(), plan)
    assert set(unseal(seal(download), schema).tensors) == set(download.tensors)
    first = next(iter(download.tensors))
    older = replace(download, scalars={"mask": 4, "weights": 4})
    partial = replace(download, tensors={n: t for n, t in download.tensors.items() if n != first})
    with pytest.raises(ProtocolError, match="expected mask 0, which is held"):
        algorithm.with_download(algorithm.init(), older)
    empty = replace(download, tensors={})
    for version, wrong in ((0, partial), (0, empty), (5, empty)):  # an empty one is for who holds version 4, no other
        with pytest.raises(ProtocolError, match="payload"):
            algorithm.with_download(replace(algorithm.init(), weights_version=version), wrong)
    assert algorithm.with_download(replace(algorithm.init(), weights_version=4), empty).weights_version == 4


def test_a_server_refuses_a_mask_of_another_size():
    server, host, _ = parts()
    plan = Plan(1, "1", scalars={"prune": 0.3})
    _, _, sent = first_round(server, host, plan)
    name = host.algorithm.parts[0].name
    tensor = sent.tensors[name]
    fewer = replace(tensor, index=tensor.index[1:], values=tensor.values[1:])
    schema = server.upload_schema(server.init(), host.info, plan)
    with pytest.raises(WireError, match="count"):
        unseal(seal(Payload({**sent.tensors, name: fewer})), schema)
    quiet = Plan(1, "1", scalars={"prune": 0.0})
    with pytest.raises(WireError, match="support"):
        unseal(seal(sent), server.upload_schema(server.init(), host.info, quiet))


def dense_share(clients, sampled, rounds, keep=0.5, every=10, mask_bits=1.0):
    """DM-PFL's bytes over FedAvg's on the default schedule, nothing but masked weights counted.

    Bits an entry of the model. FedAvg: 32 down and 32 up, always. Phase 1: 32·keep down and a bitmap, because m_g moves
    each round; 32·keep up, and a bitmap in every tenth round. 2a: 32·keep both ways; a bitmap at a client's first visit
    in the phase. 2b: 32·keep down at the first visit (a bitmap for those who were not there in 2a), nothing up.
    Of the sampled·rounds/8 visits in a phase, clients·(1 − (1 − sampled/clients)^(rounds/8)) are first ones.
    """
    length = rounds / 8
    never = (1 - sampled / clients) ** length
    first = clients * (1 - never) / (sampled * length)
    in_phase_1 = 32 * keep + mask_bits + 32 * keep + mask_bits / every
    in_phase_2a = 2 * 32 * keep + first * mask_bits
    in_phase_2b = first * (32 * keep + never * mask_bits)
    return (in_phase_1 / 2 + in_phase_2a / 4 + in_phase_2b / 4) / 64


def test_communication_of_the_published_setting():
    """100 clients, 10 a round, 300 rounds: (33.1/2 + 32.26/4 + 4.19/4)/64 = 40.1 % (published 40.3 %).

    Once by the formula, and once by the rounds that the server algorithm plans, for clients drawn as a run draws them.
    """
    assert dense_share(100, 10, 300) == pytest.approx(0.401, abs=0.0005)
    server = DmPflServer(assemble({"method": "dmpfl", "dataset": "digits", "rounds": 300}).setup)
    rng, bits, visits = np.random.default_rng(0), 0.0, 0
    masks, weights = {}, {}  # client to the round of the m_g and w_g that it holds
    mask = weight = 0
    for round in range(1, 301):
        plan = server.plan(round)
        for client in rng.choice(100, 10, replace=False):
            visits += 1
            fresh = plan.phase != "2b" or weights.get(client) != weight
            bits += fresh * (16 + (masks.get(client) != mask))
            bits += (plan.phase != "2b") * 16 + bool(plan.scalars["prune"])
            masks[client], weights[client] = mask, weight
        mask = round if plan.phase == "1" else mask
        weight = round if plan.phase != "2b" else weight
    assert bits / (64 * visits) == pytest.approx(0.402, abs=0.001)  # 76 rounds of 2a and 74 of 2b, not 75 and 75


def test_measured_bytes_are_those_of_the_formula():
    """On a run: 32 rounds, 1 of 4 clients each. Beside the formula, a message costs a header and the biases."""
    flat = {**FLAT, "rounds": 32, "clients-per-round": 1, "partition.subsample": 80}
    watch = Watch()
    strategy = run_in_process(assemble(flat), observers=[watch])
    layout, algorithm = strategy.setup.layout, strategy.algorithm
    weights = sum(p.size for p in algorithm.parts)
    expected, holders, seen_mask = 0.0, {}, {}
    mask_version = weights_version = 0
    entries = sum(algorithm.budget[p.name] for p in algorithm.parts)
    for line, record in zip(watch.lines, watch.records, strict=True):
        if line["phase"] == "closing":
            continue
        plan, (name,) = algorithm.plan(record.round), record.sampled
        phase = plan.phase
        lacks_mask = seen_mask.get(name, 0) != mask_version
        if holders.get(name, 0) != weights_version:
            expected += 4 * entries + lacks_mask * weights / 8
        if phase != "2b":
            expected += 4 * entries + (plan.scalars["prune"] > 0) * weights / 8
        seen_mask[name], holders[name] = mask_version, weights_version
        if phase != "2b":
            weights_version = record.round
        if line["method"].get("global-mask.moved"):
            mask_version = record.round
    total = strategy.report.totals.training
    messages = sum(1 for r in watch.records[:-1] for e in r.ledger if e.payload)
    beside = messages * (4 * (sum(p.size for p in layout) - weights) + 50 * len(layout))
    assert expected <= total.up + total.down <= expected + beside
    phase = {line["round"]: line["phase"] for line in watch.lines}
    ups = [(phase[r.round], e.payload) for r in watch.records for e in r.ledger if e.direction == "up"]
    assert all((size == 0) == (kind in ("2b", "closing")) for kind, size in ups)
