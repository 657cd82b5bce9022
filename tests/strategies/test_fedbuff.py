"""FedBuff: steps by hand, the cases in which it is FedAvg or SGD, who starts when, times, kills, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from referee.matrix import models as kinds
from referee.matrix.__main__ import KEYS
from sepal.config import RunConfig
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.method import ClientInfo, Payload, Plan, Upload, ValueCoding
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.requests import plan_requests
from sepal.server.rules import check_choosing
from sepal.server.run_state import RoundStart, RunState
from sepal.server.run_store import DiskRunStore, MemoryRunStore
from sepal.simulated_time import read_profile, training_work
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedbuff import ClientJob
from sepal.study.method_checks.cases import RoundLog, Stop, StopAfter
from sepal.study.results import read_result
from sepal.wire.tensors import whole
from tests.contract.harness import Killed
from tests.sepal.server.test_simulated_rounds import bits
from tests.sepal.server.test_simulated_rounds import run as run_federation
from tests.sepal.server.test_stragglers import Digits, KilledAfter
from tests.strategies.baselines import BASE, Sent, assert_same_model, run
from tests.strategies.quadratics import Line, Quadratics

# Clients of quadratics.py take two steps. Links are so fast that bytes take no time.
PROFILE = """
name = "toy"
step-seconds.median = 0.5
down.median = 1e30
up.median = 1e30
[clients.c2]
step-seconds = {second}
"""


@pytest.fixture
def devices(tmp_path):
    """Client 1 takes 1 s for a job, client 2 the given seconds."""

    def of(seconds):
        path = tmp_path / "toy.toml"
        path.write_text(PROFILE.format(second=seconds / 2))
        return str(path)

    return of


class Asynchronous(Quadratics):
    """The two clients, of which the method says who trains."""

    def __init__(self, devices, module=Line, **keys):
        own = {f"fedbuff.{key.replace('_', '-')}": value for key, value in keys.items()}
        super().__init__("fedbuff", module, devices=devices, **own)

    def next(self, round):
        """A round; returns the clients' numbers and the server's figures."""
        names = self.server.participants(self.state, self.plan(round))
        who = tuple(number for number, info in enumerate(self.infos) if info.name in names)
        return who, self.round(round, who)


def test_two_steps_by_hand(devices):
    """K = 2, durations 1 and 2.5. Both start from w_0 = 0: Δ = .76 at t = 1, and -.36 at t = 2.5.

    At 1 client 1 starts again, still from w_0, and a round trains it: Δ = .76 at t = 2. Then w_1 = (.76 + .76)/2. It
    starts from w_1: .76 + .1·3.24 = 1.084, + .1·2.916 = 1.3756, so Δ = .6156 at t = 3. Before, at 2.5, client 2's comes
    with τ = 1 and s = 1/√2: w_2 = .76 + (-.36/√2 + .6156)/2 = .940521. Divided by Σ s it would be .971493.
    """
    rounds = Asynchronous(devices(2.5), buffer=2)
    who, figures = rounds.next(1)
    assert who == (0, 1)
    assert rounds.sent() == pytest.approx([0.76, -0.36], abs=1e-6)
    assert (rounds.model(), figures["buffered"], rounds.state.now) == (0, 1, 1)
    assert float(rounds.state.sums["w"][0]) == pytest.approx(0.76, abs=1e-6)
    who, figures = rounds.next(2)
    assert who == (0,), "from the same version a second time"
    assert rounds.model() == pytest.approx(0.76, abs=1e-6)
    assert (figures["version"], figures["seconds"], figures["staleness"]) == (1, 2, pytest.approx(1 / 2))
    assert (rounds.state.now, rounds.state.count) == (2.5, 1)
    who, figures = rounds.next(3)
    assert who == (0, 1), "both from w_1, at 2 and 2.5"
    assert rounds.model() == pytest.approx(0.940521, abs=1e-6)
    assert (figures["version"], figures["seconds"]) == (2, 3)
    assert {name: (job.version, job.end) for name, job in rounds.state.jobs.items()} == {"c1": (2, 4), "c2": (1, 5)}


@pytest.mark.parametrize(
    ("keys", "models"),
    [
        # s ≡ 1: w_2 = .76 + (-.36 + .6156)/2.
        ({"exponent": 0.0}, (0.76, 0.8878)),
        # n = (1, 3), mean 2: factors .5 and 1.5. w_1 = .38; then client 1 ends at 1.0678: Δ = .6878.
        # w_2 = .38 + (-.36·1.5/√2 + .5·.6878)/2.
        ({"weights": "examples"}, (0.38, 0.361031)),
        # Half a step: w_1 = .38, w_2 = .38 + .5·(-.36/√2 + .6878)/2.
        ({"rate": 0.5}, (0.38, 0.488310)),
        # v = .76, then .5·.76 + .180521.
        ({"beta": 0.5}, (0.76, 1.320521)),
    ],
)
def test_two_steps_with_other_keys_by_hand(keys, models, devices):
    rounds = Asynchronous(devices(2.5), buffer=2, **keys)
    seen = []
    for number in (1, 2, 3):
        rounds.next(number)
        seen.append(rounds.model())
    assert seen[1:] == pytest.approx(models, abs=1e-6)


def test_an_upload_of_too_many_versions_is_dropped_and_its_client_starts_again(devices):
    """K = 1: w_1 = .76 at 1, w_2 = 1.3756 at 2. At 2.5 client 2's Δ = -.36 has τ = 2: with at most 1 it is dropped.

    With at most 2 it is w_3 = 1.3756 - .36/√3 = 1.167754, else client 1's next one is: 1.3756 + .19·2.6244 = 1.874236.
    """
    for most, dropped, last in ((1, [0, 1, 0], 1.874236), (2, [0, 0, 0], 1.167754)):
        rounds = Asynchronous(devices(2.5), buffer=1, most_staleness=most)
        figures = [rounds.next(number)[1] for number in (1, 2, 3)]
        assert [row["version"] for row in figures] == [1, 2, 3]
        assert [row["dropped"] for row in figures] == dropped
        assert rounds.model() == pytest.approx(last, abs=1e-6)
        assert rounds.state.jobs["c2"].end == 5


def test_with_equal_devices_and_all_clients_in_the_buffer_it_is_fedavg(devices):
    """Each τ is 0, and each version one synchronous round."""
    rounds = Asynchronous(devices(1), buffer=2)
    reference = Quadratics("fedavg", **{"fedavg.weights": "equal"})
    for number in range(1, 6):
        who, figures = rounds.next(number)
        reference.round(number)
        assert (who, figures["staleness"], figures["version"], figures["seconds"]) == ((0, 1), 0, number, number)
        assert rounds.model() == pytest.approx(reference.model(), abs=1e-6)
    assert rounds.model() != pytest.approx(0.2, abs=1e-2), "several rounds"


@pytest.mark.parametrize(
    "keys", [{}, {"model": "tests.strategies.baselines:normed"}, {"values": "fp16"}], ids=["cnn", "statistics", "fp16"]
)
def test_so_it_is_in_runs(keys, tmp_path):
    """Statistics of norms are then the mean of the clients'. With fp16 values, what was rounded off is not lost."""
    (tmp_path / "equal.toml").write_text(PROFILE.format(second=0.5))
    keys = {"clients-per-round": 0, "partition.name": "iid", **keys}
    more = {"devices": str(tmp_path / "equal.toml"), "fedbuff.buffer": 4}
    reference = run("fedavg", **{"fedavg.weights": "equal"}, **keys)
    assert_same_model(run("fedbuff", **keys, **more), reference, atol=1e-3 if "values" in keys else 2e-6)


