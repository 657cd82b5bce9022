"""A client's training examples of each round in a run with temporal drift (:mod:`sepal.data.drift`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sepal.config import RunConfig
from sepal.data.drift import Window, order_of
from sepal.errors import ConfigError
from sepal.training.columns import Batch, Part


@dataclass(frozen=True, eq=False)
class Drifting:
    """All training examples of a client, in the order in which the window goes over them.

    Attributes:
        x: Inputs (n, …).
        y: Targets (n, …).
        window: Which of them are a round's.
    """

    x: torch.Tensor
    y: torch.Tensor
    window: Window

    @classmethod
    def of(cls, config: RunConfig, x: Part, y: Part, seed: int, client: str) -> Drifting | None:
        """Return a client's training examples as its run lets them drift; None if it does not.

        Args:
            config: The run's configuration.
            x: Inputs of the training part in memory, in the order of the data.
            y: Its targets; with ``drift.name = "label"`` class numbers.
            seed: Seed of partition and split.
            client: The client's name.

        Raises:
            ConfigError: The examples are read batch by batch.
        """
        if config.drift.name == "none":
            return None
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
            raise ConfigError("drift.name", "none for examples that are read batch by batch", config.drift.name)
        window = Window.of(config.drift, len(y), config.rounds)
        if config.drift.name == "label":
            order = torch.from_numpy(order_of(config.drift, y.cpu().numpy(), seed, client)).to(x.device)
            x, y = x[order], y[order]
        return cls(x, y, window)

    def part(self, round: int) -> Batch:
        """Return inputs and targets of a round, from 1."""
        places = self.window.places(round)
        return self.x[places], self.y[places]
