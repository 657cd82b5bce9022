"""``sepal join``: a client that waits for its server, joins it, and joins it again after a failure.

Flower's command is printed, so that it can also be started directly. ``--certs`` names a directory made by ``sepal
certs``, for TLS and a node key (see docs/deployment.md).
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sepal import user_modules
from sepal.cli.notices import tell, tell_command, warn_of_plain_text
from sepal.engines.flower.credentials import NodeCredentials
from sepal.engines.flower.engine import Flower
from sepal.engines.flower.node import LOST
from sepal.engines.flower.probe import examine, split
from sepal.engines.flower.processes import FlowerError
from sepal.engines.flower.unpacking import clear
from sepal.errors import ConfigError, one_line
from sepal.protocol.method import Scalar
from sepal.storage.home import private_home

LAPSE, AGAIN = 90.0, 5.0  # seconds for which a refused node is retried, and between two attempts
REGISTERED = 15.0  # seconds that a server that has just started may take to register its nodes


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
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run app bundles with code: whoever submits one runs it as this user.")
    ] = False,
    least_noise: Annotated[
        float, typer.Option(min=0, help="Send no upload with less noise than this; see privacy.noise.")
    ] = 0.0,
    most_uploads: Annotated[
        int, typer.Option(min=0, help="Send at most so many uploads, over all runs; 0: any number.")
    ] = 0,
    no_accuracies: Annotated[
        bool, typer.Option("--no-accuracies", help="Evaluate no model for the server; of its figures send only costs.")
    ] = False,
) -> None:
    """Join a server as a client, until Ctrl-C is pressed."""
    from sepal.cli.slots import claimed
    from sepal.client_app.build import Node

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
        stay(client, node_config, address, credentials, cold, look, allow_code)


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
    allow_code: bool = False,
) -> None:
    """Keep a SuperNode running.

    Flower refuses a key whose node it believes to be online, as a second copy; a killed node counts as online for about
    48 seconds. So a registered key that is refused is retried for a while. A SuperNode whose call is not authenticated
    ends with exit code 0: after a jump of a clock, after the server's database was replaced, or when its key was
    removed. One whose loop ended by an error that Flower does not retry, such as that of a server at its limit of
    calls, ends with ``LOST``. Both are started again, with growing pauses.

    Raises:
        ConfigError: As in :func:`wait_until_welcome`.
        FlowerError: The SuperNode still ends with an error.
    """
    deadline, pause, rejoining = time.monotonic() + LAPSE, AGAIN, False
    with Flower(private_home() / "clients" / client, directory=Path.cwd(), tell=tell_command) as flower:
        while True:
            wait_until_welcome(address, credentials, LAPSE if rejoining else REGISTERED, rejoining)
            clear(flower.home)
            began = time.monotonic()
            node = flower.start_node(client, node_config, address, False, credentials, cold, look, allow_code)
            code = node.wait()
            again = code in (0, LOST)
            if again or time.monotonic() - began > LAPSE:  # it had joined, so this is a new failure
                deadline = time.monotonic() + LAPSE
            if again:
                pause = min(60.0, 2 * pause) if time.monotonic() - began < LAPSE else AGAIN
                why = "a call was not answered" if code else "as it does if a call is not authenticated"
                tell(f"sepal: the SuperNode ended, {why}: again in {pause:g} s")
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
