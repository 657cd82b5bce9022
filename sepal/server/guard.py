"""How far a round may change what a method exchanges and keeps, so that one absurd upload cannot end a run.

Every floating array counts by itself, whatever the method calls it: each tensor of an upload against what its client
trained from, and each array of the server's state against the state before the round. An honest round changes an array
by a part of the model's norm; ten times that norm is a model from which training diverges. So that a model does not
die in small steps, its arrays may not grow beyond a thousand times the norm of W_0 in a whole run, either.

A method names the fields of its state whose scale is not that of a model, such as sums of examples
(``ServerBase.unbounded``). They must be finite, as everything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError
from sepal.method.algorithms import ServerAlgorithm
from sepal.method.interface import RunSetup
from sepal.server.central_noise import CentralNoise
from sepal.storage.serialize import flatten

MOST_GROWTH = 10.0  # in a round, of the model's norm
MOST_TOTAL_GROWTH = 1000.0  # in a run, of W_0's norm


@dataclass(frozen=True, eq=False)
class Change:
    """By how much a tensor of an upload has changed.

    Attributes:
        norm: The Euclidean norm of the change, over the values that were sent.
        reference: What it is a change of, float32 (n,), at the same entries; None for an upload that is a difference.
    """

    norm: float
    reference: npt.NDArray[np.float32] | None = None


class Guard:
    """The bounds of one round.

    Args:
        algorithm: The server algorithm.
        setup: Has W_0.
        before: The server algorithm's state from which the round starts.
        clip: The largest norm of an update with ``privacy.mode = "central"``.
    """

    def __init__(self, algorithm: ServerAlgorithm[Any], setup: RunSetup, before: Any, clip: float = 0.0) -> None:
        self._algorithm, self._setup, self._before, self._clip = algorithm, setup, before, clip
        self._unbounded: tuple[str, ...] = getattr(algorithm, "unbounded", ())

    @cached_property
    def _scale(self) -> float:
        """The norm of the model from which the round starts, at least 1; of W_0 where the server has no model."""
        return max(1.0, _norm(self._algorithm.model(self._before) or self._setup.weights))

    @cached_property
    def _noise(self) -> float:
        """What ``privacy.*`` may add to a change: √d standard deviations over d entries, and six to spare."""
        privacy, entries = self._setup.config.privacy, sum(parameter.size for parameter in self._setup.layout)
        clip, noise = privacy.clip, privacy.noise
        if privacy.central:  # it is less noise than that of a client, but the clip may have grown
            clip, central = max(clip, self._clip), CentralNoise.of(self._setup.config, b"")  # nothing is drawn
            noise = central.multiplier_of_updates / central.clients
        elif privacy.distributed:
            noise /= 2  # a mean over at least h honest clients, of a sum whose h shares have z·C: and h is at least 2
        return clip * (1 + noise * (math.sqrt(entries) + 6))

    @cached_property
    def _first_scale(self) -> float:
        return max(1.0, _norm(self._setup.weights))

    def refused_change(self, changes: Mapping[str, Change]) -> tuple[str, str] | None:
        """Return what was expected of an upload and what it has, for the first tensor that changes too much.

        Args:
            changes: By tensor name.
        """
        for name, change in changes.items():
            most = MOST_GROWTH * self._scale + self._noise
            if change.norm <= most:  # as a rule: then nobody needs the norm of what it is a change of
                continue
            if change.reference is not None:
                most = max(most, MOST_GROWTH * length(change.reference.astype(np.float64)) + self._noise)
            if not change.norm <= most:  # also NaN
                return f"a change of {name} by a norm of at most {most:.4g}", f"{change.norm:.4g}"
        return None

    def unusable(self, after: Any) -> str:
        """Return why the server algorithm's state ``after`` the round cannot be used; empty if it can.

        Raises:
            ConfigError: It has something that a state cannot have.
        """
        old = flatten(self._before)[0]
        try:
            new = flatten(after)[0]
        except TypeError as reason:  # such as a tensor of torch
            place = f"{type(self._algorithm).__name__}.aggregate to return a state that can be stored"
            raise ConfigError("method", place, str(reason)) from None
        for name, array in new.items():
            before = old.get(name)
            if array is before or array.dtype.kind != "f":
                continue
            if not np.isfinite(array).all():
                return f"{name} is not finite"
            if name.split("/")[1] in self._unbounded:
                continue
            if before is None or before.shape != array.shape:
                before = np.zeros_like(array)
            change, most = length(array - before), MOST_GROWTH * max(self._scale, length(before)) + self._noise
            if not change <= most:
                return f"{name} changes by a norm of {change:.4g}, expected at most {most:.4g}"
            norm = length(array)
            limit = MOST_TOTAL_GROWTH * self._first_scale + self._setup.config.rounds * self._noise
            if not norm <= limit:
                return f"{name} has a norm of {norm:.4g}, expected at most {limit:.4g}, {MOST_TOTAL_GROWTH:g} × W_0's"
        return ""


def length(array: npt.NDArray[Any]) -> float:
    """Return the Euclidean norm of an array; infinite or NaN where it overflows or is not finite."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(float(np.dot(flat, flat)))


def _norm(weights: Mapping[str, npt.NDArray[np.float32]]) -> float:
    return math.sqrt(sum(length(array) ** 2 for array in weights.values()))
