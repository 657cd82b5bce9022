"""Runs of a plan, one or several at a time, each a process of its own (:mod:`sepal_cli.plans.child`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from sepal.data.own import OWN
from sepal.data.sources import check
from sepal.storage.files import private_directory
from sepal_cli.paper.figures import has_ended
from sepal_cli.plans.display import PlanDisplay
from sepal_cli.plans.model import PlannedRun

POLL = 0.1  # seconds between looks at the processes


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def execute(
    runs: Sequence[PlannedRun], out: Path, display: PlanDisplay, *, jobs: int = 0, workers: int = 0, hours: float
) -> list[str]:
    """Run what has not ended yet, and return the names of runs that failed, in their order.

    A run's result does not depend on how many run beside it or on how many workers it has.

    Args:
        runs: In order.
        out: Directory of run directories; runs that are complete there are left alone, others continued.
        display: Is told of everything.
        jobs: Runs at a time; 0: one a core, as long as so many are left.
        workers: Worker processes of each; 0: the cores divided among the runs at a time.
        hours: No run is begun after so long.

    Raises:
        ConfigError: A run of that name lies in ``out`` that was started with other keys.
        DataError: A run that has not ended names a data set that is unknown, or whose files are missing.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # no run is left behind by a kill
    begun, failed = time.monotonic(), set[str]()
    left = [run for run in runs if not has_ended(run, out)]
    if hours > 0:
        _check_data(left)
    private_directory(out)  # tables and reports lie beside the runs
    jobs = max(1, min(jobs or cores(), len(left)))
    with tempfile.TemporaryDirectory() as scratch, display:
        display.start(len(runs), len(left), out)
        going: dict[str, subprocess.Popen[str]] = {}
        try:
            while left or going:
                late = time.monotonic() - begun > hours * 3600
                while left and len(going) < jobs and not late:
                    run = left.pop(0)
                    share = workers or max(1, cores() // min(jobs, len(left) + len(going) + 1))
                    going[run.name] = _start(run, out, Path(scratch), share)
                    display.begin(run)
                for name in [name for name, process in going.items() if process.poll() is not None]:
                    process = going.pop(name)
                    failed |= {name} if process.returncode else set()
                    display.end(name, _last_line(Path(scratch) / name) if process.returncode else "")
                if late and not going:
                    break
                display.look()
                time.sleep(POLL)
        finally:
            for process in going.values():
                process.send_signal(signal.SIGINT)
            for process in going.values():
                process.wait()
            signal.signal(signal.SIGTERM, before)
    return [run.name for run in runs if run.name in failed]


def _check_data(runs: Sequence[PlannedRun]) -> None:
    """Refuse data that is missing once, before any run, not in each of them; also download it once."""
    for name, given in dict.fromkeys((str(r.keys.get("dataset", "")), str(r.keys.get("data-dir", ""))) for r in runs):
        if name and name != OWN:
            check(name, given)


def _start(run: PlannedRun, out: Path, scratch: Path, workers: int) -> subprocess.Popen[str]:
    config = scratch / f"{run.name}.toml"
    config.write_text(tomli_w.dumps(dict(run.keys)))
    with (scratch / run.name).open("w") as log:
        command = [sys.executable, "-m", "sepal_cli.plans.child", str(config), str(out), str(workers)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end tells the run that we are gone
            stdout=log,
            stderr=log,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
            start_new_session=True,  # a Ctrl-C reaches it once, through us
        )


def _last_line(log: Path) -> str:
    return ([line for line in log.read_text().splitlines() if line.strip()] or ["nothing was printed"])[-1]
