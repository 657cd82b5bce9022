"""The Flower ServerApp: opens the run directory, starts the strategy, and leaves the summary."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sepal.strategy import SepalStrategy
from server_app.run_directory import RunDirectory, default_base, run_path
from strategies.assembly import assemble

app = ServerApp()
log = logging.getLogger("sepal")


def speak() -> None:
    """Let Sepal's lines be seen in Flower's log stream, once."""
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("sepal: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says over ``grid``."""
    speak()
    assembly = assemble(context.run_config)
    directory = RunDirectory(run_path(assembly.task.config, default_base("flower")), assembly, "flower")
    if directory.completed:
        log.info("run %s is complete already: %s", directory.path.name, directory.path)
        return
    strategy = SepalStrategy(assembly.method, assembly.task, directory.store(), [directory])
    strategy.start(grid)
    log.info("run written to %s", directory.path)
