"""Sub-FedAvg with clients of different capacity: what a model may keep, and when it is pruned to that."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.method import ClientInfo
from sepal.protocol.payloads import seal, unseal
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.subfedavg.prunable import Prunable
from tests.scratch_store import ScratchStore
from tests.strategies.subfedavg import FLAT, HYBRID, exchange, parts, rounds, sent

SHUT = {"subfedavg.accuracy": 1.0, "lr": 1e-6}  # gates that never open


class LastLine:
    """An observer that keeps the closing round's line."""

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.clients = {client["name"]: client for client in line["clients"]}

    def closed(self, progress, line):
        pass


def prunable(**keys):
    return Prunable(assemble({**FLAT, **keys}).setup)


def small(capacity, **keys):
    """A server algorithm and the host of a client of that capacity."""
    assembly = assemble({**FLAT, **keys})
    host = build_host(Shared.around(assembly, "cpu"), Node(0, 4, capacity=capacity), "run", ScratchStore())
    return assembly.method.make_server(assembly.setup), host


def test_it_uses_capacity():
    assert registry.get("subfedavg").uses_capacity


def test_room_by_hand():
    """digits-cnn has 9,258 parameters, 90 of them biases. A capacity of .25 is 2,314 of them, 2,224 for the weights.

    One of each of the four layers, and 2,220 of the other 9,164 by size: .24225 · 143 = 34.6, · 4,607 = 1,116.1,
    · 4,095 = 992.02, · 319 = 77.3, each rounded down.
    """
    pruning = prunable()
    room = pruning.room(pruning.whole, 0.25)
    assert room == {"conv1.weight": 35, "conv2.weight": 1117, "fc1.weight": 993, "fc2.weight": 78}
    assert sum(room.values()) + 90 <= 2314
    assert pruning.room(pruning.whole, 1.0) == {p.name: p.size for p in pruning.weights}


@pytest.mark.parametrize(("capacity", "share"), [(1.0, 0.5), (0.7, 0.5), (0.3, 0.3)])
def test_a_target_is_the_runs_or_higher(capacity, share):
    """Targets are shares of each layer's weights: .5 of 9,168 and 90 biases are .505 of all."""
    pruning = prunable()
    least = pruning.least(pruning.whole, capacity)
    assert (sum(least.values()) + 90) / 9258 == pytest.approx(share + 0.005 * (share == 0.5), abs=5e-4)


@pytest.mark.parametrize("keys", [{}, HYBRID])
@pytest.mark.parametrize("gates", [{}, SHUT])
def test_every_client_ends_with_a_model_that_fits(keys, gates):
    """One that trains for the first time in the closing round, too; and so does what the server knows of each."""
    flat = {**FLAT, **keys, **gates, "clients": 6, "partition.subsample": 300, "rounds": 2}
    last = LastLine()
    strategy = run_in_process(assemble({**flat, "capacity.profile": "0.1,0.45,1"}), observers=[last])
    server, algorithm = strategy.progress.server, strategy.algorithm
    assert {client["capacity"] for client in last.clients.values()} == {0.1, 0.45, 1}
    assert server.kept.keys() < last.clients.keys(), "somebody was never sampled"
    for name, client in last.clients.items():
        assert 1 - client["metrics"]["pruned"] <= client["capacity"] + 1e-12
        if name in server.kept:
            pruned = algorithm.prunable.pruned(algorithm.kept(server, name))
            assert pruned == client["metrics"]["pruned"]
        if gates:  # no more is pruned than the capacity asks for
            whole = 1 - client["metrics"]["pruned"]
            assert whole == 1 if client["capacity"] == 1 else whole > 0.8 * client["capacity"]


