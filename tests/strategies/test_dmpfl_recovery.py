"""DM-PFL: lost uploads, kills, late clients: the scenarios of tests/contract with the real method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.masks.packed import spread, unpack
from sepal.names import client_name
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.strategies.dmpfl import DmPfl
from sepal.strategies.dmpfl.contract import ClientHolds
from tests.contract.harness import Federation, Killed, Recording
from tests.scratch_store import ScratchStore
from tests.strategies.dmpfl import FLAT, Watch


@dataclass
class Digits(Federation):
    """Real clients on a few digits; partitions for one more than take part, for who joins late."""

    def __post_init__(self):
        flat = {**FLAT, "rounds": self.rounds, "clients": self.clients + 1, "evaluate-every": 3, "checkpoint-every": 1}
        self.assembly = assemble({**flat, "timeout": 60.0, **self.settings})
        config = self.assembly.setup.config.model_copy(update={"clients": self.clients})
        self.setup, self.shared = replace(self.assembly.setup, config=config), Shared.around(self.assembly, "cpu")
        self.stores, self.nodes, self.checked = {}, {}, 0
        for _ in range(self.clients):
            self.join("")

    def join(self, name, capacity=1.0):
        number = len(self.nodes)
        self.nodes[100 + number] = client_name(number)
        self.stores[client_name(number)] = ScratchStore(self.assembly.method.client_state)

    def host(self, name):
        return build_host(self.shared, Node(int(name[-5:]), self.clients + 1), "", self.stores[name])

    def server(self, store=None):
        strategy = super().server(store)
        strategy._observers = [Watch(lambda progress: self.agree(strategy, progress))]
        return strategy

    def agree(self, strategy, progress):
        """What the server takes each client to hold is what it holds, after every round."""
        server, layout = progress.server, self.setup.layout
        closed = progress.round > self.rounds
        for name, state in self.states(strategy).items():
            client_holds = server.held.get(name, ClientHolds())
            if not closed:
                assert (client_holds.global_mask, client_holds.weights) == (state.mask_version, state.weights_version)
            believed = strategy.algorithm.personal_mask(server, name)
            for p in strategy.algorithm.parts:
                assert np.array_equal(believed[p.name], unpack(state.mask, layout)[p.name])
                assert believed[p.name].sum() == strategy.algorithm.budget[p.name]
            if state.mask_version == server.mask_version:
                assert digest(state.global_mask) == digest(server.global_mask)
            if closed:
                assert state.weights_version == server.weights_version
                model = spread(state.shared, unpack(state.global_mask, layout))
                assert digest(model) == digest(strategy.algorithm.model(server))
            self.checked += 1


KEYS = {"clients-per-round": 3, "dmpfl.initial-mask": "own", "dmpfl.adaptive-inference": True, "momentum": 0.5}


def outcome(strategy):
    return digest(strategy.progress.server), dict(strategy.report.digests)


@pytest.fixture(scope="module")
def whole():
    federation = Digits(DmPfl, settings=KEYS)
    strategy = federation.run()
    assert federation.checked > 20
    assert strategy.progress.server.mask_version == 6
    return outcome(strategy)


@pytest.mark.parametrize("killed_at", [2, 4, 7, 9])
def test_killed_in_any_phase_and_one_checkpoint_older_it_reaches_the_same_end(whole, killed_at):
    """1 1 2a 2b 1 1 2a 2b and the closing round; rounds 2 and 6 readjust: one kill of each phase, and the closing one.

    The first round, before any checkpoint, is one of the kills of tests/test_methods_common.py.
    """
    federation, store = Digits(DmPfl, settings=KEYS, killed_at=killed_at), Recording()
    with pytest.raises(Killed):
        federation.run(store)
    federation.killed_at = 0
    store.checkpoints = store.checkpoints[:-1] or store.checkpoints
    assert outcome(federation.run(store)) == whole


@pytest.mark.parametrize("lost_round", [3, 4, 6, 8])
def test_a_lost_upload_that_is_skipped_leaves_both_sides_agreed(lost_round):
    """``Digits.agree`` compares masks and versions after every round."""
    federation = Digits(DmPfl, settings={**KEYS, "on-missing": "skip", "clients-per-round": 0})
    federation.lost = {(lost_round, client_name(1))}
    strategy = federation.run()
    assert (lost_round, client_name(1)) in federation.trained
    assert federation.checked >= 4 * 8
    assert strategy.progress.round == 9


@pytest.mark.parametrize("lost_round", [2, 3, 4])
def test_a_lost_upload_that_is_asked_again_changes_nothing(whole, lost_round):
    federation = Digits(DmPfl, settings=KEYS)
    federation.lost = {(lost_round, client_name(n)) for n in range(4)}
    assert outcome(federation.run()) == whole


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_client_that_joins_late_is_brought_up_to_date(after):
    federation = Digits(DmPfl, settings={**KEYS, "clients-per-round": 0, "roster": "open"})
    strategy = federation.server()
    agree = strategy._observers[0].check

    def check(progress):
        agree(progress)
        if progress.round == after:
            federation.join("")

    strategy._observers[0].check = check
    federation.run(strategy=strategy)
    late = client_name(4)
    assert late in strategy.report.digests
    assert {round for round, name in federation.trained if name == late} == set(range(after + 1, 9))


def test_the_order_of_clients_changes_nothing(whole):
    federation = Digits(DmPfl, settings=KEYS)
    federation.nodes = dict(reversed(federation.nodes.items()))
    assert outcome(federation.run()) == whole


def test_the_method_as_anyone_s_strategy():
    strategy = DmPfl.durable({**FLAT, "method": "fedavg"}, keep=0.25, adaptive_inference=True)
    assert (strategy.algorithm.hyper.keep, strategy.algorithm.hyper.adaptive_inference) == (0.25, True)
    masks = unpack(strategy.algorithm.init().global_mask, strategy.setup.layout)
    assert all(
        masks[p.name].sum() == strategy.algorithm.budget[p.name] <= 0.25 * p.size + 1 for p in strategy.algorithm.parts
    )
