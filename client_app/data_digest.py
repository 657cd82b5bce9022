"""The digest of a client's data, by which the server knows it again and learns nothing else about it."""

from __future__ import annotations

import hashlib
import json

from sepal.config import RunConfig
from sepal.config.agreement import LOCAL
from sepal.data import ClientData
from sepal.storage.serialize import digest_arrays

KEYS, GROUPS = ("clients", "dataset", "seed", "task"), ("folder", "hf", "own", "partition", "split")


def data_keys(config: RunConfig) -> str:
    """Return the values of the keys that say how data is read, dealt and split, as JSON, without defaults.

    A resumed run has the same ones, also where a later version of Sepal has more keys.
    """
    flat, plain = config.flat(), RunConfig().flat()
    chosen = (key for key in sorted(flat) if key in KEYS or key.partition(".")[0] in GROUPS)
    return json.dumps({key: flat[key] for key in chosen if key not in LOCAL and flat[key] != plain[key]})


def data_digest(data: ClientData, salt: str) -> str:
    """Return SHA-256 (hex) over ``salt`` and all arrays of a client's data.

    The server pins it, so that a run does not continue on other data. The salt has a secret of the client: without it,
    the server could test a guess of the whole data. It has the keys of the data, too: a server that exchanges the names
    of two classes, in a part of two examples, would learn from an equal digest that neither is there.
    """
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    arrays = {f"{name}.{key}": getattr(part, key) for name, part in parts.items() for key in ("x", "y")}
    return hashlib.sha256(f"{salt}|{digest_arrays(arrays)}".encode()).hexdigest()
