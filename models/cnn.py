"""Convolutional networks of two convolutions: convolution, ReLU, 2×2 max pooling, twice; then linear layers.

Some have batch normalisation between convolution and ReLU.

The papers define each network for one kind of image. Here images may have other sizes and channels, and the first
convolution and the first linear layer are adapted to them. Parameter counts are for the stated input.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from sepal.errors import ModelError

_MOST_CHANNELS = 16  # more in the first place are a sign of an image with its channels last


def check_image(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise a ``ModelError`` where the data is not such an image."""
    if len(input_shape) != 3 or input_shape[0] > _MOST_CHANNELS:
        raise ModelError("model", f"images (channels, height, width) for {model}", f"data of shape {input_shape}")
    return input_shape[0], input_shape[1], input_shape[2]


class TwoConv(nn.Module):
    """conv1 (→ norm1) → ReLU → pool → conv2 (→ norm2) → ReLU → pool → fc1 → ReLU → … → logits."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        channels: tuple[int, int],
        hidden: tuple[int, ...],
        kernel: int = 5,
        padding: int = 0,
        batch_norm: bool = False,
    ) -> None:
        """Set up the layers.

        Args:
            input_shape: (channels, height, width) of one image.
            classes: Number of logits.
            channels: Output channels of the two convolutions.
            hidden: Units of the linear layers before the last.
            kernel: Side of both kernels, pixels.
            padding: Zeros on each side of both convolutions' inputs, pixels.
            batch_norm: Whether each convolution is followed by batch normalisation. The convolutions keep their biases.

        Raises:
            ModelError: The data is not an image, or too small for two convolutions and poolings.
        """
        super().__init__()
        first, *sides = check_image(type(self).__name__, input_shape)
        for _ in range(2):
            sides = [(side + 2 * padding - kernel + 1) // 2 for side in sides]
        if min(sides) < 1:
            least = 2 * (2 + kernel - 1 - 2 * padding) + kernel - 1 - 2 * padding
            expected = f"images of at least {least} × {least} for {type(self).__name__}"
            raise ModelError("model", expected, f"{input_shape[1]} × {input_shape[2]}")
        self.conv1 = nn.Conv2d(first, channels[0], kernel, padding=padding)
        self.norm1 = nn.BatchNorm2d(channels[0]) if batch_norm else nn.Identity()
        self.conv2 = nn.Conv2d(channels[0], channels[1], kernel, padding=padding)
        self.norm2 = nn.BatchNorm2d(channels[1]) if batch_norm else nn.Identity()
        units = (channels[1] * sides[0] * sides[1], *hidden, classes)
        self.depth = len(units) - 1
        for number in range(1, self.depth + 1):
            self.add_module(f"fc{number}", nn.Linear(units[number - 1], units[number]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images, float32 (batch, channels, height, width), to logits, float32 (batch, classes)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2).flatten(1)
        for number in range(1, self.depth):
            x = F.relu(self.get_submodule(f"fc{number}")(x))
        logits: torch.Tensor = self.get_submodule(f"fc{self.depth}")(x)
        return logits


class DigitsCnn(TwoConv):
    """Our small network for scikit-learn's digits. Input (1, 8, 8), 10 classes: 9,258 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(16, 32), hidden=(32,), kernel=3, padding=1)


class DigitsCnnBn(TwoConv):
    """``DigitsCnn`` with batch normalisation after each convolution. Input (1, 8, 8), 10 classes: 9,354 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(16, 32), hidden=(32,), kernel=3, padding=1, batch_norm=True)


class Cnn2(TwoConv):
    """FedPSE's two-convolution network for MNIST and Fashion-MNIST. Input (1, 28, 28), 10 classes: 582,026 parameters.

    The paper (appendix C.2) names it ConvNet2 and gives no sizes. Ours are those of McMahan et al. 2017 (5×5, 32 and
    64 channels, 512 units) without padding: 28 → 24 → 12 → 8 → 4.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(32, 64), hidden=(512,))


class Cnn2Small(TwoConv):
    """Our smaller ``Cnn2`` for quick runs. Input (1, 28, 28), 10 classes: 108,618 parameters.

    3×3 kernels, 16 and 32 channels, 128 units: 28 → 26 → 13 → 11 → 5.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(16, 32), hidden=(128,), kernel=3)


class MnistCnn(TwoConv):
    """Sub-FedAvg's network for MNIST and EMNIST, without its norms. Input (1, 28, 28), 10 classes: 21,840 parameters.

    Paper, section 4: 10 and 20 channels, 50 units, batch normalisation, 30,900 parameters (that is 32 × 32 images).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(10, 20), hidden=(50,))


class MnistCnnBn(TwoConv):
    """``MnistCnn`` with batch normalisation, as in the paper. Input (1, 28, 28), 10 classes: 21,900 parameters.

    With 32 × 32 images it has the paper's 30,900, so its convolutions have biases there, too.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(10, 20), hidden=(50,), batch_norm=True)


class CnnEmnist(TwoConv):
    """pFedGate's network for EMNIST and FEMNIST. Input (1, 28, 28), 62 classes: 2,278,334 parameters.

    Paper, appendix E: 2,171,786, which is the count with 10 classes.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(32, 64), hidden=(2048,))


class CnnCifar100(TwoConv):
    """pFedGate's network for CIFAR-100 (appendix E). Input (3, 32, 32), 100 classes: 3,537,444 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(32, 64), hidden=(2048,))


class CnnCifar100Pa3dfl(TwoConv):
    """Pa3dFL's network for CIFAR-100 (table 4). Input (3, 32, 32), 100 classes: 815,332 parameters.

    Table 2 counts it with 10 classes: 797,962.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(64, 64), hidden=(384, 192))


class CnnFmnistPa3dfl(TwoConv):
    """Pa3dFL's network for Fashion-MNIST (table 4). Input (1, 28, 28), 10 classes: 1,725,194 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(32, 64), hidden=(512, 128), padding=2)
