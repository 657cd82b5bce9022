"""The batches of a pass over a client's examples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn


def shuffled(examples: int, size: int, smallest: int, rng: np.random.Generator) -> Sequence[torch.Tensor]:
    """Return the rows of each batch, int64, in random order: ⌈examples / size⌉ batches of sizes that differ by ≤ 1.

    Batches have equal sizes because a short last batch (2 of 130 examples at batch size 16) has a much noisier gradient
    at the same learning rate, and would be the last step of the round.

    Args:
        examples: Number of examples.
        size: Largest batch size.
        smallest: Minimum batch size; there are fewer batches if necessary, and none if there are fewer examples.
        rng: Determines the order.
    """
    if examples < smallest:
        return ()
    count = min(math.ceil(examples / size), examples // smallest)
    return torch.tensor_split(torch.from_numpy(rng.permutation(examples)), count)


def smallest_batch(module: nn.Module) -> int:
    """Return 2 for a module with batch normalisation, or the module's own ``least_batch``; 1 for any other."""
    norms = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    return max(2 if norms else 1, int(getattr(module, "least_batch", 1)))
