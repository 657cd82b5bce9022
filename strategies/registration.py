"""Registers a method: creates its record, which is also its Flower Strategy for a custom ServerApp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sepal.config import Settings
from sepal.method import Compression, Method
from sepal.method.interface import ClientFactory, ServerFactory
from sepal.method.learned import Reader
from sepal.protocol.types import Scalar

if TYPE_CHECKING:
    from sepal.server.observer import Observer
    from sepal.server.run_store import RunStore
    from sepal.server.strategy import SepalStrategy


class NoKeys(Settings):
    """The keys of a method that has none."""


@dataclass(frozen=True)
class Registered(Method):
    """A method's record. Called, it returns the method as a Flower Strategy; clients run Sepal's ClientApp.

    ``FedPSE(keep=0.1).start(grid)``, or with the run's own keys
    ``FedPSE(context.run_config, keep=0.1).start(grid, num_rounds=20)``.
    """

    def __call__(
        self,
        run_config: Mapping[str, Any] | None = None,
        store: RunStore | None = None,
        observers: tuple[Observer, ...] = (),
        **keys: Any,
    ) -> SepalStrategy:
        """Return the method as a Flower Strategy.

        Args:
            run_config: Flat keys, as in Flower's run config; missing ones have their default value.
            store: Stores what is needed to resume; by default in memory only.
            observers: Called after every round.
            keys: The method's own keys, with underscores for hyphens. Clients read keys from their run config, which
                must have the same values; a difference raises an error before the first round.

        Raises:
            SepalError: A key, the data set or the model is invalid.
        """
        # Here, because a client imports its method but no server code.
        from sepal.server.strategy import SepalStrategy
        from sepal.strategies.assembly import assemble

        method_keys = {f"{self.name}.{key.replace('_', '-')}": value for key, value in keys.items()}
        sources = {key: f"argument {name}={keys[name]!r}" for key, name in zip(method_keys, keys, strict=True)}
        assembly = assemble({**(run_config or {}), **method_keys}, self, sources)
        return SepalStrategy(assembly.method, assembly.task, store, observers, agreed=assembly.agreed)


def register(
    name: str,
    title: str,
    source: str,
    server: ServerFactory | str,
    client: ClientFactory | str,
    hyper: type[Settings] = NoKeys,
    *,
    defaults: Mapping[str, Scalar] | None = None,
    no_received_model: str = "",
    deployed: Literal["kept", "received", "trained"] = "kept",
    starts_from: str = "",
    compression: Callable[[Any], Compression] | None = None,
    learned: Mapping[str, Reader] | None = None,
) -> Registered:
    """Return the method's record. Arguments are those of :class:`Method`."""
    rest = (no_received_model, deployed, starts_from, compression, learned or {})
    return Registered(name, title, source, hyper, server, client, defaults or {}, *rest)
