"""A Flower Strategy of which only ``start()`` is used: Flower's other steps would not checkpoint, and are refused."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from sepal.errors import ConfigError


class StartOnly(Strategy):
    """Refuses all of Flower's abstract steps but ``summary``, which a subclass has, as it has its own ``start``."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise ConfigError: call ``start`` instead."""
        raise _use_start("configure_train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise ConfigError: call ``start`` instead."""
        raise _use_start("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise ConfigError: call ``start`` instead."""
        raise _use_start("configure_evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Raise ConfigError: call ``start`` instead."""
        raise _use_start("aggregate_evaluate")


def _use_start(step: str) -> ConfigError:
    """Return the error for a strategy that wraps this one to change dense arrays, which a sparse payload lacks."""
    expected = "start() alone, which checkpoints: a wrapper such as differential privacy works on dense arrays"
    return ConfigError(step, expected, "a call of its own")
