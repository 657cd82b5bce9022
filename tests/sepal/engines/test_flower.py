"""Flower's processes are ended, wherever they were adopted; nothing of the home stays."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import sepal
from sepal.engines.flower.engine import RAISED, RAY_STARTS, SLOW_RAY, AppRun, Flower, last_words
from sepal.engines.flower.processes import FlowerError, Processes, dialled, end, free_port, healthy, listening, unusable

ROOT = Path(__file__).resolve().parents[3]
ORPHAN = """
import os, signal, sys, time
if os.fork():
    sys.exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
"""


def test_an_orphan_that_ignores_polite_signals_is_ended_too():
    with Flower() as flower:
        parent = flower.spawn(sys.executable, "-c", ORPHAN, log="orphan.log")
        parent.wait()
        while "ready" not in (flower.home / "orphan.log").read_text():
            time.sleep(0.05)
        orphans = flower.left()
        assert len(orphans) == 1
        assert orphans[0].is_running()
    assert not orphans[0].is_running() or orphans[0].status() == psutil.STATUS_ZOMBIE
    assert not flower.home.exists()


def test_processes_are_ended_when_the_block_is_left_by_an_error():
    flower = Flower()
    process = flower.spawn("sleep", "300", log="sleep.log")
    with pytest.raises(KeyboardInterrupt), flower:
        raise KeyboardInterrupt
    assert process.poll() is not None
    assert flower.left() == []


def test_only_its_own_processes_are_ended_even_where_two_share_a_home(tmp_path):
    with Processes(tmp_path / "home") as first:
        process = first.spawn("sleep", "300", log="sleep.log")
        with Processes(tmp_path / "home") as second:
            assert second.left() == []
        assert process.poll() is None
        assert [left.pid for left in first.left()] == [process.pid]
    assert process.poll() is not None
    assert (tmp_path / "home").exists(), "only a temporary home is removed"


def test_a_child_that_is_started_while_the_others_are_ended_is_ended_too():
    """It starts another when it is asked to end."""
    text = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: subprocess.Popen(["sleep", "300"]) and os._exit(0))
print("ready", flush=True)
time.sleep(300)
"""
    with Processes() as processes:
        processes.spawn(sys.executable, "-c", text, log="log")
        while "ready" not in (processes.home / "log").read_text():
            time.sleep(0.05)
    assert processes.left() == []


@pytest.mark.parametrize("how", ["spawn", "pipe", "ask"])
def test_nothing_is_started_after_the_end(how):
    """A thread that still follows a run asked Flower for its status, and so left a process behind."""
    with Processes() as processes:
        pass
    with pytest.raises(FlowerError, match=r"^sleep 300: expected to be started before the others are stopped"):
        getattr(processes, how)("sleep", "300", **({"log": "log"} if how == "spawn" else {}))
    assert processes.left() == []


def test_the_end_waits_for_a_process_that_another_thread_is_starting(monkeypatch):
    starting, go_on = threading.Event(), threading.Event()

    def slow(*arguments, popen=subprocess.Popen, **keys):
        starting.set()
        assert go_on.wait(30)
        return popen(*arguments, **keys)

    processes = Processes()
    monkeypatch.setattr(subprocess, "Popen", slow)
    starter = threading.Thread(target=processes.spawn, args=("sleep", "300"), kwargs={"log": "log"})
    starter.start()
    assert starting.wait(30)
    ender = threading.Thread(target=processes.stop)
    ender.start()
    ender.join(0.5)
    assert ender.is_alive(), "it ended although a process was being started"
    go_on.set()
    starter.join(30)
    ender.join(30)
    assert processes.left() == []


