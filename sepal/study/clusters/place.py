"""Where a plan's runs are executed: on this machine, or by a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sepal.errors import ConfigError
from sepal.study.plans.execute import Display, Place, PlanWorkers
from sepal.study.plans.model import PlanFile

LOCAL, SLURM, RAY = "local", "slurm", "ray"
AT_A_TIME = 100  # jobs of a cluster, queued or running, if nothing else is said


def place_of(on: str, jobs: int, plan: PlanFile, file: str = "") -> tuple[Place | None, int]:
    """Return what makes the workers, None for processes on this machine, and the runs at a time.

    Args:
        on: ``local``, ``slurm`` or ``ray``.
        jobs: Runs at a time; 0: one for each core of this machine, or many jobs of a cluster.
        plan: The plan, which says what its runs ask for.
        file: The plan file's name, for messages.

    Raises:
        ConfigError: ``on`` is another place, or what runs ask for is wrong.
    """
    if on == LOCAL:
        return None, jobs
    if on not in (SLURM, RAY):
        raise ConfigError("--on", f"{LOCAL}, {SLURM} or {RAY}", on)
    asked = plan.asked(file)

    def workers_in(out: Path, workers: int, display: Display) -> PlanWorkers[Any]:
        if on == RAY:
            from sepal.study.clusters.ray_cluster import RayTasks

            return RayTasks(out, asked, plan.one_processor, workers, display)
        from sepal.study.clusters.slurm import SlurmJobs

        return SlurmJobs(out, asked, plan.one_processor, workers, display)

    return workers_in, jobs or AT_A_TIME
