"""The layers of a gated model (:mod:`sepal.models.gated`), which scale blocks of weights by M' and skip those off.

With gating by sample, each example has its own θ', without a copy of the weights: most rows (the weights of one output)
lie in one block, so the row's output is scaled by that example's M'. A row that is cut by a block's border is split
into parts, whose outputs are scaled separately and added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from sepal.errors import ModelError
from sepal.modules import OTHERWISE

Mask = npt.NDArray[np.bool_]
NOTHING = 1e-30  # 1 + NOTHING is 1; some releases of torch refuse eps = 0


def affine(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, parts: torch.Tensor | None = None, positions: Any = None
) -> torch.Tensor:
    """Return x·scale + shift for x (N, R, …), scale and shift (N, R); adds ``parts`` (N, P, …) to rows ``positions``.

    For inputs with further axes this is batch normalisation with mean 0 and variance 1, which reads the data once
    forward and once backward: a quarter of the time of a product and a sum. Writing in place is cheap for tensors that
    are not views.
    """
    if x.ndim == 2:
        out = torch.addcmul(shift, x, scale)
        return out if parts is None else out.index_add_(1, positions, parts)
    flat = x.reshape(1, scale.numel(), -1)
    zeros = x.new_zeros(scale.numel())
    out = F.batch_norm(flat, zeros, zeros + 1, scale.flatten(), shift.flatten(), eps=NOTHING)
    if parts is not None:
        rows = torch.arange(len(x), device=x.device)[:, None] * x.shape[1] + positions
        out = out.index_add_(1, rows.flatten(), parts.reshape(1, rows.numel(), -1))
    return out.view_as(x)


class GatedLayer(nn.Module):
    """Base of the gated layers, which hold M' during one forward pass.

    Attributes:
        spans: By parameter: its blocks' sizes, and the number of the first among all blocks.
        shared: Whether a batch has one M', as by batch and by client.
        gates: M', (N, L), or (1, L): one for the batch.
        live: bool (L,): the blocks that must be computed.
    """

    spans: Mapping[str, tuple[Sequence[int], int]]
    shared: bool
    gates: torch.Tensor
    live: Mask

    def prepare(self) -> None:
        """Compute where the blocks lie; ``spans`` must be set."""
        for name, (sizes, first) in self.spans.items():
            if self.get_parameter(name).ndim == 1:
                self.lay(f"{name}_block", first + np.repeat(np.arange(len(sizes)), sizes))

    def lay(self, name: str, array: npt.NDArray[Any]) -> None:
        """Register ``array`` as a buffer that is not part of the module's ``state_dict``."""
        self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def vector(self, name: str) -> torch.Tensor:
        """Return a tensor of one axis, such as a bias, times M' block by block: (N, R)."""
        return self.get_parameter(name) * self.gates[:, self.get_buffer(f"{name}_block")]


class _GroupNorm(GatedLayer, nn.GroupNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.vector("weight"), self.vector("bias")
        if len(weight) == 1:
            return F.group_norm(x, self.num_groups, weight[0], bias[0], self.eps)
        return affine(F.group_norm(x, self.num_groups, eps=self.eps), weight, bias)


class _GatedRows(GatedLayer):
    """A linear layer or a convolution: R rows of ``columns`` weights.

    Attributes:
        product: The layer's function of input, weight and bias.
        row_block: int64 (R,): the block that a row lies in; any of its blocks for a cut row.
        row_whole: float32 (R,): 1, or 0 for a cut row.
        part_inside: float32 (P, columns): 1 in the columns of a part of a cut row, 0 elsewhere.
        part_row, part_block: int64 (P,): the row and the block of a part.
    """

    product: Callable[..., torch.Tensor]
    weight: torch.Tensor
    row_block: torch.Tensor
    row_whole: torch.Tensor
    part_inside: torch.Tensor
    part_row: torch.Tensor
    part_block: torch.Tensor

    def prepare(self) -> None:
        super().prepare()
        sizes, first = self.spans["weight"]
        columns = self.weight[0].numel()
        ends, rows = np.cumsum([0, *sizes]), np.arange(len(self.weight))
        cuts = np.union1d(ends, np.arange(0, ends[-1] + 1, columns))
        row, begin, length = cuts[:-1] // columns, cuts[:-1] % columns, np.diff(cuts)
        block, cut = first + np.searchsorted(ends, cuts[:-1], "right") - 1, length < columns
        offsets = np.arange(columns) - begin[cut, None]
        self.lay("row_block", block[np.searchsorted(row, rows)])
        self.lay("row_whole", np.isin(rows, row[cut], invert=True).astype(np.float32))
        self.lay("part_inside", ((offsets >= 0) & (offsets < length[cut, None])).astype(np.float32))
        self.lay("part_row", row[cut])
        self.lay("part_block", block[cut])
        self._segments, self._parts = (row, block), (row[cut], block[cut])

    def _computed(self) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return which rows to compute, and of the parts of cut rows: row, block, place among these rows, columns."""
        if self.live.all():  # each step of training: nothing is copied to the device
            return slice(None), self.part_row, self.part_block, self.part_row, self.part_inside
        row, block = self._segments
        rows = np.union1d(row[self.live[block]], [0])  # layers do not work without outputs
        some = slice(None) if len(rows) == len(self.weight) else torch.from_numpy(rows).to(self.weight.device)
        live = self.live[self._parts[1]]
        row, block = (array[live] for array in self._parts)
        arrays = row, block, np.searchsorted(rows, row), live
        tensors = [torch.from_numpy(array).to(self.weight.device) for array in arrays]
        return some, tensors[0], tensors[1], tensors[2], self.part_inside[tensors[3]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        some, row, block, positions, inside = self._computed()
        scale, part_scale = (self.gates[:, self.row_block] * self.row_whole)[:, some], self.gates[:, block]
        weight, part = self.weight[some], self.weight.flatten(1)[row] * inside
        bias = self.gates.new_zeros(len(self.gates), len(self.weight)) if self.bias is None else self.vector("bias")
        apart = not self.shared and len(x) == 1 and torch.is_grad_enabled()  # counted as in a larger batch
        if len(self.gates) == 1 and not apart:
            scaled = (weight.flatten(1) * scale.T).index_add_(0, positions, part * part_scale.T)
            out = self.product(x, scaled.view_as(weight), bias[0, some])
        else:
            parts = None
            if len(row):
                parts = self.product(x, part.view(-1, *weight.shape[1:]), None)
                parts = affine(parts, part_scale, torch.zeros_like(part_scale))
            out = affine(self.product(x, weight, None), scale, bias[:, some], parts, positions)
        if isinstance(some, slice):
            return out
        full = bias.view(*bias.shape, *[1] * (out.ndim - 2)).expand(len(out), -1, *out.shape[2:]).clone()
        return full.index_copy_(1, some, out)


class _Conv1d(_GatedRows, nn.Conv1d):
    product = nn.Conv1d._conv_forward


class _Conv2d(_GatedRows, nn.Conv2d):
    product = nn.Conv2d._conv_forward


class _Linear(_GatedRows, nn.Linear):
    product = staticmethod(F.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 2:
            return super().forward(x)
        if not self.shared:
            expected = (
                f"linear layers on (batch, features), to gate them by sample (pfedgate.gating = batch; {OTHERWISE})"
            )
            raise ModelError("model", expected, f"one on {tuple(x.shape)}")
        return super().forward(x.flatten(0, -2)).view(*x.shape[:-1], -1)


LAYERS = {nn.Conv1d: _Conv1d, nn.Conv2d: _Conv2d, nn.GroupNorm: _GroupNorm, nn.Linear: _Linear}
