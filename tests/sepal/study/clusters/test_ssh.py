"""Runs on hosts over SSH, with a command ``ssh`` that only pretends: hosts are names for this machine."""

from __future__ import annotations

import os
import sys

import pytest

from sepal import __version__
from sepal.errors import ConfigError, StateError
from sepal.runs.claims import read_claims
from sepal.runs.stored_run import stored_summary
from sepal.study.clusters import ssh as ssh_module
from sepal.study.clusters import tasks as task_module
from sepal.study.clusters.place import place_of
from sepal.study.clusters.records import log_file, read_end, read_submission, watched_jobs
from sepal.study.clusters.ssh import HOSTS, SshTasks, hosts
from sepal.study.plans.plan import read_plan
from sepal.study.plans.resources import Resources
from sepal.user_modules import DEFINED
from tests.sepal.study.clusters.planned_runs import Shown, is_the_end, planned

# Notes its host; a host with a file away-HOST cannot be reached, and one with lost-HOST is lost once.
PRETENDED = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
echo "$2" >> "{home}/hosts"
if [ -e "{home}/away-$2" ] || rm "{home}/lost-$2" 2>/dev/null; then
    echo "ssh: connect to host $2 port 22: No route to host" >&2
    exit 255
fi
[ -e "{home}/elsewhere-$2" ] && cd / && set -- "$1" "$2" "echo {version} something else"
exec sh -c "$3"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """The directory of what the pretended command has seen and obeys."""
    home = tmp_path / "ssh"
    home.mkdir()
    (home / "ssh").write_text(PRETENDED.format(home=home, version=__version__))
    (home / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(HOSTS, "one two*2")
    monkeypatch.setattr(task_module, "POLL", 0.05)
    monkeypatch.setattr(task_module, "GRACE", 0.0)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def tasks(ssh, out):
    out.mkdir()
    workers = SshTasks(out, {"": Resources(cores=1)}, False, 1, Shown())
    (ssh / "hosts").unlink()
    yield workers
    workers.close()


def used(ssh):
    return (ssh / "hosts").read_text().split()


def test_a_run_is_made_on_a_host_and_its_claim_says_by_which_task(ssh, tasks, out):
    going = tasks.start(planned(), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going) == ""
    assert stored_summary(out / "r")
    number = read_submission(out, "r").job
    assert [claim.job for claim in read_claims(out / "r")] == [f"ssh {number}, start 1"]
    end = read_end(out, "r")
    assert (end.job, end.code, end.cores) == (number, 0, 1)
    assert used(ssh) == ["two"], "the host with the most room"
    assert not list(out.glob("jobs/mark*"))


def test_runs_go_where_there_is_room_and_others_wait(ssh, tasks):
    """Three at a time: one on the host with one place, two on the other."""
    going = [tasks.start(planned(name=f"r{number}"), 3) for number in range(4)]
    assert [task.handle is None for task in going] == [False, False, False, True]
    assert sorted(tasks._hosts.values()) == ["one", "two", "two"]
    while going:
        over = tasks.ended(going)
        going = [task for task in going if task not in over]
    assert len(used(ssh)) == 4


def test_a_run_whose_host_is_lost_goes_on_at_another(ssh, tasks):
    (ssh / "lost-two").touch()
    going = tasks.start(planned(), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going) == ""
    assert used(ssh) == ["two", "one"]
    line = "r: its task has ended (no connection to two: ssh: connect to host two port 22: No route to host)"
    assert f"{line}; it is submitted again" in tasks._display.lines


def test_a_run_whose_hosts_are_lost_twice_without_progress_fails(ssh, tasks, out):
    (ssh / "away-two").touch()
    (ssh / "away-one").touch()
    going = tasks.start(planned(), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going).startswith("no connection to one: ssh: connect to host one")
    assert read_submission(out, "r").state == "FAILED"


def test_a_host_that_was_away_is_used_again(ssh, tasks, monkeypatch):
    monkeypatch.setattr(ssh_module, "AWAY", 0.3)
    (ssh / "lost-two").touch()
    (ssh / "away-one").touch()
    tasks._away["one"] = float("inf")
    going = tasks.start(planned(), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going) == ""
    assert used(ssh) == ["two", "two"]


def test_an_error_of_the_run_itself_is_its_last_word_and_is_not_tried_again(ssh, tasks):
    going = tasks.start(planned(**{"partition.subsample": -1}), 1)
    assert is_the_end(tasks, going)
    assert "partition.subsample" in tasks.trouble(going)
    assert len(used(ssh)) == 1


def test_the_runs_that_are_left_end_with_the_command(ssh, out):
    out.mkdir()
    workers = SshTasks(out, {}, False, 1, Shown())
    going = workers.start(planned(rounds=10_000), 1)
    while read_submission(out, "r").state != "RUNNING":
        workers.ended([going])
    workers.close()
    assert going.handle.returncode == 1, "the run itself has ended, as its standard input closed"
    watched_jobs(out)[1].release()  # another command may watch


def test_a_function_of_this_session_is_refused(tasks):
    with pytest.raises(ConfigError, match="which a job can import"):
        tasks.start(planned(**{"own.data": f"{DEFINED}:data"}), 1)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("away-two", r"SEPAL_HOSTS: two: expected a host that `ssh` reaches without a question, got ssh: connect"),
        ("elsewhere-two", r"SEPAL_HOSTS: two: expected Sepal .* and .*out as it is here, got .*something else"),
    ],
)
def test_a_host_that_does_not_answer_or_sees_something_else_is_named_before_any_run(file, words, ssh, out):
    out.mkdir()
    (ssh / file).touch()
    with pytest.raises(ConfigError, match=words):
        SshTasks(out, {}, False, 1, Shown())
    assert sorted(path.name for path in (out / "jobs").iterdir()) == [".lock"]
    watched_jobs(out)[1].release()


