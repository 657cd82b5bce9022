"""Runs with secure sums: what the sum is, what a kill means, what is void, and what is on disk and in records."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sepal.errors import DivergedError, RoundError, SepalError
from sepal.protocol.messages import Content, read_reply, write_error, write_reply
from sepal.protocol.types import Payload, Plan
from sepal.server.round import Round
from sepal.server.run_state import RoundRecord, RoundStart, RunState, advance
from sepal.server.run_store import DiskRunStore, MemoryRunStore
from sepal.server.strategy import SepalStrategy
from sepal.server.summed_uploads import StoredSum, SummedUploads, pack, unpack
from sepal.strategies.baselines.fedavg import ClientState, ServerState
from tests.contract.fakes import SIZE, step
from tests.contract.harness import Killed, Nodes
from tests.contract.secure_federation import METHOD, STEPS, SummedClient, federation

SERVER_KILLS = [(number, when) for number in STEPS for when in ("before", "after")]


class DyingStore(DiskRunStore):
    """A store whose server dies at a call: ``sum`` before a sum is stored, ``commit`` before a record is."""

    dies = ""

    def keep_part(self, round, name, data):
        if (self.dies, round) == (name, 2):
            DyingStore.dies = ""
            raise Killed
        super().keep_part(round, name, data)

    def commit(self, record):
        if (self.dies, record.round) == ("commit", 2):
            DyingStore.dies = ""
            raise Killed
        super().commit(record)


def run(world, directory=None):
    """Run to the end, with a new server after each kill; return the strategy and how often it was killed."""
    killed = 0
    while True:
        store = DyingStore(directory, ServerState) if directory else MemoryRunStore()
        strategy = world.server(store)
        try:
            strategy.start(Nodes(world))
            return strategy, killed
        except Killed:
            killed += 1


def outcome(strategy):
    progress = strategy.progress
    return progress.server.weights["w"].tobytes(), dict(progress.versions), strategy.report.accuracy


def expected_model(rounds, names_of, clients=5):
    """Return FedAvg's model by hand: float64 means over the clients of each round, weighted by examples."""
    model = np.linspace(-1, 1, SIZE).astype(np.float32)
    for number in range(1, rounds + 1):
        names = names_of(number)
        weights = [10 + int(name[-1]) for name in names]
        changes = [(model + step(model, name, Plan(number))).astype(np.float32) for name in names]
        if names:
            model = np.average(np.asarray(changes, np.float64), axis=0, weights=weights).astype(np.float32)
    return model


ALL = [f"client-{number}" for number in range(5)]


def test_the_model_is_the_plain_one_up_to_rounding():
    # each entry of a mean differs by less than n·W/(S·W3) = 5·8/(2^31 - 6), and float32 rounds at 6e-8
    secure, _ = run(federation())
    plain, _ = run(federation(secure="off"))
    difference = np.abs(secure.progress.server.weights["w"] - plain.progress.server.weights["w"])
    assert difference.max() < 3 * (5 * 8 / (2**31 - 6) + 6e-8)
    assert np.allclose(secure.progress.server.weights["w"], expected_model(3, lambda number: ALL), atol=1e-6)


def test_with_16_bits_the_model_is_coarser():
    secure, _ = run(federation(**{"secure_bits": 16, "secure_range": 1.0}))
    difference = np.abs(secure.progress.server.weights["w"] - expected_model(3, lambda number: ALL))
    assert 1e-6 < difference.max() < 3 * 5 / (2**15 - 6)


def test_mean_and_weighted_mean_are_those_of_all_clients_and_nothing_else_is_known():
    strategy, _ = run(federation())
    counts = [(3 + number, 10 + number) for number in range(5)]
    figures = strategy.report.accuracy["received"]
    assert set(figures) == {"mean", "weighted", "clients"}
    assert figures["mean"] == pytest.approx(np.mean([correct / n for correct, n in counts]), abs=1e-8)
    assert figures["weighted"] == 25 / 60  # 3 + 4 + … + 7 of 10 + 11 + … + 14
    assert figures["clients"] == 5


