"""``sepal run`` and ``sepal evict``: a federation on this machine, in process."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sepal.cli import completing
from sepal.cli.app import INTERRUPTED, app
from sepal.cli.notices import starting, tell, what_of
from sepal.cli.options import Name, Run, Trackers
from sepal.report.printing import say

if TYPE_CHECKING:
    from sepal.config import Flat


@app.command()
def run(
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys, flat or in tables.")] = None,
    method: Annotated[
        str | None, typer.Option(help="The key method; see `sepal methods`.", autocompletion=completing.methods)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The key dataset; see `sepal data`.", autocompletion=completing.data_sets)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="The key rounds.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any run-config key; wins over the file. See `sepal keys`.",
            autocompletion=completing.keys,
        ),
    ] = None,
    name: Name = None,
    out: Annotated[str | None, typer.Option(help="Directory under which the run's directory is written.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: the engine's default.")] = 0,
    from_round: Annotated[
        int | None, typer.Option(min=0, help="Go back to the checkpoint of this round, and continue from there.")
    ] = None,
    mlflow: Annotated[str, typer.Option(metavar="URI", help="Log the run to MLflow: a server or directory.")] = "",
    tracker: Trackers = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Also say why clients do not train at once, or not by captured steps."),
    ] = False,
) -> None:
    """Run a federation on this machine, in process, with the same keys as Flower's run config."""
    with starting():
        from sepal.runs.places import IN_PROCESS, default_base
        from sepal.study.run_keys import gather

    from sepal.cli.trackers import log_runs, trackers_of

    trackers = trackers_of(tracker or (), mlflow)
    base = default_base(IN_PROCESS)
    shorthands = {"name": name, "out": out, "method": method, "dataset": dataset, "rounds": rounds}
    flat = gather(config, sets or [], shorthands, base)
    if verbose:
        logging.getLogger("sepal").setLevel(logging.DEBUG)
    path = run_flat(flat, base, workers, from_round)
    from sepal.report.console import console
    from sepal.report.tables import print_run
    from sepal.runs.stored_run import read_run

    print_run(console(), read_run(path))
    for line in log_runs(trackers, "sepal", [path]):
        say(line)


def run_flat(flat: Flat, base: Path, workers: int = 0, from_round: int | None = None) -> Path:
    """Run a federation (:mod:`sepal.study.run`) and show its progress; return the run's directory."""
    with starting(what_of(flat)):
        if workers != 1 and len(os.sched_getaffinity(0)) > 1:
            from sepal.engines import processes

            processes.prepare()  # it imports while this process does
        from sepal.config import RunConfig
        from sepal.report.console import console
        from sepal.report.progress import RoundDisplay
        from sepal.runs.privacy import check_accountant
        from sepal.study.run import execute, prepare

        logging.basicConfig(level=logging.WARNING, format="sepal: %(message)s", stream=sys.stderr)
        prepared = prepare(flat, base, workers)
        config, notes = prepared.assembly.setup.config, prepared.assembly.notes
        if config.privacy.of_rounds:
            from sepal.server.accounting import before_the_run

            check_accountant(config)
            notes += (before_the_run(config),)
    settings, path = prepared.settings, prepared.path
    with RoundDisplay(console(stderr=True), f"{settings.method} on {settings.dataset}", notes) as display:
        try:
            if not execute(prepared, workers, from_round, [display]):
                tell(f"sepal: run {path.name} is complete already")
        except KeyboardInterrupt:
            display.stop()
            where = (
                "" if settings.out == RunConfig.model_fields["out"].default else f" --out {shlex.quote(settings.out)}"
            )
            then = 1 + max((int(file.stem[6:]) for file in path.glob("checkpoints/round-*.safetensors")), default=0)
            again = f"`sepal run --name {path.name}{where}` continues it with round {then}"
            tell(f"sepal: interrupted; {again}, the first after its last checkpoint")
            raise typer.Exit(INTERRUPTED) from None
    return path


@app.command()
def evict(
    run: Run,
    client: Annotated[str, typer.Argument(help="The client's name.")],
) -> None:
    """Remove a client from a run, for example one that has left for good or an unknown one."""
    from sepal.server.run_store import evict as evict_client
    from sepal.study.runs import find_run

    path = find_run(run)
    odd = evict_client(path / "checkpoints", client)
    say(f"{client} takes no further part in {path.name}{f'; {odd}' * bool(odd)}")
