"""Outputs of a user's model that are no tensor: Hugging Face's mappings with ``logits``, tuples of outputs and more."""

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
    """Return a tensor as it is, ``logits`` of a mapping or an object, and the first of a tuple or list.

    Raises:
        ModelError: There are none.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, tuple | list) and outputs:
        logits = outputs[0]
    if isinstance(logits, torch.Tensor):
        return logits
    got = type(outputs).__name__
    if isinstance(outputs, Mapping):
        got += f" with {', '.join(map(str, outputs)) or 'nothing'}"
    expected = "a tensor of logits as output, a mapping or an object with logits, or a tuple whose first is that"
    raise ModelError("model", expected, got)
