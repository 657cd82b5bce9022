"""Runs with noise by the clients together: the mean, what a kill means, what is charged, and what is on disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("dp_accounting")

from sepal.errors import ConfigError, SepalError
from sepal.protocol.types import Payload, Plan
from sepal.secure import client as client_module
from sepal.secure.masks import packed
from sepal.secure.noise import Shares, noised, seed_of
from sepal.server.accounting import of_shares
from sepal.server.run_store import DiskRunStore
from sepal.strategies.baselines.fedavg import ClientState, ServerState
from sepal.wire.tensors import whole
from tests.contract import secure_federation
from tests.contract.fakes import SIZE, step
from tests.contract.secure_federation import METHOD, SummedClient
from tests.contract.test_secure_sums import SERVER_KILLS, DyingStore, outcome, recorded, run

CLIP, NOISE = 0.6, 0.4
KEYS = {"mode": "distributed", "clip": CLIP, "noise": NOISE, "delta": 1e-5}


def federation(*about, repeatable=True, method=None, privacy=(), **keys):
    """A federation whose shares follow from the seed, so that two runs can be compared, or from nothing."""
    world = secure_federation.federation(*about, privacy={**KEYS, **dict(privacy)}, **keys)
    world.repeatable, world.method = repeatable, method or METHOD
    return world


def trained(model, name, number):
    return (model + step(model, name, Plan(number))).astype(np.float32)


def expected_model(world, rounds, names_of, clients, trained=trained):
    """Return the model by hand: what each client adds to a sum, by its seed, and the sum divided by those in it."""
    model = np.linspace(-1, 1, SIZE).astype(np.float32)
    shares = Shares(CLIP, NOISE, SIZE, clients, 1)
    for number in range(1, rounds + 1):
        total, names = np.zeros(SIZE, np.int64), names_of(number)
        for name in names:
            after = trained(model, name, number)
            bound = packed(clients) + world.commitments[number, name]
            total += noised(after - model, shares, seed_of(5, name, number), bound)
        if names:
            model = (model + total * (shares.step / len(names))).astype(np.float32)
    return model


ALL = [f"client-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def unkilled():
    return outcome(run(federation(rounds=2))[0])


def test_the_mean_is_that_of_clipped_changes_and_shares_with_the_weight_one_each():
    """The clients have 10, 11, … examples, by which they weigh without noise."""
    world = federation()
    strategy, records, lines = recorded(world)
    expected = expected_model(world, 3, lambda number: ALL, 5)
    assert np.allclose(strategy.progress.server.weights["w"], expected, atol=1e-6)
    assert [record.releases for record in records[:3]] == [1, 1, 1]
    spent = [line["privacy"] for line in lines[:3]]
    assert [part["epsilon_no_amplification"] for part in spent] == [of_shares(NOISE, k, 1e-5) for k in (1, 2, 3)]
    assert {(part["clip"], part["releases"], part["epsilon"]) for part in spent} == {(CLIP, 1, None)}
    assert f"ε = {of_shares(NOISE, 3, 1e-5):.3g} after 3 rounds" in strategy._run.allowance()


@pytest.mark.parametrize(("kind", "when"), SERVER_KILLS)
def test_a_server_killed_in_any_step_comes_to_the_same_bits(kind, when, tmp_path, unkilled):
    again, killed = run(federation(rounds=2, kills=[("server", 2, kind, when)]), tmp_path)
    assert killed == 1
    assert outcome(again) == unkilled


@pytest.mark.parametrize("point", ["members", "shares", "counted", "sum", "commit"])
def test_a_server_killed_before_a_file_is_written_charges_the_round_once(point, tmp_path, monkeypatch, unkilled):
    monkeypatch.setattr(DyingStore, "dies", point)
    again, killed = run(federation(rounds=2), tmp_path)
    assert killed == 1
    assert outcome(again) == unkilled
    assert again.report.released.most == 2


@pytest.mark.parametrize(("kind", "when"), SERVER_KILLS)
@pytest.mark.parametrize("who", ["server", "client-3"])
def test_with_secrets_of_their_own_clients_repeat_what_they_sent(who, kind, when, tmp_path):
    """What the sum is follows from no seed; but whoever was killed, each client's bytes of a step are one."""
    world = federation(rounds=2, kills=[(who, 2, kind, when)], repeatable=False)
    strategy, killed = run(world, tmp_path)
    assert killed == (who == "server")
    assert all(len(set(sent)) == 1 for (_, kind, _), sent in world.seen.items() if kind == "mask")
    assert np.abs(strategy.progress.server.weights["w"]).max() < 20


def test_two_runs_with_secrets_of_their_own_have_other_noise(unkilled):
    first, second = (outcome(run(federation(rounds=2, repeatable=False))[0])[0] for _ in range(2))
    assert len({first, second, unkilled[0]}) == 3


@pytest.mark.parametrize("kind", ["share", "mask", "unmask"])
def test_a_client_lost_for_good_leaves_the_sum_of_the_others_exact(kind):
    world = federation(clients=6, kills=[("client-4", 2, kind, "lost")], on_missing="skip", rounds=2)
    strategy, _ = run(world)
    names = [f"client-{number}" for number in range(6)]
    rest = [name for name in names if name != "client-4"]
    in_sum = {1: names, 2: names if kind == "unmask" else rest}
    assert np.allclose(strategy.progress.server.weights["w"], expected_model(world, 2, in_sum.get, 6), atol=1e-6)


