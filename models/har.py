"""Networks for windows of motion sensors (UCI HAR: 9 channels, 128 readings at 50 Hz, 6 activities)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from sepal.errors import ModelError

_LEAST_LENGTH = 36  # (36 - 4) // 4 = 8; (8 - 4) // 4 = 1


class HarCnn(nn.Module):
    """A small one-dimensional CNN of ours; the papers specify none. Input (9, 128), 6 classes: 36,806 parameters.

    conv 32 (5) → ReLU → pool 4 → conv 64 (5) → ReLU → pool 4 → fc 64 → ReLU → logits; 128 → 31 → 6 readings.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, *, batch_norm: bool = False) -> None:
        """Set up the layers.

        Args:
            input_shape: (channels, length) of one series.
            classes: Number of logits.
            batch_norm: Whether each convolution is followed by batch normalisation. The convolutions keep their biases.

        Raises:
            ModelError: The data is no series, or too short for two convolutions and poolings.
        """
        super().__init__()
        if len(input_shape) != 2 or input_shape[1] < _LEAST_LENGTH:
            expected = f"series (channels, length of at least {_LEAST_LENGTH}) for HarCnn"
            raise ModelError("model", expected, f"data of shape {input_shape}")
        channels, length = input_shape
        self.conv1 = nn.Conv1d(channels, 32, 5)
        self.norm1 = nn.BatchNorm1d(32) if batch_norm else nn.Identity()
        self.conv2 = nn.Conv1d(32, 64, 5)
        self.norm2 = nn.BatchNorm1d(64) if batch_norm else nn.Identity()
        self.fc1 = nn.Linear(64 * (((length - 4) // 4 - 4) // 4), 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Map series, float32 (batch, channels, length), to logits, float32 (batch, classes)."""
        x = F.max_pool1d(F.relu(self.norm1(self.conv1(series))), 4)
        x = F.max_pool1d(F.relu(self.norm2(self.conv2(x))), 4).flatten(1)
        logits: torch.Tensor = self.fc2(F.relu(self.fc1(x)))
        return logits


class HarCnnBn(HarCnn):
    """``HarCnn`` with batch normalisation after each convolution. Input (9, 128), 6 classes: 36,998 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, batch_norm=True)


class HarMlp(nn.Module):
    """One hidden layer of 128 units on the flat window. Input (9, 128), 6 classes: 148,358 parameters.

    DM-PFL (appendix A.1.5) uses a "DNN" on HAR whose sizes it does not give; this one is ours.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(input_shape) > 2:
            expected = "series (channels, length) or features (count,) for HarMlp"
            raise ModelError("model", expected, f"data of shape {input_shape}")
        self.fc1 = nn.Linear(math.prod(input_shape), 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Map series, float32 (batch, channels, length) or (batch, count), to logits, float32 (batch, classes)."""
        logits: torch.Tensor = self.fc2(F.relu(self.fc1(series.flatten(1))))
        return logits