def test_a_client_of_the_hybrid_variant_that_fits_has_a_smaller_module():
    """Channels go until convolutions, norms and biases keep at most the share; linear weights fill up what is left.

    fc1 loses more with its inputs than it would have to: 3 % of the model are left unused here.
    """
    server, host = small(0.3, **HYBRID, **SHUT)
    algorithm = host.algorithm
    pruning, weights = algorithm.prunable, dict(server.setup.weights)
    masks = pruning.fitted(weights, pruning.whole, 0.3)
    assert 0.2 < pruning.rest(masks) / pruning.rest(pruning.whole) <= 0.3
    assert 0.27 < 1 - pruning.pruned(masks) <= 0.3
    cut = pruning.cut(masks)
    assert sum(p.size for p in cut.layout) < sum(p.size for p in cut.full)
    plan = server.plan(1)
    state, _ = algorithm.train(algorithm.init(), server.newcomer(server.init(), host.info, plan), plan)
    assert algorithm.prunable.fits(algorithm.kept(state), 0.3)


def test_channels_below_the_target_are_admitted_only_if_the_capacity_asks_for_it():
    """The run's target leaves 24 of 48; a capacity of .1 asks for fewer, and not for one of each layer."""
    server, host = small(0.1, **HYBRID, **SHUT)
    pruning, algorithm, plan = server.prunable, host.algorithm, server.plan(1)
    state, client, _, _ = exchange(server, host, server.init(), algorithm.init(), 1, False)
    assert 2 < pruning.channels_left(server.kept(state, host.info.name)) < 24
    one_channel = {"conv1": np.arange(16) == 0, "conv2": np.arange(32) == 0}
    content = seal(
        sent(
            server, pruning.whole, pruning.within({**pruning.whole, **one_channel}), algorithm.personal_weights(client)
        )
    )
    with pytest.raises(SepalError, match="conv2/kept: expected at least 24 channels in all, got 2"):
        unseal(content, server.upload_schema(server.init(), host.info, plan))


def test_steps_go_on_from_the_capacity_to_a_higher_target_of_the_run():
    """.6 of the model at once, then tenths down to the target of .5 of each layer."""
    server, host = small(0.6)
    state, client, shares = server.init(), host.algorithm.init(), []
    for round in range(1, 5):
        state, client, _, metrics = exchange(server, host, state, client, round, round > 1)
        shares.append(1 - metrics["pruned"])
    assert shares[0] == pytest.approx(0.6, abs=1e-3)
    assert shares[1] == pytest.approx(0.6 * 0.9, abs=5e-3)
    assert shares[2] == shares[3] == pytest.approx(0.505, abs=1e-3)


def test_with_a_capacity_of_1_nothing_differs():
    """The same masks and weights as without the capacity's code: a model that fits is not looked at."""
    run = rounds(3)
    pruning = run.server.prunable
    masks = run.server.kept(run.state, run.host.info.name)
    assert all(mask is masks[name] for name, mask in pruning.fitted({}, masks, 1.0).items())


@pytest.mark.parametrize(("keys", "least"), [({}, (90 + 4) / 9258), (HYBRID, None)])
def test_a_capacity_below_biases_and_one_weight_of_each_layer_is_refused(keys, least):
    server, _ = parts(**keys)
    poor = ClientInfo("poor", 10, 0.005)
    with pytest.raises(SepalError, match=r"capacity: expected at least .* biases and norms are not pruned, got 0.005"):
        server.upload_schema(server.init(), poor, server.plan(2))
    if least:
        server.prunable.check(least)
        with pytest.raises(SepalError, match=f"at least {least:.4f}"):
            server.prunable.check(least - 1e-6)


def test_an_upload_below_the_clients_target_is_refused():
    """A mask may go down to what the capacity leaves, and not below."""
    server, _ = parts()
    tensors = server.upload_schema(server.init(), ClientInfo("c", 10, 0.25), server.plan(1)).tensors
    assert tensors["fc1.weight/kept"]({}).min_count == 993
    tensors = server.upload_schema(server.init(), ClientInfo("c", 10), server.plan(1)).tensors
    assert tensors["fc1.weight/kept"]({}).min_count == 2048