@pytest.mark.parametrize(("kind", "charged"), [("share", [1, 0, 1]), ("mask", [1, 1, 1])])
def test_a_void_round_is_charged_once_masked_inputs_were_asked_for_and_never_repeated(kind, charged, tmp_path):
    lost = [(f"client-{number}", 2, kind, "before") for number in (1, 3)]  # t = 4 of 5
    world = federation(tmp_path / "c", kills=lost, on_missing="skip", checkpoint_every=10)
    strategy, records, _ = recorded(world, tmp_path / "run")
    assert records[1].void == "3 of 5 clients left, 4 are needed"
    assert [record.releases for record in records[:3]] == charged
    assert [record.round for record in records[:3]] == [1, 2, 3]
    assert strategy.report.released.most == sum(charged)
    reopened = world.server(DiskRunStore(tmp_path / "run", ServerState))
    assert reopened.progress.server.weights["w"].tobytes() == strategy.progress.server.weights["w"].tobytes()
    assert reopened.report.released.most == sum(charged)


def test_a_round_with_so_few_clients_that_its_sum_could_wrap_is_void_and_not_charged():
    """c = 2, 16 bits, r = 256, z = 2.05, σ = 257·z/√h. Six clients: t = 5, h = 3, T = 5,173: 6·(256 + 5,173) = 32,574.

    Five clients: t = 4, h = 2, T = 6,335: 5·(256 + 6,335) = 32,955, more than 32,767.
    """
    kills = [("client-4", 2, "train", "before")]
    keys = {"clients": 6, "on_missing": "skip", "secure_bits": 16, "secure_colluders": 2}
    world = federation(kills=kills, privacy={"noise": 2.05}, **keys)
    _, records, _ = recorded(world)
    assert records[1].void.startswith("secure-bits: expected 32: a sum with its noise could wrap, with 6 entries and 5")
    assert [record.releases for record in records[:3]] == [1, 0, 1]
    assert not [key for key in world.seen if key[:2] == (2, "share")]


def test_the_budget_ends_the_run_before_it_is_exceeded():
    two = of_shares(NOISE, 2, 1e-5)
    strategy, records, _ = recorded(federation(privacy={"budget": two + 0.01}, rounds=5))
    assert sum(record.releases for record in records) == 2
    assert strategy.report.released.most == 2
    assert "privacy.budget" in strategy.report.stopped.reason
    with pytest.raises(ConfigError, match=r"privacy\.budget: expected at least"):
        federation(privacy={"budget": 0.1}).server()


class Moves(SummedClient):
    """In round 2, client-3 moves as ``how`` says."""

    how = 1.0

    def train(self, state, download, plan):
        after, upload = super().train(state, download, plan)
        if (self.name, plan.round) != ("client-3", 2):
            return after, upload
        model = np.full(SIZE, self.how, np.float32)
        return ClientState({"w": model}), Payload({"w": whole(model)})


@pytest.mark.parametrize("how", [1e5, 1e7, float("nan"), float("inf")])
def test_neither_a_message_nor_the_sums_figures_tell_how_far_a_client_has_moved(how, monkeypatch):
    """Without noise the sum counts such clients. That figure has none, and so it is always 0 here."""
    monkeypatch.setattr(Moves, "how", how)
    world = federation(method=replace(METHOD, client=Moves))
    strategy, records, _ = recorded(world)
    assert [record.beyond_range for record in records[:3]] == [0, 0, 0]
    assert [len(record.replies) for record in records[:3]] == [5, 5, 5]
    assert not any(record.diverged for record in records)

    def moved(model, name, number):
        if (name, number) != ("client-3", 2):
            return trained(model, name, number)
        return np.full(SIZE, how, np.float32) if how == 1e5 else model  # above 10⁶ nothing can be sent: no change

    expected = expected_model(world, 3, lambda number: ALL, 5, moved)
    assert np.allclose(strategy.progress.server.weights["w"], expected, atol=1e-6)


def test_no_secret_of_the_noise_is_in_any_file_afterwards(tmp_path, monkeypatch):
    drawn, urandom = [], client_module.os.urandom
    monkeypatch.setattr(client_module.os, "urandom", lambda size: drawn.append(urandom(size)) or drawn[-1])
    run(federation(tmp_path / "clients", repeatable=False, rounds=2), tmp_path / "run")
    assert len(drawn) > 2 * 5 * 4  # of each client and round: two keys, b and the noise
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    for secret in (part for part in drawn if len(part) == 32):
        assert not any(secret in data or secret.hex().encode() in data for data in files)


def test_a_server_that_was_put_back_gets_no_second_share(tmp_path):
    """Two sums of one update with independent shares are two releases, and the server's count has one."""
    world = federation(tmp_path / "clients", repeatable=False, rounds=1)
    run(world)
    with pytest.raises(SepalError, match="this server goes on from an older copy"):
        run(world)


def test_forgotten_states_are_not_begun_again():
    strategy = federation().server()
    with pytest.raises(ConfigError, match=r"lost-states: expected refuse with privacy\.noise"):
        strategy._run.restart(["client-1"])
