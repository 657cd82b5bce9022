"""The keys on which the server and all clients must agree. Clients send them in reply to the roster query.

Usually both sides read the same run config. They can differ if a custom ServerApp changes a key on the server only, or
if another version of Sepal is installed. Such a difference is refused before the first round, by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sepal import __version__
from sepal.config.base import Mark, Settings, flatten, marked, method_name
from sepal.config.run import RunConfig
from sepal.errors import ConfigError

VERSION = "version of Sepal"
CLASSES = "names of classes, as folder.classes can give them"
TABLE = "columns, kinds, categories and units of a table, as schema.toml can give them (sepal data inspect)"
# Keys that only the server reads. A client algorithm gets everything that depends on the round from the plan, except
# its learning rate: with a `schedule`, it needs `rounds`.
SERVER_ONLY = frozenset(marked(RunConfig, Mark.SERVER_ONLY))
# Weights named by `initial-weights` are compared by their digest.
MACHINE = frozenset(marked(RunConfig, Mark.MACHINE))


def agreed_text(
    config: RunConfig,
    hyper: Settings,
    given: Mapping[str, Any],
    sources: Mapping[str, str],
    class_names: Sequence[str] = (),
    table: str = "",
) -> str:
    """Return a line for each key on which both sides must agree: name, value and where it was set, tab-separated.

    Args:
        config: The shared keys, completed by the data set's defaults.
        hyper: The method's own keys.
        given: The flat keys as given. A key with its default value counts as set by ``default``.
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
    if config.schedule != "constant":
        apart -= {"rounds"}
    for key, value in values.items():
        if key not in apart:
            source = sources.get(key, "default" if given.get(key, plain[key]) == plain[key] else "run config")
            lines.append(f"{key}\t{json.dumps(value)}\t{source}")
    if class_names:
        found = json.dumps(f"{len(class_names)} classes, digest {_digest(chr(10).join(class_names))}")
        lines.append(f"{CLASSES}\t{found}\t{'folder.classes' if config.folder.classes else 'its files'}")
    if table:
        lines.append(f"{TABLE}\t{json.dumps(f'digest {_digest(table)}')}\tits files")
    return "\n".join(lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def disagreement(client: str, server: str, reported: str) -> ConfigError | None:
    """Return an error that names the first key with different values; None if all agree.

    Args:
        client: The client's name.
        server: The server's :func:`agreed_text`.
        reported: The client's :func:`agreed_text`; untrusted.
    """
    if server == reported:
        return None
    ours, theirs = _rows(server), _rows(reported)
    for key in {**ours, **theirs}:
        (expected, here), (got, there) = (rows.get(key, ("nothing", "unknown")) for rows in (ours, theirs))
        if expected != got:
            return ConfigError(f"{client}: {key}", f"{expected} (server: {here})", f"{got} (client: {there})")
    return None


def _rows(text: str) -> dict[str, tuple[str, str]]:
    parts = [line.split("\t") for line in text.split("\n")]
    return {part[0]: (part[1], part[2]) for part in parts if len(part) == 3}