def test_one_client_and_a_buffer_of_one_are_plain_sgd(devices):
    """f_1 from 0: .76, then from there 1.3756, and 1.874236: w ← w + .19·(4 - w), two steps of a tenth."""
    rounds = Asynchronous(devices(1), buffer=1)
    rounds.state = rounds.server.joined(rounds.server.init(), rounds.infos[:1])
    for number in (1, 2, 3):
        rounds.next(number)
    assert rounds.model() == pytest.approx(1.874236, abs=1e-6)


def test_uploads_at_the_same_time_come_before_anybody_starts(devices):
    """K = 1, equal devices: client 1 makes a step, client 2 at the same time another one, with τ = 1."""
    rounds = Asynchronous(devices(1), buffer=1)
    for number in (1, 2, 3):
        who, figures = rounds.next(number)
        assert (who, figures["came"], figures["staleness"], figures["version"]) == ((0, 1), 2, 0.5, 2 * number)
        assert {job.version for job in rounds.state.jobs.values()} == {2 * number}


def test_the_server_subtracts_what_the_client_has_got(devices):
    """With fp16 values that is the rounded model: a client that trains nothing changes nothing."""
    rounds = Asynchronous(devices(2.5), buffer=9)
    rounds.server.coding = ValueCoding.FP16
    state = replace(rounds.state, weights={"w": np.float32([0.1])}, now=5.0, version=3)
    state = replace(state, jobs={"c1": ClientJob(3, 20), "c2": ClientJob(3, 6)})
    sent = Payload({"w": whole(np.float32([np.float16(0.1)]))})
    after, _ = rounds.server.aggregate(state, Sent([Upload(rounds.infos[0], sent)]), Plan(2))
    assert after.jobs["c1"].change["w"].tolist() == [0]


