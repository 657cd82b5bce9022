"""Temporal drift: a round's training examples are a window that moves, and nothing of the other parts."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.config import DriftSettings
from sepal.data.drift import Window, early_and_late, order_of
from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.names import client_name
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.study.method_checks.cases import ScratchStore
from sepal.training.drifting import Drifting
from tests.client_app.deployed_clients import RUN, Deployment, own_nodes

DIGITS = {"dataset": "digits", "clients": 3, "partition.name": "iid", "partition.subsample": 240, "lr": 0.05}
DIGITS |= {"method": "fedavg-ft", "rounds": 4, "evaluate-every": 2, "checkpoint-every": 2}
LABEL = {"drift.name": "label", "drift.alpha": 0.1}


def labels(count=3000):
    return np.random.default_rng(0).integers(0, 10, count)


# The window and the orders


def test_the_window_moves_from_the_first_to_the_last_examples_and_stays():
    """n = 40, w = .3, so m = 12; R = 5: it begins after 28 · (r - 1)/4 = 0, 7, 14, 21, 28 examples."""
    window = Window.of(DriftSettings(name="time", window=0.3, rounds=5), 40, rounds=100)
    starts = [window.places(r).start for r in range(1, 8)]
    assert starts == [0, 7, 14, 21, 28, 28, 28]
    assert {window.places(r).stop - window.places(r).start for r in range(1, 8)} == {12}


@pytest.mark.parametrize(("examples", "size"), [(0, 0), (1, 1), (9, 9), (11, 10), (99, 10), (200, 20)])
def test_a_window_has_ten_examples_if_the_client_has_them(examples, size):
    """A server that sets the smallest window trains on no single example of a node's own data."""
    window = Window.of(DriftSettings(name="time", window=0.1), examples, rounds=3)
    places = [window.places(r) for r in range(1, 5)]
    assert {len(range(examples)[part]) for part in places} == {size}


def shares(y, alpha, round, rounds=11, window=0.5):
    order = order_of(DriftSettings(name="label", alpha=alpha), y, 0, "a")
    places = Window.of(DriftSettings(name="label", window=window), len(y), rounds).places(round)
    return np.bincount(y[order[places]], minlength=10) / (places.stop - places.start)


def test_label_shares_go_from_those_of_the_first_window_to_those_of_the_last():
    """π(r) = (1 - t) · π(1) + t · π(R), t = (r - 1)/(R - 1). Chance is at most √(.25 · .25/750) = .009 of 1,500."""
    y = labels()
    first, last = shares(y, 0.3, 1), shares(y, 0.3, 11)
    assert np.abs(first - last).sum() / 2 > 0.3
    early = order_of(DriftSettings(name="label"), y, 0, "a")
    assert sorted(early) == list(range(3000))
    for r in (4, 6, 9):
        t = (r - 1) / 10
        assert np.abs(shares(y, 0.3, r) - (1 - t) * first - t * last).max() < 0.04


def test_a_large_alpha_is_no_drift_and_a_small_one_makes_each_class_early_or_late():
    y = labels()
    assert np.abs(shares(y, 1e6, 1) - shares(y, 1e6, 11)).max() < 0.02
    early, late = (set(y[part]) for part in early_and_late(DriftSettings(name="label", alpha=1e-9), y, 0, "a"))
    assert not early & late
    assert len(early | late) == 10


def test_shares_that_come_early_have_the_law_of_beta():
    """Beta(α, α) has mean 1/2 and variance 1/(4(2α + 1)): α = .5: .125. Ten classes of 200 clients are 2,000 draws."""
    y, settings = np.repeat(np.arange(10), 100), DriftSettings(name="label", alpha=0.5)
    early = [np.bincount(y[early_and_late(settings, y, 0, f"client-{n}")[0]], minlength=10) / 100 for n in range(200)]
    assert np.mean(early) == pytest.approx(0.5, abs=5 * np.sqrt(0.125 / 2000))
    assert np.var(early) == pytest.approx(0.125, rel=0.1)


# In a run


def trained_on(flat, number, rounds=range(1, 8)):
    """The inputs of a client's training examples in each round, the number that the server is told, and its data."""
    assembly = assemble(flat)
    shared = Shared.around(assembly, "cpu")
    host = build_host(shared, Node(number, flat["clients"]), "run", ScratchStore())
    per_round = []
    for r in rounds:
        host.take_up(r, {})
        per_round.append([row.numpy().tobytes() for row in host.algorithm.trainer.x])
    return per_round, host.info.examples, assembly.data.client(number, flat["clients"], "")


