"""The Flower ServerApp: opens the run directory and starts the strategy."""

from __future__ import annotations

import json
import logging
import os

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sepal import user_modules
from sepal.config.rules import check_deployed, check_real_time
from sepal.errors import SepalError
from sepal.flower.simulation import check_shared_states, starts_ray, wait_for_ray
from sepal.operation.figures import CERTIFICATES, METRICS, log_as_json, serve
from sepal.operation.repeats import told_once
from sepal.runs.places import default_base, run_path
from sepal.runs.run_directory import RunDirectory
from sepal.server.observer import Observer, RoundLines
from sepal.server.strategy import SepalStrategy
from sepal.server_app.metrics import ServerFigures
from sepal.strategies.assembly import assemble

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


class OneLineFilter(logging.Filter):
    """Drops the traceback of Sepal's errors from Flower's log, because their one line says it all."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record, and keep it."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, SepalError):
            record.msg, record.args, record.exc_info = "sepal: %s", (error,), None
        return True


ONE_LINE = OneLineFilter()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of the run config over ``grid``."""
    log_to_stderr()
    logging.getLogger("flwr").addFilter(ONE_LINE)
    assembly = assemble(context.run_config)
    if starts_ray():
        check_deployed(assembly.setup.config)
        wait_for_ray()  # before the run asks whether its noise follows from the seed, and whether it holds the labels
        check_shared_states(assembly.setup.config.state_dir)
    else:
        check_real_time(assembly.setup.config)
    directory = RunDirectory(run_path(assembly.setup.config, default_base("flower")), assembly, "flower")
    if directory.completed:
        log.info("run %s is complete already: %s", directory.path.name, directory.path)
        return
    for note in assembly.notes:
        log.info("%s", note)
    observers: list[Observer] = [directory, RoundLines(log)]
    strategy = SepalStrategy(
        assembly.method,
        assembly.setup,
        directory.store(),
        observers,
        agreed=assembly.agreed,
        secret=directory.secret(),
    )
    if address := os.environ.get(METRICS):
        figures = ServerFigures(strategy.status, json.loads(os.environ.get(CERTIFICATES, "{}")))
        observers.append(figures)
        serve(address, figures, ready=lambda: strategy.status().waits_for)
    with told_once():
        strategy.start(grid)
    log.info("run written to %s", directory.path)
