"""The digest of a client's data, by which the server knows it again and learns nothing else about it."""

from __future__ import annotations

import hashlib
import json

from sepal.config import Mark, RunConfig, former_values, marked
from sepal.config.agreement import MACHINE
from sepal.data import ClientData
from sepal.data.streams import Stream
from sepal.storage.serialize import digest_arrays

KEYS = tuple(key for key in marked(RunConfig, Mark.DIGESTED) if key not in MACHINE)


def data_keys(config: RunConfig) -> str:
    """Return the values of the keys that say how data is read, dealt and split, as JSON, without defaults.

    A resumed run has the same ones, also where a later version of Sepal has more keys. Of a key whose default has
    changed, the former one is left out, which runs that began before it have.
    """
    plain, former = RunConfig(), former_values(RunConfig)
    begun = {key: former[key] if key in former else plain.value(key) for key in sorted(KEYS)}
    return json.dumps({key: config.value(key) for key, value in begun.items() if config.value(key) != value})


def data_digest(data: ClientData, salt: str) -> str:
    """Return SHA-256 (hex) over ``salt`` and all arrays of a client's data, of a Dataset over 64 examples of each part.

    The server pins it, so that a run does not continue on other data. The salt has a secret of the client: without it,
    the server could test a guess of the whole data. It has the keys of the data, too: a server that exchanges the names
    of two classes, in a part of two examples, would learn from an equal digest that neither is there.
    """
    whole = {"train": data.train, "validation": data.validation, "test": data.test}
    parts = {name: part.sample(64) if isinstance(part, Stream) else part for name, part in whole.items()}
    if isinstance(data.train, Stream):
        salt += f"|{[len(part) for part in whole.values()]}"
    arrays = {f"{name}.{key}": getattr(part, key) for name, part in parts.items() for key in ("x", "y")}
    return hashlib.sha256(f"{salt}|{digest_arrays(arrays)}".encode()).hexdigest()