@pytest.mark.parametrize("keys", [{"drift.name": "time"}, LABEL], ids=["time", "label"])
def test_a_round_trains_on_training_examples_alone_always_as_many(keys):
    per_round, examples, data = trained_on({**DIGITS, **keys}, 1)
    train, *others = ({row.tobytes() for row in part.x} for part in (data.train, data.validation, data.test))
    assert all(set(rows) <= train for rows in per_round)
    assert not set().union(*per_round) & set().union(*others)
    assert {len(rows) for rows in per_round} == {examples} == {round(len(data.train) / 2)}
    assert set(per_round[0]).isdisjoint(per_round[3])
    assert per_round[3] == per_round[4] == per_round[6], "after the last round, also in the closing one"
    if keys["drift.name"] == "time":
        assert per_round[0] == [row.tobytes() for row in data.train.x[:examples]]


def outcome(flat, store=None, **options):
    strategy = run_in_process(assemble(flat), store=store, **options)
    return digest(strategy.progress.server), dict(strategy.report.digests)


def test_a_window_of_all_examples_has_the_bits_of_a_run_without_drift():
    plain = outcome(DIGITS)
    assert outcome({**DIGITS, "drift.name": "time", "drift.window": 1.0}) == plain
    assert outcome({**DIGITS, "drift.name": "time"}) != plain


class Killed(BaseException):
    pass


class KilledAfter:
    def __init__(self, at):
        self.at = at

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if record.round == self.at:
            raise Killed

    def closed(self, progress, line):
        pass


def test_a_killed_run_with_drift_goes_on_with_the_same_bits(tmp_path):
    flat = {**DIGITS, **LABEL}
    assembly = assemble(flat)
    store = lambda: DiskRunStore(tmp_path / "server", assembly.method.server_state)  # noqa: E731
    with pytest.raises(Killed):
        run_in_process(assembly, store=store(), state_dir=tmp_path / "states", observers=[KilledAfter(3)])
    assert outcome(flat, store=store(), state_dir=tmp_path / "states") == outcome(flat)


@pytest.mark.parametrize("keys", [{"drift.name": "time"}, LABEL], ids=["time", "label"])
def test_deployed_clients_with_data_of_their_own_drift_as_those_in_process(keys, tmp_path, monkeypatch):
    """A deployed client is built anew for each message, here with a copy of its data."""
    nodes, _ = own_nodes(tmp_path, monkeypatch, ((40, 0), (40, 0)))
    nodes = [{**node, "name": client_name(number)} for number, node in enumerate(nodes)]
    deployed = digest(Deployment(nodes, **keys, **{"data-changes": "freeze"}).start().progress.server)
    assert deployed != digest(Deployment(nodes).start().progress.server)
    here = run_in_process(assemble({**RUN, **keys, "own.data": "sites_of_test:load"}))
    assert digest(here.progress.server) == deployed


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"drift.name": "label", "task": "regression", "own.classes": 1}, "drift.name: expected none or time for the"),
        ({"drift.name": "time", "data-changes": "accept"}, "data-changes: expected refuse with drift.name"),
        ({"drift.name": "time", "own.class-weights": "balanced"}, "own.class-weights: expected none with drift.name"),
        ({"drift.name": "time", "drift.window": 0.05}, "drift.window: expected greater than or equal to 0.1"),
        ({"drift.name": "concept"}, "drift.name: expected 'none', 'time' or 'label'"),
        ({"partition.noise": 0.1}, "partition.noise: expected 0 where clients bring data of their own"),
    ],
)
def test_what_cannot_drift_is_refused_in_a_line(keys, message):
    with pytest.raises(SepalError, match=message):
        assemble({**RUN, "own.data": "a:b", **keys})


def test_what_is_no_tensor_is_refused_and_not_left_as_it_is():
    config = assemble({**DIGITS, **LABEL}).setup.config
    with pytest.raises(SepalError, match=r"drift\.name: expected none for examples that are read batch by batch"):
        Drifting.of(config, [1, 2], [0, 1], 0, "a")


def test_more_rounds_are_refused_where_the_drift_goes_over_all_rounds():
    config = assemble({**DIGITS, **LABEL}).setup.config
    assert config.depends_on_rounds == "drift.rounds = 0"
    assert not assemble({**DIGITS, **LABEL, "drift.rounds": 4}).setup.config.depends_on_rounds
    assert "\nrounds\t4" in assemble({**DIGITS, **LABEL}).agreed
    assert "\nrounds\t4" not in assemble({**DIGITS, **LABEL, "drift.rounds": 4}).agreed