def test_sigterm_ends_what_was_started():
    text = """
import time
from sepal.engines.flower.processes import Processes
with Processes() as processes:
    print(processes.spawn("sleep", "300", log="log").pid, processes.home, flush=True)
    time.sleep(300)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=environment)
    child, home = parent.stdout.readline().split()
    parent.terminate()
    assert parent.wait(30) == 143
    assert not psutil.pid_exists(int(child))
    assert not Path(home).exists()


def test_new_processes_import_the_code_that_runs_here():
    with Processes() as processes:
        command = [sys.executable, "-P", "-c", "import sepal; print(sepal.__file__)"]
        result = subprocess.run(command, env=processes.environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == sepal.__file__


def test_a_superlink_that_does_not_start_is_named_with_its_last_words(monkeypatch):
    with Flower() as flower, socket.socket() as listener:
        listener.bind(("127.0.0.1", flower.ports.control))
        listener.listen()
        with pytest.raises(FlowerError, match="flower-superlink: expected an answer on port"):
            flower.start_simulation(timeout=8)


def test_an_app_that_cannot_be_submitted_is_named(tmp_path):
    with Flower() as flower, pytest.raises(FlowerError, match="flwr run: expected a run to be started"):
        flower.run_app(tmp_path / "nothing", {})


class Broken(Flower):
    """A SuperLink whose log stream breaks in mid-run, and whose status is asked three times."""

    started = "\U0001f38a Successfully started run 77"

    def output(self, command, timeout=0.0, tick=None, show=None):
        self.commands.append(command[:3])
        lines = [["round 1", "round 1", self.started], ["round 1", "round 2"], ["round 1", "round 2", "end"]]
        for line in lines[len(self.commands) - 1]:
            show(line)
        return lines[len(self.commands) - 1]

    def status(self, run_id, ending=3.0, timeout=30.0):
        return self.statuses.pop(0), ""


def test_a_run_whose_log_stream_breaks_is_followed_to_its_end(tmp_path):
    with Broken() as flower:
        flower.commands, flower.statuses, shown = [], ["running", "starting", "finished:completed"], []
        run = flower.run_app(tmp_path, {}, show=shown.append)
    assert (run.run_id, run.status) == ("77", "finished:completed")
    assert [command[:2] for command in flower.commands] == [["flwr", "run"], ["flwr", "log"], ["flwr", "log"]]
    assert shown == ["round 1", "round 1", Broken.started, "round 2", "end"]
    assert list(run.log) == shown


def test_a_run_that_goes_on_beyond_its_time_is_named(tmp_path):
    with Broken() as flower:
        flower.commands, flower.statuses = [], ["running"]
        with pytest.raises(FlowerError, match="flwr run: expected an end within 0 s, got running"):
            flower.run_app(tmp_path, {}, timeout=0.0, show=lambda line: None)


class SlowRay(Broken):
    """Runs of which the first ``slow`` end because Ray did not start, as its log says on a busy machine."""

    def output(self, command, timeout=0.0, tick=None, show=None):
        self.commands.append(command)
        is_slow = len(self.commands) <= self.slow
        return [self.started, f"Exception: {SLOW_RAY}. This could happen because" if is_slow else "round 1"]

    def status(self, run_id, ending=3.0, timeout=30.0):
        return ("finished:failed" if len(self.commands) <= self.slow else "finished:completed"), ""


@pytest.mark.parametrize(("slow", "starts", "complete"), [(0, 1, True), (2, 3, True), (9, RAY_STARTS, False)])
def test_a_simulation_whose_ray_did_not_start_in_time_is_started_again(tmp_path, slow, starts, complete):
    with SlowRay() as flower:
        flower.commands, flower.slow = [], slow
        run = flower.run_app(tmp_path, {}, "num-supernodes=2")
    assert (len(flower.commands), run.complete) == (starts, complete)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (["", "running", "finished:completed"], ("finished:completed", "")),
        (["", "running", "running", "running"], ("running", "")),
        ([""] * 40, ("unknown: no answer", "")),
        (["finished:failed"], ("finished:failed", "out: expected a directory that can be written, got /proc")),
    ],
    ids=["ends", "goes on", "is gone", "fails"],
)
def test_a_status_waits_a_little_for_the_end_and_longer_for_an_answer(monkeypatch, answers, status):
    clock = iter(range(100))  # two looks a second: one before the answer is asked for, one after it
    monkeypatch.setattr("sepal.engines.flower.engine.time", SimpleNamespace(monotonic=lambda: next(clock), sleep=id))

    def flwr_list(*command):
        text = answers.pop(0)
        details = f"{RAISED}out: expected a directory\nthat can be written, got /proc" if "failed" in text else "N/A"
        run = {"status": text, "status-details": details}
        return json.dumps({"runs": [run]}) if text else "", "no answer"

    assert Flower.status(SimpleNamespace(ask=flwr_list), "77", ending=2.5, timeout=30.0) == status


def test_a_run_that_failed_is_one_line_with_the_reason():
    AppRun("1", "finished:completed", ()).check()
    with pytest.raises(FlowerError, match=r"^run: expected finished:completed, got finished:failed: out: bad$"):
        AppRun("1", "finished:failed", (), "out: bad").check()
    with pytest.raises(FlowerError, match=r"^run: expected finished:completed, got finished:stopped$"):
        AppRun("1", "finished:stopped", ()).check()


def test_a_run_of_a_superlink_that_is_gone_is_not_waited_for(tmp_path):
    with Broken() as flower:
        flower.commands, flower.statuses = [], ["unknown: connection refused"]
        run = flower.run_app(tmp_path, {}, show=lambda line: None)
    assert (run.status, len(flower.commands)) == ("unknown: connection refused", 1)


def test_a_command_that_takes_too_long_is_named_and_ended():
    with Flower() as flower:
        with pytest.raises(FlowerError, match=r"sleep 300: expected an end within 0\.3 s"):
            flower.output(["sleep", "300"], 0.3)
        assert len(flower.left()) == 1
    assert flower.left() == []


def test_a_free_port_answers_nothing():
    assert not healthy(free_port())


def test_no_port_is_given_out_twice():
    """A SuperLink needs several. Of 500 ports drawn from Linux's 28,000 (half of them, in practice), some are equal."""
    assert len({free_port() for _ in range(500)}) == 500