def test_an_upload_that_is_lost_ends_its_job_and_fills_no_buffer(devices):
    rounds = Asynchronous(devices(2.5), buffer=2)
    rounds.state, figures = rounds.server.aggregate(rounds.state, Sent(), Plan(1))
    assert (figures["came"], rounds.state.count, rounds.state.now) == (0, 0, 1)
    assert rounds.server.participants(rounds.state, Plan(2)) == ["c1"], "client 2 still works on it"


def test_an_evicted_client_is_forgotten_and_another_starts(devices):
    rounds = Asynchronous(devices(2.5), buffer=2)
    rounds.next(1)
    state = rounds.server.evicted(rounds.state, ["c1"])
    assert (set(state.examples), set(state.jobs)) == ({"c2"}, {"c2"})
    after, _ = rounds.server.aggregate(state, Sent(), Plan(2))
    assert after.version == 1, "client 1's first upload had come before"
    assert after.starting == ["c2"]


class States(RoundLog):
    """Keeps the server's states, too."""

    def __init__(self):
        super().__init__()
        self.states = []

    def round(self, progress, record, line):
        super().round(progress, record, line)
        self.states.append(progress.server)


FLAT = {
    **BASE,
    "method": "fedbuff",
    "clients": 7,
    "clients-per-round": 4,
    "rounds": 9,
    "evaluate-every": 3,
    "checkpoint-every": 2,
    "fedbuff.buffer": 3,
    "devices": "phones-classes",
}


@pytest.fixture(scope="module")
def whole_run():
    log = States()
    return run_in_process(assemble(FLAT), observers=[log]), log


def test_as_many_clients_train_at_a_time_and_idle_ones_take_turns(whole_run):
    _, log = whole_run
    for state in log.states[:-1]:
        assert len(state.jobs) == 4
        assert state.count < 3
        assert all(job.end >= state.now for job in state.jobs.values())
        assert {job.version for job in state.jobs.values() if not job.trained} <= {state.version}
    trained = Counter(name for record in log.records[:-1] for name in record.sampled)
    assert len(trained) == 7
    assert max(trained.values()) > min(trained.values()), "fast clients count more often"


