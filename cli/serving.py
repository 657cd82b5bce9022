"""``sepal serve``, which starts Flower's commands and runs a federation, and ``sepal watch``, which follows a run.

The Flower commands are printed, so that they can also be started directly. ``--certs`` names a directory made by
``sepal certs``, for TLS and node keys (see docs/deployment.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout
from rich.console import Console

import sepal
from sepal import __version__
from sepal.cli.notices import tell, tell_command, warn_of_plain_text
from sepal.config import Flat
from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.credentials import ServerCredentials
from sepal.engines.flower.engine import AppRun, Flower, Ports
from sepal.engines.flower.processes import unusable
from sepal.engines.flower.registration import Registry
from sepal.engines.flower.unpacking import clear
from sepal.errors import ConfigError
from sepal.storage.files import private_directory
from sepal.storage.home import private_home

POLL = 0.2  # seconds between reads by watch
EVERYWHERE = ("0.0.0.0", "::", "[::]")


def serve(
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A run-config key.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys.")] = None,
    name: Annotated[str | None, typer.Option(help="Run name; the name of an unfinished run continues it.")] = None,
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
) -> None:
    """Start a server, run a federation with the clients that join, and show its progress."""
    from sepal.cli.arguments import gather_to_serve
    from sepal.strategies.assembly import assemble

    flat = gather_to_serve(config, sets or [], name, out)
    assemble(flat)  # reports bad keys before any process is started
    credentials = ServerCredentials.of(certs) if certs else None
    if port == control:
        raise ConfigError("--control", "another port than --port", control)
    for key, address, number in (("--port", host, port), ("--control", "127.0.0.1", control)):
        if reason := unusable(address, number):
            raise ConfigError(key, "a port of this machine that is free", f"{address}:{number}: {reason}")
    if not credentials:
        warn_of_plain_text()
    place = private_home() / "server"
    with alone(place), Flower(place, directory=Path.cwd(), tell=tell_command) as flower:
        flower.ports = Ports(port, control)
        clear(place)
        flower.start_superlink(host, credentials=credentials)
        registry = Registry(credentials, flower.environment, place / "nodes.json", tell) if credentials else None
        if registry:
            registry.sync()
        with_certs = " --certs DIR" if credentials else ""
        where = "ADDRESS" if host in EVERYWHERE else host
        tell(f"clients join with: sepal join {where}:{port} --partition K --of {flat['clients']}{with_certs}")
        ended = run_bundle(flower, place, flat, registry, math.inf)
    ended.check()


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Keep a second server out of ``place``: it would share the first one's database and connection.

    Raises:
        ConfigError: Another server is there.
    """
    private_directory(place)
    lock = FileLock(place / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigError("SEPAL_HOME", "a directory of its own for each server", str(place.parent)) from None
    try:
        yield
    finally:
        lock.release()


def run_bundle(flower: Flower, place: Path, flat: Flat, registry: Registry | None, timeout: float) -> AppRun:
    """Run the app without code, and return the ended run.

    Args:
        flower: Connected to a SuperLink.
        place: Directory for the app.
        flat: Flat run-config keys.
        registry: The nodes' keys, kept registered during the run; None if the SuperLink accepts any node.
        timeout: Seconds.
    """
    files = write_app(place / "app")
    tell(bundle_line(files))
    tick = registry.tick if registry else lambda: None
    return flower.run_app(place / "app", flat, timeout=timeout, tick=tick, show=typer.echo)


def bundle_line(files: list[Path]) -> str:
    """Return a line that says which files are bundled and where the code comes from."""
    names = ", ".join(f"{file.name} ({file.stat().st_size} bytes)" for file in files)
    code = f"Sepal {__version__}, here from {Path(sepal.__file__).parents[1]}"
    return f"app bundle: {names}, no code; server and clients run their installed {code}"


def watch(
    run: Annotated[str, typer.Argument(help="A run directory, or a run's name.")],
    follow: Annotated[bool, typer.Option(help="Wait for further rounds until the run has ended.")] = True,
    web: Annotated[bool, typer.Option("--web", help="As a page on this machine instead, until Ctrl-C.")] = False,
    web_port: Annotated[int, typer.Option(help="Of the page, on 127.0.0.1; 0: any that is free.")] = 8090,
) -> None:
    """Show the rounds of a running or finished run, one line per round, or a page in a browser."""
    if web:
        from sepal.cli.report.live import ReportServer

        with ReportServer([run], web_port) as server:
            typer.echo(server.url)
            server.serve_forever()
    from sepal.cli.display import RoundDisplay
    from sepal.cli.runs import find_run, naming, read_run

    path = find_run(run)
    seen = 0
    with naming(path), RoundDisplay(Console(), path.name) as display:
        display.start(0, int(read_run(path).config["rounds"]))
        while True:
            stored = read_run(path)
            for line in stored.lines[seen:]:
                display.show(line)
            seen = len(stored.lines)
            if stored.summary is not None or not follow:
                return
            time.sleep(POLL)
