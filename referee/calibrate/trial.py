"""One trial of the calibration, in a worker process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Mapping
from threading import Thread

from referee.calibrate.search import CLIP, Result, Trial
from referee.calibrate.settings import SETTINGS
from sepal.engines.in_process.run import run_in_process
from sepal.errors import SepalError
from sepal.server.accuracy import view_figures
from sepal.server.report import Report
from sepal.server.run_state import RoundRecord, RunState
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import former


def quiet() -> None:
    """Keep a worker process from logging each run, and end it with its parent, also if that is killed."""
    Thread(target=_end_with_parent, daemon=True).start()
    logging.getLogger("sepal").setLevel(logging.ERROR)


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def run_trial(trial: Trial) -> Result:
    """Run one trial. A run that ends with an error, because most of its clients diverge, has accuracy 0."""
    last: list[RoundRecord] = []

    class Last:
        """Keeps the closing round's record."""

        def opened(self, progress: RunState, total: int) -> None: ...

        def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, object]) -> None:
            last[:] = [record]

        def closed(self, progress: RunState, report: Report) -> None: ...

    begun = time.monotonic()
    setting = SETTINGS[trial.dataset].run_keys(trial.method)
    keys = dict(trial.keys)
    before = {} if CLIP in keys else former(trial.method)  # a search of before had the defaults of then
    flat = {**before, **setting, **keys, "dataset": trial.dataset, "method": trial.method}
    assembly = assemble({**flat, "seed": trial.seed})
    rounds = assembly.task.config.rounds
    try:
        strategy = run_in_process(assembly, observers=[Last()])
    except SepalError:
        return Result(0.0, rounds, time.monotonic() - begun, 1)
    metrics = [reply.metrics for reply in last[0].replies.values()]
    figures = view_figures(metrics, assembly.method.deployed, "validation-")
    validation = round(figures["mean"], 6) if figures else 0.0
    return Result(validation, rounds, time.monotonic() - begun, strategy.report.diverged)
