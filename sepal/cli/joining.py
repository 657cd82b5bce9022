"""``sepal join``: a client that waits for its server, joins it, and joins it again after a failure.

Flower's command is printed, so that it can also be started directly. ``--certs`` names a directory made by ``sepal
certs``, for TLS and a node key (see docs/deployment.md).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sepal.cli.app import app
from sepal.cli.notices import check_plain_text, set_log, show, starting, tell, tell_command
from sepal.cli.options import Log, Metrics, Verbose
from sepal.errors import ConfigError, one_line

# 20 uploads with a noise multiplier of 5 have an ε of 9.4 at δ = 1e-5, compared with any other data of the client.
STRICT_NOISE, STRICT_UPLOADS = 5.0, 20


class Privacy(StrEnum):
    """Demands of the client's operator in one word."""

    NONE = "none"
    STRICT = "strict"


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    partition: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of this client's part of a shared data set. Without it, all files of your own in --data-dir.",
        ),
    ] = None,
    of: Annotated[int | None, typer.Option(min=1, help="Number of parts.")] = None,
    name: Annotated[str, typer.Option(help="Client name; by default from its partition.")] = "",
    data: Annotated[str, typer.Option(help="package.module:function that returns this client's own data.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, xpu, …; by default the run's.")] = "",
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
    poll: Annotated[
        float,
        typer.Option(
            min=1, max=30, help="Longest pause between two polls for a message, in seconds; see docs/scaling.md."
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
    privacy: Annotated[
        Privacy, typer.Option(help="strict: --least-noise 5, --most-uploads 20 and --no-accuracies in one word.")
    ] = Privacy.NONE,
    least_noise: Annotated[
        float | None,
        typer.Option(
            min=0, help="Send no upload with less noise of its own than this, or with --only-secure in the sum."
        ),
    ] = None,
    only_secure: Annotated[
        bool,
        typer.Option("--only-secure", help="Answer no run without secure sums; see the key secure."),
    ] = False,
    most_uploads: Annotated[
        int | None, typer.Option(min=0, help="Send at most so many uploads, over all runs; 0: any number.")
    ] = None,
    no_accuracies: Annotated[
        bool, typer.Option("--no-accuracies", help="Evaluate no model for the server; of its figures send only costs.")
    ] = False,
    audit: Annotated[
        str,
        typer.Option(
            metavar="FILE|none", help="Log of what was asked and sent; by default NAME.jsonl in ~/.sepal/audit."
        ),
    ] = "",
    export: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write this client's deployed model there at the end, for `sepal predict`."),
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Speak plain text with another machine; never on a shared network.")
    ] = False,
    metrics: Metrics = "",
    log: Log = "",
    verbose: Verbose = False,
) -> None:
    """Join a server as a client, until Ctrl-C is pressed."""
    set_log(log)
    with starting(f"to join {address}", stays=True):
        from sepal.client_app.build import Node
        from sepal.engines.flower.credentials import NodeCredentials
        from sepal.engines.flower.probe import split
        from sepal.engines.flower.rejoining import JoinedClient, stay
        from sepal.engines.flower.slots import claimed
        from sepal.operation.expiry import AT_CLIENT, ExpiryWatch
        from sepal.storage.home import private_home
        from sepal.storage.regular import expanded

    paths = {"state-dir": state_dir, "data-dir": data_dir, "initial-weights": initial_weights}
    paths["export"] = export
    texts = {key: str(expanded(f"--{key}", path).absolute()) if path else "" for key, path in paths.items()}
    texts |= {"name": name, "data": data, "device": device, "allow": ",".join(allow or [])}
    if export and not os.access(Path(texts["export"]).parent, os.W_OK):
        raise ConfigError("--export", "a file in a directory that can be written to", export)
    capacities = shares(capacity)
    if claim and (name or partition):
        raise ConfigError("--claim", "no --name or --partition beside it: the key determines both", name or partition)
    if data:
        check_importable(data)
    with claimed(certs, private_home() / "slots", tell=tell) if claim else nullcontext() as slot:
        if slot:
            partition, of, texts["name"] = slot.number, slot.count, slot.name
            tell(f"slot {slot.number} of {slot.count}: {slot.name}")
        share = capacities[(partition or 0) % len(capacities)]
        node_config: dict[str, int | float | str | bool] = {}
        if partition is not None or of is not None or not data_dir:
            node_config = {"partition-id": partition or 0, "num-partitions": of or 1}
        node_config |= {"capacity": share} if share else {}
        node_config |= demands(privacy, least_noise, only_secure, most_uploads, no_accuracies)
        node_config |= {key: value for key, value in texts.items() if value}
        client = Node.of(node_config).client
        host, _ = split(address)
        credentials = NodeCredentials.of(certs, client) if certs else None
        key_name = credentials.name if credentials else ""
        if credentials and key_name and key_name != client:  # the server knows the key under this name alone
            if texts["name"]:
                raise ConfigError("--name", f"{key_name}, the name of the key in {credentials.directory}", client)
            client = node_config["name"] = key_name
        if not credentials:
            check_plain_text(host, insecure)
        else:
            ExpiryWatch([credentials.authority], tell, AT_CLIENT).start()
        if audit != "none":
            file = expanded("--audit", audit) if audit else private_home() / "audit" / f"{client}.jsonl"
            node_config["audit"] = str(file.absolute())
        stay(
            JoinedClient(
                client,
                node_config,
                address,
                credentials,
                cold=cold,
                poll=poll,
                allow_code=allow_code,
                metrics=metrics,
                verbose=verbose,
                tell=tell,
                tell_command=tell_command,
                show=partial(show, err=True),
            )
        )


def demands(
    privacy: Privacy, least_noise: float | None, only_secure: bool, most_uploads: int | None, no_accuracies: bool
) -> dict[str, int | float | str | bool]:
    """Return the demands of the client's operator as keys of the node. A number wins over ``--privacy strict``."""
    strict = privacy is Privacy.STRICT
    noise = least_noise if least_noise is not None else STRICT_NOISE * strict
    most = most_uploads if most_uploads is not None else STRICT_UPLOADS * strict
    node_keys = {"least-noise": noise, "only-secure": only_secure, "most-uploads": most}
    node_keys["no-accuracies"] = no_accuracies or strict
    return {key: value for key, value in node_keys.items() if value}


def check_importable(target: str) -> None:
    """Import ``package.module:function`` in a separate process that ends, so that a waiting client stays small.

    Raises:
        ConfigError: It cannot be imported.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_import, target).result()


def _import(target: str) -> None:
    from sepal import user_modules

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
