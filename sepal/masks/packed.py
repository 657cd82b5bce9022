"""Masks by tensor name: packed as bits, and values at a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.layout import Layout

Mask: TypeAlias = npt.NDArray[np.bool_]
Masks: TypeAlias = Mapping[str, Mask]  # in the shape of the tensor; True for kept entries
Packed: TypeAlias = Mapping[str, npt.NDArray[np.uint8]]  # one bit per entry; tensors without a mask are missing
Dense: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


def pack(masks: Masks, layout: Layout) -> Packed:
    """Return the masks of the tensors in ``layout`` as bits."""
    return {p.name: np.packbits(masks[p.name]) for p in layout}


def unpack(bits: Packed, layout: Layout) -> dict[str, Mask]:
    """Return a mask for every tensor of ``layout``; all True for tensors without bits."""
    return {
        p.name: np.unpackbits(bits[p.name], count=p.size).view(np.bool_).reshape(p.shape)
        if p.name in bits
        else np.ones(p.shape, np.bool_)
        for p in layout
    }


def take(weights: Dense, masks: Masks) -> dict[str, npt.NDArray[np.float32]]:
    """Return the entries of ``weights`` at ``masks``, float32 (nnz,) by name, in C order."""
    return {name: weights[name][mask] for name, mask in masks.items()}


def spread(values: Dense, masks: Masks) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors with ``values`` at ``masks`` and 0 elsewhere; the inverse of :func:`take`."""
    dense = {name: np.zeros(mask.shape, np.float32) for name, mask in masks.items()}
    for name, tensor in dense.items():
        tensor[masks[name]] = values[name]
    return dense


def masked(weights: Dense, masks: Masks) -> dict[str, npt.NDArray[np.float32]]:
    """Return ``weights`` with 0 outside ``masks``; tensors without a mask are unchanged."""
    return {n: np.where(masks[n], w, np.float32(0)) if n in masks else w for n, w in weights.items()}


def density(masks: Masks) -> dict[str, float]:
    """Return the fraction of True entries of each mask; 1 for one without entries."""
    return {name: float(mask.mean()) if mask.size else 1.0 for name, mask in masks.items()}
