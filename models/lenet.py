"""LeNets as the field uses them on CIFAR: ReLU and max pooling in place of tanh and averaging."""

from __future__ import annotations

from sepal.models.cnn import TwoConv


class Lenet5(TwoConv):
    """LeNet-5 (LeCun et al. 1998) of Sub-FedAvg, section 4. Input (3, 32, 32), 10 classes: 62,006 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(6, 16), hidden=(120, 84))


class Lenet5Bn(TwoConv):
    """LeNet-5 with batch normalisation after each convolution. Input (3, 32, 32), 10 classes: 62,050 parameters.

    The network with which Sub-FedAvg (section 4) prunes channels.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(6, 16), hidden=(120, 84), batch_norm=True)


class LenetCifar10(TwoConv):
    """pFedGate's wider LeNet for CIFAR-10 (appendix E). Input (3, 32, 32), 10 classes: 256,830 parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes, channels=(32, 64), hidden=(120, 84))
