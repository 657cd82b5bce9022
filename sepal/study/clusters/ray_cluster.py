"""Runs of a plan as tasks of a Ray cluster that is there (decision 0042).

Ray places a task and says when it is over; what a task needs and how it ended stands in the files of
:mod:`sepal.study.clusters.records`, as with Slurm, and a run continues from its directory after the loss of a node.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sepal.errors import ConfigError, SepalError, StateError, one_line
from sepal.runs.claims import newest_number, read_claim
from sepal.runs.stored_run import stored_summary
from sepal.study.clusters import ray_task
from sepal.study.clusters.records import (
    Submission,
    drop_end,
    keys_for_job,
    last_line,
    log_file,
    newest_checkpoint,
    note_look,
    read_end,
    submission_file,
    watched_jobs,
    write_submission,
)
from sepal.study.plans.execute import Display
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.resources import Resources

POLL = 2.0  # seconds between looks
GRACE = 90.0  # seconds until a task that has ended has failed, for files that come late to this machine
IDLE = 1  # tasks again without a newer checkpoint
UNITS = {"M": 2**20, "G": 2**30}


@dataclass
class RayTask:
    """A run that is going.

    Attributes:
        run: The run.
        submission: What was submitted, and what became of it.
        reference: Ray's reference of the task's result.
        lost: Why Ray has no exit code of the task; empty if it has one, or the task goes on.
        over: Since when the task has ended, by the monotonic clock; 0: it goes on.
        trouble: Why the run has failed; empty if it has not.
    """

    run: PlannedRun
    submission: Submission
    reference: Any = None
    lost: str = ""
    over: float = 0.0
    trouble: str = ""


class RayTasks:
    """A task for each run of a plan: workers of :func:`sepal.study.runner.run_needed`.

    Args:
        out: Directory of run directories, which all nodes see.
        resources: What runs ask for, by variant; under an empty name for all others.
        one_processor: Whether all runs must be on one kind of processor.
        workers: Worker processes of each run; 0: one for each core of its task.
        display: Shows the progress.

    Raises:
        ConfigError: No cluster is named, it takes calls without a token, or a run asks for what only Slurm has.
        StateError: Another process watches jobs of this directory.
    """

    def __init__(
        self,
        out: Path,
        resources: Mapping[str, Resources],
        one_processor: bool,
        workers: int,
        display: Display,
    ) -> None:
        self._out, self._one_processor, self._workers, self._display = out, one_processor, workers, display
        self._options = {variant: options_of(asked) for variant, asked in resources.items()}
        self._ray = connected()
        try:
            self._directory, self._lock = watched_jobs(out)
        except SepalError:
            self._ray.shutdown()
            raise
        self._task = self._ray.remote(ray_task.execute)
        self._going: list[RayTask] = []
        self._said = set[str]()

    def start(self, run: PlannedRun, at_a_time: int) -> RayTask:
        """Hand a run to Ray.

        Raises:
            ConfigError: A key names a function of this session.
        """
        keys = keys_for_job(run, self._out)
        going = RayTask(run, Submission(run.name, keys, str(Path.cwd()), self._workers, self._one_processor))
        self._submit(going)
        self._going.append(going)
        return going

    def _submit(self, going: RayTask) -> None:
        name, options = going.run.name, self._options.get(going.run.variant, self._options.get("", {"num_cpus": 1}))
        number = str(secrets.randbelow(10**12))
        going.submission = replace(
            going.submission,
            name=f"{name[:80]}.{number}",
            job=number,
            submitted=round(time.time(), 3),
            checkpoint=newest_checkpoint(self._out / name),
            state="PENDING",
            reason="",
            node="",
            seen=time.time(),
        )
        drop_end(self._out, name)
        write_submission(self._out, going.submission)
        self._say_if_too_large(going.run, options)
        passed = {key: value for key, value in os.environ.items() if key.startswith("SEPAL_")}
        passed |= {ray_task.NUMBER: number, ray_task.CORES: str(options["num_cpus"]), "NO_COLOR": "1"}
        file, log = submission_file(self._out, name), log_file(self._out, name)
        task = self._task.options(name=going.submission.name, max_retries=0, scheduling_strategy="SPREAD", **options)
        going.reference = task.remote(sys.executable, str(file), str(log), passed)
        going.over, going.lost = 0.0, ""

    def _say_if_too_large(self, run: PlannedRun, options: Mapping[str, Any]) -> None:
        """Say once if no node of now has what a run asks for: it waits, as a node may come."""
        wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), "memory": options.get("memory", 0)}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(key, 0) >= value for key, value in wanted.items()) for node in nodes):
            return
        if run.variant not in self._said:
            self._said.add(run.variant)
            words = ", ".join(f"{key} {value:g}" for key, value in wanted.items() if value)
            self._display.say(f"{run.name} waits: no node of the cluster has {words}")

    def ended(self, going: Iterable[RayTask]) -> list[RayTask]:
        """Wait for a moment, and return the tasks whose runs have ended or failed."""
        going = list(going)
        waiting = [task.reference for task in going if not task.over]
        if waiting:
            self._ray.wait(waiting, timeout=POLL)
        else:
            time.sleep(POLL)
        note_look(self._directory)
        over = [task for task in going if self._is_over(task)]
        for task in over:
            self._going.remove(task)
        self._display.look()
        return over

    def _is_over(self, going: RayTask) -> bool:
        """Return whether a run has ended or failed; submit it again if its task was cut short."""
        name = going.run.name
        if not going.over:
            self._see(going)
            if not self._ray.wait([going.reference], timeout=0)[0]:
                return False
            going.over = time.monotonic()
            try:
                self._ray.get(going.reference)
            except Exception as error:  # whatever Ray says of a task that it has lost, or that could not start
                going.lost = one_line(str(error).strip() or type(error).__name__, 300)
        if stored_summary(self._out / name) is not None:
            return True
        end, submission = None, going.submission
        with suppress(StateError):
            end = read_end(self._out, name)
        failure = end if end and end.is_failure_of(submission) else None
        if not failure and not going.lost and time.monotonic() - going.over < GRACE:
            return False
        printed = last_line(self._out, name)
        words = (
            failure.line
            if failure
            else going.lost or f"it ended without a result; it printed: {one_line(printed, 200)}"
        )
        idle = 0 if newest_checkpoint(self._out / name) > submission.checkpoint else submission.idle + 1
        if not failure and idle <= IDLE:
            self._display.say(f"{name}: its task has ended ({words}); it is submitted again")
            going.submission = replace(submission, idle=idle)
            self._submit(going)
            return False
        going.submission = replace(submission, state="FAILED", reason=words, seen=time.time())
        write_submission(self._out, going.submission)
        going.trouble = f"{words} ({log_file(self._out, name)})"
        return True

    def _see(self, going: RayTask) -> None:
        """Note where a task runs, once it has claimed its run."""
        submission, run = going.submission, self._out / going.run.name
        if submission.state == "RUNNING":
            return
        claim = None
        with suppress(SepalError, OSError):
            claim = read_claim(run, newest_number(run))
        if claim and claim.job.startswith(f"ray {submission.job},"):
            going.submission = replace(submission, state="RUNNING", node=claim.host, seen=time.time())
            write_submission(self._out, going.submission)
            self._display.begin(going.run)

    def trouble(self, going: RayTask) -> str:
        """Return why a run has failed; empty if it has not."""
        return going.trouble

    def close(self) -> None:
        """End what is still going: the runs' tasks end with this process."""
        for task in self._going:
            with suppress(Exception):  # it has ended meanwhile, or the cluster is gone
                self._ray.cancel(task.reference, force=True)
        self._ray.shutdown()
        self._lock.release()


