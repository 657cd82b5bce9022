"""Blocks of a model: what pFedGate scales, switches off and sends (Chen et al., ICML 2023, section 5.2.2).

Every parameter tensor, biases included, is taken flat in C order. Its first ⌊d·s_min⌋ entries are the first block,
which is always on; the rest is cut into B − 1 blocks of equal size, the last one smaller where it does not divide. A
block that would be empty is left out: a tensor with fewer than 1/s_min entries has no first block.

Unless it is given, s_min is 1/B, or s/2 where the budget s is below 1/B. The published code's max(1/B, .1) would
break such a budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError, ProtocolError
from sepal.layout import Layout, Role

Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]


def exact(keep: float, key: str = "pfedgate.keep") -> Fraction:
    """Return a share as the decimal number that it is written as, so that .29 of 100 entries are 29."""
    if not 0 < keep <= 1:
        raise ConfigError(key, "a share in (0, 1]", keep)
    return Fraction(repr(float(keep)))


@dataclass(frozen=True, eq=False)
class Blocks:
    """The L blocks of a model of d parameters. Positions refer to all its parameters, one after another.

    Attributes:
        names: Each block's tensor, (L,).
        bounds: int64 (L + 1,): block j is entries bounds[j] … bounds[j + 1].
        first: bool (L,): the blocks that are always on.
        linear: bool (L,): whether the block's layer is linear; the published solver treats these apart.
        least: s_min.
    """

    names: tuple[str, ...]
    bounds: Index
    first: Mask
    linear: Mask
    least: Fraction

    @property
    def sizes(self) -> Index:
        """int64 (L,): number of entries of each block."""
        return np.diff(self.bounds)

    def by_tensor(self) -> dict[str, list[int]]:
        """Return the block sizes of each tensor, in order."""
        sizes: dict[str, list[int]] = {}
        for name, size in zip(self.names, self.sizes.tolist(), strict=True):
            sizes.setdefault(name, []).append(size)
        return sizes

    def costs(self, by_tensor: Mapping[str, int]) -> Index:
        """Return int64 (L,): each tensor's cost, such as its multiply-adds, by entries; 0 for tensors not named."""
        entries = {name: sum(sizes) for name, sizes in self.by_tensor().items()}
        return self.sizes * np.array([by_tensor.get(name, 0) // entries[name] for name in self.names], np.int64)

    def share(self, mask: Mask) -> float:
        """Return the share of all entries in the blocks of ``mask``, bool (L,): s' of a step, q of a round."""
        return int(self.sizes[mask].sum()) / int(self.bounds[-1])

    def positions(self, mask: Mask) -> Index:
        """Return the entries of the blocks of ``mask``, bool (L,): int64, strictly increasing.

        Raises:
            ProtocolError: ``mask`` is not over these blocks, or lacks a first block.
        """
        if mask.shape != self.first.shape:
            raise ProtocolError("blocks", f"shape {self.first.shape}", mask.shape)
        if not mask[self.first].all():
            missing = self.names[int(np.argmax(self.first & ~mask))]
            raise ProtocolError("blocks", "every tensor's first block", f"without that of {missing}")
        return np.flatnonzero(np.repeat(mask, self.sizes)).astype(np.int64, copy=False)


def split(layout: Layout, parts: int, keep: float, least: float = 0.0) -> Blocks:
    """Cut every parameter tensor into at most B blocks; statistics are not parameters.

    Args:
        layout: The model's tensors.
        parts: B, at least 2.
        keep: s, the client's budget in (0, 1]. Clients whose budgets are at least 1/B have the same blocks.
        least: s_min, at most s; 0: 1/B or s/2.

    Raises:
        ConfigError: ``parts``, ``keep`` or ``least`` is out of range.
    """
    if parts < 2:
        raise ConfigError("pfedgate.blocks", "at least 2 blocks a tensor", parts)
    share = Fraction(1, parts) if exact(keep) >= Fraction(1, parts) else exact(keep) / 2
    if least:
        share = exact(least, "pfedgate.least")
    if share > exact(keep):
        raise ConfigError("pfedgate.least", f"at most the budget of every client, here {keep:.4g}", least)
    tensors = [tensor for tensor in layout if tensor.role is not Role.STATISTIC]
    layers = {t.name.rpartition(".")[0] for t in tensors if t.role is Role.WEIGHT and len(t.shape) == 2}
    names, sizes, first = [], [], []
    for tensor in tensors:
        begin = int(tensor.size * share)
        step = max(1, -(-(tensor.size - begin) // (parts - 1)))  # at s_min = 1 nothing is left to cut
        cuts = sorted({0, begin, *range(begin, tensor.size, step), tensor.size})
        names += [tensor.name] * (len(cuts) - 1)
        sizes += np.diff(cuts).tolist()
        first += [cut < begin for cut in cuts[:-1]]
    linear = [name.rpartition(".")[0] in layers for name in names]
    return Blocks(tuple(names), np.cumsum([0, *sizes]), np.array(first), np.array(linear), share)
