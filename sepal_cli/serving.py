"""``sepal serve`` and ``sepal join``, which start Flower's commands, and ``sepal watch``, which follows a run.

The Flower commands are printed, so that they can also be started directly. ``--certs`` names a directory made by
``sepal certs``, for TLS and node keys (see docs/deployment.md).
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout
from rich.console import Console

import sepal
from sepal import __version__, user_modules
from sepal.config import Flat
from sepal.errors import ConfigError, one_line
from sepal.protocol.method import Scalar
from sepal.storage.files import private_directory
from sepal.storage.home import private_home
from sepal_engines.flower.bundle import write_app
from sepal_engines.flower.credentials import NodeCredentials, ServerCredentials
from sepal_engines.flower.engine import AppRun, Flower, Ports
from sepal_engines.flower.probe import examine, split
from sepal_engines.flower.processes import FlowerError, unusable
from sepal_engines.flower.registration import Registry

POLL = 0.2  # seconds between reads by watch
LAPSE, AGAIN = 90.0, 5.0  # seconds for which a refused node is retried, and between two attempts
EVERYWHERE = ("0.0.0.0", "::", "[::]")
REGISTERED = 15.0  # seconds that a server that has just started may take to register its nodes


def tell(line: str) -> None:
    """Print a line on standard error."""
    typer.echo(line, err=True)


def tell_command(line: str) -> None:
    """Print a command line that is about to be run."""
    tell(f"+ {line}")


def warn_of_plain_text() -> None:
    """Warn of what is unprotected without certificates."""
    tell(
        "sepal: warning: without --certs nothing is encrypted, and anybody who reaches the server can join under any "
        "name, read models and updates, and change them"
    )


def serve(
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A run-config key.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys.")] = None,
    name: Annotated[str | None, typer.Option(help="Run name; the name of an unfinished run continues it.")] = None,
    out: Annotated[str, typer.Option(help="Directory for run directories.")] = "runs",
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
    from sepal_cli.arguments import gather
    from strategies.assembly import assemble

    flat = {"clients": 2, **gather(config, sets or [], {"name": name, "out": str(Path(out).absolute())}, Path.cwd())}
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
        flower.start_superlink(host, credentials=credentials)
        registry = Registry(credentials, flower.environment, place / "nodes.json", tell) if credentials else None
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
    """Register the nodes' keys, run the app without code, and return the ended run.

    Args:
        flower: Connected to a SuperLink.
        place: Directory for the app.
        flat: Flat run-config keys.
        registry: Keys of the nodes, kept up to date during the run; None if the SuperLink accepts any node.
        timeout: Seconds.
    """
    if registry:
        registry.sync()
    files = write_app(place / "app")
    tell(bundle_line(files))
    tick = registry.tick if registry else lambda: None
    return flower.run_app(place / "app", flat, timeout=timeout, tick=tick, show=typer.echo)


def bundle_line(files: list[Path]) -> str:
    """Return a line that says which files are bundled and where the code comes from."""
    names = ", ".join(f"{file.name} ({file.stat().st_size} bytes)" for file in files)
    code = f"Sepal {__version__}, here from {Path(sepal.__file__).parents[1]}"
    return f"app bundle: {names}, no code; server and clients run their installed {code}"


def join(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    partition: Annotated[int, typer.Option(min=0, help="Number of this client's part of a shared data set.")] = 0,
    of: Annotated[int, typer.Option(min=1, help="Number of parts.")] = 1,
    name: Annotated[str, typer.Option(help="Client name; by default from its partition.")] = "",
    data: Annotated[str, typer.Option(help="package.module:function that returns this client's own data.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; by default the run's.")] = "",
    capacity: Annotated[
        str, typer.Option(help="Fraction of the full model that this client can hold; 0: drawn by the run's profile.")
    ] = "0",
    state_dir: Annotated[str, typer.Option(help="Directory for this client's states; by default ~/.sepal/state.")] = "",
    certs: Annotated[
        Path | None, typer.Option(help="Directory with this client's key and the CA's certificate.")
    ] = None,
    claim: Annotated[
        bool,
        typer.Option("--claim", help="Claim a free key in --certs; it determines name, partition and capacity."),
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Start a new process for every message, as Flower does.")
    ] = False,
    look: Annotated[
        float,
        typer.Option(
            min=1, max=30, help="Longest pause between two looks for a message, in seconds; see docs/scaling.md."
        ),
    ] = 3.0,
    data_dir: Annotated[str, typer.Option(help="Where shared data sets lie; by default SEPAL_DATA.")] = "",
    initial_weights: Annotated[str, typer.Option(help="This client's copy of the file to start from.")] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Code (package.module:function) or a path that the run's configuration may name."),
    ] = None,
    least_noise: Annotated[
        float, typer.Option(min=0, help="Send no upload with less noise than this; see privacy.noise.")
    ] = 0.0,
    most_uploads: Annotated[
        int, typer.Option(min=0, help="Send at most so many uploads, over all runs; 0: any number.")
    ] = 0,
    no_accuracies: Annotated[
        bool, typer.Option("--no-accuracies", help="Evaluate no model and send no accuracies, only what is trained.")
    ] = False,
) -> None:
    """Join a server as a client, until Ctrl-C is pressed."""
    from client_app.build import Node
    from sepal_cli.slots import claimed

    paths = {"state-dir": state_dir, "data-dir": data_dir, "initial-weights": initial_weights}
    texts = {key: str(Path(path).expanduser().absolute()) if path else "" for key, path in paths.items()}
    texts |= {"name": name, "data": data, "device": device, "allow": ",".join(allow or [])}
    capacities = shares(capacity)
    if claim and (name or partition):
        raise ConfigError("--claim", "no --name or --partition beside it: the key determines both", name or partition)
    if data:
        check_importable(data)
    with claimed(certs, private_home() / "slots", tell=tell) if claim else nullcontext() as slot:
        if slot:
            partition, of, texts["name"] = slot.number, slot.count, slot.name
            tell(f"slot {slot.number} of {slot.count}: {slot.name}")
        share = capacities[partition % len(capacities)]
        node_config: dict[str, Scalar] = {"partition-id": partition, "num-partitions": of}
        node_config |= {"capacity": share} if share else {}
        node_config |= {"least-noise": least_noise} if least_noise else {}
        node_config |= {"most-uploads": most_uploads} if most_uploads else {}
        node_config |= {"no-accuracies": True} if no_accuracies else {}
        node_config |= {key: value for key, value in texts.items() if value}
        client = Node.of(node_config).client
        split(address)
        credentials = NodeCredentials.of(certs, client) if certs else None
        if not credentials:
            warn_of_plain_text()
        stay(client, node_config, address, credentials, cold, look)


def check_importable(target: str) -> None:
    """Import ``package.module:function`` in a separate process that ends, so that a waiting client stays small.

    Raises:
        ConfigError: It cannot be imported.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_import, target).result()


