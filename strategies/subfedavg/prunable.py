"""The parts of a model that Sub-FedAvg prunes: steps of pruning, masks in messages, and what a capacity leaves.

Vahidian, Morafah, Lin: "Personalized Federated Learning by Structured and Unstructured Pruning under Data
Heterogeneity", ICDCS Workshops 2021. Deviations: see NOTES.md.

A *part* has a mask: a layer's weight, with one bit per entry, or in the hybrid variant the channels of a convolution,
with one bit per channel. The mask of a weight also excludes entries that were removed with a channel. Both sides know a
client's masks, so values are sent without positions. When a client prunes, it sends each changed mask before the
values, over the entries of the old mask, so a mask can only shrink.

A model *fits* a client whose ``capacity`` is at least the fraction of trained parameters that its masks keep.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from sepal.errors import ConfigError, ModelError, ProtocolError
from sepal.layout import Layout, Parameter, Role, trained
from sepal.masks.cuts import Coupling, Cut, parameters
from sepal.masks.packed import Mask, Masks, Packed, pack, unpack
from sepal.method import RunSetup, Schema, Weights
from sepal.method.tensors import at_masks_specs, positions
from sepal.protocol.types import SpecLike
from sepal.strategies.subfedavg.contract import Hyper
from sepal.strategies.subfedavg.pruning import cut_at_once, distance, floor, pruned_step
from sepal.wire.tensors import SparseTensor, Support, Tensors, TensorSpec, members


class Prunable:
    """The parts of a model that can be pruned, pruning steps, and messages. Masks are by part.

    Attributes:
        layout: The model's tensors.
        channels: One part for each convolution with a BatchNorm behind it; none in the unstructured variant.
        weights: Weights that are pruned entry by entry: all, or in the hybrid variant those of linear layers.
        parts: Both, channels first: the order in which masks travel.
        whole: The masks of the whole model.
        size: Number of the model's parameters.
        least_channels: How many channels are left in all at the run's target.
        least_of_each: How many are left in each convolution where channels are cut at once.
        at_once: Whether channels are cut at once.
    """

    def __init__(self, setup: RunSetup) -> None:
        """Find the parts.

        Raises:
            ConfigError: Clients have no validation data.
            ModelError: Hybrid, and no convolution has a BatchNorm behind it, or the model's channels are not known.
        """
        self.hyper: Hyper = setup.hyper
        if not setup.config.split.validation:
            raise ConfigError("split.validation", "more than 0: clients prune by their validation accuracy", 0.0)
        self.layout, hybrid = setup.layout, self.hyper.variant == "hy"
        shapes = {p.name: p.shape for p in self.layout}
        self.coupling: Coupling = ()
        if hybrid:
            from sepal.models import coupling  # it imports torch, which reports do not need

            self.coupling = coupling(setup.make())
        groups = [g for g in self.coupling if g.scale and len(shapes[f"{g.name}.weight"]) > 2]
        if hybrid and not groups:
            expected = (
                "BatchNorm2d behind a convolution, by which subfedavg.variant = hy ranks channels (un needs none)"
            )
            raise ModelError("model", expected, f"none in {setup.config.model}")
        self.scales = {group.name: str(group.scale) for group in groups}
        self.channels: Layout = tuple(Parameter(group.name, (group.size,), Role.NORM) for group in groups)
        self.weights = tuple(p for p in self.layout if p.role is Role.WEIGHT and (not hybrid or len(p.shape) == 2))
        self.parts = (*self.channels, *self.weights)
        self.whole = unpack({}, self.parts)
        self.size = parameters(self.layout)
        self.least_of_each = {p.name: floor(p.size, self.hyper.channel_target) for p in self.channels}
        self.at_once = self.hyper.channel_cut == "at-once"
        whole = floor(sum(p.size for p in self.channels), self.hyper.channel_target)
        self.least_channels = sum(self.least_of_each.values()) if self.at_once else whole

    def cut(self, masks: Masks) -> Cut:
        """Return the cut to the channels of ``kept``."""
        return Cut(self.layout, self.coupling, {p.name: np.flatnonzero(masks[p.name]) for p in self.channels})

    def masks(self, masks: Masks) -> dict[str, Mask]:
        """Return the mask of every tensor of the model."""
        remaining_masks = self.cut(masks).masks()
        return {**remaining_masks, **{p.name: remaining_masks[p.name] & masks[p.name] for p in self.weights}}

    def within(self, masks: Masks) -> dict[str, Mask]:
        """Return ``kept`` with the weights' masks limited to the channels that are left."""
        remaining_masks = self.masks(masks)
        return {**masks, **{p.name: remaining_masks[p.name] for p in self.weights}}

    def left(self, kept: Masks) -> int:
        """Return the number of parameters that are left, including biases."""
        masks = self.masks(kept)
        return sum(int(masks[p.name].sum()) for p in trained(self.layout))

    def rest(self, kept: Masks) -> int:
        """Return the number of parameters that are left in tensors that are not pruned entry by entry."""
        masks, pruned = self.masks(kept), {p.name for p in self.weights}
        return sum(int(masks[p.name].sum()) for p in trained(self.layout) if p.name not in pruned)

    def channels_left(self, masks: Masks) -> int:
        """Return the number of channels that are left in all convolutions together."""
        return sum(int(masks[p.name].sum()) for p in self.channels)

    def of_weights(self, masks: Masks) -> dict[str, Mask]:
        """Return the weights' masks alone."""
        return {p.name: masks[p.name] for p in self.weights}

    def pruned(self, masks: Masks) -> float:
        """Return the fraction of pruned parameters, including biases."""
        return 1 - self.left(masks) / self.size

    def channels_pruned(self, masks: Masks) -> float:
        """Return the fraction of pruned channels of convolutions; 0 without such parts."""
        return distance(masks, self.whole, self.channels)

    def packed(self, masks: Masks) -> Packed:
        """Return the masks as bits, without those of parts in which nothing is pruned."""
        return pack(masks, tuple(p for p in self.parts if not masks[p.name].all()))

    # One step

    def prune_weights(self, weights: Weights, masks: Masks, capacity: float) -> dict[str, Mask]:
        """Return the weights' masks after one step in each layer, by |w|, down to :meth:`least`."""
        least, by = self.least(masks, capacity), self.hyper.step_by
        return pruned_step(weights, self.of_weights(masks), least, self.hyper.step, by)

    def prune_channels(self, weights: Weights, masks: Masks) -> dict[str, Mask]:
        """Return the channels' masks after one step by |γ|, down to the target, over all of them or at once in each."""
        if self.at_once:
            scores = {p.name: weights[self.scales[p.name]] for p in self.channels}
            return {name: cut_at_once(score, masks[name], self.least_of_each[name]) for name, score in scores.items()}
        return self.fewer_channels(weights, masks, self.least_channels, self.hyper.step)

    def fewer_channels(self, weights: Weights, masks: Masks, least: int, step: float) -> dict[str, Mask]:
        """Return the channels' masks after a step of size ``step``, at most to ``least`` channels in all.

        The channel of largest |γ| of each layer stays.
        """
        if not self.channels:
            return {}
        scores = []
        for p in self.channels:
            score = np.where(masks[p.name], np.abs(weights[self.scales[p.name]]), -1)
            score[score.argmax()] = np.inf
            scores.append(np.where(masks[p.name], score, 0))
        mask = np.concatenate([masks[p.name] for p in self.channels])
        bound = {"": max(len(self.channels), least)}
        after = pruned_step({"": np.concatenate(scores)}, {"": mask}, bound, step)[""]
        pieces = np.split(after, np.cumsum([p.size for p in self.channels])[:-1])
        return {p.name: piece for p, piece in zip(self.channels, pieces, strict=True)}

    # Capacity

    def fits(self, masks: Masks, capacity: float) -> bool:
        """Return whether a model with these masks fits the capacity."""
        return self.left(masks) <= capacity * self.size

    def room(self, masks: Masks, capacity: float) -> dict[str, int]:
        """Return how many weights of each layer may be left for the model to fit; at least 1.

        The parameters that the capacity leaves for them are divided in proportion to the layers' sizes.
        """
        layers, weights = len(self.weights), sum(p.size for p in self.weights)
        share = (math.floor(capacity * self.size) - self.rest(masks) - layers) / max(1, weights - layers)
        return {p.name: 1 + math.floor(max(0.0, min(1.0, share)) * (p.size - 1)) for p in self.weights}

    def rest_room(self, capacity: float) -> float:
        """Return how many parameters :meth:`rest` may leave for the model to fit."""
        return min(capacity * self.rest(self.whole), capacity * self.size - len(self.weights))

    def least(self, masks: Masks, capacity: float) -> dict[str, int]:
        """Return how many weights of each layer are left at its target: the run's, or a higher one if needed to fit."""
        room = self.room(masks, capacity)
        return {p.name: min(floor(p.size, self.hyper.target), room[p.name]) for p in self.weights}

    def fitted(self, weights: Weights, masks: Masks, capacity: float) -> dict[str, Mask]:
        """Return ``kept`` if such a model fits; otherwise masks that fit, pruned in one step of any size.

        Channels are removed until the tensors that are not pruned by entry keep at most the fraction ``capacity`` of
        their parameters; weights fill what is left.
        """
        if self.fits(masks, capacity):
            return dict(masks)
        if self.channels:

            def fewer(count: int) -> dict[str, Mask]:
                return self.within({**masks, **self.fewer_channels(weights, masks, count, 1.0)})

            counts, most = range(len(self.channels), self.channels_left(masks) + 1), self.rest_room(capacity)
            masks = fewer(counts[max(0, bisect_right(counts, most, key=lambda count: self.rest(fewer(count))) - 1)])
        return {**masks, **pruned_step(weights, self.of_weights(masks), self.room(masks, capacity), 1.0)}

    def check(self, capacity: float) -> None:
        """Raise a ``ModelError`` if even one channel and one weight of each layer do not fit."""
        minimal = {p.name: np.arange(p.size) == 0 for p in self.channels}
        needed = (self.rest({**self.whole, **minimal}) + len(self.weights)) / self.size
        if capacity < needed:
            raise ModelError("capacity", f"at least {needed:.4f}: biases and norms are not pruned", f"{capacity:g}")

    # Messages

    def changes(self, before: Masks, after: Masks) -> dict[str, SparseTensor]:
        """Return the changed masks: one bit for each entry the receiver still counts.

        For a weight, without those lost with a channel of this message.
        """
        masks_within = self.within({**before, **{p.name: after[p.name] for p in self.channels}})
        counted = {**masks_within, **{p.name: before[p.name] for p in self.channels}}
        changed = [p.name for p in self.parts if not np.array_equal(counted[p.name], after[p.name])]
        return {f"{name}/kept": members(after[name][counted[name]]) for name in changed}

    def changed(self, before: Masks, tensors: Tensors) -> dict[str, Mask]:
        """Return the masks after applying received :meth:`changes`."""
        return _narrowed(self.within(_narrowed(before, tensors, self.channels)), tensors, self.weights)

    def download_schema(self, kept: Masks) -> Schema:
        """Return the download's schema: the model's values at the masks that both sides know."""
        masks = self.masks(kept)
        return Schema(at_masks_specs(self.layout, {n: int(m.sum()) for n, m in masks.items()}, masks, fresh=False))

    def upload_schema(self, before: Masks, capacity: float) -> Schema:
        """Return the upload's schema: changed masks, not below the target, then the values at the new masks.

        All specs of a payload share one computation of the masks, so that reading it is linear in the tensors.

        Raises:
            ModelError: No model fits the capacity.
        """
        self.check(capacity)
        channels, weights = ([f"{p.name}/kept" for p in parts] for parts in (self.channels, self.weights))
        cut = _once(channels, lambda tensors: self.fewer_within_target(before, tensors, capacity))
        least = _once(channels, lambda tensors: self.least(cut(tensors), capacity))  # weights' masks do not change it
        masks = _once(channels + weights, lambda tensors: self.masks(_narrowed(cut(tensors), tensors, self.weights)))
        specs: dict[str, SpecLike] = {}
        for p in self.channels:
            specs[f"{p.name}/kept"] = TensorSpec((int(before[p.name].sum()),), values=False, min_count=1, optional=True)
        specs |= {f"{p.name}/kept": partial(_mask_spec, p, cut, least) for p in self.weights}
        return Schema({**specs, **{p.name: partial(_value_spec, p, masks) for p in self.layout}})

    def fewer_within_target(self, before: Masks, tensors: Tensors, capacity: float) -> dict[str, Mask]:
        """Return the masks after applying received channels' masks.

        Raises:
            ProtocolError: Fewer channels than the target leaves, although a model with one more would fit the capacity.
        """
        masks_within = self.within(_narrowed(before, tensors, self.channels))
        # The server does not rank channels, so it does not know which one a client would keep with more room.
        many = self.channels_left(masks_within)
        if many < min(self.least_channels, self.channels_left(before)):
            lost = [p for p in self.channels if masks_within[p.name].sum() < before[p.name].sum()]
            more = (
                {**masks_within, p.name: masks_within[p.name] | (np.arange(p.size) == masks_within[p.name].argmin())}
                for p in lost
            )
            if all(self.rest(masks) <= self.rest_room(capacity) for masks in more):
                raise ProtocolError(f"{lost[-1].name}/kept", f"at least {self.least_channels} channels in all", many)
        return masks_within


