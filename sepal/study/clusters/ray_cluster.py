"""Runs of a plan as tasks of a Ray cluster that is there (decision 0042).

Ray places a task and says when it is over; the rest is in :mod:`sepal.study.clusters.tasks`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sepal.errors import ConfigError, SepalError, one_line
from sepal.study.clusters import ray_task, tasks
from sepal.study.clusters.records import log_file, submission_file
from sepal.study.clusters.tasks import RunTask, Tasks
from sepal.study.plans.execute import Display
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.resources import Resources

UNITS = {"M": 2**20, "G": 2**30}


class RayTasks(Tasks):
    """A task of Ray for each run of a plan.

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

    kind = "ray"

    def __init__(
        self,
        out: Path,
        resources: Mapping[str, Resources],
        one_processor: bool,
        workers: int,
        display: Display,
    ) -> None:
        self._options = {variant: options_of(asked) for variant, asked in resources.items()}
        self._ray = connected()
        try:
            super().__init__(out, one_processor, workers, display)
        except SepalError:
            self._ray.shutdown()
            raise
        self._task = self._ray.remote(ray_task.execute)
        self._said = set[str]()

    def _options_of(self, run: PlannedRun) -> dict[str, Any]:
        return self._options.get(run.variant) or self._options.get("") or {"num_cpus": 1}

    def _cores(self, run: PlannedRun) -> int:
        return int(self._options_of(run)["num_cpus"])

    def _launch(self, going: RunTask, environment: Mapping[str, str]) -> Any:
        name, options = going.run.name, self._options_of(going.run)
        self._say_if_too_large(going.run, options)
        file, log = submission_file(self._out, name), log_file(self._out, name)
        task = self._task.options(name=going.submission.name, max_retries=0, scheduling_strategy="SPREAD", **options)
        return task.remote(sys.executable, str(file), str(log), dict(environment))

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

    def _wait(self, going: list[RunTask]) -> None:
        self._ray.wait([task.handle for task in going], timeout=tasks.POLL)

    def _has_ended(self, going: RunTask) -> bool:
        if not self._ray.wait([going.handle], timeout=0)[0]:
            return False
        try:
            self._ray.get(going.handle)
        except Exception as error:  # whatever Ray says of a task that it has lost, or that could not start
            going.lost = one_line(str(error).strip() or type(error).__name__, 300)
        return True

    def _cancel(self, going: RunTask) -> None:
        with suppress(Exception):  # it has ended meanwhile, or the cluster is gone
            self._ray.cancel(going.handle, force=True)

    def close(self) -> None:
        """End what is still going, and leave the cluster."""
        super().close()
        self._ray.shutdown()


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
