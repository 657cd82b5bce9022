"""What the drivers of chaos, load and hosts take for a success, without any process of Flower's."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import pytest

from tools.chaos import __main__ as chaos
from tools.chaos.federation import BY_ERROR
from tools.chaos.federation import Federation as RealFederation
from tools.hosts import __main__ as hosts
from tools.load.verdict import verdict

ENDED = "finished:completed"


def row(clients, **changes):
    plain = {"round_s": clients / 10, "superlink_cpu_s": clients, "superlink_mb": 200.0, "serverapp_mb": 300.0}
    return {"clients": clients, "status": ENDED, "failures": 0, **plain, **changes}


def test_linear_growth_and_flat_memory_are_a_success():
    assert verdict([row(10), row(100), row(1000), {"clients": 300, "idle_superlink_cpu": 0.5}]) == []
    assert verdict([row(10, serverapp_mb=100.0), row(100)]) == [], "flat from 100 clients on"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round_s": 121.0}, "round_s: 12.1 times as much from 100 to 1000 clients"),
        ({"superlink_cpu_s": 1300}, "superlink_cpu_s: 13.0 times as much from 100 to 1000 clients"),
        ({"serverapp_mb": 361.0}, "serverapp_mb: 300 at 100 clients, 361 at 1000"),
        ({"superlink_cpu_s": 0.0}, "1000 clients: no superlink_cpu_s"),
        ({"failures": 2}, "1000 clients: 2 failures"),
        ({"status": "finished:failed"}, "1000 clients: finished:failed"),
    ],
)
def test_what_breaks_or_grows_is_named(changes, words):
    assert verdict([row(100), row(1000, **changes)]) == [words]


class Federation:
    """Ends its run after ``looks`` looks at its server."""

    def __init__(self, run, looks):
        self.run, self.looks = run, looks
        run.mkdir()
        (run / "config.toml").touch()
        (run / "metrics.jsonl").write_text("{}\n" * 4)

    def revive(self):
        return []

    def server(self):
        self.looks -= 1
        if not self.looks:
            (self.run / "summary.json").touch()
        return [object()]


def test_an_event_that_had_no_victim_is_not_listed(tmp_path, monkeypatch):
    """Without a disk of its own no disk can be full; where no fork is at work none can be killed."""
    tried = []

    def event(name, happens):
        return name, lambda *_: bool(tried.append(name)) or happens

    monkeypatch.setattr(chaos, "KILLS", dict([event("server", True)]))
    monkeypatch.setattr(chaos, "TROUBLES", dict([event("disk full", False)]))
    federation, done = Federation(tmp_path / "run", 20), []
    options = argparse.Namespace(limit=60.0, spread=0.6, kills=2, stop=0.0)
    monkeypatch.setattr(chaos.time, "sleep", lambda seconds: None)
    clock = iter(range(1000))
    monkeypatch.setattr(chaos.time, "monotonic", lambda: float(next(clock)) / 5)
    chaos.disturb(federation, tmp_path / "run", np.random.default_rng(0), ["server"], options, done)
    assert "disk full" in tried
    assert done == ["server (round 5)"]


class Process:
    """A process that has ended with this code; None: one that runs."""

    def __init__(self, code):
        self.code = code

    def poll(self):
        return self.code


class Revived(RealFederation):
    """Has nodes that ended with these codes, and starts nothing."""

    def __init__(self, home, codes):
        self.home, self._clients, self.executor, self.started = home, len(codes), Process(None), []
        self.nodes.update({f"node{number}": Process(code) for number, code in enumerate(codes)})

    def start_client(self, number):
        self.started.append(number)


def test_a_node_that_sepal_join_would_start_again_is_started_again_and_its_reason_is_in_the_row(tmp_path):
    (tmp_path / "node1.log").write_text("a line\nsepal: the SuperNode's loop ended: why\nanother\n")
    (tmp_path / "node3.log").write_text("")
    federation = Revived(tmp_path, [0, 75, None, 75])
    assert federation.revive() == [
        "client restarted",
        "client restarted after an error (why)",
        "client restarted after an error (no reason in its log)",
    ]
    assert federation.started == [0, 1, 3]


def test_a_node_that_ends_otherwise_fails_the_run(tmp_path):
    federation = Revived(tmp_path, [1])
    with pytest.raises(RuntimeError, match=r"expected node0 to run or to end with one of \(0, 75\), got 1"):
        federation.revive()
    assert federation.started == []


def test_events_begin_in_any_round_and_the_closing_one_but_not_before_the_run_is_there(tmp_path):
    drawn = [chaos.when(np.random.default_rng(seed), 6) for seed in range(200)]
    assert all(rounds == sorted(rounds) and len(rounds) == 6 for rounds in drawn)
    assert {rounds[0] for rounds in drawn} == {1, 2, 3, 4}, "an event in the closing round may come too late"
    assert {number for rounds in drawn for number in rounds} == {1, 2, 3, 4, 5}
    assert chaos.current_round(tmp_path) == 0
    (tmp_path / "config.toml").touch()
    assert chaos.current_round(tmp_path) == 1
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    assert chaos.current_round(tmp_path) == 3


@pytest.mark.parametrize(("kills", "tries", "code"), [(0, 3, 1), (1, 1, 0)])
def test_a_run_in_which_nothing_was_killed_is_repeated_and_is_no_success(monkeypatch, capsys, kills, tries, code):
    calls = []
    row = {"equal": True, "kills": kills, "events": ["client restarted", f"{BY_ERROR} (why)"]}
    monkeypatch.setattr(chaos, "disturbed_run", lambda number, options: calls.append(number) or row)
    monkeypatch.setattr(sys, "argv", ["chaos", "--runs", "1"])
    with pytest.raises(SystemExit) as end:
        chaos.main()
    assert (len(calls), int(end.value.code)) == (tries, code)
    tries_text = f"after {kills} kills; clients that ended by an error and were restarted: {tries}"
    assert f"chaos: {kills} of 1 as the uninterrupted run, {tries_text}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cut", "code"),
    [({"hashes": ["a", "b"], "cut_s": 20.0}, 0), ({"hashes": ["a", "c"], "cut_s": 20.0}, 1), ({"cut_s": 0}, 1)],
    ids=["the same", "another residual", "never cut"],
)
def test_a_cut_run_must_be_cut_and_end_with_the_same_hashes(monkeypatch, capsys, cut, code):
    plain = {"hashes": ["a", "b"], "cut_s": 0}
    monkeypatch.setattr(hosts, "unavailable", lambda: "")
    monkeypatch.setattr(hosts, "measure", lambda method, options, seconds: {**plain, **cut} if seconds else plain)
    monkeypatch.setattr(sys, "argv", ["hosts", "--cut", "20"])
    with pytest.raises(SystemExit) as end:
        hosts.main()
    assert int(end.value.code) == code


def test_the_time_to_an_accuracy_is_that_of_all_rounds_until_then():
    assert hosts.first(0.8, [0.5, 0.9, 0.7]) == 2
    assert hosts.first(0.95, [0.5, 0.9, 0.7]) == 0
