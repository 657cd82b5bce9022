"""Runs as tasks of Ray, with a module that only pretends: what a task does, and when a run is submitted again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import pytest

from sepal.errors import ConfigError, StateError
from sepal.runs.claims import read_claims
from sepal.runs.stored_run import stored_summary
from sepal.study.clusters import ray_cluster
from sepal.study.clusters import tasks as task_module
from sepal.study.clusters.ray_cluster import RayTasks, connected, options_of
from sepal.study.clusters.ray_task import CORES, TASK
from sepal.study.clusters.records import (
    Submission,
    log_file,
    read_end,
    read_submission,
    submission_file,
    watched_jobs,
    write_submission,
)
from sepal.study.plans.resources import Resources
from sepal.user_modules import DEFINED
from tests.sepal.study.clusters.planned_runs import KEYS, Shown, is_the_end, planned


class PretendedRay:
    """Ray's functions that Sepal calls; tasks run in threads of this process."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2)
        self.failures: list[Exception] = []  # each for one task, which is lost then
        self.options_seen: list[dict[str, object]] = []
        self.environments: list[dict[str, str]] = []
        self.cancelled: list[bool] = []

    def remote(self, function):
        ray = self

        class Task:
            def options(self, **options):
                ray.options_seen.append(options)
                return self

            def remote(self, python, file, log, environment):
                ray.environments.append(environment)
                if ray.failures:
                    future = Future()
                    future.set_exception(ray.failures.pop(0))
                    return future
                return ray.pool.submit(function, python, file, log, environment)

        return Task()

    def wait(self, references, timeout):
        done, waiting = wait_for(references, timeout=timeout, return_when="FIRST_COMPLETED")
        return list(done), list(waiting)

    def get(self, reference):
        return reference.result()

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0, "memory": 2.0**30}}]

    def cancel(self, reference, force):
        self.cancelled.append(force)
        reference.cancel()

    def shutdown(self):
        self.pool.shutdown(wait=False)


@pytest.fixture
def ray(monkeypatch):
    pretended = PretendedRay()
    monkeypatch.setattr(ray_cluster, "connected", lambda: pretended)
    monkeypatch.setattr(task_module, "POLL", 0.05)
    monkeypatch.setattr(task_module, "GRACE", 0.0)
    return pretended


@pytest.fixture
def tasks(ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workers = RayTasks(tmp_path, {"": Resources(cores=1)}, False, 1, Shown())
    yield workers
    workers.close()


def test_a_task_makes_its_run_and_its_claim_says_which_task_it_was(ray, tasks, tmp_path):
    going = tasks.start(planned(), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going) == ""
    assert stored_summary(tmp_path / "r")
    number = read_submission(tmp_path, "r").job
    assert [claim.job for claim in read_claims(tmp_path / "r")] == [f"ray {number}, start 1"]
    end = read_end(tmp_path, "r")
    assert (end.job, end.code, end.cores) == (number, 0, 1)
    assert ray.environments[0][CORES] == "1"
    assert ray.options_seen[0]["max_retries"] == 0, "Ray runs nothing twice by itself"


def test_a_run_whose_task_is_lost_is_submitted_once_more_without_a_newer_checkpoint(ray, tasks, tmp_path):
    ray.failures = [RuntimeError("The node died")]
    going = tasks.start(planned(), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going) == ""
    assert len(ray.environments) == 2
    assert len({environment[TASK] for environment in ray.environments}) == 2
    ray.failures = [RuntimeError("The node died"), RuntimeError("The node\ndied again")]
    going = tasks.start(planned(name="s"), 1)
    assert is_the_end(tasks, going)
    assert tasks.trouble(going) == f"The node died again ({log_file(tmp_path, 's')})"
    assert read_submission(tmp_path, "s").state == "FAILED"


def test_an_error_of_the_run_itself_is_its_last_word_and_is_not_tried_again(ray, tasks):
    going = tasks.start(planned(**{"partition.subsample": -1}), 1)
    assert is_the_end(tasks, going)
    assert "partition.subsample" in tasks.trouble(going)
    assert len(ray.environments) == 1


def test_a_run_ends_with_the_task_that_started_it(tmp_path):
    """Ray kills a task's worker, whose end of the pipe closes then."""
    watched_jobs(tmp_path)
    keys = {**KEYS, "name": "endless", "rounds": 10000, "out": str(tmp_path)}
    write_submission(tmp_path, Submission("endless", keys, str(tmp_path), workers=1, job="12"))
    environment = {**os.environ, TASK: "ray 12", CORES: "1"}
    command = [sys.executable, "-m", "sepal.study.clusters.job", str(submission_file(tmp_path, "endless"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    metrics = tmp_path / "endless" / "metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None
            time.sleep(0.1)
        process.stdin.close()
        assert process.wait(30) == 1
    finally:
        process.kill()


def test_a_run_that_no_node_can_hold_is_said_to_wait(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(PretendedRay, "nodes", lambda self: [{"Alive": True, "Resources": {"CPU": 1.0}}])
    workers = RayTasks(tmp_path, {"": Resources(cores=4, memory="8G")}, False, 1, display := Shown())
    ray.failures = [RuntimeError("never placed")]
    workers.start(planned(), 1)
    workers.close()
    assert display.lines == ["r waits: no node of the cluster has CPU 4, memory 8.58993e+09"]


def test_the_tasks_that_are_left_end_with_the_command(ray, tmp_path):
    ray.failures = [RuntimeError("never placed")]
    workers = RayTasks(tmp_path, {}, False, 1, Shown())
    workers.start(planned(), 1)
    workers.close()
    assert ray.cancelled == [True]
    watched_jobs(tmp_path)[1].release()  # another command may watch


def test_two_commands_do_not_watch_the_same_runs(ray, tmp_path):
    _, lock = watched_jobs(tmp_path)
    with pytest.raises(StateError, match="no other `sepal compare`"):
        RayTasks(tmp_path, {}, False, 1, Shown())
    lock.release()


def test_a_function_of_this_session_is_refused(tasks):
    with pytest.raises(ConfigError, match="which a job can import"):
        tasks.start(planned(**{"own.data": f"{DEFINED}:data"}), 1)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "RAY_ADDRESS: expected HOST:PORT of a cluster"),
        ({"RAY_ADDRESS": "local"}, "RAY_ADDRESS: expected HOST:PORT of a cluster"),
        ({"RAY_ADDRESS": "127.0.0.1:9"}, "RAY_AUTH_MODE: expected token, without which"),
        ({"RAY_ADDRESS": "127.0.0.1:9", "RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE: expected token, without which"),
    ],
)
def test_without_an_address_or_a_token_nothing_is_asked(environment, words, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        connected()


def test_what_a_run_asks_for():
    assert options_of(Resources()) == {"num_cpus": 1}
    assert options_of(Resources(cores=4, gpus=2, memory="8G")) == {"num_cpus": 4, "num_gpus": 2, "memory": 2**33}
    assert options_of(Resources(gpus="a100:1")) == {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "A100"}
    with pytest.raises(ConfigError, match=r"\[resources\] time: expected cores, gpus and memory alone, with --on ray"):
        options_of(Resources(time="00:10:00"))
