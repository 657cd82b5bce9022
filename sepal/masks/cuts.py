"""Channel and width cuts: which entries of each tensor remain when channels are removed. Uses NumPy only.

Tensors are coupled by channels: channel c of a convolution has a row in its weight, an entry in its bias and in the
following norm, and inputs in the next layer. ``sepal.models.coupling`` returns these groups. A method chooses the
channels to keep in each group: the first ones (HeteroFL, Fjord, Pa3dFL), a rolling window (FedRolex) or any set
(Sub-FedAvg Hy).
:class:`Cut` converts the choice to indices and copies weights between the full and the small shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.errors import ModelError
from sepal.layout import Layout, Role

Index: TypeAlias = npt.NDArray[np.int64]
KeptChannels: TypeAlias = Mapping[str, Index]  # by group: channels that are kept, strictly increasing
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Rounding: TypeAlias = Literal["down", "nearest", "up"]


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor along which entries belong to channels.

    Attributes:
        tensor: Name as in the layout.
        axis: Number of the axis.
        block: Entries per channel: channel c has the entries c·block … (c + 1)·block - 1. Height × width of the maps if
            they are flattened before a linear layer, otherwise 1.
    """

    tensor: str
    axis: int
    block: int = 1


@dataclass(frozen=True)
class ChannelGroup:
    """The output channels of one layer, and the entries that are removed with each channel.

    Attributes:
        name: Name of the layer.
        size: Number of channels.
        axes: The axes with an entry, or a block of entries, for each channel.
        unit: Channels are kept or removed in aligned runs of this length, which divides ``size``. The channels of a
            group of a GroupNorm are normalised together, so they can only be removed together.
        scale: Name of the scale γ, (size,), of the BatchNorm after the layer; None if there is none.
    """

    name: str
    size: int
    axes: tuple[Axis, ...]
    unit: int = 1
    scale: str | None = None


Coupling: TypeAlias = tuple[ChannelGroup, ...]


def scales(coupling: Coupling) -> dict[str, str]:
    """Return the name of each group's BatchNorm scale, for the groups that have one.

    Raises:
        ModelError: No group has one.
    """
    by_group = {group.name: group.scale for group in coupling if group.scale is not None}
    if not by_group:
        names = ", ".join(group.name for group in coupling) or "any layer"
        raise ModelError("model", "a BatchNorm, by whose scale channels are ranked", f"none behind {names}")
    return by_group


def window(size: int, width: float, shift: int = 0, *, unit: int = 1, rounding: Rounding = "up") -> Index:
    """Return the channels that a model of relative width ``width`` keeps, of ``size`` channels.

    These are ``shift``, ``shift`` + 1, … modulo ``size``; without a shift the first ones. Their number is width·size,
    rounded, and at least 1. FedRolex shifts by the number of the round.

    Args:
        size: Number of channels, a multiple of ``unit``.
        width: Fraction in (0, 1].
        shift: Start of the window, in units; any integer.
        unit: Channels that are kept or removed together; a window consists of whole units.
        rounding: How to round to whole units; "nearest" rounds .5 up. Differences below 5e-10 units are treated as
            floating-point errors, so that .07 of 100 channels is 7.

    Returns:
        int64 (count,), strictly increasing, even if the window wraps around.

    Raises:
        ModelError: ``width`` is not in (0, 1].
    """
    if not 0 < width <= 1:
        raise ModelError("width", "a fraction in (0, 1]", width)
    units = size // unit
    exact = round(width * units, 9)
    count = max(1, {"down": math.floor(exact), "nearest": math.floor(exact + 0.5), "up": math.ceil(exact)}[rounding])
    return _blocks(np.sort((shift + np.arange(count, dtype=np.int64)) % units), unit)


def windows(coupling: Coupling, width: float, shift: int = 0, *, rounding: Rounding = "up") -> dict[str, Index]:
    """Return :func:`window` of every group."""
    return {g.name: window(g.size, width, shift, unit=g.unit, rounding=rounding) for g in coupling}


def parameters(layout: Layout) -> int:
    """Return the number of trained entries, which excludes running statistics."""
    return sum(parameter.size for parameter in layout if parameter.role is not Role.STATISTIC)


