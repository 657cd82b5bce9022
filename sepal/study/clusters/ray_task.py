"""The task of Ray that executes one run: a process on the task's node, in the virtual environment of the study.

A worker of Ray imports this module by its name, so it imports nothing else of Sepal.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

TASK, CORES = "SEPAL_TASK", "SEPAL_TASK_CORES"  # its kind and number, as ``ray 12``; the cores that it has


def execute(python: str, file: str, log: str, environment: Mapping[str, str]) -> int:
    """Execute the run that ``file`` describes (:mod:`sepal.study.clusters.job`), and return the exit code.

    The run's process reads its standard input, which is a pipe from here: when Ray ends this task, or its node or the
    command dies, the pipe closes, and the run ends at once.

    Args:
        python: The interpreter; the same path on all nodes.
        file: ``OUT/jobs/NAME/submission.json``.
        log: The file that takes what the run prints.
        environment: Variables of the command's that the run has, too.

    Raises:
        OSError: The interpreter or the directory is not on this node.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [python, "-P", "-m", "sepal.study.clusters.job", file],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**inherited, **environment},
        )
        return process.wait()
