"""A model whose tensors are scaled and switched off block by block, by a gate that looks at the input.

pFedGate, "Efficient Personalized Federated Learning via Sparse Model-Adaptation", section 5 and appendix A:
(M, G) = gate(φ; x), I* = knapsack(G), M' = M·I*, θ' = θ ⊗ M'. The module is trained like any
other: its forward pass includes gate and knapsack. θ is ``model``, which may be sent; φ is ``gate``, which may not.

The layers, which scale and skip blocks, are in :mod:`sepal.models.gated_layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sepal.errors import ModelError
from sepal.models.gate import Gate, straight_through, straight_through_one
from sepal.models.gated_layers import LAYERS, GatedLayer, Mask
from sepal.modules import OTHERWISE, described_layer, floating, frozen_names, refuse_tied

Choose = Callable[[npt.NDArray[np.float32]], Mask]


def _refuse_statistics(model: nn.Module) -> None:
    norms = [entry for entry in model.named_modules() if isinstance(entry[1], nn.modules.batchnorm._BatchNorm)]
    if odd := [(path, layer) for path, layer in norms if any(True for _ in layer.parameters())]:
        expected = f"norms without running statistics, such as GroupNorm, to gate them ({OTHERWISE})"
        raise ModelError("model", expected, described_layer(*odd[0]))
    parameters = dict(model.named_parameters())
    if statistics := [name for name in floating(model) if name not in parameters]:
        expected = f"no buffers of floating point in its state_dict, to gate it ({OTHERWISE})"
        raise ModelError("model", expected, statistics[0])


def _is_gateable(layer: nn.Module) -> bool:
    return type(layer) in LAYERS and getattr(layer, "groups", 1) == 1


class GatedModule(nn.Module):
    """A model and its gate: (N, …) to logits (N, classes).

    With gating by ``client``, training gates by batch; evaluation, any forward pass without gradients, uses the M and G
    that :meth:`pool` computed. A forward pass with gradients computes all blocks, also those that are off, because the
    straight-through gradient of G needs them. A forward pass without gradients skips rows that are off for all
    examples, which saves their multiply-adds: in proportion by batch and by client; by sample only the rows that are
    off for every example of the batch. The gate, activations and pooling cost the same.

    Args:
        model: Layers Conv1d, Conv2d, Linear and GroupNorm, and layers without parameters. It is modified: its
            layers become gated, its parameters and their names stay. By batch and by client, where there is one θ' for
            a batch, any other layer too (recurrent, attention, norms): then all weights are scaled before the forward
            pass, and no rows are skipped. Embeddings are refused: token ids are no numbers for a gate.
        input_shape: Shape of one example.
        blocks: Each parameter's block sizes, positive, in the order of the blocks' numbers; L in all.
        choose: The knapsack: from G, float32 (N, L), to the blocks that are on, bool (N, L).
        gating: Whether M' is made by ``sample``, ``batch`` (mean of the gate's outputs) or ``client``.
        paths: 2; or 1, where G is M (:func:`sepal.models.gate.straight_through_one`).
        start: See :class:`sepal.models.gate.Gate`.
        shift: See :class:`sepal.models.gate.Gate`.
        without: See :class:`sepal.models.gate.Gate`.
        variance: See :class:`sepal.models.gate.Gate`.

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
        variance: str = "biased",
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
            self.gate = Gate(input_shape, starts[-1], paths, start, shift, without, variance)
        self.model, self.choose, self.gating, self.paths = model, choose, gating, paths
        self.on, self.ever = np.zeros(starts[-1], bool), np.zeros(starts[-1], bool)
        self._spans = {name: (blocks[name], start) for name, start in zip(blocks, starts, strict=False)}
        self._layers: list[GatedLayer] = []
        self._scaled: dict[str, str] = {}
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        layers = [(path, part) for path, part in model.named_modules() if any(True for _ in part.parameters(False))]
        ungated = [(path, layer) for path, layer in layers if not _is_gateable(layer)]
        _refuse_statistics(model)
        if embeds := [path for path, layer in layers if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]:
            raise ModelError("model", f"inputs that are numbers, for a gate ({OTHERWISE})", f"{embeds[0]} (Embedding)")
        if gating == "sample" and ungated:
            expected = "layers Conv1d, Conv2d (one group), Linear and GroupNorm, to gate them by sample"
            way = f"{expected} (pfedgate.gating = batch takes others; {OTHERWISE})"
            raise ModelError("model", way, described_layer(*ungated[0]))
        if ungated:
            for number, (name, (of, begin)) in enumerate(self._spans.items()):
                self._scaled[name] = f"block_{number}"
                block = torch.from_numpy(begin + np.repeat(np.arange(len(of)), of))
                self.register_buffer(self._scaled[name], block, persistent=False)
            return
        for path, layer in layers:
            names = [name for name, _ in layer.named_parameters(recurse=False)]
            if any(name.rpartition(".")[0] == path for name in frozen):
                raise ModelError("model", "layers that are frozen or trained as a whole, to gate them", path)
            if names:
                layer.__class__ = LAYERS[type(layer)]
                layer.spans = {name: self._spans[f"{path}.{name}".lstrip(".")] for name in names}
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
        if self._scaled:
            parameters = dict(self.model.named_parameters())
            scales = {name: gates[0, self.get_buffer(block)] for name, block in self._scaled.items()}
            scaled = {name: parameter * scales[name].view_as(parameter) for name, parameter in parameters.items()}
            outputs: torch.Tensor = torch.func.functional_call(self.model, scaled, (x,))
            return outputs
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
        if self.paths == 2:
            return straight_through(weights, importance, chosen), np.asarray(on.any(0))
        return weights * chosen if on.all() else straight_through_one(weights, chosen), np.asarray(on.any(0))

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
        self._saved = []
        for name, parameter in self.model.named_parameters():
            sizes, first = self._spans[name]
            pieces = zip(torch.split(parameter.view(-1), list(sizes)), self.on[first:], strict=False)
            self._saved += [(piece, piece.clone()) for piece, on in pieces if not on]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved entries after the step, which momentum, weight decay or Adam may have changed."""
        for piece, value in self._saved:
            piece.copy_(value)
        self._saved = []
