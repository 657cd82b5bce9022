"""``oversample`` and ``deadline`` in simulated time: who counts, the same bits on each engine and after a kill."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from sepal.config import RunConfig
from sepal.config.rules import check_real_time, check_together
from sepal.errors import ConfigError
from sepal.layout import Parameter, Role
from sepal.protocol.types import ClientInfo
from sepal.server.recovery import undone
from sepal.server.run_store import DiskRunStore
from sepal.server.sampling import sample
from sepal.server.simulated_rounds import SimulatedRounds
from sepal.storage.serialize import digest
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed
from tests.sepal.server.test_stragglers import Deployed, Digits, KilledAfter
from tests.strategies.dmpfl import Watch

# An upload of a fake client has some 50 bytes: most of a second for the slow one, a thousandth for the others.
PROFILE = """
name = "one-slow"
speed.median = 1e9
down.median = 1e9
up.median = 1e6
[clients.client-0]
up = 1000
"""
SLOW = "client-0"
KINDS = pytest.mark.parametrize("kind", FAKES)


@pytest.fixture
def devices(tmp_path):
    path = tmp_path / "one-slow.toml"
    path.write_text(PROFILE)
    return str(path)


class Reporting(Federation):
    """Clients report their costs, as those of a real method do."""

    costs: ClassVar = {"multiply-adds": 1000.0}

    def host(self, name):
        return replace(super().host(name), spent=lambda: dict(self.costs))


def federation(kind, devices, **settings):
    keys = {"clients_per_round": 3, "evaluate_every": 0, "devices": devices, **settings}
    return Reporting(FAKES[kind][0], rounds=6, clients=5, settings=keys)


def run(subject, store=None, deployed=False):
    strategy, watch = subject.server(store), Watch()
    strategy._observers = [*strategy._observers, watch]
    if deployed:
        strategy.start(Deployed(subject))
    else:
        subject.run(strategy=strategy)
    return strategy, watch


def bits(strategy):
    return digest(strategy.progress.server), dict(strategy.report.digests), dict(strategy.progress.versions)


@KINDS
def test_clients_beyond_the_deadline_are_not_in_the_mean_and_both_sides_agree_on_it(kind, devices):
    subject = federation(kind, devices, deadline=0.1)
    strategy, watch = run(subject)
    late = [record for record in watch.records[:-1] if SLOW in record.late]
    assert late, "it was drawn"
    for record in late:
        assert record.replies[SLOW].version == ""
        (entry,) = [e for e in record.ledger if (e.client, e.direction) == (SLOW, "up")]
        assert entry.status == "late"
        assert entry.payload > 0, "its bytes were sent"
        assert entry.dense == 4 * sum(p.size for p in subject.setup.layout), "beside which they are shown"
        assert entry.reason == "expected an upload within 0.1 s of simulated time, after which the round ended with 2"
        assert record.simulated == 0.1, "the server cannot know that it comes too late"
    assert {name for record in watch.records for name in record.late} == {SLOW}
    up = [e for r in watch.records for e in r.ledger if (e.client, e.direction) == (SLOW, "up") and e.payload]
    assert sum(strategy.report.uploads[SLOW].values()) == len(up), "ε counts what the server has seen"
    assert FAKES[kind][1](strategy.progress.server, subject.states(strategy), closed=True)
    line = next(line for line in watch.lines if SLOW in line.get("simulated", {}).get("late", ()))
    assert line["simulated"] == {"seconds": 0.1, "late": [SLOW]}
    assert SLOW in [client["name"] for client in line["clients"]], "its figures count, as those of all who were asked"
    punctual = [record for record in watch.records[:-1] if not record.late]
    assert all((0 < record.simulated < 0.1) == bool(record.sampled) for record in punctual), "the slowest client's"
    assert watch.records[-1].simulated == 0.0, "the closing round has no deadline"


def test_a_late_upload_does_not_move_the_median_by_which_others_are_refused(devices):
    """With two uploads that count, only the smaller one is not above 1 times their median, their mean."""
    _, watch = run(federation("queue", devices, deadline=0.1, max_update_norm=1.0))
    late = [record for record in watch.records if record.late]
    assert late
    for record in late:
        statuses = sorted(entry.status for entry in record.ledger if entry.direction == "up")
        assert statuses == ["accepted", "late", "refused"]
        assert SLOW in record.replies


@KINDS
def test_a_spare_client_takes_the_place_of_a_slow_one(kind, devices):
    subject = federation(kind, devices, oversample=1.3)
    strategy, watch = run(subject)
    drawn = [record for record in watch.records[:-1] if len(record.sampled) == 4]  # a phase may ask nobody, or all 5
    assert drawn
    assert all(len(record.late) == 1 for record in drawn)
    up = [{e.client: e.payload for e in record.ledger if e.direction == "up"} for record in drawn]
    assert all(r.late == (SLOW,) for r, sizes in zip(drawn, up, strict=True) if sizes.get(SLOW))
    assert all(record.simulated < 0.1 for record in drawn)
    assert FAKES[kind][1](strategy.progress.server, subject.states(strategy), closed=True)


@KINDS
@pytest.mark.parametrize("acts", [{"oversample": 1.3, "deadline": 0.1}])
def test_messages_over_a_grid_give_the_bits_of_a_run_in_process(kind, acts, devices):
    in_process, by_messages = federation(kind, devices, **acts), federation(kind, devices, **acts)
    (one, watch), (other, other_watch) = run(in_process), run(by_messages, deployed=True)
    assert bits(one) == bits(other)
    assert [(r.late, r.simulated) for r in watch.records] == [(r.late, r.simulated) for r in other_watch.records]
    assert any(record.late for record in watch.records)


@KINDS
def test_without_a_deadline_a_profile_changes_no_bit(kind, devices):
    plain, plain_watch = run(federation(kind, ""))
    strategy, watch = run(federation(kind, devices))
    assert bits(strategy) == bits(plain)

    def facts(record):
        replies = {name: (reply.kind, reply.version, reply.metrics) for name, reply in record.replies.items()}
        return record.sampled, replies, record.ledger, record.late, record.simulated

    assert list(map(facts, watch.records)) == list(map(facts, plain_watch.records))
    assert not any("simulated" in line for line in watch.lines)


def test_a_full_evaluation_changes_neither_who_trains_nor_who_counts(devices):
    plain, watch = run(federation("queue", devices, oversample=1.3))
    often, often_watch = run(federation("queue", devices, oversample=1.3, evaluate_every=2))
    assert [record.late for record in often_watch.records] == [record.late for record in watch.records]
    assert digest(often.progress.server) == digest(plain.progress.server)
    assert all(len(record.replies) == 5 for record in often_watch.records if record.full)


def test_min_replies_are_waited_for_beyond_the_deadline(devices):
    _, watch = run(federation("queue", devices, deadline=1e-9, min_replies=2))
    assert all(len(record.late) == 1 for record in watch.records[:-1])
    assert all(1e-9 < record.simulated < 0.1 for record in watch.records[:-1])


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_server_killed_after_a_record_goes_on_to_the_same_bits(at, devices, tmp_path):
    acts = {"oversample": 1.3, "deadline": 0.1, "checkpoint_every": 2}
    whole, _ = run(federation("queue", devices, **acts))
    subject = federation("queue", devices, **acts)
    store = KilledAfter(tmp_path / "server", subject.method.server_state)
    store.at = at
    with pytest.raises(Killed):
        run(subject, store)
    strategy, watch = run(subject, DiskRunStore(tmp_path / "server", subject.method.server_state))
    assert bits(strategy) == bits(whole)
    assert any(record.late for record in watch.records)


def test_late_clients_are_evaluated_as_the_others(devices, tmp_path):
    """Otherwise a full evaluation would be one of the fast clients."""
    (tmp_path / "digits.toml").write_text(PROFILE.replace("client-0]\nup = 1000", "client-00001]\nup = 1000"))
    keys = {"devices": str(tmp_path / "digits.toml"), "evaluate-every": 2, "oversample": 1.0, "clients-per-round": 0}
    acts = {"deadline": 5.0, **keys}
    subject = Digits(None, rounds=2, clients=3, directory=tmp_path / "a", settings=acts)
    plain = Digits(None, rounds=2, clients=3, directory=tmp_path / "b", settings=keys)
    (_, watch), (_, plain_watch) = run(subject), run(plain)
    assert watch.records[0].late == ("client-00001",)
    late, whole = (w.lines[1]["accuracy"]["trained"]["clients"] for w in (watch, plain_watch))
    assert late == whole == 3
    assert watch.records[1].replies["client-00001"].metrics["multiply-adds"] > 0
    assert watch.records[1].simulated == 5.0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"secure": "sum", "deadline": 9.0, "clients": 5},
            "devices: expected nothing with oversample or deadline, .* a secure",
        ),
        (
            {"privacy": {"mode": "central", "clip": 1.0, "noise": 1.0}, "deadline": 9.0, "clients": 5},
            "devices: expected nothing with oversample or deadline, .* central the bytes of an upload decide",
        ),
    ],
)
def test_what_simulated_time_would_break_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        check_together(RunConfig(**keys, devices="phones"))
    check_together(RunConfig(**{**keys, "deadline": 0.0}, devices="phones"))


def test_a_deadline_of_simulated_time_is_no_time_to_wait_and_a_deployment_refuses_it():
    config = RunConfig(deadline=3600.0, devices="phones")
    check_together(config)
    with pytest.raises(ConfigError, match="devices: expected nothing in a deployment with oversample or deadline"):
        check_real_time(config)
    check_real_time(RunConfig(devices="phones"))
    check_real_time(RunConfig(deadline=60.0))


def test_a_client_whose_device_cannot_hold_the_model_is_refused_before_it_trains(tmp_path):
    """As many bytes of gradients as of weights; a client with a smaller share of the model needs less where it may."""
    (tmp_path / "small.toml").write_text(f"{PROFILE}memory = 1e3\n")  # of the slow client
    subject = federation("queue", str(tmp_path / "small.toml"), deadline=9.0)
    run(subject)
    judge = SimulatedRounds.of(subject.setup.config)
    judge.check_room([ClientInfo(SLOW, 9)], 500, whole=True)
    judge.check_room([ClientInfo(SLOW, 9, 0.5)], 1000, whole=False)
    with pytest.raises(ConfigError, match="devices: one-slow: expected a memory of at least 1002 bytes, of weights"):
        judge.check_room([ClientInfo(SLOW, 9, 0.5), ClientInfo("client-1", 9)], 501, whole=True)
    large = federation("queue", str(tmp_path / "small.toml"), deadline=9.0, clients_per_round=1)
    assert sample([f"client-{n}" for n in range(5)], 1, large.setup.config.seed, 1) != [SLOW], "it is drawn later"
    object.__setattr__(large.setup, "layout", (Parameter("w", (313,), Role.WEIGHT),))  # · 4 · 2 · its capacity of .4
    with pytest.raises(ConfigError, match="1 clients lack it"):
        run(large)
    assert not large.trained


def test_a_client_that_does_not_report_what_its_device_needs_ends_the_run(devices):
    subject = federation("queue", devices, deadline=9.0)
    subject.costs = {"steps": 3.0}
    with pytest.raises(ConfigError, match=r"devices: one-slow: expected multiply-adds of every client .* none from cl"):
        run(subject)


def test_rounds_that_are_undone_take_no_simulated_time(devices):
    _, watch = run(federation("queue", devices, deadline=0.1))
    first, second = watch.records[:2]
    again = undone([first, second], 1, 2)
    assert min(first.simulated, second.simulated) > 0
    assert (again.simulated, again.late) == (0.0, ())