@pytest.fixture(scope="module")
def whole():
    """The outcome of two rounds in which nobody was killed."""
    return outcome(run(federation(rounds=2))[0])


@pytest.mark.parametrize(("kind", "when"), SERVER_KILLS)
def test_a_server_killed_in_any_step_comes_to_the_same_bits(kind, when, tmp_path, whole):
    world = federation(rounds=2, kills=[("server", 2, kind, when)])
    again, killed = run(world, tmp_path)
    assert killed == 1
    assert outcome(again) == whole
    assert all(len(set(sent)) == 1 for (_, kind, _), sent in world.seen.items() if kind == "mask")


@pytest.mark.parametrize("point", ["members", "shares", "counted", "sum", "commit"])
def test_a_server_killed_before_a_file_is_written_comes_to_the_same_bits(point, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(DyingStore, "dies", point)
    world = federation(rounds=2)
    again, killed = run(world, tmp_path)
    assert killed == 1
    assert outcome(again) == whole
    assert all(len(set(sent)) == 1 for sent in world.seen.values())


@pytest.mark.parametrize(("kind", "when"), SERVER_KILLS)
def test_a_client_killed_in_any_step_is_asked_again_and_is_in_the_sum(kind, when, whole):
    world = federation(rounds=2, kills=[("client-3", 2, kind, when)])
    assert outcome(run(world)[0]) == whole
    assert all(len(set(sent)) == 1 for sent in world.seen.values())


def test_a_replayed_round_takes_its_sum_from_the_disk(tmp_path, whole):
    world = federation(rounds=2, kills=[("server", 2, "train", "before")], checkpoint_every=10)
    again, killed = run(world, tmp_path)
    assert killed == 1
    assert outcome(again) == whole


@pytest.mark.parametrize("kind", ["share", "mask", "unmask"])
def test_a_client_lost_for_good_is_left_out_and_the_sum_of_the_others_is_exact(kind):
    # of 6 clients, 5 are needed
    world = federation(clients=6, kills=[("client-4", 2, kind, "lost")], on_missing="skip")
    strategy, _ = run(world)
    names = [f"client-{number}" for number in range(6)]
    rest = [name for name in names if name != "client-4"]
    in_sum = {1: names, 2: names if kind == "unmask" else rest, 3: rest}
    assert np.allclose(strategy.progress.server.weights["w"], expected_model(3, in_sum.get), atol=1e-6)


def test_a_client_that_loses_its_secrets_is_a_dropout_and_not_asked_to_train_this_round_again():
    world = federation(clients=6, kills=[("client-4", 2, "share", "wiped")], on_missing="skip")
    records = []
    world.server = lambda store: SepalStrategy(world.method, world.setup, store, [Records(records)], pause=0.0)
    run(world)
    second = next(record for record in records if record.round == 2)
    assert sorted(second.replies) == [f"client-{number}" for number in (0, 1, 2, 3, 5)]
    reasons = [
        entry.reason for entry in second.ledger if entry.client == "client-4" and entry.step == "share" and entry.reason
    ]
    assert any("its secrets are lost" in reason for reason in reasons)


class Records:
    def __init__(self, records, lines=None):
        self.records, self.lines = records, lines if lines is not None else []

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.records.append(record)
        self.lines.append(line)

    def closed(self, progress, report):
        pass


def recorded(world, directory=None):
    records, lines = [], []
    server = lambda store: SepalStrategy(world.method, world.setup, store, [Records(records, lines)], pause=0.0)  # noqa: E731
    world.server = server
    strategy, _ = run(world, directory)
    return strategy, records, lines


@pytest.mark.parametrize("kind", ["share", "mask"])
def test_too_few_clients_make_a_round_void_and_the_model_is_kept(kind, tmp_path):
    lost = [(f"client-{number}", 2, kind, "before") for number in (1, 3)]  # t = 4 of 5; once each, as nobody asks twice
    world = federation(tmp_path / "c", kills=lost, on_missing="skip", checkpoint_every=10)
    strategy, records, lines = recorded(world, tmp_path / "run")
    void = records[1]
    assert void.void == "3 of 5 clients left, 4 are needed"
    assert void.replies == {}
    assert not [key for key in world.seen if key[:2] == (2, "unmask")]
    assert lines[1]["void"] == void.void
    expected = expected_model(3, lambda number: [] if number == 2 else ALL)
    assert np.allclose(strategy.progress.server.weights["w"], expected, atol=1e-6)
    # nobody's state went on: round 3 starts from the versions of round 1
    assert {reply.base.partition("-")[0] for reply in records[2].replies.values()} == {"1"}
    reopened = world.server(DiskRunStore(tmp_path / "run", ServerState))
    assert reopened.progress.server.weights["w"].tobytes() == strategy.progress.server.weights["w"].tobytes()


def test_more_colluders_need_more_clients():
    kills = [("client-4", 2, "mask", "before")]
    _, records, _ = recorded(federation(clients=6, kills=kills, on_missing="skip", secure_colluders=3))
    assert not records[1].void
    _, records, _ = recorded(federation(clients=6, kills=kills, on_missing="skip", secure_colluders=4))
    assert records[1].void == "5 of 6 clients left, 6 are needed"


def test_two_clients_that_answer_are_too_few():
    kills = [(f"client-{number}", 2, "train", "before") for number in (0, 1, 2)]
    _, records, _ = recorded(federation(kills=kills, on_missing="skip"))
    assert records[1].void == "2 clients, at least 3 are needed"


def test_a_sum_from_which_no_model_can_be_made_is_void():
    def forged(round, kind, name, reply):
        if (round, kind, name) != (2, "mask", "client-0"):
            return reply
        head, content = read_reply(reply)
        return write_reply(
            head,
            Content(bytes([content.data[0]]) + content.data[1:3] + bytes([content.data[3] ^ 64]) + content.data[4:]),
        )

    # 64 in the highest byte is 2^30 of 2^31: it moves the mean by half of secure-range, 5e5: ten times W_0's norm is 14
    world = federation(secure_range=1e6)
    world.forged = forged
    strategy, records, _ = recorded(world)
    assert "expected a sum from which a model can be made, got /weights/w changes by a norm of" in records[1].void
    assert records[1].replies == {}
    expected = expected_model(3, lambda number: [] if number == 2 else ALL)
    assert np.allclose(strategy.progress.server.weights["w"], expected, atol=5e-3)


def test_a_change_beyond_the_range_counts_as_none_and_the_sum_alone_tells_it(caplog):
    # in round 1, step() moves an entry by more than .545 for 2 of the 6
    strategy, records, _ = recorded(federation(clients=6, secure_range=0.545, rounds=1))
    assert records[0].beyond_range == 2
    assert len(records[0].replies) == 6
    assert not records[0].diverged
    assert not [entry for entry in records[0].ledger if entry.status == "refused"]
    text = "2 of 6 clients changed an entry by more than secure-range, or to no number: they count as unchanged"
    assert text in caplog.text
    first = np.linspace(-1, 1, SIZE).astype(np.float32)
    names = [f"client-{number}" for number in range(6)]
    changes = np.array([step(first, name, Plan(1)) for name in names], np.float64)
    beyond = np.abs(changes).max(axis=1) > 0.545
    assert beyond.sum() == 2
    changes[beyond] = 0
    expected = first + np.average(changes, axis=0, weights=range(10, 16))
    assert np.allclose(strategy.progress.server.weights["w"], expected, atol=1e-6)


class DivergingClient(SummedClient):
    """In round 2, client-3's model is no number, in its upload or in its state alone; with ``range`` it is as ever."""

    where = "range"

    def train(self, state, download, plan):
        after, upload = super().train(state, download, plan)
        if (self.name, plan.round) != ("client-3", 2) or self.where == "range":
            return after, upload
        model = np.full(SIZE, np.nan, np.float32)
        if self.where == "upload":
            upload = Payload({"w": replace(upload.tensors["w"], values=model)})
        return ClientState({"w": model}), upload


@pytest.mark.parametrize("where", ["upload", "state"])
def test_a_client_whose_training_ends_in_no_number_counts_as_unchanged_and_keeps_its_state(where, monkeypatch):
    monkeypatch.setattr(DivergingClient, "where", where)
    world = federation(rounds=3)
    world.method = replace(METHOD, client=DivergingClient)
    strategy, records, _ = recorded(world)
    assert [record.beyond_range for record in records[:3]] == [0, 1, 0]
    assert [len(record.replies) for record in records[:3]] == [5, 5, 5]
    assert not any(record.diverged for record in records)
    assert {len(seen) for seen in world.seen.values()} == {1}
    assert all(np.isfinite(strategy.progress.server.weights["w"]))
    names = strategy.progress.versions["client-3"]
    assert np.isfinite(world.stores["client-3"].load(names).state.model["w"]).all()


@pytest.mark.parametrize("where", ["range", "upload", "state"])
def test_a_damaged_state_of_a_client_that_counted_as_unchanged_is_made_again(where, monkeypatch):
    monkeypatch.setattr(DivergingClient, "where", where)
    world = federation(clients=6, secure_range=8 if where != "range" else 0.545, rounds=2)
    world.method = replace(METHOD, client=DivergingClient)
    _, records, _ = recorded(world)
    assert records[1].beyond_range
    for name, store in world.stores.items():
        (newest,) = (version for version in store.versions() if version.startswith("2-"))
        before = store.load(newest).state
        (store.directory / f"{newest}.safetensors").write_bytes(b"")
        assert not store.load(newest)
        again = world.host(name)._load(newest)[0]
        assert again.model["w"].tobytes() == before.model["w"].tobytes()


class OftenDiverging(SummedClient):
    """From round 2 on, client-3's model is no number."""

    def train(self, state, download, plan):
        after, upload = super().train(state, download, plan)
        if self.name != "client-3" or plan.round == 1:
            return after, upload
        model = np.full(SIZE, np.nan, np.float32)
        return ClientState({"w": model}), Payload({"w": replace(upload.tensors["w"], values=model)})


WITH_NOISE = {"privacy": {"mode": "distributed", "clip": 0.6, "noise": 0.4}}


@pytest.mark.parametrize("keys", [{}, pytest.param(WITH_NOISE, id="noise")])
def test_two_updates_that_are_equal_have_commitments_that_do_not_tell(keys):
    """Round 2 is void, so in rounds 2 and 3 client-3 starts from the same model, and adds to it nothing."""
    if keys:
        pytest.importorskip("dp_accounting")
    lost = [(f"client-{number}", 2, "mask", "before") for number in (1, 2)]
    world = federation(kills=lost, on_missing="skip", **keys)
    world.method = replace(METHOD, client=OftenDiverging)
    _, records, _ = recorded(world)
    assert records[1].void
    commitments = [world.commitments[number, "client-3"] for number in (2, 3)]
    assert len(set(commitments)) == 2


def test_what_a_client_that_is_only_evaluated_adds_to_the_number_beyond_the_range_is_nobodys():
    part = StoredSum(False, ("a", "b", "c"), {}, 0.0, 0.0, 3, 32, 8.0, 0, 1, vector=(3).to_bytes(4, "little"))
    assert part.beyond == 0
    assert replace(part, trains=True).beyond == 3


def test_most_clients_beyond_the_range_make_each_round_void_and_none_is_repeated():
    void = r"none in 3 rounds \(.*expected most to change each entry by at most 0.001 \(secure-range\), got 5 of 5"
    with pytest.raises(RoundError, match=void) as caught:
        run(federation(secure_range=1e-3))
    assert str(caught.value).endswith("a larger secure-range, or evict clients that lie")  # has no max-update-norm


FORGERIES = {
    "short keys": ("train", lambda data: data[:-1]),
    "one key twice": ("train", lambda data: data[:32] * 2),
    "a key with which nothing is agreed on": ("train", lambda data: data[:32] + bytes(32)),
    "short shares": ("share", lambda data: data[:-1]),
    "shares of nobody": ("share", lambda data: b""),
    "a short input": ("mask", lambda data: data[:-1]),
    "unmask of nobody": ("unmask", lambda data: b"\xff" * 4 + data[4:37]),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_reply_costs_its_client_the_round_and_nobody_else(what):
    step_of, forge = FORGERIES[what]

    def forged(round, kind, name, reply):
        if (round, kind, name) != (2, step_of, "client-5"):
            return reply
        head, content = read_reply(reply)
        return write_reply(head, Content(forge(content.data), content.scalars))

    world = federation(clients=6, on_missing="skip")
    world.forged = forged
    strategy, records, _ = recorded(world)
    assert not records[1].void
    assert [e.status for e in records[1].ledger if e.client == "client-5" and e.direction == "up"].count("refused") >= 1
    names = [f"client-{number}" for number in range(6)]
    without = names if step_of == "unmask" else names[:-1]
    expected = expected_model(3, lambda number: without if number == 2 else names)
    assert np.allclose(strategy.progress.server.weights["w"], expected, atol=1e-6)


def test_keys_of_another_client_cost_who_sends_them_the_round_and_nobody_else():
    """Where keys occur twice, every other client refuses the step, and the round would be void for all."""
    world = federation(clients=6, on_missing="skip")

    def forged(round, kind, name, reply):
        if (round, kind, name) != (2, "train", "client-5"):
            return reply
        head, content = read_reply(reply)
        return write_reply(head, Content(world.seen[2, "train", "client-4"][0], content.scalars))

    world.forged = forged
    _, records, _ = recorded(world)
    assert not records[1].void
    refused = [entry for entry in records[1].ledger if entry.status == "refused"]
    assert [(entry.client, entry.reason) for entry in refused] == [
        ("client-5", "keys: expected keys of its own, got those of another client")
    ]


PARTS_AT = {"members": "shares", "shares": "counted", "counted": "sum", "sum": "commit"}  # before what it is the newest
ODD = [None, True, -1, 1e300, 10**6, "x", [], [[]], {}, {"x": 1}]


def changed(value, path=()):
    """Yield ``value`` with each of its parts replaced in turn by an odd one; of lists, their first item."""
    yield from ODD
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        if key != "record":  # the test of records is elsewhere
            for other in changed(item):
                yield {**value, key: other} if isinstance(value, dict) else [other, *value[1:]]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("part", PARTS_AT)
def test_a_planted_part_of_a_secure_round_is_one_error_of_ours(part, tmp_path, monkeypatch):
    monkeypatch.setattr(DyingStore, "dies", PARTS_AT[part])
    world = federation(rounds=2, timeout=0.01)
    store = DyingStore(tmp_path, ServerState)
    with pytest.raises(Killed):
        world.server(store).start(Nodes(world))
    again = DiskRunStore(tmp_path, ServerState)
    assert again.latest().round == 1
    head, blobs = unpack(again.part(2, part))
    heads = [*({**head, "groups" if "groups" in head else "sums": odd} for odd in ODD)]
    key = "groups" if "groups" in head else "sums"
    heads += [{**head, key: other} for other in changed(head[key])]
    for planted in heads:
        again.keep_part(2, part, pack(planted, blobs))
        strategy = world.server(DiskRunStore(tmp_path, ServerState))
        start = strategy._run.inputs(2, [], {})
        round = Round(start, strategy.setup, again)
        with suppress(SepalError):
            round.take_up()
            round.secure_sums(lambda messages: messages.waiting.clear())


def test_an_error_in_a_step_puts_no_words_into_anothers_mouth():
    def forged(round, kind, name, reply):
        if (round, kind, name) != (2, "share", "client-1"):
            return reply
        return write_error(DivergedError("client-4: state", "finite numbers", "others"), "client-4")

    world = federation(on_missing="skip")
    world.forged = forged
    _, records, _ = recorded(world)
    reasons = [entry.reason for entry in records[1].ledger if entry.step == "share" and entry.reason]
    assert len(reasons) == 1
    assert reasons[0].startswith("client-1: ")


def test_shares_that_cannot_be_opened_make_the_round_void_and_not_the_run():
    def forged(round, kind, name, reply):
        if (round, kind, name) != (2, "share", "client-0"):
            return reply
        head, content = read_reply(reply)
        entries = [content.data[at : at + 86] for at in range(0, len(content.data), 86)]
        return write_reply(head, Content(b"".join(entry[:4] + bytes(82) for entry in entries)))

    world = federation(clients=5)
    world.forged = forged
    _, records, _ = recorded(world)
    assert records[1].void.startswith("client-0: shares: expected at least 4, got 1")
    assert not records[2].void


def test_a_server_that_goes_back_gets_no_second_sum(tmp_path):
    world = federation(tmp_path / "clients", rounds=2)
    run(world, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "older")
    for path in [*(tmp_path / "older").glob("round-00000[23]*"), *(tmp_path / "older" / "records").glob("00000[23]")]:
        path.unlink()
    for path in (tmp_path / "older" / "uploads").iterdir():
        shutil.rmtree(path)
    with pytest.raises(SepalError, match="another sum would tell its update"):
        run(world, tmp_path / "older")
    assert all(len(set(sent)) == 1 for (_, kind, _), sent in world.seen.items() if kind == "mask")


def test_no_secret_is_in_any_file_afterwards(tmp_path, monkeypatch):
    drawn = []
    real = os.urandom

    def noted(size):
        drawn.append(real(size))
        return drawn[-1]

    monkeypatch.setattr(os, "urandom", noted)
    run(
        federation(tmp_path / "clients", clients=6, kills=[("client-4", 2, "mask", "lost")], on_missing="skip"),
        tmp_path / "run",
    )
    secrets = [secret for secret in drawn if len(secret) == 32]
    assert len(secrets) > 3 * 6 * 3  # two keys and b of each client and round
    lost = (tmp_path / "clients" / "client-4" / "secure").read_bytes()  # it never came back, and holds its own
    files = [
        path for path in tmp_path.rglob("*") if path.is_file() and path != tmp_path / "clients" / "client-4" / "secure"
    ]
    assert len(files) > 20
    for path in files:
        data = path.read_bytes()
        text = data.decode("latin-1")
        assert not [s for s in secrets if s in data or s.hex() in text], path
    assert [s for s in secrets if s in lost]
    assert (tmp_path / "clients" / "client-0" / "secure").stat().st_mode & 0o077 == 0


def test_no_clients_figures_no_digest_of_a_state_and_no_upload_of_one_client_are_recorded(tmp_path):
    _, records, lines = recorded(federation(tmp_path / "clients"), tmp_path / "run")
    for record in records:
        for reply in record.replies.values():
            assert reply.metrics == {}
            assert (reply.sums, reply.state) == ({}, "")
    assert all(client["received"] is None for line in lines for client in line["clients"])
    assert not list((tmp_path / "run").rglob("client-*"))
    assert lines[0]["accuracy"]["received"]["clients"] == 5


@pytest.mark.parametrize("clients", [3, 5, 9])
def test_the_ledger_has_the_bytes_of_the_formula(clients):
    _, records, _ = recorded(federation(clients=clients, rounds=1))
    # Figures: four each of received and trained, on test and validation data, and the one of secure-range.
    k, n, d, b, m = clients - 1, clients, SIZE, 32, 2 * 2 * 4 + 1
    sizes = {}
    for entry in records[0].ledger:
        sizes.setdefault((entry.step, entry.direction), set()).add(entry.payload)
    assert sizes == {
        ("", "down"): {0},  # W_0 is not sent
        ("keys", "up"): {64},
        ("share", "down"): {68 * k},
        ("share", "up"): {86 * k},
        ("mask", "down"): {86 * k},
        ("mask", "up"): {d * b // 8 + 4 * m},
        ("unmask", "down"): {-(-n // 8)},
        ("unmask", "up"): {37 * n},
    }
    dense = [entry.dense for entry in records[0].ledger if entry.dense]
    assert len(dense) == 2 * clients  # one model down and one up for each


def test_clients_that_are_only_evaluated_have_a_sum_of_their_own():
    # round 3 evaluates all: 4 train and 4 do not
    world = federation(clients=8, clients_per_round=4, rounds=3)
    _, records, lines = recorded(world)
    assert lines[2]["accuracy"]["received"]["clients"] == 8
    weighted = sum(3 + number for number in range(8)) / sum(10 + number for number in range(8))
    assert lines[2]["accuracy"]["received"]["weighted"] == pytest.approx(weighted)
    assert len({len(sent[0]) for (round, kind, _), sent in world.seen.items() if (round, kind) == (3, "mask")}) == 2
    assert not records[2].void


def test_evaluations_of_too_few_clients_are_not_summed_and_the_round_counts():
    world = federation(clients=6, clients_per_round=4, rounds=3)  # 2 of 6 are only evaluated in round 3
    _, records, lines = recorded(world)
    assert not records[2].void
    assert lines[2]["accuracy"]["received"]["clients"] == 4


def test_a_client_without_accuracies_is_in_the_sum_of_updates():
    world = federation()
    whole = world.host
    from dataclasses import replace

    world.host = lambda name: replace(whole(name), accuracies=name != "client-2")
    strategy, _, lines = recorded(world)
    assert np.allclose(strategy.progress.server.weights["w"], expected_model(3, lambda number: ALL), atol=1e-6)
    assert lines[0]["accuracy"]["received"]["clients"] == 4


def test_a_client_of_a_run_without_secure_sums_answers_no_step():
    from sepal.protocol.messages import Order, write_order
    from sepal.protocol.types import Kind

    host = federation(secure="off").host("client-0")
    reply = host.handle(write_order(Order("r", Kind.MASK, Plan(1)), Content()))
    with pytest.raises(SepalError, match="kind: expected query, train or adapt, in a run without secure sums"):
        read_reply(reply)


def test_the_store_keeps_parts_of_a_round_and_knows_whose_they_are(tmp_path):
    store = DiskRunStore(tmp_path / "a", ServerState)
    store.keep_part(3, "sum", b"x")
    store.keep_part(3, "masked-1", b"y")
    assert (store.part(3, "sum"), store.part(4, "sum")) == (b"x", None)
    store.drop_parts(3, "masked")
    assert store.part(3, "masked-1") is None
    shutil.copytree(tmp_path / "a" / "uploads" / "000003", tmp_path / "a" / "uploads" / "000004")
    with pytest.raises(SepalError, match="the part sum of round 4"):
        store.part(4, "sum")


def test_a_replayed_void_round_takes_no_step_of_the_servers_own():
    """A server with momentum would move on with no upload at all."""
    start = RoundStart(SimpleNamespace(), RunState("run", 4, {"momentum": 1.0}), Plan(5))  # it has no `aggregate`
    record = RoundRecord(5, (), (), {}, {}, (), False, {}, void="3 of 5 clients left, 4 are needed")
    after, metrics = advance(start, record, SummedUploads([], None))
    assert (after.round, after.server, metrics) == (5, {"momentum": 1.0}, {})