T = TypeVar("T")


def _once(names: Sequence[str], make: Callable[[Tensors], T]) -> Callable[[Tensors], T]:
    """Return ``make``, cached: it is called again only if the tensors ``names`` are new ones, so once per payload."""
    cached: list[tuple[list[SparseTensor | None], T]] = []

    def last(tensors: Tensors) -> T:
        read = [tensors.get(name) for name in names]
        if not cached or any(new is not old for new, old in zip(read, cached[0][0], strict=True)):
            cached[:] = [(read, make(tensors))]
        return cached[0][1]

    return last


def _mask_spec(
    part: Parameter, cut: Callable[[Tensors], Masks], least: Callable[[Tensors], Mapping[str, int]], tensors: Tensors
) -> TensorSpec:
    remaining = int(cut(tensors)[part.name].sum())
    return TensorSpec((remaining,), values=False, min_count=min(remaining, least(tensors)[part.name]), optional=True)


def _value_spec(parameter: Parameter, masks: Callable[[Tensors], Masks], tensors: Tensors) -> TensorSpec:
    mask = masks(tensors)[parameter.name]
    if mask.all():
        return TensorSpec(parameter.shape, min_count=parameter.size)
    return TensorSpec(parameter.shape, Support.DERIVED, index=positions(mask))


def _narrowed(masks: Masks, tensors: Tensors, parts: Layout) -> dict[str, Mask]:
    """Return ``masks``, with those of ``parts`` limited to what was received: positions among their own entries."""
    after = dict(masks)
    for p in parts:
        among = tensors.get(f"{p.name}/kept")
        if among is not None:
            mask = np.zeros(p.size, np.bool_)
            mask[np.flatnonzero(masks[p.name])[among.positions()]] = True
            after[p.name] = mask.reshape(p.shape)
    return after