def test_what_is_left_is_ended_however_long_the_search_for_it_takes(monkeypatch):
    ended = []
    left = [["a"], []]
    monkeypatch.setattr(psutil, "wait_procs", lambda running, timeout: None)
    end(lambda: left.pop(0), ended.append, timeout=-1.0)
    assert ended == ["a"]


def test_what_one_look_misses_is_ended(monkeypatch):
    """Ray writes a process's title over its environment: for a moment the mark is not there."""
    ended = []
    looks = iter([["a"], [], ["b"], [], [], []])
    monkeypatch.setattr(psutil, "wait_procs", lambda running, timeout: None)
    end(lambda: next(looks), ended.append)
    assert ended == ["a", "b"]


def test_loopback_never_goes_through_a_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "intranet")
    with Processes() as processes:
        assert processes.environment["no_proxy"] == "intranet,localhost,127.0.0.1,::1"
        assert processes.environment["NO_PROXY"].endswith("localhost,127.0.0.1,::1")


def test_what_no_server_can_listen_on_is_said_before_one_starts():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC's
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            assert unusable(host, port) == "Address already in use"
    assert unusable("127.0.0.1", port) == unusable("0.0.0.0", port) == ""
    assert unusable("203.0.113.7", port) == "Cannot assign requested address"
    assert unusable("no-such-host.invalid", port)


def test_a_port_is_looked_for_at_the_address_that_it_listens_on():
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert listening(port, "127.0.0.2")
        assert not listening(port)
    assert [dialled(host) for host in ("0.0.0.0", "::", "10.0.0.5", "[::1]")] == ["127.0.0.1", "::1", "10.0.0.5", "::1"]


def test_the_frame_around_an_error_of_flowers_is_not_the_error():
    lines = ["Loading", "╭─ Error ───╮", "│ Connection is unavailable. │", "╰───────────╯", ""]
    assert last_words(lines, "none") == "Connection is unavailable."
    assert last_words(lines[3:], "none") == last_words([], "none") == "none"
