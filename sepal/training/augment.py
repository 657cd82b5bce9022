"""Random changes of a batch's inputs before a training step: the run key ``augment``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch.nn import functional

from sepal.errors import ConfigError
from sepal.user_modules import described, load

Augment: TypeAlias = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]
CROP_FLIP = "crop-flip"
PADDING = 4


def crop_flip(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return images (n, C, H, W), each shifted by up to 4 pixels along both axes, half of them mirrored.

    Pixels from outside are 0, the mean of data that is normalised. He et al., CVPR 2016, section 4.2, where they are
    black.
    """
    count, _, height, width = x.shape
    top, first_column = (rng.integers(0, 2 * PADDING + 1, (count, 1)) for _ in range(2))
    rows, columns = top + np.arange(height), first_column + np.arange(width)
    columns = np.where(rng.random((count, 1)) < 0.5, columns[:, ::-1], columns)
    down, across = torch.from_numpy(rows).to(x.device), torch.from_numpy(columns).to(x.device)
    number = torch.arange(count, device=x.device)[:, None, None]
    padded = functional.pad(x, (PADDING,) * 4).movedim(1, -1)
    return padded[number, down[:, :, None], across[:, None, :]].movedim(-1, 1).contiguous()


def augmentation(target: str, examples: torch.Tensor) -> Augment | None:
    """Return the function that the key ``augment`` names; None if it is empty.

    Args:
        target: ``crop-flip``, or ``package.module:function`` of (inputs (n, …), NumPy's generator) → inputs. All that
            is random must come from the generator, or replays differ.
        examples: Inputs on which a user's function is tried, (n, …).

    Raises:
        ConfigError: It cannot be imported, fails, or returns another shape or type.
    """
    if not target or target == CROP_FLIP:
        return crop_flip if target else None
    function: Augment = load("augment", target, ConfigError)
    expected = f"{target}(x, rng) to return a tensor like x, {examples.dtype} {tuple(examples.shape)}"
    try:
        augmented = function(examples.clone(), np.random.Generator(np.random.PCG64(0)))
    except Exception as error:
        raise ConfigError("augment", expected, described(error)) from error
    if not isinstance(augmented, torch.Tensor):
        raise ConfigError("augment", expected, type(augmented).__name__)
    if (augmented.shape, augmented.dtype, augmented.device) != (examples.shape, examples.dtype, examples.device):
        raise ConfigError("augment", expected, f"{augmented.dtype} {tuple(augmented.shape)} on {augmented.device}")
    return function
