"""The layout of a model: its tensors by name, in order, with shape and role. Imports neither NumPy nor torch.

Schemas, states and payloads name tensors as the layout does. Where a method flattens the whole model, tensors are
concatenated in this order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Role(StrEnum):
    """The role of a tensor in the model. Methods select tensors by role, not by name."""

    WEIGHT = "weight"  # of a linear, convolution or embedding layer
    BIAS = "bias"
    NORM = "norm"  # scale or shift of a normalisation layer
    STATISTIC = "statistic"  # running mean or variance; not trained by gradient descent


@dataclass(frozen=True)
class Parameter:
    """One tensor of a model: name as in ``state_dict``, shape, role."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


Layout: TypeAlias = tuple[Parameter, ...]


def trained(layout: Layout) -> Layout:
    """Return the tensors that are trained by gradient descent."""
    return tuple(parameter for parameter in layout if parameter.role is not Role.STATISTIC)


def statistics(layout: Layout) -> Layout:
    """Return running means and variances, which are sent as values and never as differences."""
    return tuple(parameter for parameter in layout if parameter.role is Role.STATISTIC)


def layers(layout: Layout, last: int) -> tuple[Layout, Layout]:
    """Split the layout into all but the ``last`` layers, and the ``last`` layers.

    A layer is a weight and the tensors up to the next weight, such as its bias and norm. Tensors before the first
    weight belong to the first part.
    """
    weights = [index for index, parameter in enumerate(layout) if parameter.role is Role.WEIGHT]
    cut = len(layout) if not last else weights[-last] if last < len(weights) else 0
    return layout[:cut], layout[cut:]
