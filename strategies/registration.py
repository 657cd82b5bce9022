"""Registers a method: creates its record, which is also its Flower Strategy for a custom ServerApp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sepal.config import Settings, kebab
from sepal.method import Compression, Method
from sepal.method.interface import ClientFactory, ServerFactory
from sepal.method.readers import Reader
from sepal.protocol.types import Scalar

if TYPE_CHECKING:
    from torch import nn

    from sepal.server.observer import Observer
    from sepal.server.plain import MethodStrategy
    from sepal.server.run_store import RunStore
    from sepal.server.strategy import SepalStrategy


class NoKeys(Settings):
    """The keys of a method that has none."""


@dataclass(frozen=True)
class Registered(Method):
    """A method's record. Called, it returns the method as a Flower Strategy, for an app of the user's own.

    ``FedPSE(Net, keep=0.1).start(grid, ArrayRecord(Net().state_dict()), num_rounds=20)``; the clients are
    ``wrap_client(FedPSE, Net, load)`` (:mod:`sepal.client_app.plain`).
    """

    def __call__(
        self,
        model: Callable[[], nn.Module],
        run_config: Mapping[str, Any] | None = None,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_available_nodes: int = 2,
        rounds: int = 0,
        **keys: Any,
    ) -> MethodStrategy:
        """Return the method as a Flower Strategy (docs/flower-app.md), which keeps all in memory.

        Args:
            model: Returns a new module, such as its class; its weights are those of ``initial_arrays``.
            run_config: The app's run config. Its keys that are not Sepal's are the user's own, and are not read.
            fraction_train: Share of the connected clients that train in a round.
            fraction_evaluate: Share of them that evaluate after it; 0: no evaluation.
            min_available_nodes: Connected nodes for which a run waits before it starts.
            rounds: Number of rounds, for a loop other than ``start``.
            keys: The method's own keys and shared ones of training, with underscores for hyphens: ``local_epochs=2``.

        Raises:
            ConfigError: A key is unknown or has no effect here.
        """
        # Here, because a client imports its method but no server code.
        from sepal.server.plain import Beginning, MethodStrategy, Prepared
        from sepal.strategies import plain

        sepal_keys, user_keys = plain.read_keys(self, run_config or {})
        flat = {**sepal_keys, **plain.argument_keys(self, keys)}

        def prepare(beginning: Beginning) -> Prepared:
            for key, value in beginning.config.items():
                if not key.startswith(f"{self.name}."):
                    plain.check_key(key, value)
            assembly = plain.assemble_plain(
                self, plain.OwnModel(model, beginning.arrays), {**flat, **beginning.config}, beginning
            )
            return Prepared(
                assembly.method, assembly.setup, plain.client_keys(assembly), (*_unread(user_keys), *assembly.notes)
            )

        return MethodStrategy(self.name, prepare, fraction_train, fraction_evaluate, min_available_nodes, rounds)

    def durable(
        self,
        run_config: Mapping[str, Any] | None = None,
        store: RunStore | None = None,
        observers: tuple[Observer, ...] = (),
        **keys: Any,
    ) -> SepalStrategy:
        """Return what runs the method for clients of Sepal's ClientApp, and can store and resume the run.

        Args:
            run_config: Flat keys, as in Flower's run config; missing ones have their default value.
            store: Stores what is needed to resume; by default in memory only.
            observers: Called after every round.
            keys: The method's own keys, with underscores for hyphens. Clients read keys from their run config, which
                must have the same values; a difference raises an error before the first round.

        Raises:
            SepalError: A key, the data set or the model is invalid; or simulated time would decide in a deployment, in
                which clients say themselves what they have computed.
        """
        from sepal.config.rules import check_real_time
        from sepal.flower.simulation import starts_ray
        from sepal.server.strategy import SepalStrategy
        from sepal.strategies.assembly import assemble

        method_keys = {f"{self.name}.{kebab(key)}": value for key, value in keys.items()}
        sources = {key: f"argument {name}={keys[name]!r}" for key, name in zip(method_keys, keys, strict=True)}
        assembly = assemble({**(run_config or {}), **method_keys}, self, sources)
        if not starts_ray():
            check_real_time(assembly.setup.config)
        return SepalStrategy(assembly.method, assembly.setup, store, observers, agreed=assembly.agreed)


def _unread(keys: Sequence[str]) -> tuple[str, ...]:
    return (f"run config: {', '.join(keys)}: your own keys, which Sepal does not read",) if keys else ()


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
    one_model: bool = False,
    model_variant: str = "",
) -> Registered:
    """Return the method's record. Arguments are those of :class:`Method`."""
    rest = (no_received_model, deployed, starts_from, compression, learned or {}, one_model, model_variant)
    return Registered(name, title, source, hyper, server, client, defaults or {}, *rest)
