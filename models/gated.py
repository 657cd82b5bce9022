"""A model whose tensors are scaled and switched off block by block, by a gate that looks at the input.

pFedGate, "Efficient Personalized Federated Learning via Sparse Model-Adaptation", section 5 and appendix A:
(M, G) = gate(φ; x), I* = knapsack(G), M' = M·I*, θ' = θ ⊗ M'. The module is trained like any
other: its forward pass includes gate and knapsack. θ is ``model``, which may be sent; φ is ``gate``, which may not.

With gating by sample, each example has its own θ', without a copy of the weights: most rows (the weights of one output)
lie in one block, so the row's output is scaled by that example's M'. A row that is cut by a block's border is split
into parts, whose outputs are scaled separately and added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from sepal.errors import ModelError
from sepal.models.gate import Gate, straight_through
from sepal.modules import frozen_names, refuse_tied

Mask = npt.NDArray[np.bool_]
Choose = Callable[[npt.NDArray[np.float32]], Mask]


def _affine(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, parts: torch.Tensor | None = None, place: Any = None
) -> torch.Tensor:
    """Return x·scale + shift for x (N, R, …), scale and shift (N, R); ``parts`` (N, P, …) are added to rows ``place``.

    For inputs with further axes this is batch normalisation with mean 0 and variance 1, which reads the data once
    forward and once backward: a quarter of the time of a product and a sum. Writing in place is cheap for tensors that
    are not views.
    """
    if x.ndim == 2:
        out = torch.addcmul(shift, x, scale)
        return out if parts is None else out.index_add_(1, place, parts)
    flat = x.reshape(1, scale.numel(), -1)
    zeros = x.new_zeros(scale.numel())
    out = F.batch_norm(flat, zeros, zeros + 1, scale.flatten(), shift.flatten(), eps=0.0)
    if parts is not None:
        rows = torch.arange(len(x), device=x.device)[:, None] * x.shape[1] + place
        out = out.index_add_(1, rows.flatten(), parts.reshape(1, rows.numel(), -1))
    return out.view_as(x)


class _Gated(nn.Module):
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


class _GroupNorm(_Gated, nn.GroupNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.vector("weight"), self.vector("bias")
        if len(weight) == 1:
            return F.group_norm(x, self.num_groups, weight[0], bias[0], self.eps)
        return _affine(F.group_norm(x, self.num_groups, eps=self.eps), weight, bias)


class _Rows(_Gated):
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
        place = np.arange(columns) - begin[cut, None]
        self.lay("row_block", block[np.searchsorted(row, rows)])
        self.lay("row_whole", np.isin(rows, row[cut], invert=True).astype(np.float32))
        self.lay("part_inside", ((place >= 0) & (place < length[cut, None])).astype(np.float32))
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
        moved = [torch.from_numpy(array).to(self.weight.device) for array in arrays]
        return some, moved[0], moved[1], moved[2], self.part_inside[moved[3]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        some, row, block, place, inside = self._computed()
        scale, part_scale = (self.gates[:, self.row_block] * self.row_whole)[:, some], self.gates[:, block]
        weight, part = self.weight[some], self.weight.flatten(1)[row] * inside
        bias = self.gates.new_zeros(len(self.gates), len(self.weight)) if self.bias is None else self.vector("bias")
        apart = not self.shared and len(x) == 1 and torch.is_grad_enabled()  # counted as in a larger batch
        if len(self.gates) == 1 and not apart:
            scaled = (weight.flatten(1) * scale.T).index_add_(0, place, part * part_scale.T)
            out = self.product(x, scaled.view_as(weight), bias[0, some])
        else:
            parts = None
            if len(row):
                parts = self.product(x, part.view(-1, *weight.shape[1:]), None)
                parts = _affine(parts, part_scale, torch.zeros_like(part_scale))
            out = _affine(self.product(x, weight, None), scale, bias[:, some], parts, place)
        if isinstance(some, slice):
            return out
        full = bias.view(*bias.shape, *[1] * (out.ndim - 2)).expand(len(out), -1, *out.shape[2:]).clone()
        return full.index_copy_(1, some, out)


class _Conv1d(_Rows, nn.Conv1d):
    product = nn.Conv1d._conv_forward


class _Conv2d(_Rows, nn.Conv2d):
    product = nn.Conv2d._conv_forward


class _Linear(_Rows, nn.Linear):
    product = staticmethod(F.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2:
            raise ModelError("model", "linear layers on (batch, features) for a gate", tuple(x.shape))
        return super().forward(x)


_LAYERS = {nn.Conv1d: _Conv1d, nn.Conv2d: _Conv2d, nn.GroupNorm: _GroupNorm, nn.Linear: _Linear}


class GatedModule(nn.Module):
    """A model and its gate: (N, …) to logits (N, classes).

    With gating by ``client``, training gates by batch; evaluation, any forward pass without gradients, uses the M and G
    that :meth:`pool` computed. A forward pass with gradients computes all blocks, also those that are off, because the
    straight-through gradient of G needs them. A forward pass without gradients skips rows that are off for all
    examples, which saves their multiply-adds: in proportion by batch and by client; by sample only the rows that are
    off for every example of the batch. The gate, activations and pooling cost the same.

    Args:
        model: Layers Conv1d, Conv2d, Linear and GroupNorm, and layers without parameters. It is modified: its
            layers become gated, its parameters and their names stay.
        input_shape: Shape of one example.
        blocks: Each parameter's block sizes, positive, in the order of the blocks' numbers; L in all.
        choose: The knapsack: from G, float32 (N, L), to the blocks that are on, bool (N, L).
        gating: Whether M' is made by ``sample``, ``batch`` (mean of the gate's outputs) or ``client``.
        paths: 2; or 1, where G is M, M' = M·I*, and there is no straight-through gradient.
        start: See :class:`sepal.models.gate.Gate`.
        shift: See :class:`sepal.models.gate.Gate`.
        without: See :class:`sepal.models.gate.Gate`.

    Attributes:
        model: θ. Its ``state_dict`` has the names of the plain model.
        gate: φ with the statistics of its norms and the pooled outputs: all that a client keeps, nothing to send.
        on: bool (L,): the blocks that were on for any example in the last forward pass of training.
        ever: bool (L,): the blocks that were on in any such pass since the start of the round, which clears it.
        least_batch: Smaller batches cannot train, because of the gate's BatchNorm: the loop merges them into another.

    Raises:
        ModelError: The model has another kind of layer, as text models do, or ``blocks`` is not over its parameters.
    """

    least_batch = 2

    def __init__(
        self,
        model: nn.Module,
        input_shape: Sequence[int],
        blocks: Mapping[str, Sequence[int]],
        choose: Choose,
        *,
        gating: Literal["sample", "batch", "client"] = "sample",
        paths: Literal[1, 2] = 2,
        start: Literal["one", "half"] = "half",
        shift: float = 0.0,
        without: str = "none",
    ) -> None:
        super().__init__()
        refuse_tied(model, "to gate them")
        frozen = frozen_names(model)
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        if sizes != {name: sum(of) for name, of in blocks.items()}:
            raise ModelError("blocks", "sizes that add up to those of the model's parameters", sorted(sizes))
        starts = np.cumsum([0, *map(len, blocks.values())]).tolist()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # a run starts from ``sepal.models.initial_weights``
            self.gate = Gate(input_shape, starts[-1], paths, start, shift, without)
        self.model, self.choose, self.gating, self.paths = model, choose, gating, paths
        self.on, self.ever = np.zeros(starts[-1], bool), np.zeros(starts[-1], bool)
        self._spans = {name: (blocks[name], start) for name, start in zip(blocks, starts, strict=False)}
        self._layers: list[_Gated] = []
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for path, layer in model.named_modules():
            own = [name for name, _ in layer.named_parameters(recurse=False)]
            if own and (type(layer) not in _LAYERS or getattr(layer, "groups", 1) != 1):
                raise ModelError("model", "layers Conv1d, Conv2d (one group), Linear and GroupNorm", f"{path}: {layer}")
            if own and any(name.rpartition(".")[0] == path for name in frozen):
                raise ModelError("model", "layers that are frozen or trained as a whole, to gate them", path)
            if own:
                layer.__class__ = _LAYERS[type(layer)]
                layer.spans = {name: self._spans[f"{path}.{name}".lstrip(".")] for name in own}
                layer.shared = gating != "sample"
                layer.prepare()
                self._layers.append(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 (N, …) to logits, float32 (N, classes)."""
        if self.training and len(x) < self.least_batch:
            raise ModelError("batch", f"at least {self.least_batch} examples to train a gate", len(x))
        gates, on = self.sparse_weights(x)
        if self.training:
            self.on, self.ever = on, self.ever | on
            self.gate.pooled.zero_()
        for layer in self._layers:
            layer.gates, layer.live = gates, on | torch.is_grad_enabled()
        try:
            logits: torch.Tensor = self.model(x)
            return logits
        finally:
            for layer in self._layers:
                del layer.gates

    def sparse_weights(self, x: torch.Tensor) -> tuple[torch.Tensor, Mask]:
        """Return M', (N, L) or (1, L), and the blocks that are on for any example, bool (L,)."""
        if self.gating == "client" and not (self.training or torch.is_grad_enabled()):
            outputs = self.gate.pooled[None]
            if not outputs.any():
                raise ModelError("gate", "pool() on the training part before an evaluation by client", "none")
        else:
            outputs = self.gate(x)
            if self.gating != "sample":
                outputs = outputs.mean(0, keepdim=True)
        weights, importance = outputs[:, : len(self.on)], outputs[:, -len(self.on) :]
        on = self.choose(importance.detach().cpu().numpy())
        chosen = torch.from_numpy(on).to(weights)
        gates = straight_through(weights, importance, chosen) if self.paths == 2 else weights * chosen
        return gates, np.asarray(on.any(0))

    @torch.no_grad()
    def pool(self, batches: Iterable[torch.Tensor]) -> None:
        """Use the mean of the gate's outputs over ``batches`` as the client's gate until the next training step."""
        mode = self.gate.training
        self.gate.eval()
        total, count = torch.zeros_like(self.gate.pooled), 0
        for x in batches:
            total, count = total + self.gate(x).sum(0), count + len(x)
        self.gate.pooled.copy_(total / count)
        self.gate.train(mode)

    @torch.no_grad()
    def hold(self) -> None:
        """Save the entries of θ whose blocks are off for the whole batch. Call before the optimizer's step."""
        self._held = []
        for name, parameter in self.model.named_parameters():
            sizes, first = self._spans[name]
            pieces = zip(torch.split(parameter.view(-1), list(sizes)), self.on[first:], strict=False)
            self._held += [(piece, piece.clone()) for piece, on in pieces if not on]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved entries after the step, which momentum, weight decay or Adam may have changed."""
        for piece, value in self._held:
            piece.copy_(value)
        self._held = []