def test_times_are_those_of_the_ledger_and_of_what_clients_report(whole_run):
    """A job takes the seconds that a report makes of its round's figures; one of round 1 downloads nothing."""
    strategy, log = whole_run
    server, profile = strategy.algorithm, read_profile("phones-classes")
    first = server.joined(server.init(), list(strategy.progress.roster.values())).jobs
    seconds = {}
    for record in log.records[:-1]:
        rows = [vars(entry) for entry in record.ledger]
        figures = {name: record.replies[name].metrics for name in record.sampled}
        for name, work in training_work(rows, figures).items():
            (spent,) = np.array([work]) @ profile.device(name, strategy.config.seed).rates
            assert server.seconds(name, record.replies[name].client.examples, record.round == 1) == pytest.approx(spent)
            if record.round == 1:
                assert first[name].end == pytest.approx(spent)
            seconds.setdefault(name, []).append(spent)
    assert any(values[0] < values[1] == values[-1] for values in seconds.values() if len(values) > 2), "first download"


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.build.__name__)
def test_the_server_counts_the_multiply_adds_that_clients_report(kind):
    place = kinds.__name__
    keys = {
        **KEYS,
        **kind.keys,
        "own.data": f"{place}:{kind.keys['own.data']}",
        "model": f"{place}:{kind.build.__name__}",
    }
    check_counts(assemble({**keys, "method": "fedbuff", "fedbuff.buffer": 2, "rounds": 1}))


@pytest.mark.parametrize("keys", [{"trainable": "fc*"}, {"lora.rank": 2}, {"width": 0.5}, {"engine.batch": 4}], ids=str)
def test_also_with_other_parts_of_a_model(keys):
    check_counts(assemble({**BASE, "method": "fedbuff", "rounds": 1, "local-epochs": 2, **keys}))


def check_counts(assembly):
    log = RoundLog()
    strategy = run_in_process(assembly, observers=[log])
    epochs, cost = strategy.config.local_epochs, strategy.algorithm._example_cost
    for reply in log.records[0].replies.values():
        assert reply.metrics["multiply-adds"] == epochs * reply.client.examples * cost > 0


@pytest.mark.parametrize("at", range(1, 10))
def test_a_kill_at_any_round_loses_nothing(at, whole_run, tmp_path):
    assembly = assemble({**FLAT, "evaluate-every": 2 * (at % 2)})
    kind = assembly.method.server_state
    store = DiskRunStore(tmp_path / "server", kind)
    with pytest.raises(Stop):
        run_in_process(assembly, store=store, observers=[StopAfter(at)], state_dir=tmp_path / "clients")
    again = run_in_process(assembly, store=DiskRunStore(tmp_path / "server", kind), state_dir=tmp_path / "clients")
    assert digest(again.progress.server) == digest(whole_run[0].progress.server)
    assert again.report.digests == whole_run[0].report.digests


def test_messages_over_a_grid_give_the_same_bits_also_after_a_kill(tmp_path):
    keys = {"clients-per-round": 3, "oversample": 1.0, "fedbuff.buffer": 2, "evaluate-every": 2}

    def subject(where):
        return Digits(None, rounds=5, clients=4, directory=tmp_path / where, settings=keys, name="fedbuff")

    (one, watch), (other, other_watch) = run_federation(subject("a")), run_federation(subject("b"), deployed=True)
    assert bits(one) == bits(other)
    assert [record.simulated for record in watch.records] == [record.simulated for record in other_watch.records]
    assert sum(record.simulated for record in watch.records) == pytest.approx(one.progress.server.stepped)
    killed = subject("c")
    store = KilledAfter(tmp_path / "server", killed.method.server_state)
    store.at = 3
    with pytest.raises(Killed):
        run_federation(killed, store, deployed=True)
    again, _ = run_federation(killed, DiskRunStore(tmp_path / "server", killed.method.server_state), deployed=True)
    assert bits(again) == bits(one)


class EvictsRoundTwo(MemoryRunStore):
    """An operator evicts whoever is to train in round 2, before anybody is asked."""

    strategy, names = None, frozenset()

    def evicted(self):
        if self.strategy and self.strategy.progress.round == 1:
            self.names = frozenset(self.strategy.progress.server.starting)
        return self.names


def test_a_round_whose_clients_were_all_evicted_goes_on_without_them(tmp_path):
    """Otherwise they would be chosen again after each start, because no record says that they are gone."""
    keys = {"clients-per-round": 1, "oversample": 1.0, "fedbuff.buffer": 1}
    subject = Digits(None, rounds=4, clients=4, directory=tmp_path, settings=keys, name="fedbuff")
    strategy = subject.server(store := EvictsRoundTwo())
    store.strategy = strategy
    subject.run(strategy=strategy)
    (gone,) = store.names
    assert gone not in strategy.progress.server.examples
    assert strategy.progress.server.version == 3, "of four rounds"


