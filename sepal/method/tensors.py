"""Payloads and schemas of a model's tensors: dense, or as values at a mask.

A mask is sent along with its values unless the receiver already knows it. With ``derived``, the sender leaves the
positions out and the receiver's schema supplies them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sepal.layout import Layout
from sepal.masks.packed import Dense, Mask, Masks
from sepal.protocol.types import Schema, SpecLike
from sepal.wire.tensors import Index, SparseTensor, Support, TensorSpec, ValueCoding, whole


def dense(weights: Dense, layout: Layout, coding: ValueCoding) -> dict[str, SparseTensor]:
    """Return the tensors of ``layout`` with all entries, encoded as ``coding``."""
    return {p.name: whole(weights[p.name], coding) for p in layout}


def dense_specs(layout: Layout, optional: bool = False) -> dict[str, SpecLike]:
    """Return the specs for :func:`dense`; with ``optional``, any tensor may be missing."""
    return {p.name: TensorSpec(p.shape, min_count=p.size, optional=optional) for p in layout}


def dense_schema(layout: Layout) -> Schema:
    """Return the schema of a payload made by :func:`dense`."""
    return Schema(dense_specs(layout))


def positions(mask: Mask) -> Index:
    """Return the flat positions where ``mask`` is True, int64 (nnz,), increasing."""
    return np.flatnonzero(mask).astype(np.int64)


def at_masks(weights: Dense, masks: Masks, coding: ValueCoding, derived: bool = False) -> dict[str, SparseTensor]:
    """Return ``weights`` at ``masks``; a tensor whose mask is all True is dense.

    Args:
        weights: float32 by name.
        masks: By name, in the order of the payload.
        coding: How values are encoded.
        derived: Whether the receiver derives the masks itself; positions are not sent then.
    """
    sent = {}
    for name, mask in masks.items():
        if mask.all():
            sent[name] = whole(weights[name], coding)
        else:
            index = positions(mask)
            values = np.asarray(weights[name], np.float32).reshape(-1)[index]
            sent[name] = SparseTensor(
                mask.shape, index, values, Support.DERIVED if derived else Support.EXPLICIT, coding
            )
    return sent


def at_masks_specs(
    layout: Layout,
    sizes: Mapping[str, int],
    receiver_masks: Masks | None = None,
    *,
    fresh: bool = True,
    exact: bool = True,
    optional: bool = False,
) -> dict[str, SpecLike]:
    """Return the specs for :func:`at_masks`.

    Args:
        layout: The tensors, in order.
        sizes: Number of entries in each mask; a tensor whose mask has all entries is dense.
        receiver_masks: Masks that the receiver knows; None if it knows none.
        fresh: Whether new masks may be sent.
        exact: Whether a new mask has exactly ``sizes`` entries, rather than at most.
        optional: Whether a tensor may be missing.
    """
    specs: dict[str, SpecLike] = {}
    for p in layout:
        size = sizes[p.name]
        if size == p.size:
            specs[p.name] = TensorSpec(p.shape, min_count=size, optional=optional)
            continue
        index = None if receiver_masks is None else positions(receiver_masks[p.name])
        support = Support.EXPLICIT if fresh or receiver_masks is None else Support.DERIVED
        specs[p.name] = TensorSpec(p.shape, support, True, size if exact else 0, size, index, optional)
    return specs


def at_total_specs(layout: Layout, entries: int) -> dict[str, SpecLike]:
    """Return the specs for :func:`at_masks` where the new masks of ``layout`` have exactly ``entries`` in all."""
    return {p.name: _of_total(layout, number, entries) for number, p in enumerate(layout)}


def _of_total(layout: Layout, number: int, entries: int) -> SpecLike:
    later = sum(p.size for p in layout[number + 1 :])

    def spec(decoded: Mapping[str, SparseTensor]) -> TensorSpec:
        left = max(0, entries - sum(decoded[p.name].nnz for p in layout[:number]))
        p = layout[number]
        return TensorSpec(p.shape, min_count=min(max(0, left - later), p.size), max_count=min(left, p.size))

    return spec
