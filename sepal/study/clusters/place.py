"""Where a plan's runs are executed: on this machine, or by a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sepal.errors import ConfigError
from sepal.study.plans.execute import Display, Place, PlanWorkers
from sepal.study.plans.model import PlanFile

LOCAL, SLURM, RAY, SSH = "local", "slurm", "ray", "ssh"
AT_A_TIME = 100  # jobs of a cluster, queued or running, if nothing else is said


def place_of(on: str, jobs: int, plan: PlanFile, file: str = "") -> tuple[Place | None, int]:
    """Return what makes the workers, None for processes on this machine, and the runs at a time.

    Args:
        on: ``local``, ``slurm``, ``ray`` or ``ssh``.
        jobs: Runs at a time; 0: one for each core of this machine, many jobs of a cluster, or what hosts have room for.
        plan: The plan, which says what its runs ask for.
        file: The plan file's name, for messages.

    Raises:
        ConfigError: ``on`` is another place, or what runs ask for is wrong.
    """
    if on == LOCAL:
        return None, jobs
    if on not in (SLURM, RAY, SSH):
        raise ConfigError("--on", f"{LOCAL}, {SLURM}, {RAY} or {SSH}", on)
    asked = plan.asked(file)

    def workers_in(out: Path, workers: int, display: Display) -> PlanWorkers[Any]:
        if on == RAY:
            from sepal.study.clusters.ray_cluster import RayTasks

            return RayTasks(out, asked, plan.one_processor, workers, display)
        if on == SSH:
            from sepal.study.clusters.ssh import SshTasks

            return SshTasks(out, asked, plan.one_processor, workers, display)
        from sepal.study.clusters.slurm import SlurmJobs

        return SlurmJobs(out, asked, plan.one_processor, workers, display)

    if on == SSH:
        from sepal.study.clusters.ssh import hosts

        room = sum(hosts().values())
        return workers_in, min(jobs or room, room)
    return workers_in, jobs or AT_A_TIME
