"""The digest of a client's data, by which the server knows it again and learns nothing else about it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sepal.config import RunConfig, flatten, former_values
from sepal.config.agreement import LOCAL
from sepal.data import ClientData
from sepal.data.streams import Stream
from sepal.storage.serialize import digest_arrays

KEYS, GROUPS = ("clients", "dataset", "seed", "task"), ("folder", "hf", "own", "partition", "split")


def data_keys(config: RunConfig) -> str:
    """Return the values of the keys that say how data is read, dealt and split, as JSON, without defaults.

    A resumed run has the same ones, also where a later version of Sepal has more keys. Of a key whose default has
    changed, the former one is left out, which runs that began before it have.
    """
    values, plain = _values(config), {**_values(RunConfig()), **former_values(RunConfig)}
    chosen = (key for key in sorted(values) if key not in LOCAL and values[key] != plain[key])
    return json.dumps({key: values[key] for key in chosen})


def _values(config: RunConfig) -> dict[str, Any]:
    found = {key: getattr(config, key) for key in KEYS}
    return found | {
        key: value for group in GROUPS for key, value in flatten(getattr(config, group), f"{group}.").items()
    }


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