def _import(target: str) -> None:
    user_modules.enable()
    try:
        user_modules.load("--data", target, ConfigError)
    except ConfigError:
        raise
    except Exception as reason:  # the user's module may raise anything
        got = f"{target} ({type(reason).__name__}: {one_line(str(reason), 200)})"
        raise ConfigError("--data", "package.module:function that can be imported", got) from None


def shares(text: str) -> list[float]:
    """Return the capacities in ``text``: one for all partitions, or several that they take in turn.

    Raises:
        ConfigError: A part of ``text`` is not a number.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError("--capacity", "a number, or several for partitions 0, 1, … such as 1,0.5", text) from None


def stay(
    client: str,
    node_config: dict[str, Scalar],
    address: str,
    credentials: NodeCredentials | None,
    cold: bool,
    look: float,
) -> None:
    """Keep a SuperNode running.

    Flower refuses a key whose node it believes to be online, as a second copy; a killed node counts as online for about
    48 seconds. So a registered key that is refused is retried for a while. A SuperNode whose call is not authenticated
    ends with exit code 0: after a jump of a clock, after the server's database was replaced, or when its key was
    removed. It is started again.

    Raises:
        ConfigError: As in :func:`wait_until_welcome`.
        FlowerError: The SuperNode still ends with an error.
    """
    deadline, pause, rejoining = time.monotonic() + LAPSE, AGAIN, False
    with Flower(private_home() / "clients" / client, directory=Path.cwd(), tell=tell_command) as flower:
        while True:
            wait_until_welcome(address, credentials, LAPSE if rejoining else REGISTERED, rejoining)
            began = time.monotonic()
            node = flower.start_node(client, node_config, address, False, credentials, cold, look)
            code = node.wait()
            if not code or time.monotonic() - began > LAPSE:  # it had joined, so this is a new failure
                deadline = time.monotonic() + LAPSE
            if not code:
                pause = min(60.0, 2 * pause) if time.monotonic() - began < LAPSE else AGAIN
                tell(f"sepal: the SuperNode ended, as it does if a call is not authenticated: again in {pause:g} s")
                time.sleep(pause)
                rejoining = True
                continue
            if credentials is None or time.monotonic() > deadline:
                raise FlowerError("flower-supernode", "exit code 0", code)
            tell("sepal: refused; an earlier session of this key may count as online still: trying again")
            time.sleep(AGAIN)


def wait_until_welcome(
    address: str, credentials: NodeCredentials | None, patience: float = REGISTERED, rejoining: bool = False
) -> None:
    """Wait indefinitely for the server, and up to ``patience`` seconds for it to register this client's key.

    Flower's SuperNode would try forever to talk plain text to a server with TLS; here this is a one-line error. A
    client that has been welcome before also waits for a server that answers wrongly, as one that just starts may.

    Raises:
        ConfigError: The server speaks another protocol, has another certificate, or does not know the key.
    """
    begin, told = time.monotonic(), False
    while True:
        finding = next((finding for finding in examine(address, credentials) if not finding.good), None)
        if finding is None:
            return
        if finding.what == "port" and not told:
            tell(f"sepal: {finding.words}; waiting for it")
            told = True
        if finding.what == "port":
            begin = time.monotonic()
        elif not (rejoining or finding.what == "key") or time.monotonic() - begin > patience:
            raise ConfigError(f"{address}: {finding.what}", "one with which a client can join", finding.words)
        time.sleep(1)


def watch(
    run: Annotated[str, typer.Argument(help="A run directory, or a run's name.")],
    follow: Annotated[bool, typer.Option(help="Wait for further rounds until the run has ended.")] = True,
    web: Annotated[bool, typer.Option("--web", help="As a page on this machine instead, until Ctrl-C.")] = False,
    web_port: Annotated[int, typer.Option(help="Of the page, on 127.0.0.1; 0: any that is free.")] = 8090,
) -> None:
    """Show the rounds of a running or finished run, one line per round, or a page in a browser."""
    if web:
        from sepal_cli.report.live import ReportServer

        with ReportServer([run], web_port) as server:
            typer.echo(server.url)
            server.serve_forever()
    from sepal_cli.display import RoundDisplay
    from sepal_cli.runs import find_run, naming, read_run

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
