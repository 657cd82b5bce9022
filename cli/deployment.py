"""``sepal certs``, ``sepal deploy check``, ``sepal submit``: what a deployment needs around a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from sepal import __version__
from sepal.cli.app import app
from sepal.cli.notices import starting, tell, tell_command, warn_of_plain_text
from sepal.errors import ConfigError

deploy = typer.Typer(help="Check a deployment.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(deploy, name="deploy")
HEALTHY = 60.0  # seconds to wait for a SuperLink that is starting


@app.command()
def certs(
    directory: Annotated[Path, typer.Argument(help="Where files are written; existing ones are kept.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address at which clients reach the server.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Make keys for the clients of this many partitions.")] = 0,
    node: Annotated[list[str] | None, typer.Option("--node", help="Make a key for a client of this name.")] = None,
    days: Annotated[int, typer.Option(min=1, help="Days for which a new server certificate is valid.")] = 365,
) -> None:
    """Make a private CA, a server certificate and node keys.

    Run it again to add hosts and nodes, or to renew the certificate.
    """
    from sepal.client_app.build import client_name
    from sepal.engines.flower.certificates import RENEW_DAYS, make_certificates

    names = [*map(client_name, range(nodes)), *(node or [])]
    made = make_certificates(directory, host or [], names, days)
    place = directory.absolute()
    typer.echo(f"{place}/ca: {'made' if made.ca else 'kept'}; stays here: who has ca.key can pose as the server")
    kept = f"kept, valid for more than {RENEW_DAYS} days"
    typer.echo(f"{place}/server: {'made' if made.server else kept}; goes to the server: sepal serve --certs server")
    for name in dict.fromkeys(names):
        what = "made" if name in made.nodes else "kept"
        typer.echo(
            f"{place}/nodes/{name}: {what}; goes to that client: sepal join ADDRESS --certs {name} --name {name}"
        )


@deploy.callback()
def _deploy() -> None:
    """Check a deployment."""


@deploy.command()
def check(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server, as for `sepal join`.")],
    certs: Annotated[Path | None, typer.Option(help="The client's directory of certificates and key.")] = None,
    name: Annotated[str, typer.Option(help="The client's name, where --certs holds several clients' keys.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each check.")] = 5.0,
) -> None:
    """Say what keeps a client on this machine from joining: version, port, TLS, certificate, clock, key."""
    from sepal.engines.flower.credentials import NodeCredentials
    from sepal.engines.flower.probe import examine

    credentials = NodeCredentials.of(certs, name) if certs else None
    bad = 0
    for finding in examine(address, credentials, timeout):
        typer.echo(f"{'ok  ' if finding.good else 'BAD '} {finding.what}: {finding.words}")
        bad += not finding.good
    typer.echo(f"     Sepal {__version__} here; a server with another version refuses it by name before round 1")
    if bad:
        raise typer.Exit(1)


@app.command()
def submit(
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A run-config key.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys.")] = None,
    name: Annotated[str | None, typer.Option(help="Run name; the name of an unfinished run continues it.")] = None,
    out: Annotated[
        str | None, typer.Option(help="Directory for run directories, on the server; by default runs.")
    ] = None,
    control: Annotated[
        int, typer.Option(min=1, max=65535, help="The SuperLink's port for Flower's commands, on this machine.")
    ] = 9093,
    certs: Annotated[Path | None, typer.Option(help="The server's directory of certificates and node keys.")] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="How often a run is submitted, to continue it after a failure.")
    ] = 1,
) -> None:
    """Register the nodes and run a federation on a SuperLink that already runs on this machine."""
    with starting():
        from sepal.engines.flower.credentials import ServerCredentials
        from sepal.engines.flower.engine import COMPLETED, Flower, Ports
        from sepal.engines.flower.processes import healthy
        from sepal.engines.flower.registration import Registry
        from sepal.engines.flower.submission import alone, run_bundle
        from sepal.storage.home import private_home
        from sepal.strategies.assembly import assemble
        from sepal.study.run_keys import gather_to_serve

    flat = gather_to_serve(config, sets or [], name, out)
    assemble(flat)  # reports bad keys before anything is started
    if attempts > 1 and not flat.get("name"):
        raise ConfigError("--name", "a name beside --attempts, so that the run is continued", "none")
    credentials = ServerCredentials.of(certs) if certs else None
    authority = credentials.authority if credentials else None
    if not credentials:
        warn_of_plain_text()
    deadline = time.monotonic() + HEALTHY
    while not healthy(control, authority):
        if time.monotonic() > deadline:
            raise ConfigError("--control", f"a SuperLink on port {control} of this machine", "no answer")
        time.sleep(0.5)
    place = private_home() / "submit"
    with alone(place), Flower(place, directory=Path.cwd(), tell=tell_command) as flower:
        flower.ports = Ports(0, control)
        flower.connect(authority)
        registry = Registry(credentials, flower.environment, place / "nodes.json", tell) if credentials else None
        for left in reversed(range(attempts)):
            if registry:
                registry.sync()
            ended = run_bundle(flower, place, flat, registry, tell, typer.echo)
            if ended.status == COMPLETED:
                return
            if not left:
                ended.check()
            tell(f"sepal: the run ended as {ended.status}; submitted again, it goes on where it was")
