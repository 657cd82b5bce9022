"""The releases of Flower that Sepal runs with, and checks that what it replaces in them is as it was.

A replaced function is known by a digest of its source for each release that was tried. Another source raises
:class:`FlowerChangedError`, in one line, when the process starts: a replacement that is passed by would go unnoticed.
"""

from __future__ import annotations

import hashlib
import inspect
from importlib.metadata import version
from types import ModuleType
from typing import Any

from sepal.errors import SepalError

FIRST, BEYOND = (1, 39), (1, 43)
RANGE = "1.39 to 1.42"
HTTP = (1, 40)  # from here on SuperNodes speak HTTP with the SuperLink, before it gRPC

# Digests for 1.39, 1.40, 1.41 and 1.42, each once where several are equal. To support another release: read what has
# changed, adapt, run `make -C tools flower VERSION=…`, and add the digest that the error names.
KNOWN: dict[str, set[str]] = {
    "supernode.start_client_internal.start_client_internal": {"bb3df95a5f63", "9e89a6eb68fb"},
    "supernode.start_client_internal._pull_and_store_message": {"eaf5d0e36dc3"},
    "supernode.start_client_internal._push_messages": {"5f09f2f7a86c", "00bb86faffde"},
    "supernode.start_client_internal._insert_message": {"a0c6f4605e99"},
    "superlink.grid.http_grid.HttpGrid.pull_messages": {"67a5266a5a2e"},
    "superlink.grid.http_grid.pull_objects": {"31bb2de46b45"},
    "superlink.grid.http_grid.inflate_object_from_contents": {"93b98a2ea3f3"},
    "supernode.runtime.run_clientapp.run_clientapp": {"0df7b3272ecd", "6ce09559f3a2"},
    "supernode.nodestate.in_memory_nodestate.InMemoryNodeState.store_message": {"8d38cc83c3fb"},
    "superlink.cli.flower_superlink._run_superlink_http_api": {"100838fe6184", "eb0d78b85f99"},
    "superlink.cli.flower_superlink._run_fleet_api_grpc_rere": {"941cd68b2038"},  # 1.39 alone
}


class FlowerChangedError(SepalError):
    """The installed Flower is another than Sepal knows."""


def installed() -> tuple[int, int]:
    """Return major and minor version of the installed Flower."""
    major, minor, *_ = version("flwr").split(".")
    return int(major), int(minor)


def speaks_http(release: tuple[int, int] | None = None) -> bool:
    """Return whether SuperNodes of a release (by default the installed one) speak HTTP with the SuperLink."""
    return (release or installed()) >= HTTP


def transport() -> str:
    """Return what the installed Flower's Fleet API speaks, and which releases do."""
    return "HTTP (Flower 1.40 to 1.42)" if speaks_http() else "gRPC (Flower 1.39)"


def require_supported() -> None:
    """Raise unless the installed Flower is supported.

    Raises:
        FlowerChangedError: It is not.
    """
    if not FIRST <= installed() < BEYOND:
        raise FlowerChangedError("flwr", RANGE, version("flwr"))


def unchanged(module: ModuleType, *names: str) -> None:
    """Check functions of a module of Flower that are about to be replaced, or on whose body a replacement relies.

    Args:
        module: A module of Flower, as imported.
        names: Dotted names in it.

    Raises:
        FlowerChangedError: One is missing or its source is unknown.
    """
    for name in names:
        key = f"{module.__name__.removeprefix('flwr.')}.{name}"
        member: object = module
        for part in name.split("."):
            member = getattr(member, part, None)
        digest = "nothing" if member is None else source_digest(member)
        if digest not in KNOWN[key]:
            raise FlowerChangedError(f"flwr.{key}", f"the source of Flower {RANGE}", f"{digest} in {version('flwr')}")


def source_digest(function: object) -> str:
    """Return a digest of a function's source, without what Sepal has put around it."""
    inner: Any = getattr(function, "flowers", function)
    return hashlib.sha256(inspect.getsource(inner).encode()).hexdigest()[:12]
