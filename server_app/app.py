"""The Flower ServerApp: opens the run directory and starts the strategy."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sepal import user_modules
from sepal.errors import SepalError
from sepal.operation.figures import CERTIFICATES, METRICS, log_as_json, serve
from sepal.operation.repeats import told_once
from sepal.runs.places import default_base, run_path
from sepal.runs.run_directory import RunDirectory
from sepal.server.observer import Observer
from sepal.server.report import Report
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.strategy import SepalStrategy
from sepal.server_app.metrics import ServerFigures
from sepal.strategies.assembly import assemble
from sepal.tasks.scoring import headline, measure_of

user_modules.enable()

app = ServerApp()
log = logging.getLogger("sepal")


def log_to_stderr() -> None:
    """Show Sepal's log in Flower's log stream."""
    if not log_as_json() and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("sepal: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    log.setLevel(logging.INFO)


class OneLine(logging.Filter):
    """Drops the traceback of Sepal's errors from Flower's log, because their one line says it all."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record, and keep it."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, SepalError):
            record.msg, record.args, record.exc_info = "sepal: %s", (error,), None
        return True


class RoundLog:
    """Logs a line per round; a :class:`sepal.server.observer.Observer`."""

    def __init__(self) -> None:
        self._total = 0

    def opened(self, progress: RunState, total: int) -> None:
        """Log the number of clients and rounds."""
        self._total = total
        who = f"{len(progress.roster)} clients" if progress.roster else "clients to be drawn"
        done = progress.round
        log.info("%s, from %s", who, f"round {done + 1} of {total}" if done < total else "the closing evaluation")

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Log the round's accuracy or other headline, bytes and time."""
        measure = measure_of(line)
        views = [f"{view} {measure.text(found['mean'])}" for view, found in headline(line).items() if found]
        sent = f"MB up {line['bytes']['up'] / 1e6:.3g} down {line['bytes']['down'] / 1e6:.3g}"
        which = "closing evaluation" if line["phase"] == "closing" else f"round {record.round}/{self._total}"
        log.info("%s: %s, %s, %.1f s", which, " ".join(views) or "not evaluated", sent, record.seconds["total"])

    def closed(self, progress: RunState, report: Report) -> None:
        """Do nothing: the last round was logged."""


ONE_LINE = OneLine()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of the run config over ``grid``."""
    log_to_stderr()
    logging.getLogger("flwr").addFilter(ONE_LINE)
    assembly = assemble(context.run_config)
    directory = RunDirectory(run_path(assembly.task.config, default_base("flower")), assembly, "flower")
    if directory.completed:
        log.info("run %s is complete already: %s", directory.path.name, directory.path)
        return
    for note in assembly.notes:
        log.info("%s", note)
    observers: list[Observer] = [directory, RoundLog()]
    strategy = SepalStrategy(assembly.method, assembly.task, directory.store(), observers, agreed=assembly.agreed)
    if place := os.environ.get(METRICS):
        figures = ServerFigures(strategy.status, json.loads(os.environ.get(CERTIFICATES, "{}")))
        observers.append(figures)
        serve(place, figures, ready=lambda: strategy.status().waits_for)
    with told_once():
        strategy.start(grid)
    log.info("run written to %s", directory.path)
