"""Registers a method: creates its record and its Flower Strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sepal.config import Settings
from sepal.protocol.method import ClientFactory, Method, Scalar, ServerFactory
from sepal.strategies.assembly import MethodStrategy


class NoKeys(Settings):
    """The keys of a method that has none."""


def register(
    name: str,
    title: str,
    source: str,
    server: ServerFactory | str,
    client: ClientFactory | str,
    hyper: type[Settings] = NoKeys,
    *,
    defaults: Mapping[str, Scalar] | None = None,
    received: str = "",
    uses_capacity: bool = False,
    private: tuple[str, ...] = (),
    deployed: Literal["kept", "received", "trained"] = "kept",
    draws: str = "",
) -> type[MethodStrategy]:
    """Return the method as a Flower Strategy, with its record as ``method``. Arguments are those of :class:`Method`.

    State types are taken from the return annotations of ``init``. The Strategy is named like the client algorithm,
    without ``Client``.
    """
    rest = (received, uses_capacity, private, deployed, draws)
    record = Method(name, title, source, hyper, server, client, defaults or {}, *rest)
    doc = f"{title} ({source}) as a Flower Strategy, for a custom ServerApp."
    side = client if isinstance(client, str) else client.__name__
    own = side.rpartition(":")[2].removesuffix("Client")
    made: type[MethodStrategy] = type(own, (MethodStrategy,), {"method": record, "__doc__": doc})
    return made
