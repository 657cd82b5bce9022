"""FedMask's keys, its fixed weights and first scores, and how masks are sent: what server and client share."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import Settings
from sepal.layout import Layout, Parameter, Role, layers
from sepal.masks.packed import Mask, Masks, Packed, pack, unpack
from sepal.masks.selection import count, largest
from sepal.method import RunSetup, Weights
from sepal.protocol.types import SpecLike
from sepal.rng import derive
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec, members

SPREAD = 0.01  # standard deviation of the first scores


class Hyper(Settings):
    """FedMask's keys."""

    # pFedGate's comparison masks the last layer of its 2-layer CNN and the last two of its 3-layer one.
    layers: int = Field(0, ge=0, description="number of last layers to mask, the others stay as they are; 0: all")
    # Our choices, as the docstring says; not searched.
    keep: float = Field(0.75, gt=0, le=1, description="share of a masked layer's units in each client's structure")
    lr: float = Field(0.0, ge=0, description="learning rate for the scores; 0: that of the run, lr")
    momentum: float = Field(0.8, ge=0, lt=1, description="momentum for the scores")
    weights: Literal["signed", "drawn"] = Field(
        "signed", description="fixed weights; signed: W_0's signs, one magnitude per layer; drawn: W_0"
    )


class MaskedParts:
    """What server and client share: which weights have masks, and how masks are sent.

    Attributes:
        masked: The weights that have masks.
        units: For each weight whose units may be dropped, a parameter with one entry per unit.
        weights: All tensors of the model, before any mask.
        first: The first scores, float32 by weight.
    """

    def __init__(self, setup: RunSetup) -> None:
        self.hyper: Hyper = setup.hyper
        masked = layers(setup.layout, self.hyper.layers)[1] if self.hyper.layers else setup.layout
        self.masked: Layout = tuple(p for p in masked if p.role is Role.WEIGHT)
        self.axis = {p.name: 0 for p in self.masked[:-1]} or {self.masked[-1].name: 1}
        self.units: Layout = tuple(
            Parameter(p.name, (p.shape[self.axis[p.name]],), p.role) for p in self.masked if p.name in self.axis
        )
        seed = setup.config.seed
        self.first: Weights = {
            p.name: derive(seed, "fedmask", p.name).standard_normal(p.shape, np.float32) * np.float32(SPREAD)
            for p in self.masked
        }
        self.weights = dict(setup.weights)
        if self.hyper.weights == "signed":
            for p in self.masked:
                gain = 1 if p is self.masked[-1] else 2  # no ReLU follows the output layer
                size = np.float32(math.sqrt(2 * gain / self.hyper.keep / math.prod(p.shape[1:])))
                self.weights[p.name] = np.where(setup.weights[p.name] < 0, -size, size).astype(np.float32)

    def entries(self, structure: Packed) -> dict[str, Mask]:
        """Return the entries of a structure, bool by weight; all entries if there is no structure."""
        units, entries = unpack(structure, self.units), {}
        for p in self.masked:
            shape = [-1 if axis == self.axis.get(p.name) else 1 for axis in range(len(p.shape))]
            kept = units[p.name].reshape(shape) if p.name in units else np.ones((), np.bool_)
            entries[p.name] = np.broadcast_to(kept, p.shape)
        return entries

    def chosen(self, scores: Weights) -> Packed:
        """Return the structure: in each layer the units with the largest mean scores."""
        units = {}
        for p in self.units:
            score = np.moveaxis(scores[p.name], self.axis[p.name], 0).reshape(p.size, -1).mean(1)
            units[p.name] = largest(score - score.min(), count(self.hyper.keep, p.size))
        return pack(units, self.units)

    def model(self, masks: Masks) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights under masks."""
        return {**self.weights, **{name: self.weights[name] * mask for name, mask in masks.items()}}

    def bits(self, masks: Masks, structure: Packed) -> dict[str, SparseTensor]:
        """Return masks as they are sent: one bit for each entry of a structure."""
        return {name: members(masks[name][entries]) for name, entries in self.entries(structure).items()}

    def specs(self, whole: bool = False) -> dict[str, SpecLike]:
        """Return the specs of :meth:`bits`, of any structure, as all have the same number of units; or of all bits."""
        sizes = {p.name: p.size for p in self.masked}
        for p in () if whole else self.units:
            sizes[p.name] = sizes[p.name] // p.size * count(self.hyper.keep, p.size)
        return {name: TensorSpec((size,), values=False) for name, size in sizes.items()}

    def read(self, tensors: Tensors, structure: Packed) -> dict[str, Mask]:
        """Return the masks from :meth:`bits`, bool by weight; off outside the structure."""
        masks = {}
        for name, entries in self.entries(structure).items():
            masks[name] = np.zeros(entries.shape, np.bool_)
            masks[name][entries] = tensors[name].mask()
        return masks
