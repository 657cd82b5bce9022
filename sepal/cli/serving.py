"""``sepal serve``: starts Flower's commands, which are printed, and runs a federation.

So they can also be started directly. ``--certs`` names a directory made by ``sepal certs``, for TLS and node keys (see
docs/deployment.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sepal.cli.app import app
from sepal.cli.notices import check_plain_text, set_log, show, starting, tell, tell_command, what_of
from sepal.cli.options import Log, Metrics, Name, Sets, Verbose
from sepal.errors import ConfigError

if TYPE_CHECKING:
    from sepal.strategies.assembly import Assembly

EVERYWHERE = ("0.0.0.0", "::", "[::]")
OWN_FILES = "--name NAME --data-dir ITS_FILES"


@app.command()
def serve(
    sets: Sets = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys.")] = None,
    name: Name = None,
    out: Annotated[str | None, typer.Option(help="Directory for run directories; by default runs.")] = None,
    host: Annotated[
        str, typer.Option(help="Address on which clients reach --port; 0.0.0.0 for other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for clients (gRPC).")] = 9092,
    control: Annotated[
        int, typer.Option(min=1, max=65535, help="Port for Flower's commands (HTTP), on this machine only.")
    ] = 9093,
    certs: Annotated[
        Path | None, typer.Option(help="Directory of `sepal certs`, for TLS and registered node keys.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Take plain text from other machines, too; never on a shared network.")
    ] = False,
    metrics: Metrics = "",
    log: Log = "",
    from_round: Annotated[
        int | None, typer.Option(min=0, help="Go back to the checkpoint of this round, and continue from there.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Start a server, run a federation with the clients that join, and show its progress."""
    set_log(log)
    with starting():
        from sepal.study.run_keys import gather_to_serve

        flat = gather_to_serve(config, sets or [], name, out, tell)
    with starting(what_of(flat), stays=True):
        from sepal.config.rules import check_real_time
        from sepal.engines.flower.commands import Ports
        from sepal.engines.flower.credentials import ServerCredentials
        from sepal.engines.flower.engine import Flower
        from sepal.engines.flower.lines import Lines
        from sepal.engines.flower.node_registry import NodeRegistry
        from sepal.engines.flower.processes import unusable
        from sepal.engines.flower.submission import MOST_AGAIN, alone, run_bundle, state_of
        from sepal.engines.flower.unpacking import clear
        from sepal.flower.versions import require_supported
        from sepal.operation.expiry import watched
        from sepal.storage.home import private_home
        from sepal.study.run import assembled

    require_supported()
    set_metrics(metrics)
    assembly = assembled(flat, Path.cwd())  # reports bad keys before any process is started
    check_real_time(assembly.setup.config)
    credentials = ServerCredentials.of(certs) if certs else None
    if port == control:
        raise ConfigError("--control", "another port than --port", control)
    servers = private_home() / "server"
    with watched(credentials.certificates if credentials else (), tell), ExitStack() as stack:
        stack.enter_context(alone(servers))
        state_directory = state_of(servers, str(flat.get("name", "")))
        flower = stack.enter_context(Flower(state_directory, directory=Path.cwd(), tell=tell_command))
        if orphans := flower.take_over(servers / "processes"):
            tell(f"sepal: ended {orphans} processes of a `sepal serve` that was killed")
        for key, address, number in (("--port", host, port), ("--control", "127.0.0.1", control)):
            if reason := unusable(address, number):
                raise ConfigError(key, "a port of this machine that is free", f"{address}:{number}: {reason}")
        if not credentials:
            check_plain_text(host, insecure)
        go_back(assembly, from_round)
        flower.ports = Ports(port, control)
        clear(state_directory)
        flower.start_superlink(host, credentials=credentials)
        registry = None
        if credentials:
            registry = NodeRegistry(credentials, flower.environment, state_directory / "nodes.json", tell)
            registry.sync()
        join_command = how_to_join("ADDRESS" if host in EVERYWHERE else host, port, flat)
        tell(f"clients join with: {join_command}{' --certs DIR' if credentials else ''}")
        lines = Lines(state_directory / "run.log", show, verbose)
        ended = run_bundle(flower, state_directory, flat, registry, tell, lines, MOST_AGAIN)
        ended.check(state_directory / "run.log")


def set_metrics(address: str) -> None:
    """Let the process of the ServerApp, which inherits the environment, serve figures; empty: none."""
    from sepal.operation.figures import METRICS, place_of

    if address:
        place_of(address, "--metrics")
        os.environ[METRICS] = address


def go_back(assembly: Assembly, round: int | None) -> None:
    """Take a run back to the checkpoint of ``round``, if there is one; clients still have what that names.

    Raises:
        ConfigError: The run has ``privacy.noise`` or secure sums, or was never started.
        StateError: It has no checkpoint of that round.
    """
    from sepal.runs.places import run_path
    from sepal.runs.run_directory import RunDirectory

    if round is not None:
        RunDirectory(run_path(assembly.setup.config, Path.cwd()), assembly, "flower", round).close()


def how_to_join(host: str, port: int, flat: Mapping[str, Any]) -> str:
    """Return the command of a client: with files or a function of its own, or with a part of a data set of all."""
    dataset = flat.get("dataset")
    parts = f"--partition K --of {flat['clients']}"
    by_dataset = {"own": "--name NAME --data MODULE:FUNCTION", "folder": OWN_FILES, "hf": OWN_FILES}
    return f"sepal join {host}:{port} {by_dataset.get(str(dataset), parts)}"