def connected() -> Any:
    """Return the module ``ray``, connected to the cluster that ``RAY_ADDRESS`` names.

    Raises:
        ConfigError: No cluster is named or answers, or it is not one that demands a token.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        raise ConfigError("RAY_ADDRESS", "HOST:PORT of a cluster, with --on ray", address)
    if (mode := os.environ.get("RAY_AUTH_MODE", "")) != "token":
        expected = "token, without which whoever reaches the cluster runs code on it"
        raise ConfigError("RAY_AUTH_MODE", expected, mode)
    try:
        import ray
    except ImportError:
        raise ConfigError("--on", "ray only where it is installed: `pip install sepal-fl[simulation]`", "ray") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises several kinds
        raise ConfigError("RAY_ADDRESS", "a cluster that answers to this token", one_line(str(error), 300)) from None
    return ray


def options_of(asked: Resources) -> dict[str, Any]:
    """Return a task's options for what a run asks for.

    Raises:
        ConfigError: It asks for what Ray does not have.
    """
    for key, value in asked:
        if value and key not in ("cores", "gpus", "memory"):
            raise ConfigError(f"[resources] {key}", "cores, gpus and memory alone, with --on ray", value)
    options: dict[str, Any] = {"num_cpus": asked.cores or 1}
    if isinstance(asked.gpus, str):
        kind, _, count = asked.gpus.partition(":")
        options |= {"num_gpus": int(count), "accelerator_type": kind.upper()}
    elif asked.gpus:
        options["num_gpus"] = asked.gpus
    if asked.memory:
        options["memory"] = int(asked.memory[:-1]) * UNITS[asked.memory[-1]]
    return options
