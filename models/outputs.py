"""Outputs of a user's model that are no tensor: mappings of Hugging Face and torchvision, tuples of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sepal.errors import ModelError


def take_logits(module: nn.Module) -> None:
    """Let the module return its logits alone, in place, also where it returns more only while it is trained."""
    module.register_forward_hook(_take)


def _take(module: nn.Module, args: tuple[Any, ...], outputs: Any) -> torch.Tensor:
    return logits_of(outputs)


def logits_of(outputs: Any) -> torch.Tensor:
    """Return a tensor as it is, ``logits`` of a mapping or an object, ``out`` of a mapping, the first of a tuple.

    Raises:
        ModelError: There are none.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping):  # torchvision's segmentation calls it out
        logits = outputs.get("logits", outputs.get("out"))
    else:
        logits = getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, tuple | list) and outputs:
        logits = outputs[0]
    if isinstance(logits, torch.Tensor):
        return logits
    got = type(outputs).__name__
    if isinstance(outputs, Mapping):
        got += f" with {', '.join(map(str, outputs)) or 'nothing'}"
    expected = "a tensor as output, a mapping or an object with logits, or a tuple that begins with one"
    raise ModelError("model", expected, got)
