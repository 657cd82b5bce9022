"""The keys on which the server and all clients must agree. Clients send them in reply to the roster query.

Usually both sides read the same run config. They can differ if a custom ServerApp changes a key on the server only, or
if another version of Sepal is installed. Such a difference is refused before the first round, by name. Between two
protocols (:mod:`sepal.protocol.peer`) one side may lack a key that the other has: see :func:`disagreement`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sepal import __version__
from sepal.config.base import Mark, Settings, flatten, former_values, marked, method_name
from sepal.config.run import RunConfig
from sepal.errors import ConfigError

VERSION = "version of Sepal"
CLASSES = "names of classes, as folder.classes can give them"
TABLE = "columns, kinds, categories and units of a table, as schema.toml can give them (sepal data inspect)"
# Keys that only the server reads. A client algorithm gets everything that depends on the round from the plan, except
# its learning rate with a `schedule`, and what it trains on with `drift.name`: these need `rounds`.
SERVER_ONLY = frozenset(marked(RunConfig, Mark.SERVER_ONLY))
# Weights named by `initial-weights` are compared by their digest.
MACHINE = frozenset(marked(RunConfig, Mark.MACHINE))


def agreed_text(
    config: RunConfig,
    hyper: Settings,
    flat: Mapping[str, Any],
    sources: Mapping[str, str],
    class_names: Sequence[str] = (),
    table: str = "",
) -> str:
    """Return a line for each key on which both sides must agree: name, value and where it was set, tab-separated.

    Args:
        config: The shared keys, completed by the data set's defaults.
        hyper: The method's own keys.
        flat: The flat keys as the user gives them. A key with its default value counts as set by ``default``.
        sources: Key to where it was set, for keys set outside the run config.
        class_names: Names of the classes that were found in files, which may differ between machines. Only their
            number and a digest are sent.
        table: How a table is read, with the names of its columns and categories, of which only a digest is sent.
    """
    prefix = f"{method_name(config.method)}."
    values = {**config.flat(), **flatten(hyper, prefix)}
    plain = {**RunConfig().flat(), **flatten(type(hyper)(), prefix)}
    lines = [f"{VERSION}\t{__version__}\tinstalled"]
    apart = SERVER_ONLY | MACHINE
    if config.depends_on_rounds:
        apart -= {"rounds"}
    for key, value in values.items():
        if key not in apart:
            source = sources.get(key, "default" if flat.get(key, plain[key]) == plain[key] else "run config")
            lines.append(f"{key}\t{json.dumps(value)}\t{source}")
    if class_names:
        classes_text = json.dumps(f"{len(class_names)} classes, digest {_digest(chr(10).join(class_names))}")
        lines.append(f"{CLASSES}\t{classes_text}\t{'folder.classes' if config.folder.classes else 'its files'}")
    if table:
        lines.append(f"{TABLE}\t{json.dumps(f'digest {_digest(table)}')}\tits files")
    return "\n".join(lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def inert_values(config: RunConfig, hyper: Settings) -> dict[str, str]:
    """Return the value of each key, as JSON, with which a run does what it did before there was the key."""
    prefix = f"{method_name(config.method)}."
    plain = {**RunConfig().flat(), **flatten(type(hyper)(), prefix)}
    values = {**plain, **former_values(RunConfig), **former_values(type(hyper), prefix)}
    return {key: json.dumps(value) for key, value in values.items()}


def disagreement(
    client: str, server: str, reported: str, age: int = 0, inert: Mapping[str, str] | None = None
) -> ConfigError | None:
    """Return an error that names the first key with different values; None if all agree.

    A client of an older protocol may lack a key of the server's, if its value is the one with which nothing has
    changed. One of a newer protocol has further keys, with these values (:func:`sepal.client_app.app.handle`).

    Args:
        client: The client's name.
        server: The server's :func:`agreed_text`.
        reported: The client's :func:`agreed_text`; untrusted.
        age: The client's protocol minus the server's.
        inert: The server's :func:`inert_values`; by default none.
    """
    if server == reported:
        return None
    server_rows, client_rows = _rows(server), _rows(reported)
    for key in {**server_rows, **client_rows}:
        (expected, server_source), (got, client_source) = (
            rows.get(key, ("nothing", "unknown")) for rows in (server_rows, client_rows)
        )
        if key == VERSION:
            continue  # releases with protocols that fit work together
        if age < 0 and key not in client_rows:
            if (inert or {}).get(key) == expected:
                continue
            client_source = "a release without this key: upgrade the client"
        if age > 0 and key not in server_rows:
            continue
        if expected != got:
            return ConfigError(
                f"{client}: {key}", f"{expected} (server: {server_source})", f"{got} (client: {client_source})"
            )
    return None


def _rows(text: str) -> dict[str, tuple[str, str]]:
    parts = [line.split("\t") for line in text.split("\n")]
    return {part[0]: (part[1], part[2]) for part in parts if len(part) == 3}
