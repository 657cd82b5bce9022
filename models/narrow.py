"""Models without some of their channels, as modules with smaller layers, which take less memory and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from sepal.errors import ModelError
from sepal.masks.cuts import Cut
from sepal.models.channels import CONVOLUTIONS
from sepal.models.weights import layout
from sepal.modules import undisturbed

COUNTED = (nn.Linear, *CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def cut_model(make: Callable[[], nn.Module], cut: Cut) -> nn.Module:
    """Return the model after ``cut``: the same tensor names and forward pass, with smaller layers.

    Its outputs equal those of the full model with every removed channel set to 0 at the input of the next layer.
    Torch's global generator does not change.

    Args:
        make: Builds a new full model, whose layers are replaced. Kept entries keep their values.
        cut: With the groups of :func:`sepal.models.channels.coupling`.

    Raises:
        ModelError: ``cut`` belongs to another model.
    """
    module = make()
    if layout(module) != cut.full:
        raise ModelError("cut", f"one of the tensors of {type(module).__name__}", "one of another model")
    replaced = set()
    with torch.random.fork_rng(devices=[]):  # new layers draw first weights
        for full, small in zip(cut.full, cut.layout, strict=True):
            path, _, _ = full.name.rpartition(".")
            if full.shape != small.shape and path not in replaced:
                _replace(module, path, small.shape, cut)
                replaced.add(path)
    return module


def forward_multiply_adds(module: nn.Module, example: torch.Tensor) -> Mapping[str, int]:
    """Return the multiply-adds of one example's forward pass by name of weight.

    Convolutions and linear layers count once each and nothing else does, as in papers that compare model sizes.
    Counted in a forward pass of one example in evaluation mode. Torch's own counter, and its meta device, would import
    its compiler: .9 s in every process.

    Args:
        module: A module of torch's own layers; it is not changed.
        example: One example or a batch, of which the first counts: (1 or more, …).
    """
    counts: Counter[str] = Counter()

    def counting(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            # Each output is a sum over one filter; in a transposed convolution each input is spread over one.
            places = inputs[0] if getattr(layer, "transposed", False) else output
            weight: Any = layer.weight  # a buffer where the model freezes it
            counts[name] += places[0].numel() * weight[0].numel()

        return count

    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, COUNTED)]
    hooks = [layer.register_forward_hook(counting(f"{name}.weight".lstrip("."))) for name, layer in layers]
    modes = [(part, part.training) for part in module.modules()]
    try:
        with torch.no_grad(), undisturbed(module):
            module.eval()(example[:1])
    finally:
        for part, training in modes:
            part.training = training
        for hook in hooks:
            hook.remove()
    return dict(counts)


def _replace(module: nn.Module, path: str, shape: tuple[int, ...], cut: Cut) -> None:
    """Replace the layer at ``path`` by a smaller one, whose first tensor (usually the weight) has ``shape``."""
    layer = module.get_submodule(path)
    tensors = layer.state_dict()
    first = next(iter(tensors.values()))
    smaller = _smaller(layer, shape).to(first.device, first.dtype).train(layer.training)
    for name, tensor in smaller.state_dict().items():  # shares memory with the layer
        indices = (
            [torch.from_numpy(index) for index in cut.mesh(f"{path}.{name}")] if tensor.is_floating_point() else []
        )
        tensor.copy_(tensors[name][tuple(indices)])  # counters are whole
    for old, new in zip(layer.parameters(), smaller.parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    above, _, leaf = path.rpartition(".")
    setattr(module.get_submodule(above), leaf, smaller)


def _smaller(layer: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return nn.Linear(shape[1], shape[0], layer.bias is not None)
    if isinstance(layer, CONVOLUTIONS):
        return type(layer)(
            shape[1],
            shape[0],
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
        )
    if isinstance(layer, nn.GroupNorm):
        return nn.GroupNorm(shape[0] * layer.num_groups // layer.num_channels, shape[0], layer.eps)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return type(layer)(shape[0], layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    raise ModelError("model", "convolutions, norms and linear layers where channels are cut", type(layer).__name__)
