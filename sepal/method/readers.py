"""What a method has learned of each client, read from an ended run for figures.

A method's record names its readers by kind (:attr:`sepal.method.interface.Method.learned`):

- ``masks``: :class:`EndedRun` → :class:`ClientMasks`;
- ``vectors``: :class:`EndedRun` → client → float64 vector, by whose distances clients are clustered;
- ``pruning``: the lines of metrics.jsonl → client → ``round``, ``pruned`` and ``accuracy``, lists of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError
from sepal.layout import Layout
from sepal.masks.packed import Masks

if TYPE_CHECKING:
    from sepal.method.interface import RunSetup

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reader:
    """Reads one kind of what a method has learned.

    Attributes:
        function: ``"module:function"``.
        figure: What is drawn and the paper's figure of it, for the report's text.
        examples: Whether it computes with clients' examples, so that a report has it with ``--data`` alone.
    """

    function: str
    figure: str
    examples: bool = False


@dataclass(frozen=True)
class EndedRun:
    """A run as a reader sees it.

    Attributes:
        setup: From which the method's algorithms are built.
        server: The server's state in the newest checkpoint.
        states: Yields name and newest state of the clients whose states are here, sorted by name.
        algorithm: Builds the algorithm of a client that was yielded, over its data.
        most: Clients, at most, that may be compared with each other; 0: any number.
    """

    setup: RunSetup
    server: Any
    states: Callable[[], Iterator[tuple[str, Any]]]
    algorithm: Callable[[str], Any]
    most: int = 0

    def check_few(self, clients: Collection[str]) -> None:
        """Check how many clients there are before anything is made for each: a small file may name very many.

        Raises:
            ConfigError: There are more than ``most``.
        """
        if self.most and len(clients) > self.most:
            raise ConfigError("run", f"one of at most {self.most} clients", len(clients))


@dataclass(frozen=True)
class ClientMasks:
    """Masks: 0 or 1 for each entry of ``parts``, one part after the other.

    Attributes:
        names: The clients' names, in order.
        personal: float64 (clients, entries), the clients' own masks.
        shared: float64 (entries,), the global mask; None if there is none.
    """

    names: list[str]
    parts: Layout
    personal: Matrix
    shared: Matrix | None = None


def joined(masks: Sequence[Masks], parts: Layout) -> Matrix:
    """Return masks by tensor as float64 (masks, entries)."""
    rows = [np.concatenate([mask[part.name].reshape(-1) for part in parts]) for mask in masks]
    return np.stack(rows).astype(np.float64)