def test_hours_of_a_run_are_those_of_its_clock(tmp_path):
    assembly = assemble({**FLAT, "name": "r"})
    with RunDirectory(tmp_path / "r", assembly, IN_PROCESS) as directory:
        strategy = run_in_process(assembly, store=directory.store(), observers=[directory])
    result = read_result(tmp_path / "r")
    assert result.times.acted
    clock = result.times.clock(read_profile("phones-classes"))
    lines = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()][:-1]
    assert {0: 0.0, **{line["round"]: line["method"]["seconds"] for line in lines}} == pytest.approx(clock.ends)
    assert clock.ends[9] == pytest.approx(strategy.progress.server.stepped) != 0
    assert any("simulated" not in line for line in lines), "a round without a step takes no time"
    assert result.times.why_not(read_profile("phones")).startswith("its own profile, phones-classes, decided")


def test_without_a_profile_it_has_phones():
    assert assemble({**BASE, "method": "fedbuff"}).setup.config.devices == "phones"
    assert assemble({**BASE, "method": "fedavg"}).setup.config.devices == ""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"secure": "sum", "clients": 5},
            "secure: expected off: fedbuff needs more than the sum of .* the version from",
        ),
        ({"privacy.clip": 1.0}, "privacy.clip: expected 0: uploads of fedbuff are not clipped"),
        (
            {"privacy.mode": "central", "privacy.clip": 1.0, "privacy.noise": 1.0},
            "privacy.mode: expected local: fedbuff needs more than the mean of the uploads: the version from which",
        ),
        ({"compress.name": "topk"}, "compress.name: expected none: fedbuff"),
        ({"robust-mean": "median"}, "robust-mean: expected none: fedbuff"),
        (
            {"on-missing": "skip"},
            "on-missing: expected retry with fedbuff, .* order of real arrivals is not built, got",
        ),
        ({"deadline": 9.0}, r"deadline: expected 0.0 with fedbuff, whose asynchrony is in simulated time"),
        ({"oversample": 1.5, "clients-per-round": 2}, r"oversample: expected 1.0 with fedbuff, whose asynchrony is in"),
        ({"min-replies": 2}, "min-replies: expected 1 with fedbuff, whose rounds may have a single upload"),
        ({"drift.name": "label"}, "drift.name: expected none with fedbuff"),
    ],
)
def test_what_contradicts_it_is_refused_by_name(keys, words):
    with pytest.raises(ConfigError, match=words):
        assemble({**BASE, "method": "fedbuff", **keys})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"roster": "drawn", "clients_per_round": 2}, "roster: expected closed or open with fedbuff, which decides"),
        ({"oversample": 2.0, "clients_per_round": 2}, "oversample: expected 1 with fedbuff, which decides"),
        ({"deadline": 2.0}, "deadline: expected 0 with fedbuff, which decides from its state who trains"),
    ],
)
def test_nobody_else_draws_its_clients(keys, words):
    assembly = assemble({**BASE, "method": "fedbuff"})
    server = assembly.method.make_server(assembly.setup)
    check_choosing(server, assembly.method, RunConfig())
    with pytest.raises(ConfigError, match=words):
        check_choosing(server, assembly.method, RunConfig(**keys))


def test_a_client_that_does_not_train_is_not_chosen():
    class Strange:
        def participants(self, state, plan):
            return ["b", "z", "a"]

    roster = {name: ClientInfo(name, 1) for name in "abz"}
    start = RoundStart(Strange(), RunState("run", 0, None, roster=roster), Plan(1))
    requests, spare = plan_requests(start, RunConfig(clients_per_round=1), {}, {})
    assert (list(requests), spare) == (["a", "b", "z"], frozenset())
    with pytest.raises(
        ConfigError, match=r"method: expected Strange\.participants to return clients that train, got z"
    ):
        plan_requests(replace(start, state=replace(start.state, evicted=("z",))), RunConfig(), {}, {})
