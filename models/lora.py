"""Low-rank adapters (LoRA): a frozen weight W becomes W + α/r·B·A, of which only A and B are trained and sent.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, section 4.1. A starts as a linear layer's
weight does, B at 0, so that a run starts at W. The sum is made where a layer reads its weight (torch's
parametrizations), so it holds for attention too, whose kernels read weights without calling a layer. Why not ``peft``:
docs/decisions/0024.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parametrize

from sepal.errors import ConfigError
from sepal.modules import tied_names

_PLACE = re.compile(r"^(.*?)parametrizations\.(\w+)\.(original|0\.lora_[AB])$")


class LoRA(nn.Module):
    """The adapter of one weight (outputs, inputs).

    Attributes:
        lora_A: float32 (rank, inputs).
        lora_B: float32 (outputs, rank).
        scale: α/r.
    """

    def __init__(self, weight: torch.Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.lora_A = nn.Parameter(torch.empty(rank, inputs).uniform_(-1, 1) / math.sqrt(inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = alpha / rank

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with the adapter."""
        return weight + self.scale * (self.lora_B @ self.lora_A)


def add_adapters(module: nn.Module, rank: int, alpha: float, targets: str, seed: int = 0) -> nn.Module:
    """Give weights of linear and attention layers adapters, in place, and return the module.

    Args:
        module: The model.
        rank: r.
        alpha: α; 0 for r, so that α/r is 1.
        targets: Comma-separated patterns of layers or weights; empty for all but the last layer and tied ones.
        seed: Seed of A's values; a run starts from :func:`sepal.models.initial_weights`.

    Raises:
        ConfigError: A pattern matches no such weight, or two layers share one.
    """
    weights, tied = _weights(module), tied_names(module)
    shared = {*tied, *tied.values()}
    chosen = [name for name in weights[:-1] if name not in shared] if not targets else []
    for pattern in [part.strip() for part in targets.split(",") if part.strip()]:
        matching = [
            name
            for name in weights
            if any(fnmatch.fnmatchcase(candidate, pattern) for candidate in (name, _path(name)))
        ]
        if not matching:
            raise ConfigError(
                "lora.targets", f"patterns of {', '.join(weights[:8])}{' …' * (len(weights) > 8)}", pattern
            )
        chosen += [name for name in matching if name not in chosen]
    if not chosen:
        raise ConfigError("lora.rank", "0 for a model without linear or attention layers before its last", rank)
    if both := [name for name in chosen if name in shared]:
        raise ConfigError("lora.targets", "weights that no other layer shares", both[0])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name in chosen:
            layer, leaf = module.get_submodule(_path(name)), name.rpartition(".")[2]
            parametrize.register_parametrization(layer, leaf, LoRA(getattr(layer, leaf), rank, alpha or rank))
    return module


def merged(tensors: Mapping[str, NDArray[np.float32]], scale: float) -> dict[str, NDArray[np.float32]]:
    """Return a model's tensors under the plain model's names, adapters added to the weights they are of."""
    plain: dict[str, NDArray[np.float32]] = {}
    for name, array in tensors.items():
        match = _PLACE.match(name)
        if match is None or f"{match[1]}parametrizations.{match[2]}.0.lora_A" not in tensors:  # or another's
            plain[name] = array
        elif match[3] == "original":
            start = name.removesuffix("original")
            a, b = (tensors[f"{start}0.lora_{which}"] for which in "AB")
            plain[match[1] + match[2]] = array + np.float32(scale) * (b @ a)
    return plain


def plain_name(name: str) -> str:
    """Return the name of a tensor in the model without adapters."""
    match = _PLACE.match(name)
    return match[1] + match[2] if match and match[3] == "original" else name


def _path(name: str) -> str:
    return name.rpartition(".")[0]


def _weights(module: nn.Module) -> list[str]:
    """Return the names of weights (outputs, inputs) of linear and attention layers, in order."""
    kinds = nn.Linear | nn.MultiheadAttention
    layers = {path for path, layer in module.named_modules() if isinstance(layer, kinds)}
    owned = [(name, parameter) for name, parameter in module.named_parameters() if _path(name) in layers]
    return [name for name, parameter in owned if parameter.ndim == 2 and "bias" not in name]