@pytest.mark.parametrize("text", ["", " ", "-oProxyCommand=x", "one -l", "one*0", "one*1000", "a;b", "one\n-x", "$x"])
def test_what_is_no_host_is_refused(text, monkeypatch):
    """ssh would take a word that begins with a dash for an option."""
    monkeypatch.setenv(HOSTS, text)
    with pytest.raises(ConfigError, match="SEPAL_HOSTS: expected hosts as ssh knows them"):
        hosts()


def test_hosts_and_their_runs_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setenv(HOSTS, "gpu1 me@gpu2*4  gpu1\n10.0.0.7")
    assert hosts() == {"gpu1": 2, "me@gpu2": 4, "10.0.0.7": 1}
    (tmp_path / "plan.toml").write_text('methods = ["local"]\nseeds = [0]\n')
    plan = read_plan(tmp_path / "plan.toml")
    assert place_of("ssh", 0, plan)[1] == 7
    assert place_of("ssh", 3, plan)[1] == 3
    assert place_of("ssh", 100, plan)[1] == 7


def test_what_only_a_scheduler_gives_is_refused(ssh, out):
    out.mkdir()
    with pytest.raises(ConfigError, match=r"\[resources\] memory: expected cores alone, with --on ssh"):
        SshTasks(out, {"": Resources(memory="8G")}, False, 1, Shown())


def test_without_openssh_and_beside_another_command_it_is_one_line(ssh, out, monkeypatch):
    out.mkdir()
    _, lock = watched_jobs(out)
    with pytest.raises(StateError, match="no other `sepal compare`"):
        SshTasks(out, {}, False, 1, Shown())
    lock.release()
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    with pytest.raises(ConfigError, match="no ssh on PATH"):
        SshTasks(out, {}, False, 1, Shown())


def test_a_log_that_cannot_be_written_is_one_line(tasks, out):
    (out / "jobs" / "r").mkdir()
    log_file(out, "r").mkdir()
    with pytest.raises(StateError, match=r"log\.txt: expected nothing, or a regular file"):
        tasks.start(planned(), 1)
