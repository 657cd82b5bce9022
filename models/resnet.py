"""ResNet18 (He et al. 2016) with group normalisation (Wu & He 2018), for small images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from sepal.models.cnn import check_image

_GROUPS = 32  # Wu & He's default


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut.append(nn.Conv2d(before, after, 1, stride=stride, bias=False))
            self.shortcut.append(nn.GroupNorm(_GROUPS, after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 (batch, before, height, width) to float32 (batch, after, height/stride, width/stride)."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class Resnet18Gn(nn.Module):
    """ResNet18, stem of one 3×3 convolution, GroupNorm of 32. Input (3, 32, 32), 10 classes: 11,173,962 parameters.

    Always trained from scratch. FedPSE (appendix C.2) starts from ImageNet weights with batch normalisation; Pa3dFL
    (table 4) has a 7×7 convolution of stride 2 as its stem. Images may have any size: the last step averages each map.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, _, _ = check_image(type(self).__name__, input_shape)
        self.stem = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, 64)
        plan = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(
                Block(before if number == 0 else after, after, stride if number == 0 else 1)
                for before, after, stride in plan
                for number in range(2)
            )
        )
        self.fc = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images, float32 (batch, channels, height, width), to logits, float32 (batch, classes)."""
        x = self.blocks(F.relu(self.norm(self.stem(images))))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits
