"""Runs with central noise: what a kill, a lost client and a client that lies mean, and what is on disk."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sepal.client_app.clipped_uploads import ClippedUploads
from sepal.config import PrivacySettings
from sepal.errors import ConfigError, DivergedError, RosterError, StateError
from sepal.protocol.messages import WITHIN_CLIP, read_reply, write_error, write_reply
from sepal.protocol.types import Payload
from sepal.server.accounting import without_amplification
from sepal.server.central_noise import CentralNoise, of_seed
from sepal.server.released_mean import RELEASED
from sepal.server.run_store import DiskRunStore, MemoryRunStore
from sepal.server.run_store.disk import evict
from sepal.server.strategy import SepalStrategy
from sepal.storage.files import read_tensors, write_tensors
from sepal.strategies.baselines.fedavg import ServerState
from sepal.study.method_checks.cases import RoundLog
from sepal.wire.tensors import whole
from tests.contract.harness import Killed, Nodes
from tests.contract.secure_federation import METHOD, SecureFederation

pytest.importorskip("dp_accounting")
KEYS = {"mode": "central", "clip": 0.4, "noise": 0.3, "quantile": 0.5, "delta": 1e-3}


@dataclass
class CentralFederation(SecureFederation):
    """Clients that clip, but for those of ``unclipped``."""

    key: bytes = b"k" * 32
    unclipped: dict = field(default_factory=dict)

    def host(self, name):
        clips = ClippedUploads(self.setup.weights, tells=True)
        if name in self.unclipped:
            clips = Unclipped(self.setup.weights, True, self.unclipped[name])
        return replace(super().host(name), clips=clips, tells_divergence=False)

    def server(self, store=None, log=None):
        observers = [log] if log else []
        store = store or MemoryRunStore()
        return SepalStrategy(METHOD, self.setup, store, observers, pause=0.0, secret=self.key)


def federation(directory=None, clients=5, rounds=3, privacy=None, **settings):
    keys = PrivacySettings(**{**KEYS, **(privacy or {})})
    return CentralFederation(METHOD, rounds, clients, {"privacy": keys, **settings}, directory=directory)


class DyingStore(DiskRunStore):
    dies_at = 0

    def commit(self, record):
        if record.round == self.dies_at:
            DyingStore.dies_at = 0
            raise Killed
        super().commit(record)


def outcome(strategy):
    return strategy.progress.server.weights["w"].tobytes(), strategy.progress.clip, dict(strategy.progress.versions)


def run(world, store=None):
    log = RoundLog()
    strategy = world.server(store, log)
    strategy.start(Nodes(world))
    return strategy, log


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_server_that_was_killed_reaches_the_same_bits_and_charges_each_round_once(tmp_path, sampling):
    keys = {"privacy": {"sampling": sampling, "noise": 0.15}, "clients_per_round": 2} if sampling == "poisson" else {}
    whole_run, _ = run(federation(tmp_path / "whole", **keys))
    world, DyingStore.dies_at = federation(tmp_path / "killed", **keys), 2
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    again, log = run(world, DyingStore(tmp_path / "store", ServerState))
    assert outcome(again) == outcome(whole_run)
    assert [record.releases for record in log.records] == [1, 1, 0]
    assert dict(again.report.released.rounds) == {1: 3}


def test_noise_without_a_secret_is_drawn_anew_and_never_from_the_seed_that_clients_know(tmp_path):
    """As of a ServerApp of one's own, by ``METHOD.durable``."""
    ends = set()
    for key in (b"", b"", of_seed(federation().setup.config.seed)):
        world = federation(rounds=1)
        world.key = key
        ends.add(outcome(run(world)[0])[0])
    assert len(ends) == 3
    world.key = b""
    with pytest.raises(ConfigError, match=r"privacy\.mode: expected local, or SepalStrategy\(…, secret=…\)"):
        world.server(DiskRunStore(tmp_path, ServerState))


def test_a_recorded_round_is_replayed_from_its_noised_mean_and_not_noised_again(tmp_path):
    """With another secret, a second noise on the same sum would show."""
    world = federation(tmp_path / "a", checkpoint_every=10)
    first, _ = run(world)
    second = federation(tmp_path / "b", checkpoint_every=10)
    DyingStore.dies_at = 3
    with pytest.raises(Killed):
        run(second, DyingStore(tmp_path / "store", ServerState))
    second.key = b"another"
    replayed = []

    class Watching(CentralNoise):
        def released(self, total, clip, round):
            replayed.append(round)
            return super().released(total, clip, round)

    strategy = second.server(DyingStore(tmp_path / "store", ServerState))
    strategy._run.central = Watching.of(second.setup.config, b"k" * 32)
    strategy.start(Nodes(second))
    assert replayed == [3]
    assert outcome(strategy) == outcome(first)


def test_other_clients_after_a_kill_make_another_release_which_is_charged(tmp_path):
    world, DyingStore.dies_at = federation(tmp_path / "w", on_missing="skip"), 2
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    world.gone.add("client-4")
    strategy, _ = run(world, DyingStore(tmp_path / "store", ServerState))
    assert dict(strategy.report.released.rounds) == {1: 2, 2: 1}
    assert strategy.report.released.clients["client-0"] == 4


def test_no_clients_update_is_stored_and_the_noised_mean_is(tmp_path):
    world = federation(tmp_path / "w")
    run(world, DiskRunStore(tmp_path / "store", ServerState))
    files = {path.name for path in (tmp_path / "store" / "uploads").rglob("*") if path.is_file()}
    assert files == {"released"}


def test_no_file_and_no_line_has_the_bit_of_a_client(tmp_path):
    _, log = run(federation(tmp_path / "w"), DiskRunStore(tmp_path / "store", ServerState))
    assert [len(line["clients"]) for line in log.lines] == [5, 5, 5, 5]
    assert not any(WITHIN_CLIP in client["metrics"] for line in log.lines for client in line["clients"])
    assert not any(WITHIN_CLIP in reply.metrics for record in log.records for reply in record.replies.values())
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files
    assert not any(WITHIN_CLIP.encode() in path.read_bytes() for path in files)


def test_no_digest_of_a_clients_state_is_sent(tmp_path):
    """The state has the model without noise: who guesses it would be told that the guess is right."""
    strategy, log = run(federation(tmp_path / "w"))
    assert not any(reply.state for record in log.records for reply in record.replies.values())
    assert not strategy.report.digests


def test_a_lost_noised_mean_ends_the_run_where_clients_have_gone_on(tmp_path):
    """The round would be run again: clients that have answered the next one would be in two releases."""
    world, DyingStore.dies_at = federation(tmp_path / "w", checkpoint_every=10, timeout=0.5), 3
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    (tmp_path / "store" / "uploads" / "000002" / "secure" / "released").unlink()
    with pytest.raises(RosterError, match="goes on from an older copy"):
        run(world, DiskRunStore(tmp_path / "store", ServerState))


def forged(which):
    """Return what client-1 sends in round 2 in place of its reply."""

    def change(round, kind, name, reply):
        if (round, kind, name) != (2, "train", "client-1"):
            return reply
        return which(*read_reply(reply))

    return change


def test_a_client_that_does_not_clip_is_clipped_by_the_server(monkeypatch):
    """Its change of norm 8·√6 counts as one of norm C: the sum of 5 is no longer than 5·2^40 steps."""
    world, sums = federation(rounds=2), []
    world.unclipped = {"client-1": 8.0}
    summed = CentralNoise.summed
    monkeypatch.setattr(CentralNoise, "summed", lambda self, *a: sums.append(summed(self, *a)) or sums[-1])
    strategy, _ = run(world)
    assert set(strategy.progress.versions) == {f"client-{number}" for number in range(5)}
    assert not strategy.report.diverged
    assert np.linalg.norm(sums[1].entries.astype(float)) <= 5 * 2.0**40


@dataclass(frozen=True)
class Unclipped(ClippedUploads):
    """What a client has that lies about its update: all entries are ``value``."""

    value: float = 0.0

    def clipped(self, upload, download, plan):
        return Payload({"w": whole(np.full(6, self.value, np.float32))}), True


def diverged(name):
    return write_error(DivergedError("state", "finite numbers after training", "others: it diverged"), name)


@pytest.mark.parametrize("lie", [1e5, 3e38, diverged], ids=["long", "longest", "diverged"])
@pytest.mark.parametrize(
    ("liars", "keys"),
    [
        (1, {"clients_per_round": 1, "privacy": {"sampling": "poisson", "noise": 0.05, "quantile": 0.0}}),
        (1, {"clients_per_round": 1, "privacy": {"quantile": 0.0}}),
        (3, {}),
        (1, {"on_divergence": "keep", "min_replies": 5}),
    ],
    ids=["alone in a draw by itself", "alone", "most", "min-replies"],
)
def test_clients_that_lie_do_not_end_the_run(lie, liars, keys, caplog):
    """What they send counts as an update of norm C at most, or as none: they can do no more than stay away."""
    world = federation(rounds=12, **keys)
    names = {f"client-{number}" for number in range(1, 1 + liars)}
    if lie is diverged:
        world.forged = lambda round, kind, name, reply: lie(name) if kind == "train" and name in names else reply
    else:
        world.unclipped = dict.fromkeys(names, lie)
    strategy, log = run(world)
    assert [record.releases for record in log.records] == [1] * 12 + [0]
    assert any(names & set(record.sampled) for record in log.records[:12])
    assert np.isfinite(strategy.progress.server.weights["w"]).all()
    assert "max-update-norm" not in caplog.text  # it is refused with central noise


@pytest.mark.parametrize("bit", [0.5, 7.0, None])
def test_a_bit_that_is_none_is_refused(bit):
    def lies(reply, content):
        metrics = {key: value for key, value in reply.metrics.items() if key != WITHIN_CLIP}
        return write_reply(replace(reply, metrics=metrics | ({} if bit is None else {WITHIN_CLIP: bit})), content)

    world = federation(rounds=2, on_missing="skip")
    world.forged = forged(lies)
    _, log = run(world)
    assert [entry.client for entry in log.records[1].ledger if entry.status == "refused"] == ["client-1"]


def test_all_clients_of_a_round_clip_alike_and_the_clip_is_that_of_the_record():
    world = federation(rounds=3)
    orders = []
    handle = world._handle

    def listening(message):
        from sepal.protocol.messages import read_order

        orders.append(read_order(message.content)[0].plan)
        return handle(message)

    world._handle = listening
    _, log = run(world)
    clips = [{plan.clip for plan in orders if plan.round == round} for round in (1, 2, 3)]
    assert clips == [{0.4}, {log.records[0].clip}, {log.records[1].clip}]
    assert log.records[0].clip not in (0.0, 0.4)


def test_an_empty_round_releases_noise_all_the_same():
    """With a probability of 1/250, five clients: most rounds have nobody. Each is a release, and moves the model."""
    world = federation(rounds=4, clients_per_round=1, privacy={"sampling": "poisson", "noise": 0.05})
    strategy = world.server(log=(log := RoundLog()))
    strategy._run.central = replace(strategy._run.central, population=250)
    strategy.start(Nodes(world))
    empty = [record for record in log.records[:4] if not record.sampled]
    assert len(empty) >= 2
    assert [record.releases for record in log.records] == [1, 1, 1, 1, 0]


def test_a_model_that_cannot_be_used_makes_the_round_void_and_is_charged(monkeypatch):
    from sepal.server.guard import Guard

    monkeypatch.setattr(Guard, "unusable", lambda self, after: "w is odd")
    strategy, log = run(federation(rounds=2))
    assert [(record.releases, bool(record.void)) for record in log.records[:2]] == [(1, True), (1, True)]
    assert (strategy.progress.server.weights["w"] == strategy.setup.weights["w"]).all()
    assert log.lines[1]["privacy"]["epsilon_no_amplification"] > log.lines[0]["privacy"]["epsilon_no_amplification"]


def test_a_budget_ends_the_run_also_after_a_restart(tmp_path):
    world = federation(tmp_path / "w", rounds=6, privacy={"budget": 20.0, "noise": 0.45})
    strategy, log = run(world, DiskRunStore(tmp_path / "store", ServerState))
    ends = strategy.progress.round - 1
    assert 0 < ends < 6
    assert strategy.report.stopped.by == "privacy.budget"
    assert log.lines[ends - 1]["privacy"]["epsilon_no_amplification"] <= 20
    again = world.server(DiskRunStore(tmp_path / "store", ServerState))
    assert again.report.stopped.by == "privacy.budget"


def test_a_draw_of_more_clients_than_expected_asks_them_all():
    """With a probability of 1/1, all five are drawn where one is expected; the sum is divided by 1 all the same."""
    world = federation(rounds=1, clients_per_round=1, privacy={"sampling": "poisson", "noise": 0.05})
    strategy = world.server(log=(log := RoundLog()))
    strategy._run.central = replace(strategy._run.central, population=1)
    strategy.start(Nodes(world))
    assert len(log.records[0].sampled) == 5


def test_a_round_that_is_run_again_stays_within_the_budget(tmp_path):
    """There is room for two releases: with a third, of other clients after a kill, the round would be over it."""
    room = without_amplification(0.45, 2, 1e-3) * 1.001
    assert without_amplification(0.45, 3, 1e-3) > 1.3 * room
    keys = {"on_missing": "skip", "privacy": {"budget": room, "noise": 0.45}}
    world, DyingStore.dies_at = federation(tmp_path / "w", rounds=6, **keys), 2
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    world.gone.add("client-4")
    strategy, log = run(world, DyingStore(tmp_path / "store", ServerState))
    assert (tmp_path / "store" / "releases").read_text().count("\n") == 2
    assert dict(strategy.report.released.rounds) == {1: 2}
    assert log.lines[0]["privacy"]["epsilon_no_amplification"] <= room
    assert (log.records[0].round, log.records[0].releases) == (2, 1)
    assert log.records[0].void.startswith("privacy.budget: ")
    assert strategy.report.stopped.by == "privacy.budget"


def test_a_server_whose_run_was_taken_over_notes_no_release(tmp_path):
    def gone():
        raise ConfigError("run", "the claim", "another's")

    store = DiskRunStore(tmp_path, ServerState)
    assert store.note_release(1, "a" * 32) == 1
    store.check_held = gone
    with pytest.raises(ConfigError, match="another's"):
        store.note_release(2, "b" * 32)
    assert (tmp_path / "releases").read_text() == f"1 {'a' * 32}\n"


def test_a_release_is_added_and_no_other_line_is_written_again(tmp_path):
    """Two servers, one of which is about to notice that it is taken over: no line of the other is lost."""
    first, second = DiskRunStore(tmp_path, ServerState), DiskRunStore(tmp_path, ServerState)
    first.note_release(1, "a" * 32)
    inode = (tmp_path / "releases").stat().st_ino
    assert [second.note_release(1, "b" * 32), first.note_release(1, "b" * 32), first.note_release(2, "c" * 32)] == [
        2,
        2,
        1,
    ]
    assert (tmp_path / "releases").stat().st_ino == inode
    assert (tmp_path / "releases").stat().st_mode & 0o777 == 0o600
    with (tmp_path / "releases").open("a") as file:
        file.write("3 dd")  # a power failure while a line was written
    assert first.note_release(3, "e" * 32) == 2
    assert (tmp_path / "releases").read_text().splitlines()[-2:] == ["3 dd", f"3 {'e' * 32}"]


def test_a_planted_noised_mean_is_one_error_of_ours(tmp_path):
    """As a rule the round is run again, which clients that have answered a later one refuse."""
    world, DyingStore.dies_at = federation(tmp_path / "w", checkpoint_every=10, timeout=0.01), 3
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    for odd in (b"", b"x\n", b"{}\n", b"[]\n", b"null\n", b'{"of": 1}\n', b'{"of": "x"}\n12345678', b"[" * 9999):
        store = DiskRunStore(tmp_path / "store", ServerState)
        store.latest()
        store.keep_part(2, RELEASED, odd)
        with pytest.raises(RosterError, match="goes on from an older copy"):
            run(world, store)


ODD_NUMBERS = {
    "a clip below 0": lambda record: {**record, "clip": -1.0},
    "a clip that is no number": lambda record: {**record, "clip": math.nan},
    "releases below 0": lambda record: {**record, "releases": -1},
    "very many releases": lambda record: {**record, "releases": 10**400},
    "a capacity below 0": lambda record: with_client(record, capacity=-1.0),
    "a capacity that is no number": lambda record: with_client(record, capacity=math.nan),
    "a huge capacity": lambda record: with_client(record, capacity=1e308),
    "a name that is a path": lambda record: with_client(record, name="../../x"),
    "examples below 0": lambda record: with_client(record, examples=-1),
    "an odd purpose": lambda record: {**record, "ledger": [{**record["ledger"][0], "purpose": "\x1b"}]},
    "an odd direction": lambda record: {**record, "ledger": [{**record["ledger"][0], "direction": "__class__"}]},
}


def with_client(record, **facts):
    """The record, in which the first client that replied says something else."""
    replies = record["replies"]
    name = min(replies)
    return {**record, "replies": {**replies, name: {**replies[name], "client": {**replies[name]["client"], **facts}}}}


@pytest.mark.parametrize("what", ODD_NUMBERS)
def test_a_planted_record_with_odd_numbers_is_one_error_of_ours(what, tmp_path):
    """Its digest fits, and a server goes on from it: they were tracebacks, or a clip of nothing."""
    world, DyingStore.dies_at = federation(tmp_path / "w", checkpoint_every=10), 3
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    path = tmp_path / "store" / "records" / "000002"
    stored = json.loads(path.read_text().partition("\n")[2])
    text = json.dumps({**stored, "record": ODD_NUMBERS[what](stored["record"])})
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
    with pytest.raises(StateError, match="000002: expected the record of round 2 as a run writes it"):
        run(world, DiskRunStore(tmp_path / "store", ServerState))


@pytest.mark.parametrize("clip", [-1.0, math.inf, math.nan])
def test_a_planted_checkpoint_has_no_clip_that_is_none(clip, tmp_path):
    world = federation(tmp_path / "w", rounds=1)
    run(world, DiskRunStore(tmp_path / "store", ServerState))
    for path in (tmp_path / "store").glob("round-*.safetensors"):
        arrays, text = read_tensors(path)
        write_tensors(path, arrays, json.dumps({**json.loads(text), "clip": clip}))
    with pytest.raises(StateError, match="expected a checkpoint as a run writes it"):
        run(world, DiskRunStore(tmp_path / "store", ServerState))


@pytest.mark.parametrize(("quantile", "liars", "bit"), [(0.5, 3, 0.0), (0.9, 1, 0.0), (0.1, 1, 1.0)])
def test_as_many_bits_as_the_quantile_leaves_drive_the_clip_without_an_end(quantile, liars, bit):
    """Not defended: 1 - γ of a round's clients raise C, and so the noise, in each round, and γ of them lower it."""

    class Lying(ClippedUploads):
        def clipped(self, *arguments):
            upload, _ = super().clipped(*arguments)
            return upload, bool(bit)

    def driven(rounds, lie):
        world = federation(rounds=rounds, privacy={"quantile": quantile, "noise": 0.05})
        host = world.host
        liars_clips = Lying(world.setup.weights, tells=True)
        names = [f"client-{number}" for number in range(liars)] if lie else []
        world.host = lambda name: replace(host(name), clips=liars_clips) if name in names else host(name)
        return run(world)[0].progress.clip

    honest, early, late = driven(25, lie=False), driven(25, lie=True), driven(50, lie=True)
    assert (early > honest and late > 1.2 * early) if bit == 0 else (early < honest and late < early / 1.2), (
        honest,
        early,
        late,
    )


def test_a_round_whose_clients_were_all_evicted_is_noise_alone(tmp_path):
    keys = {"privacy": {"sampling": "poisson", "noise": 0.15}, "clients_per_round": 2}
    world, DyingStore.dies_at = federation(tmp_path / "w", **keys), 2
    with pytest.raises(Killed):
        run(world, DyingStore(tmp_path / "store", ServerState))
    for name in world.nodes.values():
        evict(tmp_path / "store", name)
    _, log = run(world, DiskRunStore(tmp_path / "store", ServerState))
    assert [record.releases for record in log.records] == [2, 1, 0], "round 2 had released another sum before the kill"