class Cut:
    """A model without some of its channels: where the entries of each small tensor lie in the full one.

    Attributes:
        full: The layout of the full model.
        layout: The layout of the small model: the same names, order and roles, smaller shapes.
    """

    def __init__(self, layout: Layout, coupling: Coupling, kept: KeptChannels) -> None:
        """Check the kept channels and compute indices.

        Args:
            layout: Layout of the full model.
            coupling: Its channel groups.
            kept: The channels to keep in each group: integers (count,), strictly increasing, at least one, in whole
                units. A group that is not named is kept whole.

        Raises:
            ModelError: An unknown group or channel; channels that are empty, unsorted, repeated or not whole units; a
                coupling that does not match the layout.
        """
        self.full = layout
        self._axes = {p.name: [np.arange(side, dtype=np.int64) for side in p.shape] for p in layout}
        groups = {group.name: group for group in coupling}
        for name, channels in kept.items():
            if name not in groups:
                raise ModelError("kept", f"groups among {', '.join(groups) or 'none'}", name)
            chosen = _checked(groups[name], channels)
            for axis in groups[name].axes:
                self._keep(axis, groups[name].size * axis.block, _blocks(chosen, axis.block))
        self.layout = tuple(replace(p, shape=tuple(len(index) for index in self._axes[p.name])) for p in layout)
        self._shapes = {"full": {p.name: p.shape for p in layout}, "small": {p.name: p.shape for p in self.layout}}

    def _keep(self, axis: Axis, size: int, index: Index) -> None:
        axes = self._axes.get(axis.tensor, [])
        if axis.axis >= len(axes) or len(axes[axis.axis]) != size:
            raise ModelError("coupling", f"{axis.tensor} with {size} entries along axis {axis.axis}", "another layout")
        axes[axis.axis] = index

    def mesh(self, name: str) -> tuple[Index, ...]:
        """Return the kept entries of a tensor as an open mesh, for ``full[mesh]`` and ``full[mesh] = …``.

        Raises:
            ModelError: The model has no such tensor.
        """
        if name not in self._axes:
            raise ModelError("weights", "tensors of the model", f"{name} unknown to the model")
        return np.ix_(*self._axes[name])

    def positions(self, name: str) -> Index:
        """Return the flat positions of the kept entries in the full tensor: int64 (count,), strictly increasing."""
        flat = np.arange(math.prod(self._shapes["full"][name]), dtype=np.int64)
        return flat.reshape(self._shapes["full"][name])[self.mesh(name)].reshape(-1)

    def take(self, weights: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return small tensors with the kept entries of full tensors, of the same dtype.

        Args:
            weights: Full tensors by name; some or all.

        Raises:
            ModelError: A tensor is unknown or has a different shape.
        """
        return {name: np.asarray(array[self._fitting(name, array, "full")]) for name, array in weights.items()}

    def put(self, small: Arrays, base: Arrays | None = None, fill: float = 0) -> dict[str, npt.NDArray[Any]]:
        """Return full tensors with the kept entries from small ones; the inverse of :meth:`take`.

        Args:
            small: Small tensors of any dtype, by name; some or all.
            base: Full tensors that supply the other entries; not modified.
            fill: The other entries without ``base``. Do not use 0 for a running variance.

        Raises:
            ModelError: A tensor is unknown, has a different shape, or is missing from ``base``.
        """
        whole = {}
        for name, array in small.items():
            mesh = self._fitting(name, array, "small")
            if base is None:
                whole[name] = np.full(self._shapes["full"][name], fill, array.dtype)
            elif name in base:
                self._fitting(name, base[name], "full")
                whole[name] = np.array(base[name], array.dtype)
            else:
                raise ModelError("base", "every tensor that is put back", f"{name} missing")
            whole[name][mesh] = array
        return whole

    def masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the mask of kept entries for every tensor, in its full shape."""
        return self.put({name: np.ones(shape, np.bool_) for name, shape in self._shapes["small"].items()})

    def _fitting(self, name: str, array: npt.NDArray[Any], which: str) -> tuple[Index, ...]:
        """Return the mesh of a tensor, after checking that it has its full or its small shape."""
        mesh, shape = self.mesh(name), self._shapes[which][name]
        if np.shape(array) != shape:
            raise ModelError(f"weights {name}", f"shape {shape}", f"shape {np.shape(array)}")
        return mesh


def _checked(group: ChannelGroup, channels: npt.NDArray[Any]) -> Index:
    key, chosen = f"kept {group.name}", np.asarray(channels)
    if chosen.size == 0:
        raise ModelError(key, f"at least one of {group.size} channels", "none")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise ModelError(key, "integers along one axis", f"{chosen.dtype} of shape {chosen.shape}")
    outside = chosen[(chosen < 0) | (chosen >= group.size)]
    if outside.size:
        raise ModelError(key, f"channels 0 … {group.size - 1}", f"channel {outside[0]}")
    chosen = chosen.astype(np.int64)
    if (np.diff(chosen) <= 0).any():
        raise ModelError(key, "channels in increasing order, each once", chosen.tolist())
    if not np.array_equal(chosen, _blocks(np.unique(chosen // group.unit), group.unit)):
        raise ModelError(key, f"whole runs of {group.unit} channels, which are normalised together", chosen.tolist())
    return chosen


def _blocks(index: Index, block: int) -> Index:
    """Return the entries of the blocks ``index``, each of ``block`` entries."""
    return (index[:, None] * block + np.arange(block, dtype=np.int64)).reshape(-1)
