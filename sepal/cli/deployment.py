"""``sepal certs``, ``sepal revoke``, ``sepal deploy check``, ``sepal submit``: what a deployment needs around a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sepal import __version__
from sepal.cli.app import app
from sepal.cli.notices import check_plain_text, show, starting, tell, tell_command
from sepal.cli.options import Name, Sets, Verbose
from sepal.errors import ConfigError
from sepal.report.printing import say

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
    ca_days: Annotated[int, typer.Option(min=1, help="Days for which a new CA is valid.")] = 730,
    permit: Annotated[
        list[str] | None, typer.Option(help="A further domain for which a new CA may sign later.")
    ] = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt a new CA's key; the passphrase is asked for.")
    ] = False,
    renew_ca: Annotated[
        bool, typer.Option("--renew-ca", help="Sign the CA's certificate again, for --ca-days from now.")
    ] = False,
) -> None:
    """Make a private CA, a server certificate and node keys.

    Run it again to add hosts and nodes, or to renew the certificate.
    """
    from sepal.engines.flower.certificates import make_certificates
    from sepal.names import client_name
    from sepal.operation.expiry import expiry

    names = [*map(client_name, range(nodes)), *(node or [])]
    ask, now = ask_passphrase(directory), datetime.now(UTC)
    certificates = make_certificates(
        directory, host or [], names, days, now, permit or [], ca_days, encrypt, ask, renew_ca
    )
    root, ca_state = directory.absolute(), "made" if certificates.ca else "renewed" if certificates.renewed else "kept"
    until = f"valid until {certificates.until:%Y-%m-%d}"
    say(f"{root}/ca: {ca_state}, {until}; stays here: who has ca.key can pose as the server")
    if certificates.renewed:
        say(f"{root}/ca/ca.crt: renewed; goes to every machine in place of its ca.crt: server/ and nodes/NAME/ have it")
    until = f"valid until {expiry(root / 'server' / 'server.pem'):%Y-%m-%d}"
    server_state = "made" if certificates.server else "kept"
    say(f"{root}/server: {server_state}, {until}; goes to the server: sepal serve --certs server")
    for name in dict.fromkeys(names):
        node_state = "made" if name in certificates.nodes else "kept"
        say(f"{root}/nodes/{name}: {node_state}; goes to that client: sepal join ADDRESS --certs {name} --name {name}")


def ask_passphrase(directory: Path) -> Callable[[], bytes]:
    """Return a function that asks for the passphrase of the CA's key, twice for a new one."""
    new = not (directory / "ca" / "ca.key").exists()

    def ask() -> bytes:
        from_environment = os.environ.get("SEPAL_CA_PASSPHRASE")
        words = "Passphrase of ca/ca.key"
        return (from_environment or typer.prompt(words, hide_input=True, confirmation_prompt=new, err=True)).encode()

    return ask


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The client's name: its key is server/nodes/NAME.pub.")],
    certs: Annotated[Path, typer.Option(help="The server's directory of certificates and node keys.")],
) -> None:
    """Take a client's key away for good. A server that runs cuts it off within ten seconds."""
    from sepal.engines.flower.credentials import ServerCredentials

    ServerCredentials.of(certs).revoke(name)
    say(f"{name}: revoked; a server that runs cuts it off within ten seconds, another one when it starts")
    say(f"a run that waits for it goes on with: sepal evict RUN {name}")


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
        say(f"{'ok  ' if finding.good else 'BAD '} {finding.check}: {finding.words}")
        bad += not finding.good
    say(f"     Sepal {__version__} here; a server with another version refuses it by name before round 1")
    if bad:
        raise typer.Exit(1)


@app.command()
def submit(
    sets: Sets = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys.")] = None,
    name: Name = None,
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
    verbose: Verbose = False,
) -> None:
    """Register the nodes and run a federation on a SuperLink that already runs on this machine."""
    with starting():
        from sepal.config.rules import check_real_time
        from sepal.engines.flower.commands import Ports
        from sepal.engines.flower.credentials import ServerCredentials
        from sepal.engines.flower.engine import COMPLETED, Flower
        from sepal.engines.flower.lines import Lines
        from sepal.engines.flower.node_registry import NodeRegistry
        from sepal.engines.flower.processes import healthy
        from sepal.engines.flower.submission import alone, run_bundle
        from sepal.operation.expiry import watched
        from sepal.storage.home import private_home
        from sepal.study.run import assembled
        from sepal.study.run_keys import gather_to_serve

    flat = gather_to_serve(config, sets or [], name, out, tell)
    check_real_time(assembled(flat, Path.cwd()).setup.config)  # reports bad keys before anything is started
    if attempts > 1 and not flat.get("name"):
        raise ConfigError("--name", "a name beside --attempts, so that the run is continued", "none")
    credentials = ServerCredentials.of(certs) if certs else None
    authority = credentials.authority if credentials else None
    if not credentials:
        check_plain_text("127.0.0.1", allowed=False)
    with watched(credentials.certificates if credentials else (), tell):
        deadline = time.monotonic() + HEALTHY
        while not healthy(control, authority):
            if time.monotonic() > deadline:
                raise ConfigError("--control", f"a SuperLink on port {control} of this machine", "no answer")
            time.sleep(0.5)
        state_directory = private_home() / "submit"
        with alone(state_directory), Flower(state_directory, directory=Path.cwd(), tell=tell_command) as flower:
            flower.ports = Ports(0, control)
            flower.connect(authority)
            nodes = state_directory / "nodes.json"
            registry = NodeRegistry(credentials, flower.environment, nodes, tell) if credentials else None
            file = state_directory / "run.log"
            lines = Lines(file, show, verbose)
            for attempts_left in reversed(range(attempts)):
                if registry:
                    registry.sync()
                ended = run_bundle(flower, state_directory, flat, registry, tell, lines)
                if ended.status == COMPLETED:
                    return
                if not attempts_left:
                    ended.check(file)
                tell(f"sepal: the run ended as {ended.status}; submitted again, it goes on where it was")
